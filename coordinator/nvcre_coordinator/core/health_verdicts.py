"""Which incidents of a node count as its failure in a run?

Those that make the node Faulty (core/escalation.py: is_fault), whatever the circuit breaker holds back: blame Yes, not
injected, not of a maintenance, of a class that needs a reset, a reboot or a new part.  Conditional never counts alone;
application faults and unknown codes are shown and never blame (DESIGN 6.1).
"""

from __future__ import annotations

import msgspec
from nvcre_protos.vocabulary import ComponentKind, FaultClass, IncidentKind

from nvcre_coordinator.api.job import Component, Evidence, FailedNode, FailedNodeReason
from nvcre_coordinator.core.escalation import is_fault
from nvcre_coordinator.core.incidents import Component as IncidentComponent
from nvcre_coordinator.core.incidents import Incident, importance
from nvcre_coordinator.core.limits import EVIDENCE_ENTRIES, clip, clip_entry
from nvcre_coordinator.core.node_health import NodeHealth
from nvcre_coordinator.core.run_window import RunWindow


def concerns_all(incident: Incident) -> bool:
    """Can it hurt a process that uses no GPU?"""
    component = incident.component
    return component is None or component.kind in (ComponentKind.NODE, ComponentKind.NIC)


def blamed_incidents(health: NodeHealth, window: RunWindow) -> tuple[Incident, ...]:
    """Those that count and were open in the window, the worst first, then the earliest."""
    found = [
        incident
        for incident in (*health.open, *health.closed)
        if is_fault(incident) and window.covers(incident.first_seen, incident.recovered_at)
    ]
    return tuple(sorted(found, key=importance))


def late_incidents(health: NodeHealth, window: RunWindow) -> tuple[Incident, ...]:
    """Those that count but opened after the window closed: told by an Event, never blamed on the run."""
    return tuple(incident for incident in health.open if is_fault(incident) and window.too_late(incident.first_seen))


def spared_incidents(health: NodeHealth, window: RunWindow) -> tuple[Incident, ...]:
    """Those that would count, were they not of a maintenance: told by an Event, whether they last or have ended."""
    return tuple(
        incident
        for incident in (*health.open, *health.closed)
        if incident.during_maintenance
        and is_fault(msgspec.structs.replace(incident, during_maintenance=False))
        and window.covers(incident.first_seen, incident.recovered_at)
    )


def application_errors(health: NodeHealth, window: RunWindow, workload: str) -> tuple[Incident, ...]:
    """What hit the processes of this Job ("namespace/name"): told to it by an Event, and nobody is blamed."""
    return tuple(
        incident
        for incident in (*health.open, *health.closed)
        if incident.fault_class is FaultClass.APPLICATION
        and incident.workload.partition("#")[0] == workload
        and not incident.injected
        and window.covers(incident.first_seen, incident.recovered_at)
    )


def failed_node(node: str, incidents: tuple[Incident, ...]) -> FailedNode:
    """The entry of a node with at least one blamed incident: the worst gives component and message."""
    worst = incidents[0]
    text = f"{title(worst)} on {describe(worst.component)}"
    if worst.message:
        text = f"{text}: {worst.message}"
    if worst.escalation:
        text = f"{text.rstrip('.')}; {worst.escalation}"
    if worst.remedy:
        text = f"{text.rstrip('.')}. {worst.remedy[:1].upper()}{worst.remedy[1:]}"
    return clip_entry(
        FailedNode(
            name=node,
            reason=FailedNodeReason.HARDWARE_FAILURE_DETECTED,
            message=text,
            component=component_of(worst.component),
            evidence=tuple(evidence(incident) for incident in incidents[:EVIDENCE_ENTRIES]),
        )
    )


def evidence(incident: Incident) -> Evidence:
    """One line about an incident.  Only what does not change while the incident is updated, so that it is stable."""
    if incident.first_seen is None:
        raise ValueError(f"incident {incident.id} has no firstSeen")
    certainty = " (time from the boot clock)" if incident.time_uncertain else ""
    detail = f": {incident.message}" if incident.message else ""
    return Evidence(
        source=incident.sources[0].value if incident.sources else "agent",
        code=incident.code or None,
        message=clip(f"{title(incident)} on {describe(incident.component)}{detail}{certainty}", 256),
        time=incident.first_seen,
    )


def component_of(component: IncidentComponent | None) -> Component:
    if component is None:
        return Component(ComponentKind.NODE)
    return Component(component.kind, component.index, component.uuid or None, component.pci_bus_id or None)


def title(incident: Incident) -> str:
    """`Xid 79 (GPU_HAS_FALLEN_OFF_THE_BUS)`, or the check's name for a finding of a health check."""
    name = incident.mnemonic or incident.check
    if incident.kind in (IncidentKind.XID, IncidentKind.SXID):
        return f"{incident.kind.value} {incident.code}" + (f" ({name})" if name else "")
    return name or incident.kind.value


def describe(component: IncidentComponent | None) -> str:
    """`GPU 5 (00000000:C8:00.0)`; `the node` where nothing narrower is known."""
    if component is None or component.kind is ComponentKind.NODE:
        return "the node"
    index = "" if component.index is None else f" {component.index}"
    place = component.pci_bus_id or component.uuid
    return f"{component.kind.value}{index}" + (f" ({place})" if place else "")
