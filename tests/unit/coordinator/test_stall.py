"""Is a run stalled?  Cases 8, 9 and 10: the limits, the clock's start, and measurements that make no sense."""

from typing import Any

import msgspec
import pytest
from nvcre_coordinator.api.meta import from_json
from nvcre_coordinator.core import stall


def watched(build: Any, multiplier: int = 2, **status: Any) -> Any:
    """A Job that watches stalls and has run since START; `status` in seconds after START."""
    job = build.started(stallMultiplier=multiplier)
    moments = {name: build.at(value) for name, value in status.items()}
    return msgspec.structs.replace(job, status=msgspec.structs.replace(job.status, **moments))


def stalled(build: Any, job: Any, measurement: Any, at: float) -> bool:
    clock = stall.clock(job, measurement)
    return clock is not None and clock.stalled(build.at(at))


@pytest.mark.parametrize(("at", "expected"), [(103, False), (104, False), (105, True)])
def test_case_8_the_limit_is_so_many_usual_steps_and_two_samples(build: Any, at: float, expected: bool) -> None:
    """Two steps of 1 s and twice 1 s: 4 s after the last step at 100."""
    measured = build.goodput("1s", lastStepTimestamp=100, avgStepTimeSec="1.0")
    assert stalled(build, watched(build), measured, at) is expected


def test_a_log_that_tells_every_tenth_step_has_ten_times_the_patience(build: Any) -> None:
    measured = build.goodput("1s", lastStepTimestamp=100, avgStepTimeSec="1.0", logInterval=10)
    assert not stalled(build, watched(build), measured, 122)
    assert stalled(build, watched(build), measured, 123)


@pytest.mark.parametrize(("ago", "expected"), [(1219, False), (1221, True)])
def test_case_9_before_the_first_step_the_start_up_has_its_own_limit(build: Any, ago: float, expected: bool) -> None:
    measured = build.goodput("10s", applicationStartTime=0)
    assert stalled(build, watched(build, 3), measured, ago) is expected


def test_the_start_of_measuring_stands_in_for_the_application_s(build: Any) -> None:
    measured = build.goodput("10s", startTime=0)
    assert stalled(build, watched(build), measured, 1221)
    assert stall.clock(watched(build), build.goodput("10s")) is None  # workloadStartTime alone: an image may be pulled


@pytest.mark.parametrize("later", ["workload_start_time", "scheduling_resumed_time"])
def test_the_start_up_clock_moves_on_with_the_workload_s_start_and_with_a_block(build: Any, later: str) -> None:
    measured = build.goodput("10s", applicationStartTime=0)
    job = watched(build, **{later: 500})
    assert not stalled(build, job, measured, 1719)
    assert stalled(build, job, measured, 1721)


def test_case_10_time_in_a_scheduling_block_is_given_back(build: Any) -> None:
    measured = build.goodput("10s", lastStepTimestamp=0, avgStepTimeSec="1.0")
    assert not stalled(build, watched(build, scheduling_resumed_time=7190), measured, 7200)
    assert stalled(build, watched(build), measured, 7200)


def test_what_was_measured_before_a_restart_is_no_progress_of_the_new_run(build: Any) -> None:
    """Our copy of the measurement may be older than the reset."""
    old = build.goodput("10s", lastStepTimestamp=100, avgStepTimeSec="1.0", applicationStartTime=10, startTime=10)
    assert stall.clock(watched(build, last_restart_time=3000), old) is None
    new = build.goodput("10s", avgStepTimeSec="1.0", startTime=3001)
    assert stalled(build, watched(build, last_restart_time=3000), new, 5000)


@pytest.mark.parametrize("average", ["nan", "inf", "-inf", "-1", "0", "fast", "1e999", "0x10", "1.0.0", " "])
def test_an_average_that_makes_no_sense_never_stalls(build: Any, average: str) -> None:
    measured = build.goodput("1s", lastStepTimestamp=0, avgStepTimeSec=average)
    assert not stalled(build, watched(build), measured, 10**8)


@pytest.mark.parametrize("average", ["1e308", "1e300", "1e-320"])
def test_no_average_is_too_large_or_too_small_to_calculate_with(build: Any, average: str) -> None:
    job = watched(build, 2**31 - 1)
    measured = build.goodput("1s", lastStepTimestamp=0, avgStepTimeSec=average, logInterval=2**31 - 1)
    assert stalled(build, job, measured, 1000) is (average == "1e-320")


def test_times_in_the_future_never_stall(build: Any) -> None:
    job = watched(build)
    assert not stalled(build, job, build.goodput(lastStepTimestamp="9999-12-31T23:59:59Z", avgStepTimeSec="1"), 100)
    assert not stalled(build, job, build.goodput(applicationStartTime="9999-12-31T23:59:59Z"), 100)


def test_a_time_without_a_zone_is_refused_as_a_whole() -> None:
    """It could not be compared; controllers/caches.py then knows nothing of the measurement."""
    with pytest.raises(msgspec.ValidationError):
        from_json({"lastStepTimestamp": "2026-12-01T12:00:00"}, stall.GoodputMeasurementStatus)


@pytest.mark.parametrize("interval", [-5, 0, None])
def test_a_log_interval_below_one_is_one(build: Any, interval: int | None) -> None:
    measured = build.goodput("1s", lastStepTimestamp=100, avgStepTimeSec="1.0", logInterval=interval)
    assert stalled(build, watched(build), measured, 105)
    assert not stalled(build, watched(build), measured, 104)


def test_stalls_are_watched_only_where_the_job_asks_and_something_measures(build: Any) -> None:
    measured = build.goodput("1s", lastStepTimestamp=0, avgStepTimeSec="1.0")
    assert stall.clock(build.started(), measured) is None
    assert stall.clock(watched(build), None) is None


def test_the_sentence_tells_the_numbers(build: Any) -> None:
    clock = stall.clock(watched(build), build.goodput("1s", lastStepTimestamp=100, avgStepTimeSec="1.5"))
    assert clock is not None
    assert clock.sentence(build.at(400)) == (
        "no training step for 300 s since the last step; the limit is 5 s = "
        "stallMultiplier 2 x 1.5 s a step x log interval 1 + 2 s"
    )
