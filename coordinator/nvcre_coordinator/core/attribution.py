"""Which nodes does a failed run name, and with what evidence?

In this order (DESIGN 6.5): hardware evidence already recorded is the answer; else a node that died without a word; else
the first crashing rank(s); else the host that a launcher's log names; else the rank(s) that stopped first; else the
whole group, and the message says that it could not be narrowed.  Pure: who observes pods, agents and Leases is
controllers/job_observation.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from nvcre_protos.vocabulary import ComponentKind

from nvcre_coordinator.api.conditions import Reason
from nvcre_coordinator.api.job import Component, Evidence, FailedNode, FailedNodeReason
from nvcre_coordinator.core.clock_offset import ASSUMED, ClockOffset
from nvcre_coordinator.core.first_exit import OOM_KILLED, Crash, first_crashes
from nvcre_coordinator.core.last_steps import Laggard, LogEnd, Standing, stopped_first
from nvcre_coordinator.core.limits import clip_entry
from nvcre_coordinator.core.pods import PodRecord, last_attempt

_DO_NOT_DRAIN = "The node is not accused: look into the program's log (status.failureLog)"
LEASE_SILENT = timedelta(seconds=20)
"""A kubelet renews its node Lease every 10 s (https://kubernetes.io/docs/concepts/architecture/leases/)."""


class AgentState(StrEnum):
    CONNECTED = "connected"
    SILENT = "silent"  # the node has an agent, but no stream
    ABSENT = "absent"  # no agent was ever seen on the node


@dataclass(frozen=True, slots=True)
class LeaseWatch:
    """A node Lease as it was looked at after the end of a run; `renewed_at` is the node's own clock and only a name.

    Whether it is renewed is seen by its changing: a node whose clock is wrong is not dead.
    """

    renewed_at: datetime
    first_look: datetime
    last_look: datetime
    renewed: bool = False

    def seen(self, renewed_at: datetime, now: datetime) -> LeaseWatch:
        return LeaseWatch(renewed_at, self.first_look, now, self.renewed or renewed_at != self.renewed_at)

    def silent(self) -> bool | None:
        """None while it was not watched for long enough."""
        if self.renewed:
            return False
        return True if self.last_look - self.first_look >= LEASE_SILENT else None


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of a node of the run besides its incidents."""

    agent: AgentState = AgentState.ABSENT
    confirmed_through: datetime | None = None
    boot_id_at_start: str = ""
    boot_id: str = ""
    lease: LeaseWatch | None = None
    blind: str = ""
    clock: ClockOffset = ASSUMED

    def rebooted(self) -> bool:
        return bool(self.boot_id_at_start and self.boot_id and self.boot_id != self.boot_id_at_start)

    def lease_silent(self) -> bool | None:
        """Is the kubelet silent?  None while it cannot be told."""
        return False if self.lease is None else self.lease.silent()


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that ended in failure, as far as it is known now."""

    pods: tuple[PodRecord, ...]
    end: datetime
    group: tuple[str, ...] = ()  # the nodes of the run
    nodes: Mapping[str, NodeFacts] = field(default_factory=dict)
    deleted: bool = False  # somebody deleted the workload
    log_ends: Mapping[str, LogEnd] = field(default_factory=dict)  # of a stalled run, by pod uid

    @property
    def clocks(self) -> dict[str, ClockOffset]:
        return {name: node.clock for name, node in self.nodes.items()}


@dataclass(frozen=True, slots=True)
class Attribution:
    """What to write: entries to add, the verdict of the Attributed condition, and the pod whose log is kept."""

    entries: tuple[FailedNode, ...]
    attributed: bool
    reason: Reason
    message: str
    culprit: PodRecord | None = None


def attribute_failure(run: FailedRun, existing: tuple[FailedNode, ...]) -> Attribution:
    pods = last_attempt(run.pods)
    crashes = first_crashes(pods, run.clocks)
    culprit = crashes[0].pod if crashes else _any_failed(pods)
    if existing:
        nodes = ", ".join(sorted({entry.name for entry in existing}))
        return Attribution((), True, Reason.NODES_NAMED, f"Hardware evidence explains the failure: {nodes}", culprit)
    standing = stopped_first(pods, run.log_ends, run.clocks)
    entries, why = _accused(run, pods, crashes, standing)
    if entries:
        names = ", ".join(sorted({entry.name for entry in entries}))
        return Attribution(entries, True, Reason.NODES_NAMED, f"{names} {why}", culprit)
    if run.deleted:
        return Attribution(
            (), True, Reason.NOTHING_TO_ATTRIBUTE, "The workload was deleted; no node failed before that", culprit
        )
    return _whole_group(run, culprit, standing.note)


def _accused(
    run: FailedRun, pods: tuple[PodRecord, ...], crashes: tuple[Crash, ...], standing: Standing
) -> tuple[tuple[FailedNode, ...], str]:
    """Who is to be named, and the end of a sentence that begins with their names."""
    dead = tuple(name for name in run.group if _died(run.nodes.get(name, NodeFacts())))
    if dead:
        return tuple(_dead_entry(name, run.nodes[name], run.end) for name in dead), "died during the run"
    if crashes:
        return _crash_entries(crashes), "ran the rank(s) that failed first"
    host = _named_by_launcher(pods)
    if host is not None:
        return (_launcher_entry(*host),), "is named by the launcher's log"
    return _stall_entries(standing.behind, run.end), "ran the rank(s) that stopped first"


def _died(node: NodeFacts) -> bool:
    """Stream and Lease silent, or another boot id than at the start; a silent agent alone proves nothing."""
    if node.rebooted():
        return True
    return node.agent is AgentState.SILENT and node.lease_silent() is True


def _dead_entry(name: str, node: NodeFacts, end: datetime) -> FailedNode:
    if node.rebooted():
        message = f"node rebooted during the run: boot id {node.boot_id_at_start} became {node.boot_id}"
        seen = end
    else:
        seen = node.lease.renewed_at if node.lease is not None else end
        message = f"node died without a word: its agent is silent and its Lease was last renewed at {seen.isoformat()}"
    return clip_entry(
        FailedNode(
            name=name,
            reason=FailedNodeReason.WORKLOAD_FAILED,
            message=f"{message}. Check power, console and BMC log before it is used again",
            component=Component(ComponentKind.NODE),
            evidence=(Evidence(source="node", message=message, time=seen),),
        )
    )


def _crash_entries(crashes: tuple[Crash, ...]) -> tuple[FailedNode, ...]:
    others = "" if len(crashes) == 1 else f"; one of {len(crashes)} ranks that failed at about the same time"
    return _application_errors(
        [
            (crash.pod.node, Evidence(source="workload", code=crash.code, message=crash.sentence, time=crash.time))
            for crash in crashes
        ],
        others,
    )


def _stall_entries(behind: tuple[Laggard, ...], end: datetime) -> tuple[FailedNode, ...]:
    others = "" if len(behind) == 1 else f"; one of {len(behind)} ranks that are behind"
    return _application_errors(
        [(late.pod.node, Evidence(source="workload", message=late.sentence, time=late.time or end)) for late in behind],
        others,
    )


def _application_errors(found: list[tuple[str, Evidence]], others: str) -> tuple[FailedNode, ...]:
    """One entry a node; several candidates are all named, none is picked."""
    by_node: dict[str, list[Evidence]] = {}
    for node, evidence in found:
        by_node.setdefault(node, []).append(evidence)
    unpicked = f"{others}, none is picked" if others else ""
    return tuple(
        _application_error(node, f"{evidence[0].message}{unpicked}", tuple(evidence))
        for node, evidence in sorted(by_node.items())
    )


def _application_error(node: str, what: str, evidence: tuple[Evidence, ...]) -> FailedNode:
    message = f"application error; no hardware evidence: {what}. {_DO_NOT_DRAIN}"
    return clip_entry(
        FailedNode(name=node, reason=FailedNodeReason.WORKLOAD_FAILED, message=message, evidence=evidence)
    )


def _any_failed(pods: tuple[PodRecord, ...]) -> PodRecord | None:
    """The pod whose log is shown where no first crash is known: out of memory before workers before the launcher."""

    def telling(pod: PodRecord) -> tuple[bool, bool, str, str]:
        oom = pod.exit is not None and pod.exit.reason == OOM_KILLED
        finished = pod.exit.finished_at.isoformat() if pod.exit is not None and pod.exit.finished_at else "~"
        return not oom, pod.exit is None, finished, pod.name

    return min((pod for pod in pods if pod.failed), key=telling, default=None)


def _named_by_launcher(pods: tuple[PodRecord, ...]) -> tuple[PodRecord, str, PodRecord] | None:
    """(launcher, host it names, pod that is this host); a pod's hostname is its name without the random end."""
    for launcher in pods:
        if not launcher.launcher or not launcher.failed or launcher.log is None or not launcher.log.named_host:
            continue
        host = launcher.log.named_host.split(".")[0]
        for pod in pods:
            if not pod.launcher and pod.node and (pod.name.rpartition("-")[0] == host or host in (pod.name, pod.node)):
                return launcher, host, pod
    return None


def _launcher_entry(launcher: PodRecord, host: str, pod: PodRecord) -> FailedNode:
    words = launcher.log.named_by if launcher.log is not None else ""
    message = f"the launcher's log names {host} first: {words}"
    time = launcher.exit.finished_at if launcher.exit is not None else None
    evidence = (Evidence(source="workload", message=message, time=time),) if time is not None else ()
    return _application_error(pod.node, message, evidence)


def _whole_group(run: FailedRun, culprit: PodRecord | None, standing: str) -> Attribution:
    """`standing` says why no rank could be told to have stopped first."""
    if not run.group:
        return Attribution(
            (),
            False,
            Reason.NOT_NARROWED,
            "No pod of the workload was ever placed on a node; none can be named",
            culprit,
        )
    silent = [name for name in run.group if run.nodes.get(name, NodeFacts()).agent is AgentState.SILENT]
    blind = [name for name in run.group if run.nodes.get(name, NodeFacts()).blind]
    notes = [standing] if standing and run.log_ends else []
    notes += [f"agent silent on {', '.join(silent)}"] if silent else []
    notes += [f"agent blind on {', '.join(blind)}"] if blind else []
    tail = f" ({'; '.join(notes)})" if notes else ""
    if len(run.group) == 1:
        message = f"the only node of the run; no hardware evidence and no first crash were found{tail}"
        verdict = True, Reason.NODES_NAMED, f"{run.group[0]} is the only node of the run{tail}"
    else:
        message = f"could not be narrowed: one of {len(run.group)} nodes of the run, without evidence against any{tail}"
        message += ". Drain none of them for it: look into the program's log (status.failureLog)"
        verdict = False, Reason.NOT_NARROWED, f"Could not be narrowed to fewer than {len(run.group)} nodes{tail}"
    entries = tuple(
        clip_entry(FailedNode(name=name, reason=FailedNodeReason.WORKLOAD_FAILED, message=message))
        for name in sorted(run.group)
    )
    return Attribution(entries, *verdict, culprit)
