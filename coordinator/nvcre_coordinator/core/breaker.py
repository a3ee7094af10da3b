"""When is the fleet as a whole the better suspect than its nodes? The circuit breaker, and how many may be silent.

`Breaker`: when at least 5 nodes and 20 % of the fleet turn bad within 5 minutes, the cause is common to them (DESIGN
6.2): verdicts are held back, also of the nodes that turned bad first, and one alarm is told. It stays open for as long
as that many are still held: a mass cordon half an hour late is one too. `silent_nodes` says which lost agents are worth
writing down. Writes nothing, reads no clock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import msgspec

from nvcre_coordinator.core.incidents import Incident
from nvcre_coordinator.core.node_verdict import Assessment, GpuVerdict, Rules, Verdict, minutes


@dataclass(frozen=True, slots=True)
class Breaker:
    """Who turned bad lately, and until when verdicts are held back."""

    turned: tuple[tuple[datetime, str], ...] = ()
    open_until: datetime | None = None

    def is_open(self, now: datetime) -> bool:
        return self.open_until is not None and now < self.open_until

    @property
    def caught(self) -> tuple[str, ...]:
        """The nodes that turned bad in the window, the earliest first."""
        return tuple(name for _, name in self.turned)

    def turning_bad(self, node: str, now: datetime, *, fleet_size: int, rules: Rules) -> Breaker:
        """With one more node that would turn Faulty now. Ask `is_open` of the result before writing it down.

        A node counts once in the window: it is asked about again with every report.
        """
        recent = tuple((at, name) for at, name in self.turned if now - at <= rules.breaker_window)
        if any(name == node for _, name in recent):
            return Breaker(recent, self.open_until)
        recent = (*recent, (now, node))
        trips = len(recent) >= _many(fleet_size, rules)
        return Breaker(recent, now + rules.breaker_hold if trips else self.open_until)

    def prolonged(self, still_held: int, now: datetime, *, fleet_size: int, rules: Rules) -> Breaker:
        """At the end of the hold: open again while as many nodes are bad as opened it."""
        if self.is_open(now) or still_held < _many(fleet_size, rules):
            return self
        return Breaker(self.turned, now + rules.breaker_hold)

    def sentence(self, held: int, fleet_size: int, rules: Rules) -> str:
        return (
            f"{held} of {fleet_size} nodes turned bad within {minutes(rules.breaker_window)}:"
            " verdicts are held back, look for a common cause"
        )


def held(
    assessment: Assessment, gpus: Sequence[GpuVerdict], *, why: str, wait: timedelta
) -> tuple[Assessment, tuple[GpuVerdict, ...]]:
    """What is written instead while a verdict is held back: suspect, with both sentences."""
    instead = replace(
        assessment, verdict=Verdict.SUSPECT, message=f"{why}. Here: {assessment.message}", look_again=wait
    )
    milder = (
        msgspec.structs.replace(gpu, verdict=Verdict.SUSPECT) if gpu.verdict is Verdict.FAULTY else gpu for gpu in gpus
    )
    return instead, tuple(milder)


HEAT = frozenset({"hw_slowdown", "temperature_margin"})
"""Checks whose findings are the room's trouble as often as the GPU's (agent/nvcre_agent/checks/clocks.py)."""


def told_of_heat(incidents: Iterable[Incident], now: datetime, rules: Rules) -> bool:
    """Did the node begin to slow its GPUs down lately?"""
    return any(
        incident.check in HEAT
        and not incident.injected
        and incident.first_seen is not None
        and now - incident.first_seen <= rules.breaker_window
        for incident in incidents
    )


def heat_sentence(nodes: int, fleet_size: int, rules: Rules) -> str:
    return (
        f"{nodes} of {fleet_size} nodes began to slow their GPUs down within {minutes(rules.breaker_window)}:"
        " look at cooling and power of the room, not at the nodes"
    )


def _many(fleet_size: int, rules: Rules) -> float:
    return max(rules.breaker_nodes, rules.breaker_share * fleet_size)


def silent_nodes(lost_since: Mapping[str, datetime], now: datetime, *, fleet_size: int, rules: Rules) -> set[str]:
    """Nodes whose silence is to be written down: long enough, and not so many at once that we are the likelier cause.

    One silent node is always written: a tenth of a small fleet is less than one. Those that have long been away
    hide nobody who falls silent now.
    """
    times = sorted(lost_since.values())
    most = max(1.0, rules.silent_share * fleet_size)

    def at_once(since: datetime) -> int:
        return bisect_right(times, since + rules.breaker_window) - bisect_left(times, since - rules.breaker_window)

    return {node for node, since in lost_since.items() if now - since >= rules.silence and at_once(since) <= most}
