"""What a DELETE does to one object: remove it, or mark it and wait for its finalizers or its kubelet.

Decides; it changes nothing.  A pod that runs on a node is removed by the kubelet with grace period 0, everything else
goes when its last finalizer is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from nvcre_kube.timestamps import rfc3339

from nvcre_local.apiserver.pod_defaults import DEFAULT_GRACE_SECONDS
from nvcre_local.apiserver.storage import Json

FOREGROUND_FINALIZER = "foregroundDeletion"


class Propagation(Enum):
    ORPHAN = "Orphan"
    BACKGROUND = "Background"
    FOREGROUND = "Foreground"


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """`grace_seconds` None is the object's own; `uid` and `resource_version` are preconditions, empty for none."""

    grace_seconds: int | None = None
    propagation: Propagation = Propagation.BACKGROUND
    uid: str = ""
    resource_version: str = ""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Remove:
    """The object goes now."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The object stays, as `body`, until somebody lets it go."""

    body: Json


@dataclass(frozen=True, slots=True)
class Leave:
    """It is being deleted already; nothing changes."""


def precondition_problem(body: Json, options: DeleteOptions) -> str:
    metadata = body["metadata"]
    if options.uid and options.uid != metadata["uid"]:
        return f"Precondition failed: UID in precondition: {options.uid}, UID in object meta: {metadata['uid']}"
    if options.resource_version and options.resource_version != metadata["resourceVersion"]:
        return (
            f"Precondition failed: ResourceVersion in precondition: {options.resource_version}, "
            f"ResourceVersion in object meta: {metadata['resourceVersion']}"
        )
    return ""


def decide(
    collection: str, body: Json, options: DeleteOptions, now: datetime, *, extra_finalizers: tuple[str, ...] = ()
) -> Remove | Mark | Leave:
    """`extra_finalizers`: what the server itself has to finish first (foreground deletion, instances of a CRD)."""
    metadata = body["metadata"]
    already = "deletionTimestamp" in metadata
    grace = _grace_seconds(collection, body, options)
    shorter = not already or (collection == "pods" and grace < metadata.get("deletionGracePeriodSeconds", 0))
    finalizers = list(dict.fromkeys((*metadata.get("finalizers", ()), *extra_finalizers)))
    if not (finalizers or grace or _holds_content(collection, body)):
        return Remove()
    if not shorter and finalizers == metadata.get("finalizers", []):
        return Leave()
    marked = {**metadata, "finalizers": finalizers} if finalizers else dict(metadata)
    if shorter:
        marked["deletionTimestamp"] = rfc3339(now + timedelta(seconds=grace))
        marked["deletionGracePeriodSeconds"] = grace
    if not already and "generation" in marked:
        marked["generation"] += 1
    after = {**body, "metadata": marked}
    if collection == "namespaces":
        after["status"] = {**body.get("status", {}), "phase": "Terminating"}
    return Mark(after)


def _holds_content(collection: str, body: Json) -> bool:
    """A namespace keeps a finalizer of its own, in its spec, until it is empty."""
    return collection == "namespaces" and bool((body.get("spec") or {}).get("finalizers"))


def may_go(collection: str, body: Json) -> bool:
    """Is a marked object free to be removed?"""
    metadata = body["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
        return False
    match collection:
        case "pods":
            return not metadata.get("deletionGracePeriodSeconds")
        case _:
            return not _holds_content(collection, body)


def _grace_seconds(collection: str, body: Json, options: DeleteOptions) -> int:
    if collection != "pods":
        return 0
    spec, status = body.get("spec") or {}, body.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return 0  # no kubelet has anything to stop
    if options.grace_seconds is not None:
        return max(0, options.grace_seconds)
    return int(spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS))
