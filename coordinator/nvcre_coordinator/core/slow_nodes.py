"""Which nodes does a run that was too slow name?

Reads the judged probes of its nodes (core/localisation.py judges them): nodes that are Slow are named; where every node
passes alone, the fabric between them is suspected; where nothing could be compared, the group is named and the message
says what was not tested.  "Not tested" is never a pass and never slow (DESIGN 6.6).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from nvcre_protos.vocabulary import ComponentKind

from nvcre_coordinator.api.conditions import Reason
from nvcre_coordinator.api.job import Component, Evidence, FailedNode, FailedNodeReason
from nvcre_coordinator.core.attribution import Attribution
from nvcre_coordinator.core.health_verdicts import component_of, evidence
from nvcre_coordinator.core.limits import clip, clip_entry
from nvcre_coordinator.core.localisation import ProbeKind, ProbeResult, ProbeState, ProbeVerdict
from nvcre_coordinator.core.node_health import NodeHealth

ProbeResults = Mapping[str, tuple[ProbeResult, ...]]

_PART = {ProbeKind.NVLINK_ALL_REDUCE: ComponentKind.NVLINK, ProbeKind.NIC_LOOPBACK: ComponentKind.NIC}
_DO = {
    ProbeKind.NVLINK_ALL_REDUCE: "Cordon the node; look at nvidia-smi nvlink -s and -e, and at its clocks",
    ProbeKind.NIC_LOOPBACK: "Cordon the node; look at ibstat (state, rate), port error counters, PCIe width",
}
_NAME = {ProbeKind.NVLINK_ALL_REDUCE: "NVLink all-reduce", ProbeKind.NIC_LOOPBACK: "NIC loopback"}


def attribute_slowness(
    group: tuple[str, ...],
    results: ProbeResults,
    healths: Mapping[str, NodeHealth],
    violation: str,
    now: datetime,
    *,
    finished: bool,
) -> Attribution:
    """`finished` is False when the probes did not end in time: what they have said counts, the rest is not tested."""
    slow = {
        node: [result for result in found if result.verdict is ProbeVerdict.SLOW] for node, found in results.items()
    }
    entries = tuple(
        _slow_entry(node, found, healths.get(node), violation, now) for node, found in sorted(slow.items()) if found
    )
    if entries:
        names = ", ".join(entry.name for entry in entries)
        return Attribution(entries, True, Reason.NODES_NAMED, f"Probes found {names} slower than its peers")
    why = _why_not(group, results, finished=finished)
    message = f"{violation}. {why}"
    group_entries = tuple(
        clip_entry(
            FailedNode(
                name=node,
                reason=FailedNodeReason.THRESHOLD_VIOLATION,
                message=f"{why}. Drain none of them for it. {violation}",
            )
        )
        for node in sorted(group)
    )
    return Attribution(group_entries, False, Reason.NOT_NARROWED, message)


def _slow_entry(
    node: str, slow: list[ProbeResult], health: NodeHealth | None, violation: str, now: datetime
) -> FailedNode:
    first = slow[0]
    suspects = [
        incident
        for incident in (health.open if health is not None else ())  # the worst first
        if incident.component is not None and not incident.injected and not incident.during_maintenance
    ]
    suspect = suspects[0] if suspects else None
    facts = [
        Evidence(
            source="probe",
            message=f"{_NAME[result.kind]} probe: {result.bus_bandwidth_gbps} GB/s. {result.comparison}",
            time=result.finished_at or now,
        )
        for result in slow
    ]
    if suspect is not None and suspect.first_seen is not None:
        facts.append(evidence(suspect))
    return clip_entry(
        FailedNode(
            name=node,
            reason=FailedNodeReason.THRESHOLD_VIOLATION,
            message=(
                f"slow alone: {_NAME[first.kind]} {first.bus_bandwidth_gbps} GB/s. {first.comparison}. "
                f"{_DO[first.kind]}. {violation}"
            ),
            component=component_of(suspect.component) if suspect is not None else Component(_PART[first.kind]),
            evidence=tuple(facts),
        )
    )


def _why_not(group: tuple[str, ...], results: ProbeResults, *, finished: bool) -> str:
    flat = [(node, result) for node in group for result in results.get(node, ())]
    judged = {
        node
        for node, result in flat
        if result.kind is ProbeKind.NVLINK_ALL_REDUCE and result.verdict is ProbeVerdict.PASS
    }
    unable = [
        f"{node}'s {_NAME[result.kind]} ({result.comparison})"
        for node, result in flat
        if result.verdict is ProbeVerdict.CANNOT_COMPARE
    ]
    untested = [
        f"{node} ({_blocker(result)})"
        for node, result in flat
        if result.state is not ProbeState.MEASURED and result.kind is ProbeKind.NVLINK_ALL_REDUCE
    ]
    silent = [node for node in group if node not in results]
    if judged == set(group) and group:
        return "Could not be narrowed: every node passes alone, so the fabric between them is suspected"
    parts = ["Could not be narrowed"]
    if judged:
        parts.append(f"pass alone: {_few(sorted(judged))}")
    if untested or silent:
        parts.append(f"not tested: {_few(untested + silent)}")
    if unable:
        parts.append(f"cannot compare: {_few(unable)}")
    if not finished:
        parts.append("the probes did not end in time")
    return "; ".join(parts)


def _blocker(result: ProbeResult) -> str:
    return f"{result.reason or result.state.value}{': ' if result.message else ''}{clip(result.message, 120)}"


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
