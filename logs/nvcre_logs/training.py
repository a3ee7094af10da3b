"""Reads training logs by a LogProfile: steps, checkpoints and starts, as events in the order of their lines.

    reader = TrainingReader(compile_training(name, spec))
    for event in reader.feed(block): ...        # blocks of whole lines, as LineFeed cuts them

For each line: an application start (which does not use the line up), else the first of training step, checkpoint done,
checkpoint save, checkpoint restore, checkpoint loaded that matches.  One step is one event however many ranks print it;
a step may also be told in several lines: captures called progress... are kept for the line that has the rest (the bar
before the loss, the banner before the time).  It keeps no sums: see training_document.py and the coordinator's goodput.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import msgspec
import re2

from nvcre_logs.captures import SECONDS, Captures, Progress, either
from nvcre_logs.go_time import UNIX_MS, GoTimeParser, LayoutError, compile_layout
from nvcre_logs.linear_pattern import required_literal
from nvcre_logs.lines import DIGITS_ALIKE, Line, is_time, plain, split_prefix, unwrap
from nvcre_logs.patterns import LinePattern, LogProfileError, compile_pattern
from nvcre_logs.profile import DurationUnit, EventPattern, LogProfileSpec
from nvcre_logs.step_shapes import LONGEST_LINE, MAX_SHAPES, StepShape, reads_digits_alike, step_shape

MAX_EVENT_LINE_BYTES = 64 * 1024
MAX_PODS = 1024
MAX_SOURCES = 4096
STEP_GROUPS = ("globalStep", "iteration", "progressStep", "samples")
_GROUP_NAME = re.compile(r"\(\?P?<\w+>")
_FRACTION = re.compile(r"[.,](\d{1,9})(?:\D|$)")
_SAME_MOMENT_S = 1.0


class Kind(StrEnum):
    APPLICATION_START = "application_start"
    STEP = "step"
    SAVE = "save_start"
    SAVED = "save_done"
    SCHEDULED = "async_scheduled"  # handed over, not durable yet
    RESTORE = "load_start"
    LOADED = "load_done"


class TrainingEvent(msgspec.Struct, frozen=True, gc=False):  # a frozen dataclass takes ten times as long to make
    kind: Kind
    line: int  # from 1
    time: datetime | None = None  # printed, else the kubelet's
    printed_time: str | None = None  # ISO, with the digits that were printed
    step: int | None = None
    duration_s: float | None = None  # of the step, or of the save
    tflops: float | None = None
    loss: float | None = None
    target: int | None = None  # steps that the run is to make
    elapsed_s: float | None = None  # on the bar
    path: str = ""
    is_warmup: bool = False  # the profile's warmupStep matches
    source: tuple[str, int | None] = ("", None)  # pod and rank, where the log names them


@dataclass(frozen=True, slots=True)
class _Event:
    kind: Kind
    source: str
    pattern: LinePattern
    groups: dict[str, int]
    units: dict[str, DurationUnit]

    @property
    def tells_steps(self) -> bool:
        return any(name.rstrip("0123456789") in STEP_GROUPS for name in self.groups)

    @property
    def tells_progress(self) -> bool:
        return any(name.startswith("progress") for name in self.groups)


@dataclass(frozen=True, slots=True)
class TrainingProfile:
    name: str
    spec: LogProfileSpec
    layout: GoTimeParser
    start: _Event | None
    events: tuple[_Event, ...]
    warmup: _Event | None
    prefilter: re2.Pattern | None  # matches in every line in which one of them does; None: try every line
    literals: re2.Pattern | None  # the same for a part of each, and some lines more: four times as fast
    steps_have_shapes: bool  # that a line is a step, and where its figures are, does not depend on its digits


def compile_training(name: str, spec: LogProfileSpec) -> TrainingProfile:
    """Raises LogProfileError naming the field."""
    try:
        layout = compile_layout(spec.timestamp.layout)
    except LayoutError as error:
        raise LogProfileError(f"spec.timestamp.layout: {error}") from error
    patterns = spec.patterns
    if patterns.training_step is None:
        raise LogProfileError("it has no spec.patterns.trainingStep")
    start = _compile(Kind.APPLICATION_START, patterns.application_start, "applicationStart")
    in_order = (
        _compile(Kind.STEP, patterns.training_step, "trainingStep"),
        _compile(Kind.SAVED, patterns.checkpoint_done, "checkpointDone"),
        _compile(Kind.SAVE, patterns.checkpoint_save, "checkpointSave"),
        _compile(Kind.RESTORE, patterns.checkpoint_restore, "checkpointRestore"),
        _compile(Kind.LOADED, patterns.checkpoint_loaded, "checkpointLoaded"),
    )
    events = tuple(event for event in in_order if event is not None)
    if not events[0].tells_steps:
        raise LogProfileError(f"spec.patterns.trainingStep.regex lacks a named group: {' or '.join(STEP_GROUPS)}")
    warmup = _compile(Kind.STEP, patterns.warmup_step, "warmupStep")
    sources = [event.source for event in (start, *events) if event is not None]
    for_steps = [event for event in (start, events[0], warmup) if event is not None]
    have_shapes = all(reads_digits_alike(event.source) for event in for_steps)
    tell_progress = any(event.tells_progress for event in events)
    return TrainingProfile(
        name,
        spec,
        layout,
        start,
        events,
        warmup,
        prefilter=_prefilter(sources),
        literals=_literals(sources),
        steps_have_shapes=have_shapes and not tell_progress,
    )


def _compile(kind: Kind, pattern: EventPattern | None, field_name: str) -> _Event | None:
    if pattern is None:
        return None
    compiled = compile_pattern(pattern, f"spec.patterns.{field_name}", ())
    groups = {name.decode(): number for name, number in compiled.line.groupindex.items()}
    return _Event(kind, pattern.regex, compiled, groups, pattern.units)


def _prefilter(sources: list[str]) -> re2.Pattern | None:
    """All patterns as one that captures nothing, which is fast.  The beginning of a line may be behind a prefix."""
    if any("^" in source[1:].replace("[^", "") or "\\A" in source for source in sources):
        return None
    options = _quick_options()
    joined = "|".join(f"(?:{_GROUP_NAME.sub('(?:', source.removeprefix('^'))})" for source in sources)
    try:
        return re2.compile(f"(?m){joined}".encode(), options)
    except re2.error:
        return None


def _literals(sources: list[str]) -> re2.Pattern | None:
    literals = [required_literal(source) for source in sources]
    if not all(literals):
        return None
    options = _quick_options()
    options.encoding = re2.Options.Encoding.LATIN1
    return re2.compile(b"|".join(map(re.escape, literals)), options)


def _quick_options() -> re2.Options:
    options = re2.Options()
    options.max_mem = 32 << 20
    options.log_errors = False
    options.never_capture = True
    return options


class TrainingReader:
    def __init__(self, profile: TrainingProfile) -> None:
        self._profile = profile
        self.lines = 0  # read so far
        self._progress: dict[str, Progress] = {}  # by pod
        self._told: TrainingEvent | None = None  # the last step, and its text
        self._told_text = b""
        self._tells_progress = any(event.tells_progress for event in profile.events)
        self._shapes: dict[bytes, StepShape] = {}
        self._sources: dict[bytes, tuple[str, int | None]] = {}
        self.progress_lines = 0

    def feed(self, block: bytes) -> list[TrainingEvent]:
        block = plain(block)
        if not block.isascii():
            block = block.decode(errors="replace").encode()  # RE2's "." is no byte that is not UTF-8
        found: list[TrainingEvent] = []
        prefilter = self._profile.prefilter
        candidates = self._profile.literals or prefilter
        position, number, size = 0, self.lines + 1, len(block)
        in_a_row = True  # the line behind a step may be one: it is looked at before any search
        while position < size:
            end = block.find(b"\n", position)
            looked_at = in_a_row
            if not (in_a_row and self._step_alike(block[position:end], number, found)):
                if candidates is not None:
                    hit = candidates.search(block, position)
                    if hit is None:
                        break
                    start = block.rfind(b"\n", position, min(hit.start(), size - 1)) + 1 or position
                    in_a_row = start == position
                    if not in_a_row:
                        number += block.count(b"\n", position, start)
                        position, end, looked_at = start, block.find(b"\n", start), False
                raw = block[position:end]
                if (looked_at or not self._step_alike(raw, number, found)) and (
                    candidates is prefilter or prefilter is None or prefilter.search(raw) is not None
                ):
                    found += self._events(number, raw)
            position, number = end + 1, number + 1
        self.lines = number - 1 + block.count(b"\n", position)
        return found

    def _step_alike(self, raw: bytes, number: int, found: list[TrainingEvent]) -> bool:
        """A step line whose shape is known, read into `found`; False: the line is for the patterns."""
        shape = self._shapes.get(raw.translate(DIGITS_ALIKE))
        if shape is None or (shape.stamp is not None and not is_time(raw[shape.stamp])):
            return False
        if shape.timestamp is not None:
            text = raw[shape.timestamp].decode()
            time = self._profile.layout.parse_alike(text)
            if time is None:
                return False
            printed: str | None = self._printed(text, time)
        else:
            time = split_prefix(raw[shape.stamp].decode() + " ")[0] if shape.stamp is not None else None
            printed = time.isoformat() if time is not None else None
        duration_s = float(raw[shape.duration]) if shape.duration is not None else None
        target = int(raw[shape.target]) if shape.target is not None else None
        step = TrainingEvent(
            Kind.STEP,
            number,
            time,
            printed,
            int(raw[shape.step]),
            round(duration_s * shape.seconds, 9) if duration_s is not None and shape.seconds != 1.0 else duration_s,
            float(raw[shape.tflops]) if shape.tflops is not None else None,
            float(raw[shape.loss]) if shape.loss is not None else None,
            int(raw[shape.last_step]) + 1 if shape.last_step is not None else target,
            is_warmup=shape.is_warmup,
            source=self._source(raw, shape) if shape.tags else ("", None),
        )
        self._tell(step, raw[shape.text :], found)
        return True

    def _source(self, raw: bytes, shape: StepShape) -> tuple[str, int | None]:
        tags = b"".join([raw[tag] for tag in shape.tags])
        source = self._sources.get(tags)
        if source is None:
            line = unwrap(tags)
            source = line.pod, line.rank
            if len(self._sources) < MAX_SOURCES:
                self._sources[tags] = source
        return source

    def _tell(self, step: TrainingEvent, text: bytes, found: list[TrainingEvent]) -> None:
        if not self._repeats(step, text):
            self._told, self._told_text = step, text
            found.append(step)

    def _events(self, number: int, raw: bytes) -> list[TrainingEvent]:
        line = unwrap(raw[:MAX_EVENT_LINE_BYTES])
        text = line.text.encode()
        found: list[TrainingEvent] = []
        start = self._profile.start
        if start is not None and (match := start.pattern.find(text)) is not None:
            found.append(self._event(start, match, line, number))
        for event in self._profile.events:
            match = event.pattern.find(text)
            if match is None:
                continue
            if event.kind is not Kind.STEP:
                found.append(self._event(event, match, line, number))
            elif (step := self._step(event, match, line, text, number)) is not None:
                if not found and self._profile.steps_have_shapes:
                    self._learn(raw, line, event, match, step)
                self._tell(step, text, found)
            break
        return found

    def _learn(self, raw: bytes, line: Line, event: _Event, match: re2.Match, step: TrainingEvent) -> None:
        if len(self._shapes) >= MAX_SHAPES or len(raw) > LONGEST_LINE:
            return
        spans = {name: match.span(number) for name, number in event.groups.items() if match[number] is not None}
        if "timestamp" in spans and self._profile.layout.parse(line.text[slice(*spans["timestamp"])]) is None:
            return
        units = {name: SECONDS[unit] for name, unit in event.units.items()}
        shape = step_shape(raw, line, spans, units=units, is_warmup=step.is_warmup)
        if shape is not None and self._source(raw, shape) == step.source:
            self._shapes[raw.translate(DIGITS_ALIKE)] = shape

    def _event(self, event: _Event, match: re2.Match, line: Line, number: int) -> TrainingEvent:
        capture = Captures(event.groups, event.units, match)
        time, printed = self._time(capture, line)
        kind = Kind.SCHEDULED if event.kind is Kind.SAVED and capture.text("async") else event.kind
        return TrainingEvent(
            kind,
            number,
            time,
            printed,
            step=capture.integer("step"),
            duration_s=capture.seconds("saveDuration"),
            path=capture.text("path") or "",
            source=(line.pod, line.rank),
        )

    def _step(self, event: _Event, match: re2.Match, line: Line, text: bytes, number: int) -> TrainingEvent | None:
        capture = Captures(event.groups, event.units, match)
        pod = line.pod if line.pod in self._progress or len(self._progress) < MAX_PODS else ""
        progress = self._progress.setdefault(pod, Progress())
        if self._tells_progress and progress.take(capture):
            self.progress_lines += 1
        if not capture.has_record:
            return None
        step = progress.step_of(capture)
        if step is None:
            return None
        last = capture.integer("lastStep")
        time, printed = self._time(capture, line)
        warmup = self._profile.warmup
        found = TrainingEvent(
            Kind.STEP,
            number,
            time,
            printed,
            step=step,
            duration_s=capture.seconds("stepTiming", "elapsedTime"),
            tflops=either(capture.number("tflops"), progress.tflops),
            loss=either(capture.number("loss"), progress.loss),
            target=last + 1 if last is not None else either(capture.integer("target"), progress.target),
            elapsed_s=progress.elapsed_s,
            is_warmup=warmup is not None and warmup.pattern.find(text) is not None,
            source=(line.pod, line.rank),
        )
        progress.tflops = progress.loss = None
        return found

    def _repeats(self, step: TrainingEvent, text: bytes) -> bool:
        """The same step from another rank, or a bar that was drawn again; not the same step after a restart."""
        told = self._told
        if told is None or told.step != step.step or told.source != step.source:
            return False
        if told.time is not None and step.time is not None:
            return abs((step.time - told.time).total_seconds()) < _SAME_MOMENT_S
        if told.elapsed_s is not None and step.elapsed_s is not None and step.duration_s == told.duration_s:
            return step.elapsed_s >= told.elapsed_s
        return text == self._told_text

    def _time(self, capture: Captures, line: Line) -> tuple[datetime | None, str | None]:
        text = capture.text("timestamp")
        time = self._profile.layout.parse(text) if text else None
        if text is None or time is None:
            return line.time, line.time.isoformat() if line.time is not None else None
        return time, self._printed(text, time)

    def _printed(self, text: str, time: datetime) -> str:
        """ISO, with the digits of a fraction that `text` has."""
        if self._profile.layout.layout == UNIX_MS:
            return time.replace(tzinfo=None).isoformat(timespec="milliseconds")
        if self._profile.layout.is_iso:
            return f"{text[:10]}T{text[11:].replace(',', '.')}"
        fraction = _FRACTION.search(text)
        return time.strftime("%Y-%m-%dT%H:%M:%S") + (f".{fraction[1]}" if fraction is not None else "")


def of_one_rank(events: list[TrainingEvent]) -> list[TrainingEvent]:
    """Every rank may print its steps, and another one the checkpoints: of each the one rank that says most."""
    if len({event.source for event in events}) < 2:
        return events
    steps = _chosen([event for event in events if event.kind is Kind.STEP])
    others = _chosen([event for event in events if event.kind is not Kind.STEP])
    return sorted([*steps, *others], key=lambda event: event.line)


def _chosen(events: list[TrainingEvent]) -> list[TrainingEvent]:
    counts: dict[tuple[str, int | None], int] = {}
    for event in events:
        counts[event.source] = counts.get(event.source, 0) + 1
    if len(counts) < 2:
        return events
    best = min(counts, key=lambda source: (-counts[source], source[0], -1 if source[1] is None else source[1]))
    return [event for event in events if event.source == best]
