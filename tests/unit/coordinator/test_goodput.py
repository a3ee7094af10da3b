"""Goodput of logged runs: cases 32 to 44 of spec/reference-behaviour.md section 10, and beginning anew at any line."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from nvcre_coordinator.api import names
from nvcre_coordinator.api.conditions import Condition, Reason, find
from nvcre_coordinator.api.measurement import (
    GoodputMeasurement,
    GoodputMeasurementSpec,
    GoodputMeasurementStatus,
    PendingInterruption,
)
from nvcre_coordinator.api.meta import ObjectMeta
from nvcre_coordinator.controllers.caches import cached
from nvcre_coordinator.controllers.goodput_measurement import Kept, written_down
from nvcre_coordinator.core import goodput_status
from nvcre_coordinator.core.conditions import Stamp
from nvcre_coordinator.core.goodput import (
    Event,
    GoodputState,
    Interrupted,
    Rules,
    Sampled,
    decode,
    encode,
    fold,
    ratio,
    rules_of,
)
from nvcre_coordinator.core.goodput_status import measured_goodput
from nvcre_coordinator.core.observed import Measured
from nvcre_logs.profile import LogProfileSpec
from nvcre_logs.training import Kind, TrainingEvent, TrainingReader, compile_training

ROOT = Path(__file__).parents[3]

NEMO_4 = """
timestamp: {layout: "2006-01-02T15:04:05.999999999Z07:00"}
patterns:
  trainingStep:
    regex: 'global_step: (?P<globalStep>[0-9]+) \\| .*train_step_timing in s: (?P<stepTiming>[0-9.]+)(?:.*TFLOPS_per_GPU: (?P<tflops>[0-9.]+))?'
  checkpointSave:
    regex: 'Global Checkpoint Save : Rank: 0 : Iteration: (?P<step>[0-9]+) : .*Save duration: (?P<saveDuration>[0-9.]+)s'
  checkpointDone: {regex: 'Successfully saved checkpoint from iteration +(?P<step>[0-9]+) to (?P<path>[^ ]+)'}
  checkpointRestore: {regex: 'Restoring model weights from (?P<path>[^ ]+)'}
  applicationStart: {regex: '\\[NeMo [A-Z] .*nemo_logging:[0-9]+\\]'}
"""  # noqa: E501
NO_TIMING = """
timestamp: {layout: "2006-01-02T15:04:05.999999999Z07:00"}
patterns:
  trainingStep: {regex: 'step (?P<globalStep>[0-9]+)'}
