"""A training log as the JSON document training/1 (tests/corpus has its description).

The step time is what the framework prints; where it prints none, the difference of time stamps, or of the elapsed time
on the bar, over the difference of steps, and never across a restart.  A step number that goes back is a restart; so are
a launcher's own words, or a checkpoint that is loaded after steps were made.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from nvcre_logs.training import Kind, TrainingEvent

_RESTART_MARKERS = (  # torchelastic, Megatron-LM, HF Trainer
    ("worker_group", b"will restart worker group", re.compile(rb"will restart worker group")),
    ("exit", b"exiting program a", re.compile(rb"exiting program (?:after|at) ")),
    (
        "resume",
        b"Continuing training from global step ",
        re.compile(rb"Continuing training from global step (?P<step>[0-9]{1,12})"),
    ),
)


_COUNT_FROM_0 = frozenset(("nemo", "maxtext"))  # also where a log begins in the middle of the run


@dataclass(frozen=True, slots=True)
class Marker:
    """A line in which a launcher or a framework says that it begins again."""

    line: int
    kind: str
    step: int | None = None

    @property
    def certain(self) -> bool:
        """The others are said at other times too: they explain a step number that goes back and are no proof of one."""
        return self.kind not in ("exit", "application_start")


@dataclass(frozen=True, slots=True)
class Restart:
    line: int
    highest_step: int
    resume_step: int
    kind: str

    @property
    def lost_steps(self) -> int:
        return self.highest_step - self.resume_step


def markers(block: bytes, lines_before: int) -> list[Marker]:
    """Those of a block of whole lines."""
    found = []
    for kind, literal, pattern in _RESTART_MARKERS:
        for match in pattern.finditer(block) if literal in block else ():
            step = match.groupdict().get("step")
            line = lines_before + block.count(b"\n", 0, match.start()) + 1
            found.append(Marker(line, kind, int(step) if step else None))
    return found


@dataclass(frozen=True, slots=True)
class TrainingLog:
    """The events of one rank (training.of_one_rank) and what was found beside them."""

    framework: str
    events: Sequence[TrainingEvent]
    markers: Sequence[Marker] = ()
    oversized_lines: int = 0  # skipped

    @property
    def records(self) -> list[TrainingEvent]:
        return [event for event in self.events if event.kind is Kind.STEP]

    @property
    def checkpoints(self) -> list[TrainingEvent]:
        """Each told once, however many files or ranks it has."""
        found: list[TrainingEvent] = []
        for event in self.events:
            if event.kind in (Kind.STEP, Kind.APPLICATION_START):
                continue
            if found and (found[-1].kind, found[-1].step) == (event.kind, event.step) and event.step is not None:
                continue
            found.append(event)
        return found

    @property
    def target(self) -> int | None:
        """Steps to make; where the log does not say, those that were made."""
        records = self.records
        if not records:
            return None
        told = next((record.target for record in reversed(records) if record.target is not None), None)
        return told if told is not None else self._made

    @property
    def target_reached(self) -> bool:
        target = self.target
        return target is not None and self._made >= target

    @property
    def _made(self) -> int:
        steps = [record.step or 0 for record in self.records]
        return max(steps) + (1 if min(steps) == 0 or self.framework in _COUNT_FROM_0 else 0)

    @property
    def log_interval(self) -> int | None:
        """The usual distance of two steps; step 1 is often logged although it is none."""
        steps = [record.step or 0 for record in self.records]
        distances = Counter(
            later if earlier == 1 and later > 2 else later - earlier
            for earlier, later in pairwise(steps)
            if later > earlier
        )
        if not distances:
            return None
        return max(distances, key=lambda distance: (distances[distance], distance))

    def restarts(self) -> list[Restart]:
        found: list[Restart] = []
        highest: int | None = None
        previous: TrainingEvent | None = None
        since: list[Marker] = []  # what was said since the last step
        saved = 0
        for item in self._in_order():
            if isinstance(item, Marker) and item.kind == "saved":
                saved = item.step or 0
                continue
            if isinstance(item, Marker):
                since.append(item)
                continue
            step = item.step or 0
            if previous is not None and highest is not None:
                back = step <= (previous.step or 0)
                if back or any(marker.certain for marker in since):
                    found.append(self._restart(item, highest, since, saved))
            highest = step if highest is None else max(highest, step)
            previous, since = item, []
        return found

    def _restart(self, first: TrainingEvent, highest: int, said: Sequence[Marker], saved: int) -> Restart:
        """Where it does not say from which step it goes on: from the checkpoint, or one interval before its first."""
        resumed = next((marker.step for marker in reversed(said) if marker.step is not None), None)
        if resumed is None:
            step = first.step or 0
            resumed = max(step - (self.log_interval or 1), saved if saved < step else 0, 0)
        said = [marker for marker in said if marker.certain] or said
        if not said:
            return Restart(first.line, highest, resumed, "step_back")
        return Restart(said[0].line, highest, resumed, said[0].kind)

    def _in_order(self) -> list[TrainingEvent | Marker]:
        begun = (
            Marker(
                event.line, "application_start" if event.kind is Kind.APPLICATION_START else "checkpoint", event.step
            )
            for event in self.events
            if event.kind in (Kind.APPLICATION_START, Kind.RESTORE, Kind.LOADED)
        )
        kinds = {event.kind for event in self.events}
        durable = Kind.SAVED if Kind.SAVED in kinds else Kind.SAVE  # some frameworks do not say when it is done
        saves = (Marker(event.line, "saved", event.step) for event in self.events if event.kind is durable)
        items: list[TrainingEvent | Marker] = [*self.records, *self.markers, *begun, *saves]
        return sorted(items, key=lambda item: item.line)

    def step_time(self) -> dict[str, Any]:
        records = self.records
        printed = [record.duration_s for record in records if record.duration_s is not None]
        if printed:
            rest = [record.duration_s for record in records[1:] if record.duration_s is not None]
            return _step_time("printed", _mean(printed), _mean(rest))
        cuts = {restart.line for restart in self.restarts()}
        pairs = [
            (earlier, later)
            for earlier, later in pairwise(records)
            if (later.step or 0) > (earlier.step or 0) and not any(earlier.line < cut <= later.line for cut in cuts)
        ]
        by_time = [
            (later.time - earlier.time).total_seconds() / ((later.step or 0) - (earlier.step or 0))
            for earlier, later in pairs
            if earlier.time is not None and later.time is not None
        ]
        if by_time:
            mean = _mean(by_time)
            return _step_time("timestamp_delta_within_run" if cuts else "timestamp_delta", mean, mean)
        on_bar = [
            ((later.step or 0) - (earlier.step or 0), later.elapsed_s - earlier.elapsed_s)
            for earlier, later in pairs
            if earlier.elapsed_s is not None and later.elapsed_s is not None and later.elapsed_s > earlier.elapsed_s
        ]
        if on_bar:
            mean = sum(seconds for _, seconds in on_bar) / sum(steps for steps, _ in on_bar)
            return _step_time("tqdm_elapsed", mean, mean)
        return _step_time(None, None, None)


def document(log: TrainingLog, case: str) -> dict[str, Any]:
    records = log.records
    steps = [record.step or 0 for record in records]
    tflops = [record.tflops for record in records if record.tflops is not None]
    return {
        "schema": "training/1",
        "case": case,
        "framework": log.framework,
        "log_interval": log.log_interval,
        "steps": {
            "first": min(steps, default=None),
            "last": max(steps, default=None),
            "unique": len(set(steps)),
            "records": len(steps),
            "target": log.target,
        },
        "step_time": log.step_time(),
        "tflops_mean": _rounded(_mean(tflops)),
        "records": [
            {
                "line": record.line,
                "step": record.step,
                "time_s": record.duration_s,
                "tflops": record.tflops,
                "loss": record.loss,
                "timestamp": record.printed_time,
            }
            for record in records
        ],
        "checkpoint_events": [
            {
                "line": event.line,
                "kind": event.kind.value,
                "step": _step_of(event, records),
                "duration_s": event.duration_s,
            }
            for event in log.checkpoints
        ],
        "restarts": [
            {
                "line": restart.line,
                "highest_step": restart.highest_step,
                "resume_step": restart.resume_step,
                "lost_steps": restart.lost_steps,
                "kind": restart.kind,
            }
            for restart in log.restarts()
        ],
        "why": why(log),
        "target_reached": log.target_reached,
    }


def why(log: TrainingLog) -> str:
    """One sentence for a person."""
    records = log.records
    if not records:
        return "No training step was found."
    restarts, target = len(log.restarts()), log.target
    again = f", {restarts} restart{'s' if restarts > 1 else ''}" if restarts else ""
    short = "" if log.target_reached else f"; the run was to make {target} and ended before"
    return f"{len(records)} logged steps up to {max(record.step or 0 for record in records)}{again}{short}."


def _step_of(event: TrainingEvent, records: Iterable[TrainingEvent]) -> int | None:
    """Some frameworks do not say of which step the checkpoint is: of the last one logged before."""
    if event.step is not None or event.kind in (Kind.RESTORE, Kind.LOADED):
        return event.step
    return next((record.step for record in reversed(list(records)) if record.line < event.line), None)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _step_time(method: str | None, mean: float | None, rest: float | None) -> dict[str, Any]:
    return {"method": method, "mean_s": _rounded(mean), "mean_excluding_first_s": _rounded(rest)}
