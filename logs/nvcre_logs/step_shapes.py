"""Lines of training steps that differ in their digits alone: where their figures are.

Learnt from a line that a profile's patterns have read.  Its shape (DIGITS_ALIKE) then stands for all lines of that
shape, where the patterns cannot tell one digit from another (`reads_digits_alike`), which is ten times as fast as
matching them.  Whatever could make another of two lines of one shape is not learnt: those are left to the patterns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from nvcre_logs.lines import STAMP, Line

MAX_SHAPES = 1024
LONGEST_LINE = 4096
_COUNT = re.compile(r"(?<!\\)\{\d+(?:,\d*)?\}")
_GROUP_NAME = re.compile(r"\(\?P?<\w+>")
_TELLS_DIGITS_APART = re.compile(r"\d|\\[xpPQ]")
_FIGURE = re.compile(rb"[+-]?\d{1,15}(?:\.\d{0,15})?(?:[eE][+-]?\d{1,2})?")  # finite, whatever digits
_COUNTER = re.compile(rb"\d{1,15}")


@dataclass(frozen=True, slots=True)
class StepShape:
    text: int  # where the program's own line begins
    stamp: slice | None  # the kubelet's time before it
    tags: tuple[slice, ...]  # what else stands before it
    timestamp: slice | None
    step: slice
    duration: slice | None
    seconds: float  # of a unit of the duration
    tflops: slice | None
    loss: slice | None
    last_step: slice | None
    target: slice | None
    is_warmup: bool


def reads_digits_alike(regex: str) -> bool:
    """False where a match may depend on which digit a digit is, or where that cannot be seen at once."""
    rest = _COUNT.sub("", _GROUP_NAME.sub("(", regex)).replace("0-9", "").replace(r"\d", "")
    return _TELLS_DIGITS_APART.search(rest) is None


def step_shape(
    raw: bytes,
    line: Line,
    spans: Mapping[str, tuple[int, int]],
    *,
    units: Mapping[str, float],
    is_warmup: bool,
) -> StepShape | None:
    """`spans` of the captures in the line's text; a name may end in a number.  None where the shape is not enough."""
    text = len(raw) - len(line.text)
    stamps = list(STAMP.finditer(raw, 0, text if line.time is not None else len(raw)))
    # A time that does not exist is text of the program's: of a line of the same shape it may be the kubelet's.
    if not raw.isascii() or len(stamps) != (line.time is not None):
        return None
    places: dict[str, slice] = {}
    for numbered, (start, end) in spans.items():
        name = numbered.rstrip("0123456789")
        if name in places:
            return None
        places[name] = slice(text + start, text + end)
    step, duration = _first(places, "globalStep", "iteration"), _first(places, "stepTiming", "elapsedTime")
    counters = [places.get(step), places.get("lastStep"), places.get("target")]
    figures = [places.get(duration), places.get("tflops"), places.get("loss")]
    if counters[0] is None or not (_all(_COUNTER, raw, counters) and _all(_FIGURE, raw, figures)):
        return None
    stamp = stamps[0].span() if stamps else (0, 0)
    return StepShape(
        text=text,
        stamp=slice(stamp[0], stamp[1] - 1) if stamps else None,
        tags=tuple(slice(*ends) for ends in ((0, stamp[0]), (stamp[1], text)) if ends[0] < ends[1]),
        timestamp=places.get("timestamp"),
        step=counters[0],
        duration=figures[0],
        seconds=units.get(duration, 1.0),
        tflops=figures[1],
        loss=figures[2],
        last_step=counters[1],
        target=counters[2],
        is_warmup=is_warmup,
    )


def _first(places: Mapping[str, slice], name: str, other: str) -> str:
    return name if name in places else other


def _all(form: re.Pattern[bytes], raw: bytes, places: list[slice | None]) -> bool:
    return all(form.fullmatch(raw[place]) for place in places if place is not None)
