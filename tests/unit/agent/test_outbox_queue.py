"""What waits to be acknowledged is bounded by number, bytes and age, and what accuses most goes last."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvcre_agent.incidents.model import ChangeKind
from nvcre_agent.outbox_queue import DropReason, EventQueue, Limits, PendingEvent, age_s, rank
from nvcre_protos import nvcre_agent_v1_pb2 as pb

YES, NO, MAYBE = pb.BLAME_YES, pb.BLAME_NO, pb.BLAME_CONDITIONAL
HOUR = 3600.0


def event(
    seq: int, blame: pb.Blame.ValueType = YES, *, at_s: float = 0.0, boot: str = "now", size: int = 100
) -> PendingEvent:
    told = pb.Incident(id=f"i{seq}", blame=blame)
    return PendingEvent(
        seq, ChangeKind.OPENED, pb.Event(incident=told, boot_id=boot, monotonic_ns=round(at_s * 1e9)), size
    )


def queue(events: Sequence[PendingEvent], limits: Limits) -> EventQueue:
    made = EventQueue(limits, "now")
    for one in events:
        made.put(one)
    return made


def test_over_the_number_the_oldest_that_accuses_least_goes_first() -> None:
    events = [event(1), event(2, NO), event(3, MAYBE), event(4, NO), event(5), event(6, MAYBE)]
    full = queue(events, Limits(max_events=1))
    assert [seq for seq, _ in full.remove_excess(0.0)] == [2, 4, 3, 6, 1]
    assert [one.seq for one in full] == [5]


def test_an_accusation_stays_when_newer_notes_come() -> None:
    full = queue([event(1)], Limits(max_events=1))
    full.put(event(2, NO))
    assert full.remove_excess(0.0) == [(2, DropReason.FULL)]


def test_an_injected_fault_accuses_nobody() -> None:
    assert rank(pb.Incident(blame=YES, injected=True)) == rank(pb.Incident(blame=NO))


def test_bytes_bound_what_is_large_and_not_what_is_many() -> None:
    full = queue([event(1, size=600), event(2, size=300), event(3, size=100)], Limits(max_bytes=500))
    assert full.remove_excess(0.0) == [(1, DropReason.FULL)]
    assert full.bytes == 400
    full.remove(2)
    assert (full.bytes, len(full), full.first, full.last) == (100, 1, 3, 3)


@pytest.mark.parametrize(
    ("boot", "at_s", "now_s", "age"),
    [
        ("now", 100.0, 100.0 + HOUR, HOUR),
        ("before", 9 * HOUR, 1 * HOUR, HOUR),  # monotonic times of an earlier boot say nothing; it is at least so old
        ("before", 0.0, 9 * HOUR, 9 * HOUR),
    ],
)
def test_age_needs_no_wall_clock(boot: str, at_s: float, now_s: float, age: float) -> None:
    assert age_s(event(1, at_s=at_s, boot=boot).event, "now", now_s) == age


def test_what_is_too_old_goes_whatever_it_accuses() -> None:
    old = queue([event(1, at_s=0.0), event(2, NO, at_s=HOUR), event(3, at_s=2 * HOUR)], Limits(max_age_s=HOUR))
    assert old.remove_excess(2 * HOUR + 1) == [(1, DropReason.AGE), (2, DropReason.AGE)]
    assert [one.seq for one in old] == [3]


def test_an_update_is_replaced_until_it_is_gone() -> None:
    made = queue([event(1)], Limits())
    assert made.update_of("i1") is None, "the opening stays"
    update = PendingEvent(2, ChangeKind.UPDATED, pb.Event(incident=pb.Incident(id="i1", blame=YES)), 10)
    made.put(update)
    assert made.update_of("i1") == 2
    made.remove(2)
    assert made.update_of("i1") is None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(list(ChangeKind)),
        st.sampled_from([YES, NO, MAYBE]),
        st.integers(1, 400),  # bytes
        st.integers(0, 5),  # incident
        st.floats(0, 50),  # seconds until it
    ),
    max_size=60,
)


@given(STEPS, st.integers(0, 20), st.integers(0, 2000), st.floats(0, 500))
def test_whatever_comes_the_bounds_hold_the_order_stays_and_no_accusation_goes_before_a_note(
    steps: list[tuple[ChangeKind, pb.Blame.ValueType, int, int, float]], most: int, bytes_: int, oldest_s: float
) -> None:
    made, now_s = EventQueue(Limits(most, bytes_, oldest_s), "now"), 0.0
    for seq, (kind, blame, size, number, pause_s) in enumerate(steps, 1):
        now_s += pause_s
        if (older := made.update_of(f"i{number}")) is not None:
            made.remove(older)
        told = pb.Event(
            incident=pb.Incident(id=f"i{number}", blame=blame), boot_id="now", monotonic_ns=int(now_s * 1e9)
        )
        made.put(PendingEvent(seq, kind, told, size))
        before = {one.seq: rank(one.event.incident) for one in made}
        gone = made.remove_excess(now_s)

        left = list(made)
        assert [one.seq for one in left] == sorted(one.seq for one in left)
        assert {one.seq for one in left} | {seq for seq, _ in gone} == set(before)
        assert len(left) <= most
        assert made.bytes == sum(one.size for one in left) <= bytes_
        assert all(age_s(one.event, "now", now_s) <= oldest_s for one in left)
        least = min((rank(one.event.incident) for one in left), default=0)
        assert all(before[seq] <= least for seq, reason in gone if reason is DropReason.FULL) or not left
        updates = [one.event.incident.id for one in left if one.kind is ChangeKind.UPDATED]
        assert len(updates) == len(set(updates))
