"""Reserve, order, store, release; and every way in which a node ends up not tested."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvcre_coordinator.core.localisation import ProbeKind, ProbeResult, ProbeState
from nvcre_coordinator.core.probe_rounds import (
    Action,
    AskAgent,
    Cancel,
    GiveUp,
    NotTested,
    Observed,
    Order,
    Ordered,
    Patience,
    PodPhase,
    Release,
    Reservation,
    Reserve,
    Store,
    decide,
)

NVLINK, NIC = ProbeKind.NVLINK_ALL_REDUCE, ProbeKind.NIC_LOOPBACK
NOW = datetime(2026, 1, 1, tzinfo=UTC)
PATIENCE = Patience()
RESULT = ProbeResult(probe_id="p", kind=NVLINK, state=ProbeState.MEASURED, bus_bandwidth_gbps="480.00")
BUSY = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def seen(**fields: object) -> Observed:
    return Observed(**{"kinds": (NVLINK, NIC), "started_at": NOW, "gpus": 8, "infiniband": True, **fields})  # type: ignore[arg-type]


def running(since_s: float = 0) -> Reservation:
    return Reservation(PodPhase.RUNNING, ago(since_s + 1), ago(since_s))


def actions(observed: Observed) -> tuple[Action, ...]:
    return decide(observed, NOW, PATIENCE).actions


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        (seen(), (Reserve(),)),
        (seen(slot_free=False), ()),
        (seen(reservation=Reservation(PodPhase.PENDING, ago(59))), ()),
        (seen(reservation=running()), (AskAgent(),)),
        (seen(reservation=running(), foreign_processes=0), (Order(NVLINK),)),
        (seen(reservation=running(11)), (Order(NVLINK),)),  # no heartbeat: the agent looks itself
        (seen(reservation=running(5), foreign_processes=2), (AskAgent(),)),  # the slow run may still be ending
        (seen(reservation=running(), ordered={NVLINK: Ordered(ago(5))}), ()),
        (seen(reservation=running(), ordered={NVLINK: Ordered(ago(5), on_this_stream=False)}), (Order(NVLINK),)),
        (seen(reservation=running(), ordered={NVLINK: Ordered(ago(5), RESULT)}), (Store(RESULT),)),
        (
            seen(reservation=running(), stored=frozenset({NVLINK}), ordered={NVLINK: Ordered(ago(5), RESULT)}),
            (Order(NIC),),
        ),
        (seen(reservation=running(), stored=frozenset({NVLINK, NIC})), (Release(),)),
        (seen(reservation=Reservation(PodPhase.DELETING, ago(5)), stored=frozenset({NVLINK, NIC})), ()),
        (seen(stored=frozenset({NVLINK, NIC})), ()),
    ],
)
def test_the_next_step(observed: Observed, expected: tuple[Action, ...]) -> None:
    assert actions(observed) == expected


@pytest.mark.parametrize(
    ("observed", "reason", "kinds"),
    [
        (seen(reservation=Reservation(PodPhase.PENDING, ago(60), message=BUSY)), NotTested.NOT_PLACED, 2),
        (seen(reservation=Reservation(PodPhase.ENDED, ago(9), ago(8), "Evicted")), NotTested.RESERVATION_LOST, 2),
        (seen(reservation=running(30), foreign_processes=2), NotTested.FOREIGN_PROCESSES, 2),
        (seen(gpus=0), NotTested.NO_GPUS, 2),
        (seen(connected=False, started_at=ago(60)), NotTested.AGENT_NOT_CONNECTED, 2),
        (seen(infiniband=False), NotTested.NO_INFINIBAND, 1),
        (seen(started_at=ago(200)), NotTested.RESERVATION_LOST, 2),
        (seen(reservation=running(140), ordered={NVLINK: Ordered(ago(130))}), NotTested.TIMEOUT, 1),
    ],
)
def test_not_tested_has_a_reason(observed: Observed, reason: NotTested, kinds: int) -> None:
    given_up = [action for action in actions(observed) if isinstance(action, GiveUp)]
    assert {action.reason for action in given_up} == {reason}
    assert len(given_up) == kinds


def test_28_a_pod_that_never_started_is_not_tested_and_quotes_the_scheduler() -> None:
    (first, _) = actions(seen(reservation=Reservation(PodPhase.PENDING, ago(60), message=BUSY)))
    assert isinstance(first, GiveUp)
    assert BUSY in first.message


def test_28_a_node_with_seven_gpus_among_eights_is_not_tested_and_named() -> None:
    given_up = actions(seen(gpus=7, gpus_of_peers=8))
    assert {(action.reason, action.message) for action in given_up if isinstance(action, GiveUp)} == {
        (NotTested.GPUS_MISSING, "the node has 7 GPUs, others of the run have 8")
    }
    assert actions(seen(gpus=8, gpus_of_peers=8)) == (Reserve(),)


def test_a_probe_that_takes_too_long_is_cancelled() -> None:
    observed = seen(reservation=running(140), ordered={NVLINK: Ordered(ago(130))})
    assert Cancel(NVLINK, "Timeout") in actions(observed)


def test_an_agent_that_reconnects_in_time_is_waited_for() -> None:
    observed = seen(connected=False, lost_since=ago(20), started_at=ago(300), reservation=running(100))
    assert decide(observed, NOW, PATIENCE).look_again == timedelta(seconds=40)


def test_an_answer_counts_even_when_the_agent_is_gone() -> None:
    observed = seen(connected=False, started_at=ago(300), ordered={NVLINK: Ordered(ago(30), RESULT)})
    assert actions(observed) == (Store(RESULT),)


def test_done_means_stored_and_released() -> None:
    assert decide(seen(stored=frozenset({NVLINK, NIC})), NOW, PATIENCE).done
    assert not decide(seen(stored=frozenset({NVLINK, NIC}), reservation=running()), NOW, PATIENCE).done


RESERVATIONS = st.one_of(
    st.none(),
    st.builds(
        Reservation,
        st.sampled_from(PodPhase),
        st.integers(0, 300).map(ago),
        st.one_of(st.none(), st.integers(0, 300).map(ago)),
    ),
)


def orders_of(kind: ProbeKind) -> st.SearchStrategy[Ordered]:
    answers = st.one_of(st.none(), st.just(ProbeResult(probe_id="p", kind=kind, state=ProbeState.MEASURED)))
    return st.builds(Ordered, st.integers(0, 300).map(ago), answers, st.booleans())


ORDERS = st.fixed_dictionaries({}, optional={NVLINK: orders_of(NVLINK), NIC: orders_of(NIC)})
SITUATIONS = st.builds(
    Observed,
    kinds=st.sampled_from([(NVLINK,), (NVLINK, NIC)]),
    started_at=st.integers(0, 600).map(ago),
    gpus=st.integers(0, 8),
    stored=st.frozensets(st.sampled_from([NVLINK, NIC])),
    reservation=RESERVATIONS,
    slot_free=st.booleans(),
    connected=st.booleans(),
    lost_since=st.one_of(st.none(), st.integers(0, 300).map(ago)),
    infiniband=st.sampled_from([None, True, False]),
    foreign_processes=st.one_of(st.none(), st.integers(0, 3)),
    ordered=ORDERS,
)


@given(SITUATIONS)
def test_no_situation_is_a_dead_end(observed: Observed) -> None:
    """Either it is done, or something is stored now (which asks again), or there is a time to look again."""
    decision = decide(observed, NOW, PATIENCE)
    stores = any(isinstance(action, Store | GiveUp) for action in decision.actions)
    assert decision.done or stores or (decision.look_again is not None and decision.look_again > timedelta(0))


@given(SITUATIONS)
def test_nothing_is_ordered_unless_the_gpus_are_ours(observed: Observed) -> None:
    decision = decide(observed, NOW, PATIENCE)
    if any(isinstance(action, Order) for action in decision.actions):
        assert observed.reservation is not None
        assert observed.reservation.phase is PodPhase.RUNNING
        assert observed.connected


@given(SITUATIONS)
def test_time_alone_brings_every_node_to_an_end(observed: Observed) -> None:
    """With no more news at all, each kind gets an answer within a bounded number of looks."""
    now = NOW
    for _ in range(60):
        decision = decide(observed, now, PATIENCE)
        answered = {
            action.result.kind if isinstance(action, Store) else action.kind
            for action in decision.actions
            if isinstance(action, Store | GiveUp)
        }
        ordered = dict(observed.ordered)
        for action in decision.actions:
            if isinstance(action, Order):
                ordered[action.kind] = Ordered(ordered[action.kind].at if action.kind in ordered else now)
        observed = replace(observed, stored=observed.stored | answered, ordered=ordered, slot_free=True)
        if set(observed.kinds) <= observed.stored:
            return
        now += decision.look_again or timedelta(0)
    raise AssertionError(observed)
