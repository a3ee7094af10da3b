"""The drawings of a report as SVG: bandwidth by size, step times, where the time went, the run on a time line.

    svg = bandwidth(rows)         # text of one <svg> element, for a page that has the styles of html.py

Values in, text out.  Each mark has a <title> with its figures, so that a pointer tells what a line only shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from xml.etree import ElementTree as ET

from nvcre_cli.render.sizes import show_size
from nvcre_cli.terminal import printable

WIDTH, HEIGHT = 720, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 40
MOST_X_LABELS = 8


class Span(NamedTuple):
    """Something on the time line; without an end it is a moment."""

    begin: datetime
    end: datetime | None
    kind: str  # a class of the page's styles: interruption, incident
    text: str


def bandwidth(rows: Sequence[tuple[int, float, float]]) -> str:
    """`rows`: (message size in bytes, algbw, busbw in GB/s), by size."""
    chart = _Chart("Bandwidth by message size", len(rows), max((max(row[1:]) for row in rows), default=0.0), "GB/s")
    chart.label_x([show_size(size) for size, _, _ in rows])
    for column, name in ((2, "busbw"), (1, "algbw")):
        points = [(index, row[column]) for index, row in enumerate(rows)]
        chart.line(name, points, [f"{show_size(row[0])}: {name} {row[column]:.2f} GB/s" for row in rows])
    return chart.text()


def step_times(points: Sequence[tuple[int, float]], interrupted_after: Sequence[int] = ()) -> str:
    """`points`: (step, seconds), as they were logged; a dashed line behind the last step before each interruption."""
    chart = _Chart("Step time", len(points), max((seconds for _, seconds in points), default=0.0), "s")
    chart.label_x([str(step) for step, _ in points])
    for step in interrupted_after:
        after = next((index for index, (at, _) in enumerate(points) if at > step), len(points))
        chart.mark(after - 0.5, f"interrupted after step {step}")
    told = [f"step {step}: {seconds:.3f} s" for step, seconds in points]
    chart.line("step", [(index, seconds) for index, (_, seconds) in enumerate(points)], told)
    return chart.text()


def breakdown(parts: Mapping[str, float]) -> str:
    """A bar of the whole time, in seconds by part."""
    total = sum(parts.values())
    svg = _svg("Where the time went", 64)
    at = 0.0
    for name, seconds in parts.items():
        width = WIDTH * seconds / total if total else 0.0
        if width <= 0:
            continue
        text = f"{name} {seconds:.1f} s ({100 * seconds / total:.1f} %)"
        box = _add(svg, "rect", {"x": at, "y": "4", "width": width, "height": "32", "class": name})
        _add(box, "title").text = text
        at += width
    x = 0.0
    for name, seconds in parts.items():
        _add(svg, "rect", {"x": x, "y": "48", "width": "10", "height": "10", "class": name})
        share = f" {100 * seconds / total:.1f} %" if total else ""
        _add(svg, "text", {"x": x + 14, "y": "57"}).text = f"{name}{share}"
        x += WIDTH / max(len(parts), 1)
    return _written(svg)


def time_line(begin: datetime, end: datetime, spans: Sequence[Span]) -> str:
    """The run from `begin` to `end`; spans are cut to it, moments shown as ticks."""
    svg = _svg("The run on a time line", 72)
    length = max(end - begin, timedelta(seconds=1))

    def x(moment: datetime) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, max(0.0, (moment - begin) / length))

    _add(svg, "rect", {"x": LEFT, "y": "20", "width": WIDTH - LEFT - RIGHT, "height": "16", "class": "productive"})
    for span in spans:
        width = max(3.0, x(span.end) - x(span.begin)) if span.end is not None else 3.0
        box = _add(svg, "rect", {"x": x(span.begin), "y": "14", "width": width, "height": "28", "class": span.kind})
        _add(box, "title").text = printable(span.text)
    for moment, anchor in ((begin, "start"), (end, "end")):
        tick = _add(svg, "text", {"x": x(moment), "y": "60", "text-anchor": anchor})
        tick.text = f"{moment:%Y-%m-%d %H:%M:%S}Z"
    return _written(svg)


def ticks(highest: float, count: int = 4) -> list[float]:
    """Round numbers from 0 to at least `highest`."""
    if not highest > 0 or not math.isfinite(highest):
        return [0.0, 1.0]
    raw = highest / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999999)
    return [step * number for number in range(math.ceil(highest / step * 0.999999) + 1)]


class _Chart:
    """Points of equal distance along x, a scale from 0 along y."""

    def __init__(self, title: str, count: int, highest: float, unit: str) -> None:
        self._svg = _svg(title, HEIGHT)
        self._count = count
        self._legend = 0
        marks = ticks(highest)
        self._top = marks[-1]
        for value in marks:
            y = self._y(value)
            _add(self._svg, "line", {"x1": LEFT, "x2": WIDTH - RIGHT, "y1": y, "y2": y, "class": "grid"})
            label = _add(self._svg, "text", {"x": LEFT - 6, "y": self._y(value) + 4, "text-anchor": "end"})
            label.text = f"{value:g}"
        _add(self._svg, "text", {"x": "4", "y": "12"}).text = unit

    def label_x(self, labels: Sequence[str]) -> None:
        every = max(1, math.ceil(len(labels) / MOST_X_LABELS))
        for index in range(0, len(labels), every):
            x, y = self._x(index), HEIGHT - BOTTOM + 18
            _add(self._svg, "text", {"x": x, "y": y, "text-anchor": "middle"}).text = labels[index]

    def line(self, name: str, points: Sequence[tuple[float, float]], told: Sequence[str]) -> None:
        path = " ".join(f"{_n(self._x(x))},{_n(self._y(y))}" for x, y in points)
        _add(self._svg, "polyline", {"points": path, "class": name})
        for (x, y), text in zip(points, told, strict=True):
            dot = _add(self._svg, "circle", {"cx": self._x(x), "cy": self._y(y), "r": "3", "class": name})
            _add(dot, "title").text = text
        x = WIDTH - RIGHT - 70 * (self._legend + 1)
        _add(self._svg, "text", {"x": x, "y": "12", "class": f"legend {name}"}).text = name
        self._legend += 1

    def mark(self, x: float, text: str) -> None:
        at = self._x(x)
        line = _add(self._svg, "line", {"x1": at, "x2": at, "y1": TOP, "y2": HEIGHT - BOTTOM, "class": "mark"})
        _add(line, "title").text = text

    def text(self) -> str:
        return _written(self._svg)

    def _x(self, index: float) -> float:
        width = WIDTH - LEFT - RIGHT
        return LEFT + width * (index + 0.5) / max(self._count, 1)

    def _y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / self._top


def _svg(title: str, height: int) -> ET.Element:
    svg = ET.Element("svg", {"viewBox": f"0 0 {WIDTH} {height}", "role": "img", "aria-label": title})
    _add(svg, "title").text = title
    return svg


def _add(parent: ET.Element, tag: str, attributes: Mapping[str, str | float] | None = None) -> ET.Element:
    known = {name: value if isinstance(value, str) else _n(value) for name, value in (attributes or {}).items()}
    return ET.SubElement(parent, tag, known)


def _written(svg: ET.Element) -> str:
    return ET.tostring(svg, encoding="unicode")


def _n(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")
