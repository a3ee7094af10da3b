"""What concerns many nodes at once: verdicts that the circuit breaker holds back, dead NVLinks, heat. One alarm each.

Remembers for the rules of core/breaker.py and core/link_faults.py which nodes did what lately; says whose verdict must
be looked at again. Lost with the leader, and built anew from what the streams of the next one tell.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from nvcre_coordinator.core.breaker import Breaker, heat_sentence, told_of_heat
from nvcre_coordinator.core.incidents import Incident
from nvcre_coordinator.core.link_faults import LinkEvent
from nvcre_coordinator.core.node_verdict import Rules, Verdict
from nvcre_coordinator.fleet.link_watch import LinkWatch

logger = logging.getLogger(__name__)


class Crowd:
    def __init__(
        self,
        *,
        rules: Rules,
        fleet_size: Callable[[], int],
        on_alarm: Callable[[str, str], None],
        on_held: Callable[[], None],
        look_again: Callable[[str], None],
    ) -> None:
        """`on_alarm(reason, sentence)`; `on_held` hears of every verdict that is held back."""
        self._rules = rules
        self._fleet_size = fleet_size
        self._on_alarm = on_alarm
        self._on_held = on_held
        self._look_again = look_again
        self.reset()

    def reset(self) -> None:
        self._breaker = Breaker()
        self._heat = Breaker()
        self._held: set[str] = set()  # nodes whose verdict the breaker holds back
        self._links = LinkWatch()

    def forget(self, node: str) -> None:
        self._held.discard(node)
        self._links.forget(node)

    def is_open(self, now: datetime) -> bool:
        return self._breaker.is_open(now)

    def witnessed(self, node: str, domain: str, open_now: Sequence[Incident], now: datetime) -> LinkEvent | None:
        """What the node has open; returns the event of a dead link that it is only a witness of."""
        for other in self._links.told(node, domain, open_now):
            self._look_again(other)
        event = self._links.event(node)
        if event is not None and self._links.is_new(event, now):
            self._alarm("NVLinkEvent", event.sentence)
        return event

    def heat(self, node: str, open_now: Sequence[Incident], now: datetime) -> None:
        """A row of racks that slows its GPUs down is the room's trouble; nobody is accused, one alarm is told."""
        if not told_of_heat(open_now, now, self._rules):
            return
        was_open, size = self._heat.is_open(now), self._fleet_size()
        self._heat = self._heat.turning_bad(node, now, fleet_size=size, rules=self._rules)
        if self._heat.is_open(now) and not was_open:
            self._alarm("FacilityHeat", heat_sentence(len(self._heat.caught), size, self._rules))

    def held_back(self, node: str, verdict: Verdict, stored: Verdict | None, now: datetime) -> tuple[str, timedelta]:
        """Why this verdict is not to be written yet, and for how long; ("", 0) where it is.

        Only Faulty is held back, and not that of a node that was Faulty before the others.
        """
        if self._is_held(node, verdict, stored, now):
            assert self._breaker.open_until is not None
            sentence = self._breaker.sentence(len(self._held), self._fleet_size(), self._rules)
            return sentence, self._breaker.open_until - now
        self._held.discard(node)
        return "", timedelta(0)

    def _is_held(self, node: str, verdict: Verdict, stored: Verdict | None, now: datetime) -> bool:
        if verdict is not Verdict.FAULTY:
            return False
        size = self._fleet_size()
        if node in self._held:  # until few are left: then theirs is a fault of their own
            self._breaker = self._breaker.prolonged(len(self._held), now, fleet_size=size, rules=self._rules)
            return self._breaker.is_open(now)
        if stored is Verdict.FAULTY:
            return False
        was_open = self._breaker.is_open(now)
        self._breaker = self._breaker.turning_bad(node, now, fleet_size=size, rules=self._rules)
        if not self._breaker.is_open(now):
            return False
        self._hold(node)
        if not was_open:
            for caught in self._breaker.caught:
                self._hold(caught)
                self._look_again(caught)
            self._alarm("CircuitBreakerOpen", self._breaker.sentence(len(self._held), size, self._rules))
        return True

    def _hold(self, node: str) -> None:
        if node not in self._held:
            self._held.add(node)
            self._on_held()

    def _alarm(self, reason: str, sentence: str) -> None:
        logger.error("alarm reason=%s message=%r", reason, sentence)
        self._on_alarm(reason, sentence)
