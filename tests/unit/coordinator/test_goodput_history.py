"""What is remembered of a run beside its sums: bounded however long it is, and the same whoever remembers it."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvcre_coordinator.core.goodput import Event, GoodputState, Interrupted, Rules, fold
from nvcre_coordinator.core.goodput_history import MAX_INTERRUPTIONS, MAX_POINTS, History, remember
from nvcre_logs.training import Kind, TrainingEvent

START = datetime(2026, 2, 5, 12, tzinfo=UTC)
RULES = Rules()
NOTHING, BEGINNING = History(), GoodputState()


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def step(second: float, number: int, took_s: float | None = 2.0) -> TrainingEvent:
    return TrainingEvent(Kind.STEP, 1, time=at(second), step=number, duration_s=took_s)


def told(
    events: list[Event], history: History = NOTHING, state: GoodputState = BEGINNING
) -> tuple[History, GoodputState]:
    for event in events:
        after = fold(state, event, RULES)
        history, state = remember(history, state, event, after), after
    return history, state


@pytest.mark.parametrize("count", [1, MAX_POINTS, MAX_POINTS + 1, 1000, 4097])
def test_a_run_of_any_length_has_few_points_that_stand_for_all_its_steps(count: int) -> None:
    history, _ = told([step(2 * number, number, took_s=float(number % 3 + 1)) for number in range(count)])
    assert len(history.steps) <= MAX_POINTS
    assert sum(point.steps for point in history.steps) == count
    assert history.steps[-1].step == count - 1
    mean = sum(float(point.step_time_sec) * point.steps for point in history.steps) / count
    assert mean == pytest.approx(sum(number % 3 + 1 for number in range(count)) / count, abs=1e-3)


def test_an_interruption_tells_what_it_cost_and_when_it_was_over() -> None:
    saved = TrainingEvent(Kind.SAVED, 1, time=at(30), step=2)
    began = TrainingEvent(Kind.APPLICATION_START, 1, time=at(70))
    history, state = told([step(10, 1), step(20, 2), saved, Interrupted(at(50), "WorkloadRestarted")])
    (open_one,) = history.interruptions
    assert (open_one.lost_work_sec, open_one.step, open_one.resumed_at) == ("20.000000", 2, None)
    history, _ = told([began, step(95, 3)], history, state)
    (past,) = history.interruptions
    assert (past.resumed_at, past.reschedule_sec, past.resume_sec) == (at(95), "20.000000", "25.000000")


def test_of_many_interruptions_the_last_are_remembered() -> None:
    history, _ = told([Interrupted(at(number), str(number)) for number in range(50)])
    assert [past.reason for past in history.interruptions] == [
        str(number) for number in range(50 - MAX_INTERRUPTIONS, 50)
    ]


@given(st.lists(st.one_of(
    st.builds(step, st.integers(0, 500), st.integers(0, 300), st.sampled_from([None, 1.0, 7.5])),
    st.builds(lambda second: Interrupted(at(second), "WorkloadRestarted"), st.integers(0, 500)),
), max_size=300), st.integers(0, 300))  # fmt: skip
def test_a_coordinator_that_begins_anew_remembers_the_same(happened: list[Event], crash: int) -> None:
    history, state = told(happened[:crash])
    read_again = msgspec.json.decode(msgspec.json.encode((history, state)), type=tuple[History, GoodputState])
    assert told(happened[crash:], *read_again) == told(happened)
