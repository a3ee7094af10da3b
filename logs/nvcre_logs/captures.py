"""What the captures of a training pattern say, and what is kept of them until the rest of a step is told.

Text in, numbers out; what cannot be read is None.  Which line they belong to is training.py's business.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import re2

from nvcre_logs.profile import DurationUnit

SECONDS = {DurationUnit.SECONDS: 1.0, DurationUnit.MILLISECONDS: 1e-3, DurationUnit.MICROSECONDS: 1e-6}

T = TypeVar("T")


@dataclass(slots=True)
class Progress:
    """What earlier lines said about the step whose line is still to come."""

    step: int | None = None
    target: int | None = None
    elapsed_s: float | None = None
    loss: float | None = None
    tflops: float | None = None
    batch: int | None = None  # samples a step

    def take(self, capture: Captures) -> bool:
        step, target = capture.integer("progressStep"), capture.integer("progressTarget")
        if target is not None:
            if self.target is not None and target != self.target:
                return False  # the bar of something else (an evaluation)
            self.target = target
        if step is not None:
            self.step = step
        self.elapsed_s = either(_clock_seconds(capture.text("progressElapsed")), self.elapsed_s)
        self.loss = either(capture.number("progressLoss"), self.loss)
        self.tflops = either(capture.number("progressTflops"), self.tflops)
        self.batch = either(capture.integer("progressBatch"), self.batch)
        return capture.has_progress

    def step_of(self, capture: Captures) -> int | None:
        """What the step's own line says, in steps or in samples, else what was said before it."""
        step = capture.integer("globalStep", "iteration")
        if step is None and (samples := capture.integer("samples")) is not None:
            step = samples // (self.batch or 1)
        return either(step, self.step)


@dataclass(frozen=True, slots=True)
class Captures:
    """The named groups that took part in a match, as the values they stand for; what cannot be read is None.

    RE2 wants every name to be another one, so step2 is another place where `step` may stand.
    """

    groups: Mapping[str, int]
    units: Mapping[str, DurationUnit]
    match: re2.Match
    values: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        found = {name: self.match[number] for name, number in self.groups.items()}
        values = {
            name.rstrip("0123456789"): value.decode(errors="replace")
            for name, value in found.items()
            if value is not None
        }
        object.__setattr__(self, "values", values)

    @property
    def has_record(self) -> bool:
        return not self.values or any(not name.startswith("progress") for name in self.values)

    @property
    def has_progress(self) -> bool:
        return any(name.startswith("progress") for name in self.values)

    def text(self, name: str) -> str | None:
        return self.values.get(name)

    def number(self, *names: str) -> float | None:
        for name in names:
            if (text := self.values.get(name)) is None or len(text) > 40:
                continue
            try:
                number = float(text.replace(",", "").rstrip("."))
            except ValueError:
                continue
            if math.isfinite(number):
                return number
        return None

    def integer(self, *names: str) -> int | None:
        for name in names:
            number = self.number(name)
            if number is not None and abs(number) < 2**63:
                return int(number)
        return None

    def seconds(self, *names: str) -> float | None:
        for name in names:
            if (number := self.number(name)) is not None:
                unit = SECONDS[self.units.get(name, DurationUnit.SECONDS)]
                return round(number * unit, 9) if unit != 1.0 else number
        return None


def _clock_seconds(text: str | None) -> float | None:
    """tqdm: mm:ss, h:mm:ss or Nd h:mm:ss without its days."""
    parts = text.split(":") if text else []
    if not 2 <= len(parts) <= 3 or not all(part.isdecimal() for part in parts):
        return None
    total = 0
    for part in parts:
        total = total * 60 + int(part[:9])
    return float(total)


def either(value: T | None, other: T | None) -> T | None:
    return other if value is None else value
