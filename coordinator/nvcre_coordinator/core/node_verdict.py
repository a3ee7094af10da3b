"""What the reports about one node amount to: its verdict, and that of each of its GPUs.

`assess` turns judged incidents (core/escalation.py), monitors and probes of one node into Healthy, Suspect, Faulty,
Blind, Maintenance or Unknown and a sentence for the person on call; `assess_gpus` says the same of each GPU. Only
hardware that may be blamed makes a node bad: injected incidents never count; application, informational and unknown
ones only warn, until a pattern or a slow probe says more. Blind is about our monitors, never about the GPU, so a node
with a known fault stays Faulty when its agent goes blind, and says both. Writes nothing, reads no clock; the fleet as a
whole is core/breaker.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec
from nvcre_protos.vocabulary import ComponentKind, FaultClass, RecoveredBy

from nvcre_coordinator.core.application_repeats import Suspicion, application_repeats
from nvcre_coordinator.core.escalation import is_conditional, is_fault
from nvcre_coordinator.core.incidents import Component, Incident, importance
from nvcre_coordinator.core.link_faults import LinkEvent
from nvcre_coordinator.core.localisation import ProbeKind, ProbeResult, ProbeVerdict


class Verdict(StrEnum):
    HEALTHY = "Healthy"
    SUSPECT = "Suspect"
    FAULTY = "Faulty"
    BLIND = "Blind"
    MAINTENANCE = "Maintenance"
    UNKNOWN = "Unknown"


class MonitorState(StrEnum):
    WATCHING = "Watching"
    BLIND = "Blind"


STARTING = "Starting"
"""The reason of a monitor that has not had its first answer yet (agent/nvcre_agent/nvml/monitor.py)."""


class Monitor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of NodeHealth.status.monitors."""

    name: str
    state: MonitorState
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    recovery_hold: timedelta = timedelta(minutes=10)  # a fault that has just gone may be back
    missing_hold: timedelta = timedelta(days=3)  # as long as a remedy counts (core/escalation.py)
    breaker_nodes: int = 5
    breaker_share: float = 0.20
    breaker_window: timedelta = timedelta(minutes=5)
    breaker_hold: timedelta = timedelta(minutes=30)
    silence: timedelta = timedelta(minutes=2)
    silent_share: float = 0.10


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of NodeHealth.status.inventory.gpus."""

    index: int
    uuid: str = ""
    pci_bus_id: str = msgspec.field(name="pciBusId", default="")
    product: str = ""
    serial: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """What is known of one node. `lost_since` is when its agent fell silent, if that is to be written down."""

    reported: bool = False  # has an agent ever sent a snapshot?
    open: tuple[Incident, ...] = ()  # judged
    closed: tuple[Incident, ...] = ()
    monitors: tuple[Monitor, ...] = ()
    probes: tuple[ProbeResult, ...] = ()  # newest first
    gpus: tuple[Gpu, ...] = ()
    maintenance: bool = False
    lost_since: datetime | None = None
    link_event: LinkEvent | None = None  # a dead NVLink that other nodes saw too, where this one is only a witness

    @property
    def suspicious(self) -> tuple[Incident, ...]:
        """Conditional incidents that speak against this node, and not against the far end of a link."""
        return tuple(
            incident
            for incident in self.open
            if is_conditional(incident) and not (self.link_event is not None and self.link_event.covers(incident))
        )

    def patterns(self, now: datetime) -> tuple[Suspicion, ...]:
        passed = [
            probe.finished_at
            for probe in self.probes
            if probe.kind is ProbeKind.NVLINK_ALL_REDUCE and probe.verdict is ProbeVerdict.PASS and probe.finished_at
        ]
        return application_repeats((*self.open, *self.closed), now, diagnosed_at=max(passed, default=None))


@dataclass(frozen=True, slots=True)
class Assessment:
    verdict: Verdict
    message: str
    look_again: timedelta | None = None  # when time alone may change it
    fault_class: FaultClass | None = None  # of the worst incident behind Faulty or Suspect: what is to be done


def assess(seen: Observed, now: datetime, rules: Rules) -> Assessment:  # noqa: PLR0911 - one return a verdict
    """The verdict. In order: maintenance, faults, suspicions, blindness, health."""
    if seen.maintenance:
        return Assessment(Verdict.MAINTENANCE, "in maintenance; incidents are recorded and not judged")
    blind = _blindness(seen)
    if faults := [incident for incident in seen.open if is_fault(incident)]:
        text = _sentence(faults, remedy=True) + (f" Also blind: {blind}" if blind else "")
        return Assessment(Verdict.FAULTY, text, fault_class=_worst(faults).fault_class)
    if suspicious := seen.suspicious:
        text = _sentence(suspicious, remedy=True) + (f" Also blind: {blind}" if blind else "")
        return Assessment(Verdict.SUSPECT, text, fault_class=_worst(suspicious).fault_class)
    if patterns := seen.patterns(now):
        more = f" (and {len(patterns) - 1} more)" if len(patterns) > 1 else ""
        until = min(pattern.until for pattern in patterns)
        return Assessment(Verdict.SUSPECT, f"{patterns[0].message}{more}", max(until - now, timedelta(0)))
    warnings = [incident for incident in seen.open if not incident.injected]
    if slow := _slow_probe(seen.probes):
        why = f"; {_sentence(warnings)}" if warnings else ""
        return Assessment(Verdict.SUSPECT, f"{slow.kind} probe: {slow.comparison}{why}")
    if away := _stayed_away(seen, now, rules):
        incident, left = away
        assert incident.component is not None
        where = component_text(incident.component)
        text = f"{where} was lost and has not come back since the reboot; its agent has forgotten it"
        return Assessment(Verdict.SUSPECT, f"{text}. Look for the card with lspci", left, incident.fault_class)
    if held := recently_recovered(seen, now, rules):
        incident, left = held
        text = f"{incident.message or incident.kind} has recovered and is watched for {minutes(rules.recovery_hold)}"
        return Assessment(Verdict.SUSPECT, f"{text}, or until a probe passes", left)
    if not seen.reported:
        return Assessment(Verdict.UNKNOWN, "no agent has reported yet")
    if blind:
        return Assessment(Verdict.UNKNOWN if _starting(seen) else Verdict.BLIND, blind)
    if seen.link_event is not None:
        return Assessment(Verdict.HEALTHY, f"only a witness: {seen.link_event.sentence}")
    if warnings:
        count = f"{len(warnings)} warning{'' if len(warnings) == 1 else 's'}"
        return Assessment(Verdict.HEALTHY, f"no hardware fault; {count}: {_sentence(warnings)}")
    if seen.open:
        return Assessment(Verdict.HEALTHY, f"only a test injection, which accuses nobody: {_sentence(seen.open)}")
    return Assessment(Verdict.HEALTHY, "no open incident")


def _blindness(seen: Observed) -> str:
    """Why nothing is seen there; empty when something is."""
    if seen.lost_since is not None:
        return f"no agent since {seen.lost_since:%Y-%m-%dT%H:%M:%SZ}"
    blind = [monitor for monitor in seen.monitors if monitor.state is MonitorState.BLIND]
    return "; ".join(f"{monitor.name}: {monitor.message or monitor.reason or 'blind'}" for monitor in blind)


def _starting(seen: Observed) -> bool:
    blind = [monitor for monitor in seen.monitors if monitor.state is MonitorState.BLIND]
    return seen.lost_since is None and all(monitor.reason == STARTING for monitor in blind)


class GpuVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of NodeHealth.status.gpus."""

    index: int
    uuid: str = ""
    verdict: Verdict
    fault_class: FaultClass | None = msgspec.field(name="faultClass", default=None)
    message: str = ""


