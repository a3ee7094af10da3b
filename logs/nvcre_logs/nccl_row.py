"""One row of an nccl-tests table, put together from the tokens of one or more lines.

The columns on the left differ between tests and years (redop and root may be absent, or present and blank); the sides
are four cells each, eight with -I.  A row is printed in three pieces, so other text of the process may land behind the
left cells or between the sides, stuck to the last cell; and a log may end anywhere in it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from struct import Struct

from nvcre_logs.lines import DIGITS_ALIKE, is_time, unwrap
from nvcre_logs.nccl_log import PerIteration, Row, Side

MAX_SHAPES = 1024  # of one heading; a sweep has about fifty
MAX_DIGITS = 18
MAX_NAME = 64  # of a host
FIRST_WINDOW = 256  # bytes that are looked at for rows in a row, then twice as many

_LEFT_HEADINGS = frozenset(("size", "bytes", "count", "N", "type", "redop", "op", "root"))
_REDOP = re.compile(r"mulsum|sum|prod|min|max|avg|none")
_INTEGER = re.compile(r"-?\d{1,20}")
_CELL = re.compile(r"-?(?:\d{1,24}(?:\.\d{0,24})?(?:e[+-]?\d{1,3})?|inf|nan)|N/A")
_STUCK = re.compile(rf"({_CELL.pattern})(?=[A-Za-z_\[(.<#>]|--)")
_TYPE = re.compile(r"u?int(?:8|32|64)|int|char|half|float|double|bfloat16|f8e4m3|f8e5m2")
_NUMBER = re.compile(r"-?\d|N/A")
_TOKEN = re.compile(r"\S+")
_PRINTED_TIME = re.compile(r"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)?")  # -S, behind the cells

Figures = tuple[int, float, float]
"""Of a row, out of place: message size in bytes, algbw and busbw in GB/s."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a table.  `left` is None where no heading was seen."""

    left: int | None = None
    has_root: bool = False
    has_redop: bool = False
    side_cells: int = 4
    is_error: bool = False
    in_ms: bool = False
    time_is_cpu: bool = False


def layout_of(heading: str) -> Layout:
    """From the line `# size count type redop root time algbw busbw #wrong time ...`."""
    names = heading.lstrip("# ").split()
    left = [name for name in names if name in _LEFT_HEADINGS]
    sides = [name for name in names if name not in _LEFT_HEADINGS and name != "timestamp"]
    return Layout(
        left=len(left),
        has_root="root" in left,
        has_redop="redop" in left or "op" in left,
        side_cells=8 if len(sides) >= 16 else 4,
        is_error="error" in sides or "res" in sides,
        in_ms=names[:2] == ["bytes", "N"],
        time_is_cpu="cputime" in sides,
    )


def without_heading(tokens: list[str]) -> Layout:
    """What a row can tell of its table."""
    return Layout(side_cells=8 if len(tokens) >= 19 else 4)


def split_at_host(tokens: list[str], hosts: Collection[str]) -> tuple[list[str], list[str]]:
    """Before and from `HOST:PID:TID [DEVICE] NCCL ...` on: stuck to a cell or not, a name of digits looks like one."""
    for index, token in enumerate(tokens):
        name = token.partition(":")[0][:MAX_NAME]
        if name == token or _NUMBER.match(name) is None:
            continue
        for cut in range(len(name)):
            if name[cut:] in hosts and (not cut or _CELL.fullmatch(name, 0, cut) is not None):
                before = [token[:cut]] if cut else []
                return tokens[:index] + before, [token[cut:], *tokens[index + 1 :]]
    return tokens, []


