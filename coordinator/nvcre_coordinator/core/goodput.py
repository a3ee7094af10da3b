"""Goodput as a fold over what is seen of a training run: log events, samples, interruptions.

    state = fold(state, event, rules)

Pure; the state is a value that can be written down (`encode`) after any event and read again (`decode`), so a
coordinator that begins again goes on with the same figures.  The arithmetic is spec/reference-behaviour.md 4.1-4.3:
lost work from the last checkpoint to the interruption, reschedule from there to the start of the application, resume to
its first step, and the time that saving checkpoints stops the training.  What becomes of it in the object's status is
core/goodput_status.py.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple, TypeVar

import msgspec
from nvcre_logs.profile import LogProfileSpec
from nvcre_logs.training import Kind, TrainingEvent

from nvcre_coordinator.api.meta import Moment

T = TypeVar("T")

WINDOW = 100
"""Steps that averages are taken over."""
MOST_SECONDS = 1e7
MOST_TFLOPS = 1e6
"""Of a step, or of a save: what is more is somebody's noise, which must not become a mean or a sum without end."""


class Rules(NamedTuple):
    """What the LogProfile says about counting steps."""

    warmup_steps: int = 0  # step numbers after the first of a run
    log_interval: int = 0  # steps between two logged ones; others are dropped
    done_is_logged: bool = True  # else a save is done when it is said


def rules_of(spec: LogProfileSpec) -> Rules:
    return Rules(spec.warmup_steps or 0, spec.log_interval or 0, spec.patterns.checkpoint_done is not None)


class Sampled(NamedTuple):
    """The logs of a running workload were read, and told something."""

    now: datetime
    last_activity: datetime | None = None  # of the newest line


class Interrupted(NamedTuple):
    """The workload is gone or starts again; `at` when it was last seen alive."""

    at: datetime
    reason: str


Event = TrainingEvent | Sampled | Interrupted


class Step(msgspec.Struct, frozen=True, array_like=True):
    """A step of the window.  `gap_s`: time since the step before it, for each step in between."""

    is_warmup: bool
    timing_s: float | None = None
    gap_s: float | None = None
    tflops: float | None = None


class Checkpoint(msgspec.Struct, frozen=True):
    step: int
    time: Moment | None


class Interruption(msgspec.Struct, frozen=True):
    """Until the first step of the next run is seen."""

    at: Moment
    reason: str
    lost_s: float
    checkpoint: Checkpoint | None = None
    last_step: int | None = None


class Run(msgspec.Struct, frozen=True):
    """The run since the last interruption.  Warm steps are those that are no warmup."""

    application_start: Moment | None = None
    base_step: int | None = None  # warmup counts from here
    first_step_time: Moment | None = None
    last_step: int | None = None
    last_step_time: Moment | None = None
    last_warm_step: int | None = None
    last_warm_time: Moment | None = None
    warmup_s: float = 0.0
    warm_s: float | None = None  # timing x steps; None: none had a timing
    window: tuple[Step, ...] = ()
    follows: Interruption | None = None  # for an application start that is read after its first step


class GoodputState(msgspec.Struct, frozen=True):
    start_time: Moment | None = None
    last_activity: Moment | None = None
    current_step: int | None = None
    highest_step: int | None = None
    lost_s: float = 0.0
    reschedule_s: float = 0.0
    resume_s: float = 0.0
    checkpoint_save_s: float = 0.0
    interruptions: int = 0
    checkpoint: Checkpoint | None = None
    save_begun: Checkpoint | None = None
    pending: Interruption | None = None
    prior_warmup_s: float = 0.0
    prior_warm_s: float = 0.0
    step_time_s: float | None = None
    tflops: float | None = None
    run: Run = Run()

    @property
    def first_step_time(self) -> datetime | None:
        return self.run.first_step_time


def encode(state: GoodputState) -> str:
    return msgspec.json.encode(state).decode()


def decode(text: str) -> GoodputState:
    """Raises msgspec.DecodeError or ValidationError."""
    return msgspec.json.decode(text, type=GoodputState)


def ratio(*, training_s: float, lost_s: float, reschedule_s: float, resume_s: float, save_s: float) -> float:
    """The share of the time that moved training forward; 0 where there was no time."""
    available = training_s - reschedule_s
    useful = training_s - lost_s - resume_s - reschedule_s - save_s
    return max(0.0, useful) / available if available > 0 else 0.0


