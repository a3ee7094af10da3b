"""Is it the GPU after all? An application's error that meets different applications on the same part of a GPU.

An Xid 13 on the same GPC and TPC, or another application error (31, a copy engine, ...) on the same GPU, from different
jobs within 24 h makes the GPU a suspect that needs a diagnosis; a contained memory error (94) does when it comes twice,
whoever ran (spec 2.1, 8.5 and 8.7). Jobs differ by namespace, or by image and command: a restart and a resubmission are
the same job. A job whose error is on several GPUs carries it around and speaks against itself, not against the GPU; an
incident whose job is unknown says nothing.

It rests on what NodeHealth keeps: the open incidents and the last closed ones, each with its `workload`
("namespace/name#fingerprint"). So the memory is bounded, survives the coordinator, and ends when a diagnosis passed
(a probe whose verdict is Pass).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, IncidentKind

from nvcre_coordinator.core.incidents import Component, Incident

WINDOW = timedelta(hours=24)
CONTAINED_ERROR = 94
SM_EXCEPTION = 13


@dataclass(frozen=True, slots=True)
class Suspicion:
    component: Component
    message: str
    until: datetime  # time alone ends it


def workload_identity(workload: str) -> str:
    """Namespace and fingerprint of "namespace/name#fingerprint": what makes two runs the same job."""
    namespace, _, rest = workload.partition("/")
    return f"{namespace}#{rest.rpartition('#')[2]}" if rest else ""


def application_repeats(
    incidents: Iterable[Incident], now: datetime, *, diagnosed_at: datetime | None = None
) -> tuple[Suspicion, ...]:
    """The GPUs to diagnose, by index. `diagnosed_at`: when the node's GPUs last passed a probe."""
    recent = [incident for incident in incidents if _is_recent(incident, now, diagnosed_at)]
    by_part: dict[tuple[str, int, str], list[Incident]] = {}
    for incident in recent:
        assert incident.component is not None
        unit = incident.unit if incident.code == SM_EXCEPTION else ""
        if incident.code != SM_EXCEPTION or unit:
            by_part.setdefault((_gpu(incident.component), incident.code, unit), []).append(incident)
    found = [
        suspicion
        for (_, code, unit), here in sorted(by_part.items())
        if (suspicion := _suspicion(code, unit, here, recent)) is not None
    ]
    return tuple(sorted(found, key=lambda each: (each.component.index is None, each.component.index or 0)))


def _is_recent(incident: Incident, now: datetime, diagnosed_at: datetime | None) -> bool:
    component, seen = incident.component, incident.last_seen
    return (
        incident.kind is IncidentKind.XID
        and incident.fault_class is FaultClass.APPLICATION
        and incident.blame is Blame.CONDITIONAL
        and not incident.injected
        and not incident.during_maintenance
        and component is not None
        and component.kind is ComponentKind.GPU
        and bool(_gpu(component))
        and seen is not None
        and now - seen <= WINDOW
        and (diagnosed_at is None or seen > diagnosed_at)
    )


def _suspicion(code: int, unit: str, here: Sequence[Incident], everywhere: Sequence[Incident]) -> Suspicion | None:
    where = f"Xid {code}" + (f" at {unit}" if unit else "")
    # The second newest telling leaves the window first, and the suspicion with it.
    times = sorted((incident.last_seen for incident in here if incident.last_seen is not None), reverse=True)
    component = here[0].component
    assert component is not None
    gpu = Component(  # whichever MIG instance it hit
        kind=component.kind, index=component.index, uuid=component.uuid, pci_bus_id=component.pci_bus_id
    )
    if code == CONTAINED_ERROR:
        repeats = sum(max(1, incident.count) for incident in here)
        if repeats < 2:
            return None
        what = f"{where} {repeats} times within 24 h"
    else:
        jobs = {
            workload_identity(incident.workload): incident.workload.partition("#")[0]
            for incident in here
            if incident.workload and not _carried_around(incident, everywhere)
        }
        if len(jobs) < 2:
            return None
        names = sorted(jobs.values())
        what = f"{where} from {len(jobs)} different jobs within 24 h ({', '.join(names[:3])})"
    message = f"suspect GPU{'' if gpu.index is None else f' {gpu.index}'}: {what}. Drain it and run dcgmi diag -r 3"
    return Suspicion(gpu, message, times[min(1, len(times) - 1)] + WINDOW)


def _carried_around(incident: Incident, everywhere: Sequence[Incident]) -> bool:
    """Does its job have the same error on another GPU too?"""
    mine = workload_identity(incident.workload)
    return any(
        other.code == incident.code
        and workload_identity(other.workload) == mine
        and other.component is not None
        and incident.component is not None
        and _gpu(other.component) != _gpu(incident.component)
        for other in everywhere
        if other.workload
    )


def _gpu(component: Component) -> str:
    return component.uuid or component.pci_bus_id
