"""Is it the GPU after all? An application's error that meets different applications on the same part of a GPU.

An Xid 13 on the same GPC and TPC, or another application error (31, a copy engine, ...) on the same GPU, from different
jobs within 24 h makes the GPU a suspect that needs a diagnosis (spec 2.1 and 8.5). Jobs differ by namespace, or by
image and command: a restart and a resubmission are the same job. A job whose error is on several GPUs carries it around
and speaks against itself, not against the GPU; an incident whose job is unknown says nothing.

It rests on what NodeHealth keeps: the open incidents and the last closed ones, each with its `workload`
("namespace/name#fingerprint"). So the memory is bounded, survives the coordinator, and ends when a diagnosis passed
(a probe whose verdict is Pass).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, IncidentKind

from nvcre_coordinator.core.incidents import Component, Incident

WINDOW = timedelta(hours=24)
SM_EXCEPTION = 13


@dataclass(frozen=True, slots=True)
class Suspicion:
    component: Component
    message: str
    until: datetime  # time alone ends it


def _identity(workload: str) -> str:
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
    gpus_of: dict[tuple[int, str], set[str]] = {}  # where each job met each error
    for incident in recent:
        if incident.workload and incident.component is not None:
            job = incident.code, _identity(incident.workload)
            gpus_of.setdefault(job, set()).add(_gpu(incident.component))
    found = [
        suspicion
        for (_, code, unit), here in sorted(by_part.items())
        if (suspicion := _suspicion(code, unit, here, gpus_of)) is not None
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


def _suspicion(
    code: int, unit: str, here: Sequence[Incident], gpus_of: Mapping[tuple[int, str], set[str]]
) -> Suspicion | None:
    last_of_job: dict[str, datetime] = {}
    names: set[str] = set()
    for incident in here:
        assert incident.last_seen is not None
        job = _identity(incident.workload)
        if incident.workload and len(gpus_of[code, job]) == 1:  # else the job carries its error around
            last_of_job[job] = max(last_of_job.get(job, incident.last_seen), incident.last_seen)
            names.add(incident.workload.partition("#")[0])
    component = here[0].component
    if len(last_of_job) < 2 or component is None:
        return None
    gpu = Component(  # whichever MIG instance it hit
        kind=component.kind, index=component.index, uuid=component.uuid, pci_bus_id=component.pci_bus_id
    )
    message = (
        f"suspect GPU{'' if gpu.index is None else f' {gpu.index}'}: Xid {code}{f' at {unit}' if unit else ''} from "
        f"{len(last_of_job)} different jobs within 24 h ({', '.join(sorted(names)[:3])}). "
        "Drain it and run dcgmi diag -r 3"
    )
    until = sorted(last_of_job.values())[-2] + WINDOW  # then one job is left
    return Suspicion(gpu, message, until)


def _gpu(component: Component) -> str:
    return component.uuid or component.pci_bus_id
