"""What the server fills in of a Pod: the defaults of its spec, and how a new one begins.  Pure; changes in place."""

from __future__ import annotations

from collections.abc import Iterator

from nvcre_local.apiserver.storage import Json

DEFAULT_GRACE_SECONDS = 30
_COMPUTE = ("cpu", "memory")
"""The resources that a Pod's quality of service is judged by."""


def default(spec: Json) -> None:
    """As decoding does, of a new Pod and of an update."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("priority", 0)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("securityContext", {})
    if "serviceAccountName" in spec:
        spec["serviceAccount"] = spec["serviceAccountName"]
    for container in _containers(spec):
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        container.setdefault("imagePullPolicy", _pull_policy(str(container.get("image", ""))))
        resources = container.setdefault("resources", {})
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **resources.get("requests", {})}


def begin(pod: Json) -> None:
    """A new Pod: its account, and a status that is ours and no client's."""
    pod["spec"].setdefault("serviceAccountName", "default")
    pod["spec"]["serviceAccount"] = pod["spec"]["serviceAccountName"]
    pod["status"] = {"phase": "Pending", "qosClass": _quality_of_service(pod["spec"])}


def _containers(spec: Json) -> Iterator[Json]:
    yield from spec.get("containers", [])
    yield from spec.get("initContainers", [])


def _pull_policy(image: str) -> str:
    _, at, _ = image.partition("@")
    _, colon, tag = image.rpartition("/")[2].partition(":")
    return "IfNotPresent" if at or (colon and tag != "latest") else "Always"


def _quality_of_service(spec: Json) -> str:
    asked = []
    for container in _containers(spec):
        requests, limits = (container["resources"].get(part, {}) for part in ("requests", "limits"))
        asked += [(requests.get(name), limits.get(name)) for name in _COMPUTE]
    if all(pair == (None, None) for pair in asked):
        return "BestEffort"
    is_guaranteed = all(request is not None and request == limit for request, limit in asked)
    return "Guaranteed" if is_guaranteed else "Burstable"
