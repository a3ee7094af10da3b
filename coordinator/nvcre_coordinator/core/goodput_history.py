"""What a goodput measurement remembers beside its sums: how long steps took, interruptions, gaps in its logs.

    history = remember(history, before, event, after)      # states before and after core/goodput.py folded the event

Bounded: when there are too many points, each two neighbours become their mean.  It changes no figure.
"""

from __future__ import annotations

import msgspec
from nvcre_logs.training import TrainingEvent

from nvcre_coordinator.api.measurement import PastInterruption, StepTime
from nvcre_coordinator.core.goodput import Event, GoodputState, Interrupted
from nvcre_coordinator.core.log_gaps import Gaps

MAX_POINTS = 120  # maxItems of status.stepTimes
MAX_INTERRUPTIONS = 32  # maxItems of status.interruptions


class History(msgspec.Struct, frozen=True):
    steps: tuple[StepTime, ...] = ()
    interruptions: tuple[PastInterruption, ...] = ()  # the newest
    gaps: Gaps = ()


def remember(history: History, before: GoodputState, event: Event, after: GoodputState) -> History:
    match event:
        case Interrupted(at, reason):
            past = PastInterruption(at, reason, _seconds(after.lost_s - before.lost_s), before.current_step)
            interruptions = (*history.interruptions, past)[-MAX_INTERRUPTIONS:]
            return msgspec.structs.replace(history, interruptions=interruptions)
        case TrainingEvent() if after.run.window is not before.run.window and after.run.window:
            return _stepped(_resumed(history, before, event, after), event, after)
    return history


def _resumed(history: History, before: GoodputState, event: TrainingEvent, after: GoodputState) -> History:
    """The first step after an interruption ends it."""
    if before.pending is None or after.pending is not None or not history.interruptions:
        return history
    *earlier, last = history.interruptions
    ended = msgspec.structs.replace(
        last,
        resumed_at=event.time,
        reschedule_sec=_seconds(after.reschedule_s - before.reschedule_s),
        resume_sec=_seconds(after.resume_s - before.resume_s),
    )
    return msgspec.structs.replace(history, interruptions=(*earlier, ended))


def _stepped(history: History, event: TrainingEvent, after: GoodputState) -> History:
    step = after.run.window[-1]
    took_s = step.timing_s if step.timing_s is not None else step.gap_s
    if took_s is None or took_s < 0 or event.step is None:
        return history
    steps = (*history.steps, StepTime(event.step, _seconds(took_s), event.time))
    if len(steps) > MAX_POINTS:
        pairs = zip(steps[::2], steps[1::2], strict=False)
        steps = (*(_mean(one, other) for one, other in pairs), *steps[len(steps) // 2 * 2 :])
    return msgspec.structs.replace(history, steps=steps)


def _mean(one: StepTime, other: StepTime) -> StepTime:
    """Stands for the steps of both."""
    steps = one.steps + other.steps
    took_s = (float(one.step_time_sec) * one.steps + float(other.step_time_sec) * other.steps) / steps
    return StepTime(other.step, _seconds(took_s), other.time, steps)


def _seconds(value: float) -> str:
    return f"{value:.6f}"
