"""What a GoodputMeasurement's status says of a goodput state, while its Job runs and when it has ended.

The end is the Job's own transition time, never our clock.  A failed Job adds an interruption at the moment its workload
was last seen alive.  A measurement that is complete does not change any more: the first terminal write wins
(spec/reference-behaviour.md 4.3).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec
from nvcre_logs.training import TrainingEvent

from nvcre_coordinator.api.conditions import ConditionStatus, ConditionType, Reason, find
from nvcre_coordinator.api.measurement import GoodputMeasurement, GoodputMeasurementStatus, PendingInterruption
from nvcre_coordinator.api.meta import second
from nvcre_coordinator.core import log_gaps
from nvcre_coordinator.core.conditions import Stamp, log_answers, measuring, not_measuring
from nvcre_coordinator.core.goodput import (
    Checkpoint,
    GoodputState,
    Interrupted,
    Interruption,
    Rules,
    Run,
    fold,
    ratio,
)
from nvcre_coordinator.core.goodput_history import History, remember
from nvcre_coordinator.core.observed import Measured
from nvcre_coordinator.core.thresholds import AVG_STEP_TIME, AVG_TFLOPS_PER_GPU, GOODPUT_RATIO

NOTHING = History()
KEYS = frozenset({GOODPUT_RATIO, AVG_TFLOPS_PER_GPU, AVG_STEP_TIME})
"""Thresholds that a GoodputMeasurement gives values to."""


def running(
    status: GoodputMeasurementStatus, state: GoodputState, rules: Rules, stamp: Stamp, *, history: History = NOTHING
) -> GoodputMeasurementStatus:
    """Provisional figures up to now; Measuring becomes True with the first sample that tells something."""
    if status.complete:
        return status
    if state.start_time is None:
        return msgspec.structs.replace(status, conditions=log_answers(status.conditions))
    conditions = measuring(status.conditions, "Reading the logs of the running Job; figures are provisional", stamp)
    figures = _with_figures(status, state, rules, stamp.now)
    return msgspec.structs.replace(figures, conditions=conditions, **_told(history))


def unmeasurable(
    status: GoodputMeasurementStatus, reason: Reason, message: str, stamp: Stamp
) -> GoodputMeasurementStatus:
    """Not the end: the profile may yet appear or be corrected, the log be given."""
    if status.complete:
        return status
    return msgspec.structs.replace(status, conditions=not_measuring(status.conditions, reason, message, stamp))


def succeeded(
    status: GoodputMeasurementStatus,
    state: GoodputState,
    rules: Rules,
    stamp: Stamp,
    *,
    ended_at: datetime,
    profile: str,
    history: History = NOTHING,
) -> GoodputMeasurementStatus:
    if status.complete:
        return status
    figures = _with_figures(status, state, rules, ended_at)
    if state.current_step is None:
        reason = Reason.NO_DATA_COLLECTED
        message = f"The logs have no training step: spec.logProfileRef {profile!r} matches none of their lines"
        figures = msgspec.structs.replace(figures, result=None)
    else:
        reason, message = Reason.JOB_SUCCEEDED, f"Goodput {figures.result} up to the end of the Job"
    return _completed(figures, reason, message, stamp, ended_at=ended_at, history=history)


def failed(
    status: GoodputMeasurementStatus,
    state: GoodputState,
    rules: Rules,
    stamp: Stamp,
    *,
    ended_at: datetime,
    container_finished_at: datetime | None = None,
    history: History = NOTHING,
) -> GoodputMeasurementStatus:
    """The work since the last checkpoint is lost; figures end where the workload did."""
    if status.complete:
        return status
    died_at = min(state.last_activity or container_finished_at or ended_at, ended_at)
    event = Interrupted(died_at, Reason.JOB_FAILED.value)
    interrupted = fold(state, event, rules)
    history = remember(history, state, event, interrupted)
    # Figures of the last run stand: the fold has cleared them for a next one, which does not come.
    last = msgspec.structs.replace(
        interrupted,
        run=state.run,
        step_time_s=state.step_time_s,
        prior_warmup_s=state.prior_warmup_s,
        prior_warm_s=state.prior_warm_s,
    )
    figures = msgspec.structs.replace(
        _with_figures(status, last, rules, died_at),
        prior_warmup_time_sec=_text(interrupted.prior_warmup_s),
        prior_non_warmup_time_sec=_text(interrupted.prior_warm_s),
    )
    message = "The Job failed; goodput up to its failure"
    return _completed(figures, Reason.JOB_FAILED, message, stamp, ended_at=ended_at, history=history)


def _completed(
    figures: GoodputMeasurementStatus,
    reason: Reason,
    message: str,
    stamp: Stamp,
    *,
    ended_at: datetime,
    history: History,
) -> GoodputMeasurementStatus:
    message += log_gaps.sentence(history.gaps)
    conditions = not_measuring(figures.conditions, reason, message, stamp, complete=True)
    return msgspec.structs.replace(figures, conditions=conditions, completion_time=second(ended_at), **_told(history))


def _told(history: History) -> dict[str, Any]:
    return {"interruptions": history.interruptions, "step_times": history.steps, "log_gaps": history.gaps}


def not_after(events: Iterable[TrainingEvent], ended_at: datetime) -> list[TrainingEvent]:
    """What the final read may use: a pod may log on while it is being ended."""
    return [event for event in events if event.time is None or event.time <= ended_at]


def restore(status: GoodputMeasurementStatus) -> GoodputState:
    """The state that a status tells of, where nothing better was kept.  Averages go on with the steps that follow."""
    pending = status.pending_interruption
    checkpoint_time = status.last_checkpoint_time or (pending.t_checkpoint if pending is not None else None)
    step = _or(status.last_checkpoint_step, pending.checkpoint_step if pending is not None else None)
    checkpoint = Checkpoint(step, checkpoint_time) if step is not None else None
    between_runs = pending is not None
    return GoodputState(
        start_time=status.start_time,
        last_activity=status.application_stop_time,
        current_step=status.current_step,
        highest_step=status.highest_step,
        lost_s=_float(status.lost_work_time_sec),
        reschedule_s=_float(status.reschedule_time_sec),
        resume_s=_float(status.resume_time_sec),
        checkpoint_save_s=_float(status.checkpoint_save_time_sec),
        interruptions=status.interruption_count or 0,
        checkpoint=checkpoint,
        pending=_interruption(pending, checkpoint) if pending is not None else None,
        prior_warmup_s=_float(status.prior_warmup_time_sec),
        prior_warm_s=_float(status.prior_non_warmup_time_sec),
        step_time_s=_positive(status.avg_step_time_sec),
        tflops=_positive(status.avg_tflops_per_gpu),
        run=Run() if between_runs else _run(status),
    )


def measured_goodput(measurements: Iterable[GoodputMeasurement]) -> Measured:
    """Final values of the first measurement; zero is a value, and what its log never told is lost."""
    measurement = next(iter(measurements), None)
    if measurement is None:
        return Measured()
    status, name = measurement.status, f"GoodputMeasurement {measurement.metadata.name}"
    complete = find(status.conditions, ConditionType.COMPLETE)
    if complete is None or complete.status is not ConditionStatus.TRUE:
        measuring = find(status.conditions, ConditionType.MEASURING)
        if measuring is None or measuring.status is not ConditionStatus.FALSE:
            return Measured()
        return Measured(pending=dict.fromkeys(KEYS, f"{name}: {measuring.message}"))
    told = {
        GOODPUT_RATIO: status.result,
        AVG_TFLOPS_PER_GPU: status.avg_tflops_per_gpu,
        AVG_STEP_TIME: status.avg_step_time_sec,
    }
    if complete.reason != Reason.JOB_SUCCEEDED:
        return Measured(lost=dict.fromkeys(KEYS, f"{name} ended with {complete.reason}"))
    values = {key: value for key, text in told.items() if text is not None and (value := _number(text)) is not None}
    return Measured(values, {key: f"{name}: its logs do not tell {key}" for key in KEYS - set(values)})


def _interruption(pending: PendingInterruption, checkpoint: Checkpoint | None) -> Interruption | None:
    if pending.t_interrupt is None:
        return None
    return Interruption(pending.t_interrupt, pending.reason or "", _float(pending.t_ch), checkpoint, pending.last_step)


def _run(status: GoodputMeasurementStatus) -> Run:
    """Its first step lies before what we know of: where steps were seen, it was seen too."""
    warm_s = _float(status.non_warmup_time_sec) - _float(status.prior_non_warmup_time_sec)
    first = None
    if status.current_step is not None:
        first = status.last_step_timestamp or status.application_stop_time or status.start_time
    return Run(
        application_start=status.application_start_time,
        base_step=status.warmup_base_step if (status.warmup_base_step or -1) >= 0 else None,
        first_step_time=first,
        last_step=status.current_step,
        last_step_time=status.last_step_timestamp,
        last_warm_step=status.last_non_warmup_step,
        last_warm_time=status.last_step_timestamp,
        warmup_s=max(0.0, _float(status.warmup_time_sec) - _float(status.prior_warmup_time_sec)),
        warm_s=warm_s if warm_s > 0 else None,
    )


def _with_figures(
    status: GoodputMeasurementStatus, state: GoodputState, rules: Rules, end: datetime
) -> GoodputMeasurementStatus:
    start = state.start_time or state.first_step_time
    training_s = max(0.0, (end - start).total_seconds()) if start is not None else 0.0
    goodput = ratio(
        training_s=training_s,
        lost_s=state.lost_s,
        reschedule_s=state.reschedule_s,
        resume_s=state.resume_s,
        save_s=state.checkpoint_save_s,
    )
    run = state.run
    return msgspec.structs.replace(
        status,
        result=_text(goodput),
        current_step=state.current_step,
        highest_step=state.highest_step,
        training_time_sec=_text(training_s),
        lost_work_time_sec=_text(state.lost_s),
        reschedule_time_sec=_text(state.reschedule_s),
        resume_time_sec=_text(state.resume_s),
        checkpoint_save_time_sec=_text(state.checkpoint_save_s),
        interruption_count=state.interruptions,
        last_checkpoint_step=state.checkpoint.step if state.checkpoint is not None else None,
        last_checkpoint_time=_second(state.checkpoint.time) if state.checkpoint is not None else None,
        start_time=_second(start),
        last_step_timestamp=_second(run.last_warm_time),
        avg_step_time_sec=_text(state.step_time_s) if state.step_time_s is not None else None,
        log_interval=rules.log_interval or None,
        warmup_base_step=run.base_step,
        warmup_time_sec=_text(state.prior_warmup_s + run.warmup_s),
        non_warmup_time_sec=_text(state.prior_warm_s + (run.warm_s or 0.0)),
        last_non_warmup_step=run.last_warm_step,
        prior_warmup_time_sec=_text(state.prior_warmup_s) if state.interruptions else None,
        prior_non_warmup_time_sec=_text(state.prior_warm_s) if state.interruptions else None,
        avg_tflops_per_gpu=_text(state.tflops) if state.tflops is not None else None,
        application_start_time=_second(run.application_start),
        application_stop_time=_second(state.last_activity),
        pending_interruption=_pending(state.pending),
    )


def _pending(pending: Interruption | None) -> PendingInterruption | None:
    if pending is None:
        return None
    checkpoint = pending.checkpoint
    return PendingInterruption(
        t_checkpoint=_second(checkpoint.time) if checkpoint is not None else None,
        t_interrupt=_second(pending.at),
        checkpoint_step=checkpoint.step if checkpoint is not None else None,
        last_step=pending.last_step,
        t_ch=_text(pending.lost_s),
        reason=pending.reason,
    )


def _text(value: float) -> str:
    return f"{value:.6f}"


def _second(moment: datetime | None) -> datetime | None:
    return second(moment) if moment is not None else None


def _float(text: str | None) -> float:
    return _positive(text) or 0.0


def _positive(text: str | None) -> float | None:
    value = _number(text) if text else None
    return value if value is not None and value > 0 else None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _or(value: int | None, other: int | None) -> int | None:
    return other if value is None else value