def fold(state: GoodputState, event: Event, rules: Rules) -> GoodputState:
    match event:
        case Sampled(now, activity):
            return msgspec.structs.replace(
                state, start_time=state.start_time or now, last_activity=_later(state.last_activity, activity)
            )
        case Interrupted():
            return _interrupt(state, event)
        case TrainingEvent():
            return _logged(state, _plausible(event), rules)


def _plausible(event: TrainingEvent) -> TrainingEvent:
    took_s, tflops = event.duration_s, event.tflops
    if (took_s is None or 0 <= took_s <= MOST_SECONDS) and (tflops is None or 0 <= tflops <= MOST_TFLOPS):
        return event
    return msgspec.structs.replace(
        event,
        duration_s=took_s if took_s is not None and 0 <= took_s <= MOST_SECONDS else None,
        tflops=tflops if tflops is not None and 0 <= tflops <= MOST_TFLOPS else None,
    )


def _logged(state: GoodputState, event: TrainingEvent, rules: Rules) -> GoodputState:
    match event.kind:
        case Kind.STEP:
            state = _step(state, event, rules)
        case Kind.APPLICATION_START:
            state = _application_start(state, event)
        case Kind.RESTORE:
            state = _begin_warmup(state)
        case Kind.SAVE:
            state = _save(state, event, rules)
        case Kind.SAVED | Kind.SCHEDULED:
            state = _saved(state, event)
        case Kind.LOADED:
            pass  # its save was counted when it was made
    return state


def _step(state: GoodputState, event: TrainingEvent, rules: Rules) -> GoodputState:
    step = event.step
    if step is None or (rules.log_interval > 1 and step % rules.log_interval):
        return state
    run = state.run
    first = run.first_step_time is None and event.time is not None
    if first and event.time is not None:
        state = _first_step(state, event.time)
        run = state.run
    base = step if run.base_step is None else run.base_step
    is_warmup = event.is_warmup or step - base < rules.warmup_steps
    counted = Step(is_warmup, event.duration_s, None if is_warmup else _gap(run, event), event.tflops)
    window = (*run.window, counted)[-WINDOW:]
    changed = msgspec.structs.replace(
        run, base_step=base, last_step=step, last_step_time=event.time or run.last_step_time, window=window
    )
    changed = _warmup(changed, event) if is_warmup else _warm(changed, event, step, rules)
    return msgspec.structs.replace(
        state,
        current_step=step,
        highest_step=max(step, state.highest_step or 0),
        run=changed,
        step_time_s=_or(_step_time(window), state.step_time_s),
        tflops=_or(_mean([one.tflops for one in window if one.tflops]), state.tflops),
    )


def _first_step(state: GoodputState, time: datetime) -> GoodputState:
    """The first step of a run ends its resume time, and the interruption before it."""
    run, pending = state.run, state.pending
    began = run.application_start
    known = began is not None and (pending is None or began >= pending.at)
    resume_s = _seconds(time, began) if known and began is not None else 0.0
    reschedule_s = 0.0
    if pending is not None:
        reschedule_s = _seconds(began if known and began is not None else time, pending.at)
    return msgspec.structs.replace(
        state,
        pending=None,
        reschedule_s=state.reschedule_s + reschedule_s,
        resume_s=state.resume_s + resume_s,
        run=msgspec.structs.replace(run, first_step_time=time, follows=pending),
    )


def _application_start(state: GoodputState, event: TrainingEvent) -> GoodputState:
    run = state.run
    first, follows = run.first_step_time, run.follows
    if event.time is None or run.application_start is not None or (first is not None and event.time > first):
        return state  # some frameworks say again and again what others say at their start
    if first is None:
        return msgspec.structs.replace(state, run=msgspec.structs.replace(run, application_start=event.time))
    # Another pod's log is read a moment later: its start stands before the step that stood in for it.
    reschedule_s = state.reschedule_s
    if follows is not None:
        reschedule_s += _seconds(event.time, follows.at) - _seconds(first, follows.at)
    return msgspec.structs.replace(
        state,
        reschedule_s=reschedule_s,
        resume_s=state.resume_s + _seconds(first, event.time),
        run=msgspec.structs.replace(run, application_start=event.time),
    )


