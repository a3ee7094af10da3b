"""When is an incident worse than its agent can know? Judges the open incidents of one node by the node's history.

A fault that comes back after its remedy was carried out asks for the next one: reset, reboot (a link: at once), another
part. Agents keep that ladder too (agent/nvcre_agent/incidents/escalation.py), in the outbox: it is lost where a reboot
makes the disk anew, and NodeHealth is not. A conditional fault that comes back often enough is a fault. The judged
incidents are what NodeHealth shows and what Jobs and verdicts read, so that all of them agree. What opened in a
maintenance accuses nobody. Errors of applications: core/application_repeats.py; links: core/link_faults.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
from nvcre_protos.vocabulary import HARDWARE, Blame, ComponentKind, FaultClass, IncidentKind, RecoveredBy

from nvcre_coordinator.core.incidents import Component, Incident
from nvcre_coordinator.core.link_faults import far_end

REMEDY_WINDOW = timedelta(days=3)  # a remedy older than this has held (agent/nvcre_agent/incidents/escalation.yaml)
CONDITIONAL_WINDOW = timedelta(hours=24)
CONDITIONAL_REPEATS = 3
_RUNGS = {FaultClass.NEEDS_RESET: 1, FaultClass.NEEDS_REBOOT: 2, FaultClass.FATAL_HARDWARE: 3}
_PARTS = frozenset({ComponentKind.GPU, ComponentKind.NVLINK})
_REMEDIES = frozenset({RecoveredBy.RESET, RecoveredBy.REBOOT})
_BUS_LOSS = frozenset({"gpu_lost", "gpu_missing"})
_Fault = tuple[tuple[str, int, str], Component | None]
"""Which fault it is, and of what."""


def is_fault(incident: Incident) -> bool:
    """Does this incident, judged, make its node Faulty and count against it in a Job?"""
    return incident.blame is Blame.YES and _accusable(incident)


def is_conditional(incident: Incident) -> bool:
    return incident.blame is Blame.CONDITIONAL and _accusable(incident)


def _accusable(incident: Incident) -> bool:
    return incident.fault_class in HARDWARE and not incident.injected and not incident.during_maintenance


def judged(open_now: Sequence[Incident], closed: Sequence[Incident]) -> tuple[Incident, ...]:
    """The open incidents as the history of their node makes them; nothing is added or left out."""
    times: dict[_Fault, list[datetime]] = {}
    for incident in (*open_now, *closed):
        if _accusable(incident) and incident.last_seen is not None:
            times.setdefault(_fault(incident), []).append(incident.last_seen)
    return tuple(_judged(incident, times, closed) for incident in open_now)


def _judged(incident: Incident, times: Mapping[_Fault, Sequence[datetime]], closed: Sequence[Incident]) -> Incident:
    if is_fault(incident):
        return _after_remedy(incident, closed)
    if is_conditional(incident) and not far_end(incident):
        return _often(incident, times.get(_fault(incident), ()))
    return incident


def _after_remedy(incident: Incident, closed: Iterable[Incident]) -> Incident:
    component = incident.component
    if component is None or component.kind not in _PARTS:
        return incident
    before = [earlier for earlier in closed if _came_back(earlier, incident)]
    highest = max((_RUNGS.get(earlier.fault_class, 0) for earlier in before), default=0)
    if not highest or _RUNGS.get(incident.fault_class, 0) > highest:
        return incident  # it never came before, or its agent has gone up itself
    why = f"came back after a {before[0].recovered_by.lower()}"
    if highest == _RUNGS[FaultClass.NEEDS_RESET] and component.kind is ComponentKind.GPU:
        return msgspec.structs.replace(
            incident,
            fault_class=FaultClass.NEEDS_REBOOT,
            remedy="drain and reboot the node: the reset did not last",
            escalation=why,
        )
    part = "cable and GPU" if component.kind is ComponentKind.NVLINK else "GPU"
    return msgspec.structs.replace(
        incident,
        fault_class=FaultClass.FATAL_HARDWARE,
        remedy=f"keep the node drained; inspect or replace {part}: the remedy did not last",
        escalation=why,
    )


def _came_back(earlier: Incident, incident: Incident) -> bool:
    ended, began = earlier.recovered_at, incident.first_seen
    return (
        ended is not None
        and began is not None
        and timedelta(0) < began - ended <= REMEDY_WINDOW
        and earlier.recovered_by in _REMEDIES
        and is_fault(earlier)
        and _family(earlier) == _family(incident)
        and _same_part(earlier.component, incident.component)
    )


def _often(incident: Incident, times: Sequence[datetime]) -> Incident:
    """Counted back from this incident's last time, so that the answer does not depend on when it is asked."""
    last = incident.last_seen
    near = 0 if last is None else sum(abs(last - at) <= CONDITIONAL_WINDOW for at in times)
    if near < CONDITIONAL_REPEATS:
        return incident
    return msgspec.structs.replace(incident, blame=Blame.YES, escalation=f"seen {near} times on this part within 24 h")


def _fault(incident: Incident) -> _Fault:
    return _family(incident), incident.component


def _family(incident: Incident) -> tuple[str, int, str]:
    """What counts as the same fault: a GPU lost on the bus is one however it is found out."""
    if incident.kind is IncidentKind.BUS_DROP or incident.check in _BUS_LOSS:
        return IncidentKind.XID, 79, ""
    return incident.kind, incident.code, incident.check


def _same_part(one: Component | None, other: Component | None) -> bool:
    """The same piece of hardware: a new UUID in a slot is another GPU."""
    if one is None or other is None:
        return one is other
    if one.uuid and other.uuid:
        same_gpu = one.uuid == other.uuid
    else:
        same_gpu = bool(one.pci_bus_id) and one.pci_bus_id == other.pci_bus_id
    return same_gpu and one.kind is other.kind and (one.kind is ComponentKind.GPU or one.index == other.index)