def assess_gpus(seen: Observed, now: datetime, rules: Rules) -> tuple[GpuVerdict, ...]:
    """Each GPU of the inventory. What is the node's, the fabric's or a NIC's is in the node's verdict alone."""
    patterns = seen.patterns(now)
    held = recently_recovered(seen, now, rules)
    suspicious = frozenset(incident.id for incident in seen.suspicious)
    return tuple(_assess_gpu(gpu, seen, suspicious, patterns, held[0] if held else None) for gpu in seen.gpus)


def _assess_gpu(
    gpu: Gpu, seen: Observed, suspicious: frozenset[str], patterns: Sequence[Suspicion], held: Incident | None
) -> GpuVerdict:
    def found(verdict: Verdict, message: str = "", fault_class: FaultClass | None = None) -> GpuVerdict:
        return GpuVerdict(index=gpu.index, uuid=gpu.uuid, verdict=verdict, fault_class=fault_class, message=message)

    here = [incident for incident in seen.open if _is_on(incident.component, gpu)]
    if seen.maintenance:
        return found(Verdict.MAINTENANCE)
    if faults := [incident for incident in here if is_fault(incident)]:
        return found(Verdict.FAULTY, _sentence(faults), _worst(faults).fault_class)
    if conditional := [incident for incident in here if incident.id in suspicious]:
        return found(Verdict.SUSPECT, _sentence(conditional), _worst(conditional).fault_class)
    if pattern := next((each for each in patterns if _is_on(each.component, gpu)), None):
        return found(Verdict.SUSPECT, pattern.message)
    if held is not None and _is_on(held.component, gpu):
        return found(Verdict.SUSPECT, f"{held.message or held.kind} has recovered and is watched")
    warnings = [incident for incident in here if not incident.injected]
    return found(Verdict.BLIND if _blindness(seen) else Verdict.HEALTHY, _sentence(warnings) if warnings else "")