@dataclass(slots=True)
class Piece:
    """A row as far as it was read, and the text that stood behind it on its line."""

    left: list[str]
    cells: list[str] = field(default_factory=list)
    behind: str = ""

    def take(self, tokens: list[str], side_cells: int) -> bool:
        """Takes the next cells off the beginning of `tokens`; False when it does not begin with one."""
        taken = 0
        stuck = None
        for token in tokens[: 2 * side_cells - len(self.cells)]:
            if _CELL.fullmatch(token) is None:
                stuck = _STUCK.match(token)
                break
            self.cells.append(token)
            taken += 1
        if stuck is not None:
            self.cells.append(stuck[1])
        self._leave(tokens[taken:], stuck)
        return taken > 0 or stuck is not None

    def take_left(self, tokens: list[str], cell: re.Pattern[str]) -> bool:
        """Takes one cell of the left side; False when the row cannot go on behind it, on this line."""
        match = cell.match(tokens[0])
        if match is None:
            return False
        self.left.append(match[0])
        if match.end() < len(tokens[0]):
            self._leave(tokens, match)
            tokens.clear()
            return False
        del tokens[0]
        return True

    def _leave(self, tokens: list[str], stuck: re.Match[str] | None) -> None:
        text = " ".join(tokens)
        self.behind = text if stuck is None else text[stuck.end() :]

    def row(self, layout: Layout) -> Row | None:
        """The finished row; None while cells are missing, or where they make no sense."""
        if len(self.cells) != 2 * layout.side_cells:
            return None
        half = layout.side_cells
        out_of_place, in_place = _side(self.cells[:half], layout), _side(self.cells[half:], layout)
        if out_of_place is None or in_place is None:
            return None
        size, count, kind, *rest = self.left
        redop = next((cell for cell in rest if not _INTEGER.fullmatch(cell)), None)
        root = next((int(cell) for cell in rest if _INTEGER.fullmatch(cell)), None)
        if root is None and layout.has_root:
            return None
        return Row(int(size), int(count), kind, redop, root, out_of_place, in_place)


def begin(tokens: list[str], layout: Layout) -> Piece | None:
    """The beginning of a row, with as many of its cells as the line has.  None where the line does not begin so."""
    if len(tokens) < 3 or not all(token.isdecimal() and len(token) <= 20 for token in tokens[:2]):
        return None
    if layout.left is None and not _TYPE.fullmatch(tokens[2]):
        return None
    piece = Piece(tokens[:2])
    rest = tokens[2:]
    columns = [_TYPE]
    if _REDOP.match(tokens[3] if len(tokens) > 3 else "") and (layout.left is None or layout.has_redop):
        columns.append(_REDOP)
    if layout.has_root or (layout.left is None and _has_root(rest[len(columns) :])):
        columns.append(_INTEGER)
    for column in columns:
        if not rest or not piece.take_left(rest, column):
            return piece if len(piece.left) >= 3 else None
    piece.take(rest, layout.side_cells)
    return piece


def _has_root(rest: list[str]) -> bool:
    """Where there is no heading the number of cells has to say it."""
    cells = [*rest]
    while cells and _CELL.fullmatch(cells[-1]) is None:  # -S prints a date and a time
        cells.pop()
    return bool(cells) and (len(cells) in (9, 17) or cells[0] == "-1")


def _side(cells: list[str], layout: Layout) -> Side | None:
    numbers = [None if cell == "N/A" else float(cell) for cell in cells]
    time, algbw, busbw, last = numbers[:4]
    if time is None or algbw is None or busbw is None or min(time, algbw, busbw) < 0:
        return None
    time_us = round(time * 1000, 6) if layout.in_ms else time
    per_iteration = None
    if len(numbers) == 8:
        spread = [number for number in numbers[4:] if number is not None]
        per_iteration = PerIteration(*spread) if len(spread) == 4 else None
    if layout.is_error:
        return Side(time_us, algbw, busbw, None, last, per_iteration)
    # %g: a million wrong elements print as 1e+06
    wrong = None if last is None or not math.isfinite(last) else max(0, round(last))
    return Side(time_us, algbw, busbw, wrong, None, per_iteration)


@dataclass(frozen=True, slots=True)
class RowShape:
    """Where the cells of all rows are that differ in their digits alone."""

    figures: Callable[[bytes], tuple[bytes, bytes, bytes]]  # size, and algbw and busbw out of place
    is_stamped: bool  # by the kubelet, at its beginning
    exact: tuple[tuple[slice, bytes], ...]  # digits that are no figures: of the type's name, of the stamp's zone
    text: int  # where the row begins behind the stamp
    left: int
    cells: int
    layout: Layout

    def row(self, line: bytes) -> Row | None:
        tokens = line[self.text :].decode().split()
        return Piece(tokens[: self.left], tokens[self.left : self.left + self.cells]).row(self.layout)


