"""What the reports about one node amount to: its verdict, and whether the fleet as a whole is the better suspect.

`assess` turns open incidents, monitors and probes of one node into Healthy, Suspect, Faulty, Blind, Maintenance or
Unknown and a sentence for the person on call. Only hardware that may be blamed makes a node bad: injected incidents
never count; application, informational and unknown ones only warn. Blind is about our monitors, never about the GPU,
so a node with a known fault stays Faulty when its agent goes blind.

`Breaker` holds verdicts back when many nodes turn bad at once (DESIGN 6.2): then the cause is common to them.
`silent_nodes` says which lost agents are worth writing down. Writes nothing, reads no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec
from nvcre_protos.vocabulary import Blame, FaultClass

from nvcre_coordinator.core.incidents import Component, Incident, importance
from nvcre_coordinator.core.localisation import ProbeResult, ProbeVerdict

HARDWARE = frozenset({FaultClass.FATAL_HARDWARE, FaultClass.NEEDS_RESET, FaultClass.NEEDS_REBOOT})


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
    repeats: int = 3  # conditional incidents of one kind on one component ...
    repeat_window: timedelta = timedelta(hours=24)  # ... within this time count as a fault
    breaker_nodes: int = 5
    breaker_share: float = 0.20
    breaker_window: timedelta = timedelta(minutes=5)
    breaker_hold: timedelta = timedelta(minutes=30)
    silence: timedelta = timedelta(minutes=2)
    silent_share: float = 0.10


@dataclass(frozen=True, slots=True)
class Observed:
    """What is known of one node. `lost_since` is when its agent fell silent, if that is to be written down."""

    reported: bool = False  # has an agent ever sent a snapshot?
    open: tuple[Incident, ...] = ()
    closed: tuple[Incident, ...] = ()
    monitors: tuple[Monitor, ...] = ()
    probes: tuple[ProbeResult, ...] = ()  # newest first
    maintenance: bool = False
    lost_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Assessment:
    verdict: Verdict
    message: str
    look_again: timedelta | None = None  # when time alone may change it


def assess(seen: Observed, now: datetime, rules: Rules) -> Assessment:  # noqa: PLR0911 - one return a verdict
    """The verdict. In order: maintenance, faults, suspicions, blindness, health."""
    if seen.maintenance:
        return Assessment(Verdict.MAINTENANCE, "in maintenance; incidents are recorded and not judged")
    if faults := [incident for incident in seen.open if is_fault(incident) or _repeated(incident, seen, now, rules)]:
        return Assessment(Verdict.FAULTY, _sentence(faults, remedy=True))
    if conditional := [incident for incident in seen.open if _is_conditional(incident)]:
        return Assessment(Verdict.SUSPECT, _sentence(conditional, remedy=True))
    if slow := _slow_probe(seen.probes):
        return Assessment(Verdict.SUSPECT, f"{slow.kind} probe: {slow.comparison}")
    if held := _recently_recovered(seen.closed, now, rules):
        incident, left = held
        text = f"{incident.message or incident.kind} has recovered and is watched for {_minutes(rules.recovery_hold)}"
        return Assessment(Verdict.SUSPECT, text, left)
    if not seen.reported:
        return Assessment(Verdict.UNKNOWN, "no agent has reported yet")
    if seen.lost_since is not None:
        return Assessment(Verdict.BLIND, f"no agent since {seen.lost_since:%Y-%m-%dT%H:%M:%SZ}")
    if blind := [monitor for monitor in seen.monitors if monitor.state is MonitorState.BLIND]:
        why = "; ".join(f"{monitor.name}: {monitor.message or monitor.reason or 'blind'}" for monitor in blind)
        started_just_now = all(monitor.reason == STARTING for monitor in blind)
        return Assessment(Verdict.UNKNOWN if started_just_now else Verdict.BLIND, why)
    if warnings := [incident for incident in seen.open if not incident.injected]:
        return Assessment(Verdict.HEALTHY, f"no hardware fault; {len(warnings)} warning(s): {_sentence(warnings)}")
    return Assessment(Verdict.HEALTHY, "no open incident")


def is_fault(incident: Incident) -> bool:
    """Does this incident alone make its node Faulty?"""
    return incident.blame is Blame.YES and incident.fault_class in HARDWARE and not incident.injected


def _is_conditional(incident: Incident) -> bool:
    return incident.blame is Blame.CONDITIONAL and incident.fault_class in HARDWARE and not incident.injected


def _repeated(incident: Incident, seen: Observed, now: datetime, rules: Rules) -> bool:
    """Escalation: a conditional incident that came back on the same component often enough."""
    if not _is_conditional(incident):
        return False
    same = [
        other
        for other in (*seen.open, *seen.closed)
        if _is_conditional(other)
        and (other.kind, other.code, other.component) == (incident.kind, incident.code, incident.component)
        and other.last_seen is not None
        and now - other.last_seen <= rules.repeat_window
    ]
    return len(same) >= rules.repeats


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


def _recently_recovered(closed: Sequence[Incident], now: datetime, rules: Rules) -> tuple[Incident, timedelta] | None:
    for incident in closed:
        if not is_fault(incident) or incident.recovered_at is None:
            continue
        left = incident.recovered_at + rules.recovery_hold - now
        if left > timedelta(0):
            return incident, left
    return None


def _sentence(incidents: Sequence[Incident], *, remedy: bool = False) -> str:
    first = min(incidents, key=importance)
    code = f" {first.code}" if first.code else ""
    where = f" on {component_text(first.component)}" if first.component is not None else ""
    text = f"{first.check or first.kind}{code}{where}: {first.message or first.mnemonic or 'no message'}"
    more = f" (and {len(incidents) - 1} more)" if len(incidents) > 1 else ""
    if not remedy or not first.remedy:
        return f"{text}{more}"
    return f"{text.rstrip('.')}{more}. {first.remedy[:1].upper()}{first.remedy[1:]}"


def component_text(component: Component) -> str:
    number = f" {component.index}" if component.index is not None else ""
    name = component.uuid or component.pci_bus_id
    return f"{component.kind}{number}" + (f" ({name})" if name else "")


def _minutes(duration: timedelta) -> str:
    return f"{duration.total_seconds() / 60:g} min"


@dataclass(frozen=True, slots=True)
class Breaker:
    """Who turned bad lately, and until when verdicts are held back."""

    turned: tuple[tuple[datetime, str], ...] = ()
    open_until: datetime | None = None

    def is_open(self, now: datetime) -> bool:
        return self.open_until is not None and now < self.open_until

    def turning_bad(self, node: str, now: datetime, *, fleet_size: int, rules: Rules) -> Breaker:
        """With one more node that would turn Faulty now. Ask `is_open` of the result before writing it down.

        A node counts once in the window: it is asked about again with every report.
        """
        recent = tuple((at, name) for at, name in self.turned if now - at <= rules.breaker_window)
        if any(name == node for _, name in recent):
            return Breaker(recent, self.open_until)
        recent = (*recent, (now, node))
        trips = len(recent) >= max(rules.breaker_nodes, rules.breaker_share * fleet_size)
        return Breaker(recent, now + rules.breaker_hold if trips else self.open_until)

    def sentence(self, fleet_size: int, rules: Rules) -> str:
        return (
            f"{len(self.turned)} of {fleet_size} nodes turned bad within {_minutes(rules.breaker_window)}:"
            " verdicts are held back, look for a common cause"
        )


def silent_nodes(lost_since: Mapping[str, datetime], now: datetime, *, fleet_size: int, rules: Rules) -> set[str]:
    """Nodes whose silence is to be written down: long enough, and not so many at once that we are the likelier cause.

    One silent node is always written: a tenth of a small fleet is less than one.
    """
    silent = {node for node, since in lost_since.items() if now - since >= rules.silence}
    return set() if len(silent) > max(1.0, rules.silent_share * fleet_size) else silent