def _is_on(component: Component | None, gpu: Gpu) -> bool:
    if component is None or component.kind not in (ComponentKind.GPU, ComponentKind.NVLINK):
        return False
    if component.uuid and gpu.uuid:
        return component.uuid == gpu.uuid
    if component.pci_bus_id and gpu.pci_bus_id:
        return component.pci_bus_id == gpu.pci_bus_id
    return component.kind is ComponentKind.GPU and component.index == gpu.index


def bad_gpus(gpus: Sequence[GpuVerdict]) -> str:
    """Their indices for a column: "3,5"; the UUID where a sound GPU has the index of one that is gone."""
    holders = Counter(gpu.index for gpu in gpus)
    bad = [gpu for gpu in gpus if gpu.verdict in (Verdict.FAULTY, Verdict.SUSPECT)]
    return ",".join(str(gpu.index) if holders[gpu.index] == 1 else gpu.uuid for gpu in bad)


def _slow_probe(probes: Sequence[ProbeResult]) -> ProbeResult | None:
    """A slow probe counts until a newer one of its kind has another answer; "not tested" is no answer."""
    judged: set[str] = set()
    for probe in probes:
        if probe.kind in judged or probe.verdict not in {ProbeVerdict.PASS, ProbeVerdict.SLOW}:
            continue
        judged.add(probe.kind)
        if probe.verdict is ProbeVerdict.SLOW:
            return probe
    return None


def recently_recovered(seen: Observed, now: datetime, rules: Rules) -> tuple[Incident, timedelta] | None:
    """A fault that is watched for a while after its end: until time is up, or a probe of the node has passed since.

    Nothing is watched of a GPU that is not there any more, nor where a person has said that it is healthy.
    """
    passed = [probe.started_at for probe in seen.probes if probe.verdict is ProbeVerdict.PASS and probe.started_at]
    for incident in seen.closed:
        ended = incident.recovered_at
        if not is_fault(incident) or ended is None or _is_gone(incident, seen.gpus):
            continue
        left = ended + rules.recovery_hold - now
        if left > timedelta(0) and not any(at >= ended for at in passed):
            return incident, left
    return None


def _stayed_away(seen: Observed, now: datetime, rules: Rules) -> tuple[Incident, timedelta] | None:
    """A faulty GPU whose end was a reboot, and that is not there after it: no cure.

    An agent that remembers the GPU says so itself; where a reboot makes the disk anew, only NodeHealth knows it.
    """
    if not seen.gpus or not all(gpu.pci_bus_id for gpu in seen.gpus):
        return None
    there = {gpu.uuid for gpu in seen.gpus} | {gpu.pci_bus_id for gpu in seen.gpus}
    for incident in seen.closed:
        part, ended = incident.component, incident.recovered_at
        if part is None or ended is None or incident.recovered_by != RecoveredBy.REBOOT or not is_fault(incident):
            continue
        left = ended + rules.missing_hold - now
        names = {part.uuid, part.pci_bus_id}
        if part.kind is ComponentKind.GPU and all(names) and names.isdisjoint(there) and left > timedelta(0):
            return incident, left
    return None


def _is_gone(incident: Incident, gpus: Sequence[Gpu]) -> bool:
    if incident.recovered_by in (RecoveredBy.REPLACED, RecoveredBy.SET_HEALTHY):
        return True
    uuid = incident.component.uuid if incident.component is not None else ""
    return bool(uuid and gpus) and all(gpu.uuid != uuid for gpu in gpus)


def _worst(incidents: Sequence[Incident]) -> Incident:
    return min(incidents, key=importance)


def _sentence(incidents: Sequence[Incident], *, remedy: bool = False) -> str:
    first = _worst(incidents)
    code = f" {first.code}" if first.code else ""
    where = f" on {component_text(first.component)}" if first.component is not None else ""
    text = f"{first.check or first.kind}{code}{where}: {first.message or first.mnemonic or 'no message'}"
    if first.escalation:
        text = f"{text.rstrip('.')}; {first.escalation}"
    more = f" (and {len(incidents) - 1} more)" if len(incidents) > 1 else ""
    if not remedy or not first.remedy:
        return f"{text}{more}"
    return f"{text.rstrip('.')}{more}. {first.remedy[:1].upper()}{first.remedy[1:]}"


def component_text(component: Component) -> str:
    number = f" {component.index}" if component.index is not None else ""
    instance = f", MIG instance {component.gpu_instance}" if component.gpu_instance is not None else ""
    name = component.uuid or component.pci_bus_id
    return f"{component.kind}{number}{instance}" + (f" ({name})" if name else "")


def minutes(duration: timedelta) -> str:
    return f"{duration.total_seconds() / 60:g} min"
