"""How reports fold into open incidents: exactly-once in effect, and whatever is lost, a snapshot puts it right."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from nvcre_coordinator.core.incidents import (
    MAX_CLOSED,
    MAX_OPEN,
    OVERFLOW_ID,
    Event,
    EventKind,
    Incident,
    Ledger,
    Snapshot,
    fold_events,
    fold_snapshot,
    told_by,
)
from nvcre_protos.vocabulary import Blame, FaultClass, IncidentKind

START = datetime(2026, 1, 1, tzinfo=UTC)
OUTBOX = "outbox-1"


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def told(name: str, *, blame: Blame = Blame.YES, count: int = 1, seen: float = 0, **fields: object) -> Incident:
    incident = Incident(
        id=name,
        kind=IncidentKind.XID,
        fault_class=FaultClass.FATAL_HARDWARE,
        blame=blame,
        code=79,
        count=count,
        first_seen=at(seen),
        last_seen=at(seen),
    )
    return msgspec.structs.replace(incident, **fields)


def event(seq: int, incident: Incident, kind: EventKind = EventKind.OPENED) -> Event:
    return Event(seq=seq, kind=kind, incident=incident, time=at(seq))


def recovered(seq: int, name: str) -> Event:
    return event(seq, told(name), EventKind.RECOVERED)


def snapshot(seq: int, *open_now: Incident, outbox: str = OUTBOX) -> Snapshot:
    return Snapshot(outbox, seq, at(seq), open_now)


def ids(incidents: Sequence[Incident]) -> list[str]:
    return [incident.id for incident in incidents]


def restarted(ledger: Ledger) -> Ledger:
    """What a new leader reads: the memories are lost."""
    return Ledger(ledger.open, ledger.closed, ledger.cursors)


def test_an_opened_incident_is_open_and_moves_the_cursor() -> None:
    ledger = fold_events(Ledger(), OUTBOX, [event(7, told("a"))])
    assert ids(ledger.open) == ["a"]
    assert ledger.cursor(OUTBOX) == 7


def test_an_event_at_or_below_the_cursor_is_ignored() -> None:
    ledger = fold_events(Ledger(), OUTBOX, [event(7, told("a")), recovered(8, "a")])
    assert fold_events(ledger, OUTBOX, [event(7, told("a", count=9)), recovered(8, "a")]).stored() == ledger.stored()


def test_recovery_moves_the_incident_to_the_history_with_its_time() -> None:
    ledger = fold_events(Ledger(), OUTBOX, [event(1, told("a")), recovered(2, "a")])
    assert ledger.open == ()
    assert [(incident.id, incident.recovered_at) for incident in ledger.closed] == [("a", at(2))]


def test_an_unknown_outbox_starts_at_zero_and_two_are_remembered() -> None:
    ledger = Ledger()
    for number, outbox in enumerate(("first", "second", "third"), start=1):
        ledger = fold_events(ledger, outbox, [event(number, told(outbox))])
    assert [(cursor.outbox_id, cursor.seq) for cursor in ledger.cursors] == [("second", 2), ("third", 3)]
    assert ledger.cursor("first") == 0


def test_what_a_snapshot_does_not_list_is_over() -> None:
    ledger = fold_events(Ledger(), OUTBOX, [event(1, told("a")), event(2, told("b"))])
    ledger = fold_snapshot(ledger, snapshot(2, told("b")))
    assert (ids(ledger.open), ids(ledger.closed)) == (["b"], ["a"])


def test_a_snapshot_does_not_close_what_was_opened_after_it_was_taken() -> None:
    ledger = fold_events(Ledger(), OUTBOX, [event(1, told("a")), event(2, told("b"))])
    assert ids(fold_snapshot(ledger, snapshot(1, told("a"))).open) == ["a", "b"]


def test_a_snapshot_does_not_reopen_what_recovered_after_it_was_taken() -> None:
    ledger = fold_events(Ledger(), OUTBOX, [event(1, told("a")), recovered(2, "a")])
    assert fold_snapshot(ledger, snapshot(1, told("a"))).open == ()


def test_a_snapshot_of_a_new_outbox_closes_what_the_old_one_left_open() -> None:
    ledger = fold_events(Ledger(), "old", [event(9, told("a"))])
    assert ids(fold_snapshot(ledger, snapshot(0, outbox="new")).closed) == ["a"]


def test_events_that_a_snapshot_overtook_reach_the_history_and_open_nothing() -> None:
    """The recovery was lost with the agent's memory; the snapshot knew that it is over."""
    ledger = fold_snapshot(Ledger(), snapshot(2, told("b")))
    ledger = fold_events(ledger, OUTBOX, [event(1, told("a")), event(2, told("b"))])
    assert (ids(ledger.open), ids(ledger.closed)) == (["b"], ["a"])
    assert ledger.cursor(OUTBOX) == 2


def test_an_equal_snapshot_changes_nothing_even_when_the_clock_estimate_moved() -> None:
    ledger = fold_snapshot(Ledger(), snapshot(1, told("a", seen=100)))
    again = fold_snapshot(ledger, snapshot(1, told("a", seen=102)))
    assert again.stored() == ledger.stored()


def test_a_second_telling_keeps_the_first_time() -> None:
    ledger = fold_events(Ledger(), OUTBOX, [event(1, told("a", seen=1)), event(2, told("a", seen=60, count=5))])
    (incident,) = ledger.open
    assert (incident.first_seen, incident.last_seen, incident.count) == (at(1), at(60), 5)


def test_the_history_keeps_the_last_32_newest_first() -> None:
    events = []
    for number in range(1, 41):
        events += [event(2 * number, told(f"i{number}")), recovered(2 * number + 1, f"i{number}")]
    closed = fold_events(Ledger(), OUTBOX, events).closed
    assert ids(closed) == [f"i{number}" for number in range(40, 40 - MAX_CLOSED, -1)]


