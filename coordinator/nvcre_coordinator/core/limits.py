"""Sizes of what we write, because etcd refuses objects of more than about 1.5 MB (DESIGN 4).

`fit` brings a Job's status under its budget: evidence goes first, then the group-wide entries, which the caller writes
to a ConfigMap that the Attributed condition names.
"""

from __future__ import annotations

import msgspec

from nvcre_coordinator.api.job import Evidence, FailedNode, JobStatus

MESSAGE_BYTES = 512
EVIDENCE_MESSAGE_BYTES = 256
EVIDENCE_ENTRIES = 16
STATUS_BYTES = 512 * 1024
FAILED_NODES = 4096  # maxItems of the CRD
CONDITION_MESSAGE_BYTES = 4096
MEASUREMENT_MESSAGE_BYTES = 1024
TAIL_LINES = 800
TAIL_BYTES = 32 * 1024
KEPT_GROUP_ENTRIES = 16

_ELLIPSIS = "..."


def clip(text: str, limit: int) -> str:
    """At most `limit` bytes of UTF-8, never cut inside a character, the cut marked with three dots."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= limit:
        return encoded.decode()
    return encoded[: limit - len(_ELLIPSIS)].decode(errors="ignore") + _ELLIPSIS


def clip_evidence(evidence: Evidence) -> Evidence:
    return msgspec.structs.replace(
        evidence, source=clip(evidence.source, 63), message=clip(evidence.message, EVIDENCE_MESSAGE_BYTES)
    )


def clip_entry(entry: FailedNode) -> FailedNode:
    return msgspec.structs.replace(
        entry,
        message=clip(entry.message, MESSAGE_BYTES),
        evidence=tuple(clip_evidence(item) for item in entry.evidence[:EVIDENCE_ENTRIES]),
    )


def tail(text: str) -> str:
    """The end of a log: at most 800 lines and 32 KiB, the oldest part cut at a line."""
    kept = "\n".join(text.splitlines()[-TAIL_LINES:])
    encoded = kept.encode(errors="replace")
    if len(encoded) <= TAIL_BYTES:
        return encoded.decode()
    cut = encoded[-TAIL_BYTES:].decode(errors="ignore")
    _, newline, rest = cut.partition("\n")
    return rest if newline and rest else cut


def status_bytes(status: JobStatus) -> int:
    return len(msgspec.json.encode(status))


def fit(status: JobStatus) -> tuple[JobStatus, tuple[FailedNode, ...]]:
    """The status within its budget, and the entries that did not fit (only those without a component)."""
    entries = tuple(clip_entry(entry) for entry in status.failed_nodes)
    status = msgspec.structs.replace(status, failed_nodes=entries)
    if len(entries) <= FAILED_NODES and status_bytes(status) <= STATUS_BYTES:
        return status, ()
    entries = tuple(msgspec.structs.replace(entry, evidence=()) for entry in entries)
    status = msgspec.structs.replace(status, failed_nodes=entries)
    if len(entries) <= FAILED_NODES and status_bytes(status) <= STATUS_BYTES:
        return status, ()
    ordered = sorted(entries, key=lambda entry: (entry.component is None, entry.name, entry.reason))
    kept = len([entry for entry in ordered if entry.component is not None]) + KEPT_GROUP_ENTRIES
    while True:
        kept = min(kept, FAILED_NODES)
        named = tuple(sorted(ordered[:kept], key=lambda entry: (entry.name, entry.reason)))
        status = msgspec.structs.replace(status, failed_nodes=named)
        if kept <= 1 or status_bytes(status) <= STATUS_BYTES:
            return status, tuple(ordered[kept:])
        kept //= 2