class RowShapes:
    """Rows below one heading by their shape, learnt from lines that were read cell by cell."""

    def __init__(self) -> None:
        self._known: dict[bytes, RowShape] = {}
        self._stamp = b""  # the newest one up to the tens of its seconds: any second digit makes a time of it

    def learn(self, raw: bytes, layout: Layout) -> None:
        """A line that is a row, and nothing but a row, shows where the cells of others are."""
        if len(self._known) < MAX_SHAPES and (found := _shape_of(raw, layout)) is not None:
            self._known[raw.translate(DIGITS_ALIKE)] = found

    def take(self, block: bytes, position: int, *, one: bool) -> tuple[int, list[Figures], bytes]:
        """The rows from `position` on, up to the first line of another shape: where that begins, and the last row.

        `one`: at most one, which is quicker where no other follows.
        """
        known, figures, last = self._known, list[Figures](), b""
        window = 0 if one else FIRST_WINDOW
        while position < len(block):
            end = block.rfind(b"\n", position, position + window) + 1 or block.find(b"\n", position) + 1
            whole = block[position : end - 1]
            lines, before = whole.split(b"\n"), len(figures)
            for line, shape in zip(lines, whole.translate(DIGITS_ALIKE).split(b"\n"), strict=True):
                found = known.get(shape)
                if found is None or (found.exact and any(line[place] != text for place, text in found.exact)):
                    break
                if found.is_stamped and line[:18] != self._stamp and not self._is_time(line):
                    break
                size, algbw, busbw = found.figures(line)
                figures.append((int(size), float(algbw), float(busbw)))
            taken = len(figures) - before
            if taken:
                last = lines[taken - 1]
            if taken < len(lines):
                return position + sum(map(len, lines[:taken])) + taken, figures, last
            position, window = end, FIRST_WINDOW * len(figures)
            if one:
                break
        return position, figures, last

    def _is_time(self, line: bytes) -> bool:
        found = is_time(line[: line.index(b" ")])
        if found and not line.startswith((b"0001", b"9999")):  # at the ends of time a zone or a fraction decides
            self._stamp = line[:18]
        return found

    def rows(self, lines: Iterable[bytes]) -> list[Row]:
        """Of lines that were taken."""
        found = (self._known[line.translate(DIGITS_ALIKE)].row(line) for line in lines)
        return [row for row in found if row is not None]


def _shape_of(raw: bytes, layout: Layout) -> RowShape | None:
    line = unwrap(raw)
    if not raw.isascii() or line.pod or line.rank is not None:
        return None
    tokens = line.text.split()
    piece = begin(tokens, layout)
    if piece is None or piece.row(layout) is None or _PRINTED_TIME.fullmatch(piece.behind) is None:
        return None
    read = [*piece.left, *piece.cells]
    # A sign may turn a figure into none, and one digit more makes another number of it than a machine has.
    if tokens[: len(read)] != read or any(cell.startswith("-") for cell in piece.cells) or len(tokens[0]) > MAX_DIGITS:
        return None
    text = len(raw) - len(line.text)
    if line.time is not None and not raw[:1].isdigit():
        return None
    spans = [(text + match.start(), text + match.end()) for match in _TOKEN.finditer(line.text)]
    first = len(piece.left)
    size, algbw, busbw = spans[0], spans[first + 1], spans[first + 2]
    exact = [spans[2]] if not tokens[2].isalpha() else []
    if line.time is not None and raw[text - 2 : text - 1] != b"Z":
        exact.append((text - 7, text))
    return RowShape(
        figures=Struct(
            f"{size[0]}x{size[1] - size[0]}s{algbw[0] - size[1]}x{algbw[1] - algbw[0]}s"
            f"{busbw[0] - algbw[1]}x{busbw[1] - busbw[0]}s{len(raw) - busbw[1]}x"
        ).unpack,
        is_stamped=line.time is not None,
        exact=tuple((slice(*place), raw[slice(*place)]) for place in exact),
        text=text,
        left=first,
        cells=len(piece.cells),
        layout=layout,
    )