"""


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-02-05T{text}").replace(tzinfo=UTC)


def spec_of(text: str, **changes: object) -> LogProfileSpec:
    return msgspec.convert(yaml.safe_load(text) | changes, LogProfileSpec)


def built_in(name: str) -> LogProfileSpec:
    return msgspec.convert(
        yaml.safe_load((ROOT / f"daemonset/log-profiles/{name}.yaml").read_text())["spec"], LogProfileSpec
    )


def start(time: str) -> str:
    return f"2026-02-05T{time}Z [NeMo I 2026-02-05 00:00:00 nemo_logging:393] hello\n"


def step(time: str, number: int, timing: float, tflops: float | None = None) -> str:
    text = (
        f"2026-02-05T{time}Z Training epoch 0, iteration 1/9 | global_step: {number} | train_step_timing in s: {timing}"
    )
    return text + (f" | TFLOPS_per_GPU: {tflops}\n" if tflops is not None else "\n")


def save(time: str, number: int, seconds: float) -> str:
    return (
        f"2026-02-05T{time}Z Global Checkpoint Save : Rank: 0 : Iteration: {number} : Start time: 1.0s : "
        f"Save duration: {seconds}s\n"
    )


def events(log: str, spec: LogProfileSpec) -> list[TrainingEvent]:
    return TrainingReader(compile_training("test", spec)).feed(log.encode())


def folded(state: GoodputState, happened: Sequence[Event], rules: Rules = Rules()) -> GoodputState:  # noqa: B008
    return reduce(lambda held, event: fold(held, event, rules), happened, state)


def stamp(time: str = "12:00:00") -> Stamp:
    return Stamp(at(time), 1)


def reason_of(status: GoodputMeasurementStatus, kind: str) -> tuple[str, str]:
    condition: Condition | None = find(status.conditions, kind)
    assert condition is not None
    return condition.status.value, condition.reason


NEMO = spec_of(NEMO_4)
ENDED_LOG = (
    start("10:00:00")
    + step("10:00:05", 10, 5.0, 100)
    + step("10:01:00", 20, 5.5)
    + save("10:02:00", 20, 12)
    + step("10:03:00", 30, 6.0)
)


def test_case_32_a_running_measurement() -> None:
    log = (
        start("18:00:00")
        + step("18:00:05.123456789", 100, 1.234, 36.27)
        + step("18:00:06.5", 101, 1.100, 1145)
        + step("18:00:07.6", 102, 1.050, 1145)
        + save("18:00:10", 102, 2.4)
    )
    state = folded(GoodputState(), [*events(log, NEMO), Sampled(at("18:00:30"), at("18:00:10"))])
    status = goodput_status.running(GoodputMeasurementStatus(), state, Rules(), stamp("18:00:30"))
    assert (status.current_step, status.highest_step, status.warmup_base_step) == (102, 102, 100)
    assert (status.resume_time_sec, status.checkpoint_save_time_sec) == ("5.123457", "2.400000")
    assert (status.last_checkpoint_step, status.last_checkpoint_time) == (102, at("18:00:10"))
    assert (status.avg_step_time_sec, status.non_warmup_time_sec) == ("1.128000", "3.384000")
    assert status.avg_tflops_per_gpu == "775.423333"
    assert reason_of(status, "Measuring") == ("True", "JobRunning")
    assert status.start_time == at("18:00:30")


def test_case_33_a_job_that_had_succeeded_before_it_was_sampled() -> None:
    state = folded(GoodputState(), events(ENDED_LOG, NEMO))
    status = goodput_status.succeeded(
        GoodputMeasurementStatus(), state, Rules(), stamp(), ended_at=at("10:05:00"), profile="nemo"
    )
    assert (status.start_time, status.completion_time) == (at("10:00:05"), at("10:05:00"))
    assert (status.training_time_sec, status.resume_time_sec) == ("295.000000", "5.000000")
    assert (status.checkpoint_save_time_sec, status.avg_step_time_sec) == ("12.000000", "5.500000")
    assert (status.non_warmup_time_sec, status.result) == ("120.000000", "0.942373")
    assert reason_of(status, "Complete") == ("True", "JobSucceeded")
    assert reason_of(status, "Measuring") == ("False", "JobSucceeded")
    again = goodput_status.succeeded(
        msgspec.structs.replace(status, conditions=()), state, Rules(), stamp(), ended_at=at("10:05:00"), profile="nemo"
    )
    assert again == status


def test_case_34_the_same_log_of_a_job_that_failed() -> None:
    state = folded(GoodputState(), events(ENDED_LOG, NEMO))
    status = goodput_status.failed(GoodputMeasurementStatus(), state, Rules(), stamp(), ended_at=at("10:05:00"))
    assert (status.interruption_count, status.lost_work_time_sec, status.result) == (1, "180.000000", "0.332203")
    assert status.pending_interruption == PendingInterruption(
        t_checkpoint=at("10:02:00"),
        t_interrupt=at("10:05:00"),
        checkpoint_step=20,
        last_step=30,
        t_ch="180.000000",
        reason="JobFailed",
    )
    assert (status.prior_non_warmup_time_sec, status.non_warmup_time_sec) == ("120.000000", "120.000000")
    assert reason_of(status, "Complete") == ("True", "JobFailed")
    more = folded(state, events(step("10:04:59", 40, 5.0), NEMO))
    assert goodput_status.failed(status, more, Rules(), stamp("13:00:00"), ended_at=at("11:00:00")) is status
    assert goodput_status.running(status, more, Rules(), stamp("13:00:00")) is status


def test_case_34_a_run_that_was_sampled_ended_when_it_was_last_seen_alive() -> None:
    state = folded(GoodputState(), [*events(ENDED_LOG, NEMO), Sampled(at("10:00:06"), at("10:03:00"))])
    status = goodput_status.failed(GoodputMeasurementStatus(), state, Rules(), stamp(), ended_at=at("10:05:00"))
    assert status.lost_work_time_sec == "60.000000"
    never = folded(GoodputState(), events(ENDED_LOG, NEMO))
    by_container = goodput_status.failed(
        GoodputMeasurementStatus(),
        never,
        Rules(),
        stamp(),
        ended_at=at("10:05:00"),
        container_finished_at=at("10:04:00"),
    )
    assert by_container.lost_work_time_sec == "120.000000"


def test_case_35_a_success_of_which_nothing_could_be_read() -> None:
    status = goodput_status.succeeded(
        GoodputMeasurementStatus(), GoodputState(), Rules(), stamp(), ended_at=at("10:05:00"), profile="mine"
    )
    assert reason_of(status, "Complete") == ("True", "NoDataCollected")
    assert reason_of(status, "Measuring") == ("False", "NoDataCollected")
    assert "spec.logProfileRef 'mine'" in status.conditions[0].message
    assert (status.training_time_sec, status.lost_work_time_sec, status.result) == ("0.000000", "0.000000", None)


def test_case_36_a_failure_of_which_nothing_could_be_read() -> None:
    status = goodput_status.failed(
        GoodputMeasurementStatus(), GoodputState(), Rules(), stamp(), ended_at=at("10:05:00")
    )
    assert reason_of(status, "Complete") == ("True", "JobFailed")
    assert status.interruption_count == 1
    pending = status.pending_interruption
    assert pending is not None
    assert (pending.reason, pending.t_ch, pending.checkpoint_step) == ("JobFailed", "0.000000", None)


def test_case_37_a_restart_that_was_noticed_late() -> None:
    before = GoodputMeasurementStatus(
        current_step=200,
        highest_step=200,
        last_checkpoint_step=150,
        last_checkpoint_time=at("09:55:00"),
        application_stop_time=at("10:00:00"),
        start_time=at("09:00:00"),
    )
    state = fold(goodput_status.restore(before), Interrupted(at("10:00:00"), "WorkloadRestarted"), Rules())
    log = start("10:05:00") + "".join(step(f"10:0{6 + index}:00", 150 + 10 * index, 6) for index in range(4))
    state = folded(state, [*events(log, NEMO), Sampled(at("10:10:00"), at("10:09:00"))])
    status = goodput_status.running(before, state, Rules(), stamp("10:10:00"))
    assert (status.interruption_count, status.lost_work_time_sec) == (1, "300.000000")
    assert (status.reschedule_time_sec, status.resume_time_sec) == ("300.000000", "60.000000")
    assert (status.current_step, status.highest_step, status.warmup_base_step) == (180, 200, 150)
    assert (status.avg_step_time_sec, status.non_warmup_time_sec) == ("6.000000", "186.000000")
    assert status.pending_interruption is None


def test_case_38_a_coordinator_that_began_anew_in_the_middle_of_an_interruption() -> None:
    before = GoodputMeasurementStatus(
        current_step=200,
        highest_step=200,
        lost_work_time_sec="300.000000",
        interruption_count=1,
        start_time=at("09:00:00"),
        pending_interruption=PendingInterruption(
            t_checkpoint=at("09:55:00"),
            t_interrupt=at("10:00:00"),
            checkpoint_step=150,
            last_step=200,
            t_ch="300.000000",
            reason="WorkloadRestarted",
        ),
    )
    log = "".join(f"2026-02-05T10:0{5 + index}:00Z step {150 + 10 * index}\n" for index in range(4))
    spec = spec_of(NO_TIMING)
    state = folded(goodput_status.restore(before), [*events(log, spec), Sampled(at("10:09:00"))], rules_of(spec))
    status = goodput_status.running(before, state, rules_of(spec), stamp("10:09:00"))
    assert (status.reschedule_time_sec, status.resume_time_sec) == ("300.000000", "0.000000")
    assert (status.lost_work_time_sec, status.interruption_count) == ("300.000000", 1)
    assert (status.last_checkpoint_step, status.last_checkpoint_time) == (150, at("09:55:00"))
    assert (status.avg_step_time_sec, status.non_warmup_time_sec) == ("6.000000", "0.000000")
    assert status.pending_interruption is None


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ((14400, 900, 150, 70, 45), 0.928772),
        ((3600, 0, 0, 0, 360), 0.9),
        ((100, 80, 10, 20, 5), 0.0),
        ((0, 0, 0, 0, 0), 0.0),
        ((100, 0, 100, 0, 0), 0.0),
        ((100, 0, 0, 0, 0), 1.0),
    ],
)
def test_case_39_the_formula(times: tuple[float, ...], expected: float) -> None:
    training_s, lost_s, reschedule_s, resume_s, save_s = times
    found = ratio(training_s=training_s, lost_s=lost_s, reschedule_s=reschedule_s, resume_s=resume_s, save_s=save_s)
    assert found == pytest.approx(expected, abs=5e-7)


def megatron(iteration: int, ms: float, time: str = "16:03:52") -> str:
    return (
        f" [2026-02-05 {time}] iteration {iteration:8d}/     200 | consumed samples: 768 | elapsed time per iteration"
        f" (ms): {ms} | throughput per GPU (TFLOP/s/GPU): 138.5 | lm loss: 1.218472E+01 | loss scale: 1.0 |\n"
    )


def test_case_40_steps_between_two_logged_ones_are_dropped() -> None:
    spec = built_in("megatron-training")
    log = megatron(1, 184600.0) + megatron(10, 49394.8) + "".join(megatron(10 * n, 34356.5) for n in range(2, 7))
    found = events(log, spec)
    assert (found[1].duration_s, found[-1].duration_s, found[0].loss) == (49.3948, 34.3565, 12.18472)
    state = folded(GoodputState(), found, rules_of(spec))
    assert (state.current_step, len(state.run.window), state.run.base_step) == (60, 6, 10)


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_case_41_a_checkpoint_that_is_saved_in_the_background(cut: int) -> None:
    spec = built_in("megatron-training")
    lines = [
        "[2026-02-05 17:07:36.379347] saving checkpoint at iteration     100 to /ckpt in torch_dist format\n",
        "[2026-02-05 17:13:37.825367] scheduled an async checkpoint save at iteration     100 to /ckpt\n",
        "[2026-02-05 17:20:00.000000] successfully saved checkpoint from iteration     100 to /ckpt\n",
        "[2026-02-05 17:20:00.000000] successfully saved checkpoint from iteration     100 to /ckpt\n",
    ]
    state = GoodputState()
    for part in (lines[:cut], lines[cut:]):
        state = folded(decode(encode(state)), events("".join(part), spec), rules_of(spec))
    assert state.checkpoint_save_s == pytest.approx(361.44602)
    assert state.checkpoint is not None
    assert (state.checkpoint.step, state.checkpoint.time) == (100, at("17:07:36.379347"))


def test_case_42_warmup_begins_again_after_a_restore() -> None:
    rules = Rules(warmup_steps=1)
    log = (
        start("10:00:00")
        + "2026-02-05T10:00:01Z Restoring model weights from /ckpt\n"
        + step("10:00:05", 100, 9)
        + step("10:00:06", 101, 1)
        + step("10:00:07", 102, 1)
    )
    state = folded(GoodputState(), events(log, NEMO), rules)
    assert [one.is_warmup for one in state.run.window] == [True, False, False]
    assert (state.run.warmup_s, state.run.warm_s, state.step_time_s) == (9.0, 2.0, 1.0)
    in_place = folded(state, events("2026-02-05T10:01:00Z Restoring model weights from /c\n", NEMO), rules)
    in_place = folded(in_place, events(step("10:01:05", 101, 9), NEMO), rules)
    assert in_place.run.window[-1].is_warmup


def test_case_42_what_a_framework_says_again_begins_no_warmup() -> None:
    log = start("10:00:00") + step("10:00:05", 100, 9) + start("10:00:06") + step("10:00:07", 101, 1)
    state = folded(GoodputState(), events(log, NEMO), Rules(warmup_steps=1))
    assert [one.is_warmup for one in state.run.window] == [True, False]
    assert state.run.application_start == at("10:00:00")


def test_case_43_the_start_of_one_pod_and_the_steps_of_another_in_either_order() -> None:
    found = events(ENDED_LOG, NEMO)
    lifecycle = [event for event in found if event.kind is not Kind.STEP]
    steps = [event for event in found if event.kind is Kind.STEP]
    together = folded(GoodputState(), found)
    apart = folded(GoodputState(), [*steps, *lifecycle])
    assert (apart.resume_s, apart.checkpoint_save_s) == (together.resume_s, together.checkpoint_save_s) == (5.0, 12.0)
    restarted = fold(together, Interrupted(at("10:04:00"), "WorkloadRestarted"), Rules())
    later = [
        msgspec.structs.replace(event, time=event.time + timedelta(hours=1))
        for event in (*steps, *lifecycle)
        if event.time
    ]
    again = folded(restarted, later)
    assert (again.reschedule_s, again.resume_s) == (56 * 60.0, 10.0)


@pytest.mark.parametrize(
    ("captured", "unit", "seconds"),
    [("1500", "ms", 1.5), ("2500000", "us", 2.5), ("3", None, 3.0), ("1.5e3", "ms", 1.5)],
)
def test_case_44_units(captured: str, unit: str | None, seconds: float) -> None:
    pattern = {
        "regex": "step (?P<globalStep>[0-9]+) took (?P<stepTiming>[^ ]+)",
        "units": {"stepTiming": unit} if unit else {},
    }
    spec = spec_of(NO_TIMING, patterns={"trainingStep": pattern})
    (event,) = events(f"step 1 took {captured} \n", spec)
    assert event.duration_s == seconds


@pytest.mark.parametrize(
    ("prefix", "time"),
    [
        ("2026-02-05T10:00:00.5Z ", at("10:00:00.500000")),
        ("2026-02-05T03:00:00-07:00 ", at("10:00:00")),
        ("2026-02-05T10:00:00Z", None),
        ("2026-02-35T10:00:00Z ", None),
    ],
)
def test_case_44_the_kubelet_s_time(prefix: str, time: datetime | None) -> None:
    (event,) = events(f"{prefix}step 1\n", spec_of(NO_TIMING))
    assert event.time == time


# A coordinator that begins anew

MOMENTS = st.integers(0, 3000).map(lambda second: at("10:00:00") + timedelta(seconds=second))
LOGGED = st.builds(
    TrainingEvent,
    kind=st.sampled_from(Kind),
    line=st.just(1),
    time=st.none() | MOMENTS,
    step=st.none() | st.integers(0, 40) | st.sampled_from([-1, 2**62, 2**63 - 1]),
    duration_s=st.none() | st.floats(0, 100) | st.sampled_from([-5.0, 1e300, 1.7e308]),
    tflops=st.none() | st.floats(1, 1000) | st.just(1e300),
    is_warmup=st.booleans(),
)
HAPPENED = st.lists(
    LOGGED | st.builds(Sampled, MOMENTS, st.none() | MOMENTS) | st.builds(Interrupted, MOMENTS, st.just("gone")),
    max_size=40,
)


@given(HAPPENED, st.integers(0, 40), st.builds(Rules, st.integers(0, 3), st.sampled_from([0, 1, 10]), st.booleans()))
@settings(max_examples=150, deadline=None)
def test_a_coordinator_that_begins_anew_at_any_line_comes_to_the_same_status(
    happened: list[Event], cut: int, rules: Rules
) -> None:
    whole = folded(GoodputState(), happened, rules)
    first = decode(encode(folded(GoodputState(), happened[:cut], rules)))
    resumed = folded(first, happened[cut:], rules)
    assert resumed == whole
    for status in (
        lambda state: goodput_status.running(GoodputMeasurementStatus(), state, rules, stamp()),
        lambda state: goodput_status.failed(GoodputMeasurementStatus(), state, rules, stamp(), ended_at=at("11:00:00")),
    ):
        assert status(resumed) == status(whole)


@given(HAPPENED)
@settings(max_examples=100, deadline=None)
def test_figures_stay_within_their_bounds(happened: list[Event]) -> None:
    state = GoodputState()
    highest = 0
    for event in happened:
        state = fold(state, event, Rules())
        assert (state.highest_step or 0) >= highest
        highest = state.highest_step or 0
        assert min(state.lost_s, state.reschedule_s, state.resume_s, state.checkpoint_save_s) >= 0
        assert len(state.run.window) <= 100
    status = goodput_status.succeeded(
        GoodputMeasurementStatus(), state, Rules(), stamp(), ended_at=at("11:00:00"), profile="p"
    )
    assert status.result is None or 0 <= float(status.result) <= 1
    for text in (status.avg_step_time_sec, status.non_warmup_time_sec, status.avg_tflops_per_gpu):
        assert text is None or (len(text) <= 64 and 0 <= float(text) < math.inf)  # as the API server takes them


def test_a_state_is_that_of_the_measurement_it_was_written_for() -> None:
    state = GoodputState(current_step=7)
    text = msgspec.json.encode(Kept("uid-1", state)).decode()

    def read(uid: str, text: str) -> GoodputState:
        metadata = {"name": "g", "namespace": "n", "uid": uid, "annotations": {names.ANNOTATION_GOODPUT: text}}
        item = cached({"metadata": metadata, "spec": {"logProfileRef": "p"}}, GoodputMeasurement)
        assert item.view is not None
        return written_down(item, item.view).state

    assert read("uid-1", text) == state
    for uid, kept in (("uid-2", text), ("uid-1", text[:-9]), ("uid-1", "[]"), ("uid-1", '{"version": 2}')):
        assert read(uid, kept) == GoodputState()


def test_a_status_that_was_written_can_be_read_again() -> None:
    state = folded(GoodputState(), [*events(ENDED_LOG, NEMO), Sampled(at("10:03:10"), at("10:03:00"))])
    status = goodput_status.running(GoodputMeasurementStatus(), state, Rules(), stamp("10:03:10"))
    again = goodput_status.running(status, goodput_status.restore(status), Rules(), stamp("10:03:10"))
    assert again == status


# Thresholds


def measurement(status: GoodputMeasurementStatus) -> GoodputMeasurement:
    return GoodputMeasurement(ObjectMeta(name="g"), GoodputMeasurementSpec("nemo"), status)


def test_a_threshold_may_use_final_figures_only_and_zero_is_one() -> None:
    state = folded(GoodputState(), events(ENDED_LOG, NEMO))
    provisional = goodput_status.running(
        GoodputMeasurementStatus(), fold(state, Sampled(at("10:03:01")), Rules()), Rules(), stamp("10:03:01")
    )
    assert measured_goodput([measurement(provisional)]) == Measured()
    final = goodput_status.succeeded(
        GoodputMeasurementStatus(), state, Rules(), stamp(), ended_at=at("10:05:00"), profile="nemo"
    )
    values = measured_goodput([measurement(final)]).values
    assert values == {"goodputRatio": 0.942373, "avgTFLOPsPerGPU": 100.0, "avgStepTimeSec": 5.5}
    zero = msgspec.structs.replace(final, result="0.000000", avg_tflops_per_gpu=None)
    measured = measured_goodput([measurement(zero)])
    assert measured.values["goodputRatio"] == 0.0
    assert set(measured.lost) == {"avgTFLOPsPerGPU"}


def test_a_measurement_that_ended_without_figures_says_that_they_are_lost() -> None:
    status = goodput_status.failed(
        GoodputMeasurementStatus(), GoodputState(), Rules(), stamp(), ended_at=at("10:05:00")
    )
    measured = measured_goodput([measurement(status)])
    assert measured.values == {}
    assert measured.lost["goodputRatio"] == "GoodputMeasurement g ended with JobFailed"
    waiting = goodput_status.unmeasurable(
        GoodputMeasurementStatus(), Reason.LOG_PROFILE_NOT_FOUND, "no such profile", stamp()
    )
    assert measured_goodput([measurement(waiting)]).pending["goodputRatio"] == "GoodputMeasurement g: no such profile"
    assert measured_goodput([]) == Measured()


@pytest.mark.parametrize(
    "kept",
    [
        '{"start_time": "2026-12-01T12:00:00"}',
        '{"run": {"last_warm_time": "2026-12-01T12:00:00"}}',
        '{"pending": {"at": "2026-12-01T12:00:00", "reason": "", "lost_s": 0}}',
        '{"checkpoint": {"step": 1, "time": "2026-12-01T12:00:00"}}',
    ],
)
def test_a_state_whose_times_cannot_be_compared_is_not_read(kept: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode(kept)