def _warmup(run: Run, event: TrainingEvent) -> Run:
    if run.warmup_s or event.duration_s is None:
        return run
    return msgspec.structs.replace(run, warmup_s=event.duration_s)


def _warm(run: Run, event: TrainingEvent, step: int, rules: Rules) -> Run:
    """Each step number counts once; what lies between two logged steps took as long as the logged one."""
    warm_s = run.warm_s
    if event.duration_s is not None and (run.last_warm_step is None or step > run.last_warm_step):
        steps = step - run.last_warm_step if run.last_warm_step is not None else max(rules.log_interval, 1)
        warm_s = (warm_s or 0.0) + event.duration_s * steps
    return msgspec.structs.replace(
        run,
        warm_s=warm_s,
        last_warm_step=max(step, run.last_warm_step or step),
        last_warm_time=_later(run.last_warm_time, event.time),
    )


def _gap(run: Run, event: TrainingEvent) -> float | None:
    if run.last_step_time is None or run.last_step is None or event.time is None or event.step is None:
        return None
    return (event.time - run.last_step_time).total_seconds() / max(event.step - run.last_step, 1)


def _step_time(window: tuple[Step, ...]) -> float | None:
    """Of the steps that are no warmup: what was printed, else what the times of the lines say."""
    warm = [step for step in window if not step.is_warmup]
    printed = [step.timing_s for step in warm if step.timing_s is not None]
    return _mean(printed or [step.gap_s for step in warm if step.gap_s is not None and step.gap_s >= 0])


def _save(state: GoodputState, event: TrainingEvent, rules: Rules) -> GoodputState:
    step = event.step if event.step is not None else state.current_step
    if step is None:
        return state
    begun = Checkpoint(step, event.time)
    if event.duration_s is None and rules.done_is_logged:
        return msgspec.structs.replace(state, save_begun=begun)
    return _checkpoint(state, begun, event.duration_s or 0.0)


def _saved(state: GoodputState, event: TrainingEvent) -> GoodputState:
    begun = state.save_begun
    if begun is not None and event.step in (None, begun.step):
        took = event.duration_s
        if took is None:
            took = _seconds(event.time, begun.time)
        return _checkpoint(state, begun, took)
    step = event.step if event.step is not None else state.current_step
    return state if step is None else _checkpoint(state, Checkpoint(step, event.time), event.duration_s or 0.0)


def _checkpoint(state: GoodputState, done: Checkpoint, took_s: float) -> GoodputState:
    """Counted once: the second line about the same checkpoint says that it is on the disk, or is read again."""
    if state.checkpoint is not None and done.step == state.checkpoint.step:
        return msgspec.structs.replace(state, save_begun=None)
    return msgspec.structs.replace(
        state, checkpoint=done, save_begun=None, checkpoint_save_s=state.checkpoint_save_s + took_s
    )


def _interrupt(state: GoodputState, event: Interrupted) -> GoodputState:
    """What was done since the last checkpoint is lost; with no checkpoint at all the sums begin anew."""
    kept = state.checkpoint
    lost_s = _seconds(event.at, kept.time) if kept is not None else 0.0
    has_checkpoint = kept is not None and kept.step > 0
    return msgspec.structs.replace(
        state,
        lost_s=state.lost_s + lost_s,
        interruptions=state.interruptions + 1,
        pending=Interruption(event.at, event.reason, lost_s, kept, state.current_step),
        prior_warmup_s=state.prior_warmup_s + state.run.warmup_s if has_checkpoint else 0.0,
        prior_warm_s=state.prior_warm_s + (state.run.warm_s or 0.0) if has_checkpoint else 0.0,
        save_begun=None,
        step_time_s=None,
        run=Run(),
    )


def _begin_warmup(state: GoodputState) -> GoodputState:
    """The next step is the first that warmup counts from."""
    return msgspec.structs.replace(state, run=msgspec.structs.replace(state.run, base_step=None))


def _seconds(later: datetime | None, earlier: datetime | None) -> float:
    return max(0.0, (later - earlier).total_seconds()) if later is not None and earlier is not None else 0.0


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    return max(one, other) if one is not None and other is not None else _or(one, other)


def _or(value: T | None, other: T | None) -> T | None:
    return other if value is None else value


def _mean(values: list[float] | list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