def test_too_many_open_incidents_are_counted_and_blame_is_kept() -> None:
    noise = [event(number, told(f"i{number}", blame=Blame.NO)) for number in range(1, 501)]
    ledger = fold_events(Ledger(), OUTBOX, [*noise, event(501, told("guilty"))])
    assert len(ledger.open) == MAX_OPEN
    assert "guilty" in ids(ledger.open)
    overflow = ledger.open[-1]
    assert (overflow.id, overflow.blame) == (OVERFLOW_ID, Blame.NO)
    assert overflow.count == 501 - (MAX_OPEN - 1)


def test_a_snapshot_counts_the_overflow_anew() -> None:
    many = [told(f"i{number}", blame=Blame.NO) for number in range(300)]
    ledger = fold_snapshot(fold_snapshot(Ledger(), snapshot(1, *many)), snapshot(2, *many))
    assert ledger.open[-1].count == 300 - (MAX_OPEN - 1)
    assert ids(fold_snapshot(ledger, snapshot(3, *many[:5])).open) == ids(many[:5])


# --- any order, duplication and loss

STEPS = st.lists(
    st.tuples(st.sampled_from(["open", "update", "recover", "forget"]), st.integers(0, 4)), min_size=1, max_size=25
)
NETWORK = st.lists(
    st.sampled_from(["deliver", "resend", "reconnect", "restart", "reconnect-late-snapshot"]), min_size=1, max_size=25
)


class Agent:
    """What an agent knows: its open incidents and its outbox. "forget" loses a recovery, as a crash may."""

    def __init__(self) -> None:
        self.seq = 0
        self.open: dict[str, Incident] = {}
        self.outbox: list[Event] = []
        self.made = 0
        self.slots: dict[int, str] = {}

    def step(self, what: str, slot: int) -> None:
        name = self.slots.get(slot)
        match what:
            case "open" if name is None:
                self.made += 1
                name = self.slots[slot] = f"i{self.made}"
                self.open[name] = told(name, seen=self.seq * 100)
                self._append(EventKind.OPENED, self.open[name])
            case "update" if name is not None:
                self.open[name] = msgspec.structs.replace(self.open[name], count=self.open[name].count + 1)
                self._append(EventKind.UPDATED, self.open[name])
            case "recover" if name is not None:
                self._append(EventKind.RECOVERED, self.open.pop(name))
                del self.slots[slot]
            case "forget" if name is not None:
                del self.open[name], self.slots[slot]

    def _append(self, kind: EventKind, incident: Incident) -> None:
        self.seq += 1
        self.outbox.append(event(self.seq, incident, kind))

    def snapshot(self) -> Snapshot:
        return snapshot(self.seq, *self.open.values())


@settings(max_examples=300, deadline=None)
@given(STEPS, NETWORK)
def test_whatever_is_lost_sent_twice_or_restarted_the_end_is_what_the_agent_knows(
    steps: list[tuple[str, int]], network: list[str]
) -> None:
    agent, ledger, stored = Agent(), Ledger(), Ledger()
    for number, step in enumerate(steps):
        agent.step(*step)
        match network[number % len(network)]:
            case "deliver":
                ledger = stored = fold_events(ledger, OUTBOX, agent.outbox)
            case "resend":
                ledger = fold_events(fold_events(ledger, OUTBOX, agent.outbox[:2]), OUTBOX, agent.outbox)
            case "reconnect":
                ledger = stored = fold_snapshot(ledger, agent.snapshot())
            case "restart":  # in the middle of a write: what was folded and not stored is gone
                ledger = restarted(stored)
            case "reconnect-late-snapshot":  # the snapshot is taken, an event follows, the event arrives first
                taken = agent.snapshot()
                agent.step("open", 4)
                ledger = fold_snapshot(fold_events(ledger, OUTBOX, agent.outbox), taken)
    ledger = fold_snapshot(restarted(stored), agent.snapshot())
    ledger = fold_events(ledger, OUTBOX, agent.outbox)
    assert {incident.id: incident.count for incident in ledger.open} == {
        name: incident.count for name, incident in agent.open.items()
    }
    assert ledger.cursor(OUTBOX) in {agent.seq, 0}
    assert len({*ids(ledger.open), *ids(ledger.closed)}) == len(ledger.open) + len(ledger.closed)


@settings(max_examples=200, deadline=None)
@given(STEPS, st.randoms(use_true_random=False))
def test_delivery_is_exactly_once_in_effect(steps: list[tuple[str, int]], random: object) -> None:
    """Every event once, against every event many times in growing prefixes with restarts between."""
    agent = Agent()
    for step in steps:
        if step[0] != "forget":
            agent.step(*step)
    once = fold_events(Ledger(), OUTBOX, agent.outbox)
    many = Ledger()
    for end in range(len(agent.outbox) + 1):
        begin = random.randint(0, end)  # type: ignore[attr-defined]
        begin = min(begin, many.cursor(OUTBOX))
        many = restarted(fold_events(many, OUTBOX, agent.outbox[begin:end]))
    assert many.stored() == once.stored()


def test_nothing_happens_after_it_was_told() -> None:
    """Else a clock that is ahead moves its node's evidence behind the end of every run."""
    ahead = told("a", seen=3600, recovered_at=at(7200))
    now = told_by(ahead, at(60))
    assert (now.first_seen, now.last_seen, now.recovered_at, now.time_uncertain) == (at(60), at(60), at(60), True)
    agreeing = told("a", seen=61)
    assert told_by(agreeing, at(60)) is agreeing
