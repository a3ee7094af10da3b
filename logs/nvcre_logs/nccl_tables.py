"""Which table does a line of nccl-tests output belong to?

Lines of one pod (kubectl --prefix) and, where several ranks print tables, of one tag (mpirun, srun) stay together.
Within such a stream a header that comes when rows, a footer or a failure were seen begins the next test.  Headers that
come twice before the first row are those of an attempt that ended without a word and of the next one, or of processes
that run side by side.  Each line goes to the newest table that still lacks it, and a row by the order of its sizes as
well: so the attempt that ended gets nothing, and of processes side by side each gets one of everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain

from nvcre_logs.nccl_log import Device, NcclTest, Row
from nvcre_logs.nccl_row import Figures, Layout, Piece, RowShapes, begin, split_at_host, without_heading

MAX_TESTS = 64
MAX_ROWS = 4096  # per test; -N 0 prints for ever
MAX_FAILURES = 16
MAX_RANKS = 65536
MAX_STREAMS = 4096


@dataclass(slots=True)
class _Open:
    """A test whose footer has not been seen, and which parts of its header have."""

    test: NcclTest
    parts: set[str] = field(default_factory=set)
    last_size: int | None = None  # of the newest row


@dataclass(slots=True, eq=False)
class _Stream:
    pod: str = ""
    layout: Layout = field(default_factory=Layout)
    open: list[_Open] = field(default_factory=list)  # several: side by side
    tests: list[NcclTest] = field(default_factory=list)  # all of them
    begun: bool = False  # rows, a footer or a failure were seen
    piece: Piece | None = None  # a row that other text tore
    command: str | None = None
    has_rank: bool = False  # it is known whose header it has
    shapes: RowShapes = field(default_factory=RowShapes)  # of rows below the heading
    numbered_hosts: set[str] = field(default_factory=set)  # whose names begin with a digit


class Tables:
    def __init__(self, on_rows: Callable[[list[Figures]], None] | None = None) -> None:
        self._on_rows = on_rows
        self._most_rows = MAX_ROWS if on_rows is None else 0  # of a test, that are kept
        self._tests: list[NcclTest] = []
        self._streams: dict[tuple[str, int | None], _Stream] = {}
        self._pod: str = ""
        self._rank: int | None = None
        self._latest: dict[str, _Stream] = {}  # by pod: the stream that printed a table last

    def turn_to(self, pod: str, rank: int | None) -> None:
        """The lines that follow are of this pod and rank."""
        known = pod in self._latest or len(self._latest) < MAX_STREAMS
        self._pod = pod if known else ""
        self._rank = rank if (self._pod, rank) in self._streams or len(self._streams) < MAX_STREAMS else None

    def finish(self) -> tuple[NcclTest, ...]:
        for stream in (*self._streams.values(), *self._latest.values()):
            self._close(stream)
        by_pod: dict[str, list[_Stream]] = {}
        for (pod, _), stream in self._streams.items():
            by_pod.setdefault(pod, []).append(stream)
        for streams in by_pod.values():
            _mark_side_by_side(streams)
        if len({test.stream for test in self._tests}) < 2:
            for test in self._tests:
                test.stream = ""
        return tuple(self._tests)

    # The header

    def header(self, part: str) -> NcclTest:
        """The test that this part of a header belongs to."""
        return self._lacking(part).test

    def name(self, name: str) -> None:
        test = self.header("name")
        test.name, test.name_source = name, "banner"

    def command(self, name: str) -> None:
        """A shell printed what it starts: it names the next table that has no name of its own."""
        self._stream().command = name

    def device(self, device: Device, *, cut: bool) -> None:
        stream = self._headed()
        process, rank = f"process {device.pid} on {device.host}", f"rank {device.rank}"
        same = (known for known in reversed(stream.open) if process in known.parts and rank not in known.parts)
        known = (None if stream.begun or device.pid is None else next(same, None)) or self._lacking(rank)
        known.parts |= {rank, process}
        if len(known.test.devices) < MAX_RANKS:
            known.test.devices.append(device)
        known.test.devices_cut |= cut
        if device.host[0].isdigit() and len(stream.numbered_hosts) < MAX_STREAMS:
            stream.numbered_hosts.add(device.host)

    def cut_devices(self) -> None:
        for known in self._stream().open[-1:]:
            known.test.devices_cut = True

    def heading(self, layout: Layout) -> None:
        test = self.header("heading")
        stream = self._headed()
        stream.layout, stream.shapes = layout, RowShapes()
        test.has_error_column = layout.is_error
        test.time_is_cpu = layout.time_is_cpu

    # Rows and footer

    def row(self, tokens: list[str], raw: bytes) -> str | None:
        """What else stood on the line `raw`, when it was a row or a part of one; None when it was not."""
        stream = self._stream()
        tokens, other = split_at_host(tokens, stream.numbered_hosts) if stream.numbered_hosts else (tokens, [])
        if stream.layout.left is None and stream.piece is None:
            stream.layout = without_heading(tokens)
        piece = begin(tokens, stream.layout)
        if piece is not None:
            if not stream.open and stream.layout.left is None and not piece.cells:
                return None
            self._lose_piece(stream)
            stream.piece = piece
        elif stream.piece is not None:
            piece = stream.piece
            held = len(piece.cells)
            if not piece.take(tokens, stream.layout.side_cells):
                return None
            if len(piece.cells) % stream.layout.side_cells:
                del piece.cells[held:]  # not a side: some other line that begins with a number
                return None
        else:
            return None
        row = piece.row(stream.layout)
        if row is not None:
            stream.piece = None
            self._add(stream, row)
            stream.shapes.learn(raw, stream.layout)
        elif len(piece.cells) == 2 * stream.layout.side_cells:
            self._lose_piece(stream)  # all cells are there and they make no sense
        return " ".join([piece.behind, *other]).strip() if other else piece.behind

    def plain_rows(self, block: bytes, position: int, *, one: bool) -> tuple[int, bytes]:
        """Takes the lines from `position` on that are plain rows, or one of them, as `row` would but much faster.

        Plain are rows that nothing tore, in lines of no pod or rank, of which an alike one was seen below this heading.
        Returns where the first other line begins, and the last row.
        """
        stream = self._streams.get(("", None)) or self._latest.get("")
        if stream is None or len(stream.open) != 1:
            return position, b""
        if stream.open[0].test.avg_busbw_gbps is not None:
            return position, b""
        end, figures, last = stream.shapes.take(block, position, one=one)
        if not figures:
            return position, b""
        self._lose_piece(stream)
        stream.begun = True
        known = stream.open[0]
        known.last_size = figures[-1][0]
        if (room := self._most_rows - len(known.test.rows)) > 0:
            known.test.rows += stream.shapes.rows(block[position:end].split(b"\n")[:-1][:room])
            known.test.dropped_rows += max(0, len(figures) - room)
        else:
            known.test.dropped_rows += len(figures)
        if self._on_rows is not None:
            self._on_rows(figures)
        return end, last

    def bounds(self, count: int, *, ok: bool) -> None:
        stream = self._stream()
        self._lose_piece(stream)
        known = self._first(stream, lambda test: test.out_of_bounds is None)
        known.test.out_of_bounds, known.test.out_of_bounds_ok = count, ok

    def average(self, gbps: float | None, *, failed: bool) -> None:
        known = self._first(self._stream(), lambda test: test.avg_busbw_gbps is None)
        known.test.avg_busbw_gbps, known.test.below_min_bandwidth = gbps, failed

    def conclude(self, name: str) -> None:
        known = self._first(self._stream(), lambda test: not test.concluded)
        known.test.concluded = True
        if known.test.name is None:
            known.test.name, known.test.name_source = name, "banner"

    def failure(self, text: str, reason: str | None, host: str) -> None:
        stream = self._stream()
        known = stream.open[-1] if stream.open else self._begin(stream)
        stream.begun = True
        test = known.test
        if reason is not None and reason not in test.failure_reasons:
            test.failure_reasons.append(reason)
        if host and host not in test.suspect_hosts and len(test.suspect_hosts) < MAX_FAILURES:
            test.suspect_hosts.append(host)
        if len(test.failures) < MAX_FAILURES:
            test.failures.append(text)

    def _add(self, stream: _Stream, row: Row) -> None:
        known = self._next_table(stream, row.size_bytes)
        known.last_size = row.size_bytes
        stream.begun = True
        if self._on_rows is not None:
            side = row.out_of_place
            self._on_rows([(row.size_bytes, side.algbw_gbps, side.busbw_gbps)])
        if len(known.test.rows) < self._most_rows:
            known.test.rows.append(row)
        else:
            known.test.dropped_rows += 1

    def _next_table(self, stream: _Stream, size: int) -> _Open:
        """Of several, the one that has come nearest to this size."""
        waiting = [known for known in reversed(stream.open) if known.test.avg_busbw_gbps is None]
        if not waiting:
            return self._begin(stream)
        below = [(known, -1 if known.last_size is None else known.last_size) for known in waiting]
        below = [(known, last) for known, last in below if last < size]
        return max(below, key=lambda pair: pair[1], default=(waiting[0], 0))[0]

    # Streams

    def _stream(self) -> _Stream:
        """Of the current line.  Ranks that print no header speak about the table of their pod."""
        stream = self._streams.get((self._pod, self._rank)) or self._latest.get(self._pod)
        if stream is None:
            stream = self._latest[self._pod] = _Stream(self._pod)
        return stream

    def _headed(self) -> _Stream:
        """Of the current line, which is of a header: from now on the rank has a stream of its own."""
        key = (self._pod, self._rank)
        stream = self._streams.get(key)
        if stream is None:
            latest = self._latest.get(self._pod)
            stream = latest if latest is not None and not latest.has_rank else _Stream(self._pod)
        stream.has_rank = True
        self._streams[key] = self._latest[self._pod] = stream
        return stream

    def _lacking(self, part: str) -> _Open:
        stream = self._headed()
        if stream.begun and not _told_before_its_header(stream):
            self._close(stream)
        lacking = (known for known in reversed(stream.open) if part not in known.parts)
        known = next(lacking, None) or self._begin(stream)
        known.parts.add(part)
        return known

    def _begin(self, stream: _Stream) -> _Open:
        if stream.begun or len(stream.open) >= MAX_TESTS:
            self._close(stream)
        test = NcclTest(name=stream.command, stream=stream.pod)
        if stream.command is not None:
            test.name_source, stream.command = "command", None
        known = _Open(test)
        if len(self._tests) < MAX_TESTS:
            self._tests.append(test)
            stream.tests.append(test)
        stream.open.append(known)
        self._latest.setdefault(stream.pod, stream)
        return known

    def _first(self, stream: _Stream, lacks: Callable[[NcclTest], bool]) -> _Open:
        """The first table with rows that lacks this part of a footer."""
        stream.begun = True
        lacking = (known for known in reversed(stream.open) if lacks(known.test) and known.last_size is not None)
        known = next(lacking, None)
        return known or (stream.open[-1] if stream.open else self._begin(stream))

    def _close(self, stream: _Stream) -> None:
        """The tests of this stream get no more lines."""
        self._lose_piece(stream)
        tests = [known.test for known in stream.open]
        if sum(known.last_size is not None for known in stream.open) > 1:
            self._mark_one_of_many(tests)
        stream.open, stream.begun = [], False

    def _mark_one_of_many(self, tests: list[NcclTest]) -> None:
        """The last one was given what came first: they are put in the order in which their rows began."""
        for test in tests:
            test.one_of_many = bool(test.rows)
        first = next((index for index, test in enumerate(self._tests) if test is tests[0]), None)
        if first is not None and self._tests[first : first + len(tests)] == tests:
            self._tests[first : first + len(tests)] = tests[::-1]

    def _lose_piece(self, stream: _Stream) -> None:
        if stream.piece is None:
            return
        stream.piece = None
        (stream.open[-1] if stream.open else self._begin(stream)).test.lost_rows += 1


def _mark_side_by_side(streams: list[_Stream]) -> None:
    """Ranks of one pod that each print a table."""
    with_rows = [[test for test in stream.tests if test.rows] for stream in streams]
    if sum(map(bool, with_rows)) > 1:
        for test in chain.from_iterable(with_rows):
            test.one_of_many = True


def _told_before_its_header(stream: _Stream) -> bool:
    """The error stream is not buffered: that GPUs are missing is told before the header that was printed first."""
    return len(stream.open) == 1 and stream.open[0].test.failure_reasons == ["gpu_missing"]
