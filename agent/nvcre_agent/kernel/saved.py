"""Reads a saved kernel log of any tool (envelope.py, fields.py) and gives its entries in order with their line numbers.

One pass, one line in memory, so the size of the file does not matter. Lines end at CRLF, LF or CR and are counted from
1. What is no entry of the kernel is counted by reason and never silently dropped.

A bare line (nothing says who wrote it) is the kernel's in a file that has nothing but bare lines (journalctl -o cat,
dmesg -t). In any other file it is the rest of the entry before it, which is how every tool prints an entry of several
lines; with a time of its own it is a container's.
"""

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import BinaryIO, TextIO, cast

from nvcre_agent.kernel import columns, dull
from nvcre_agent.kernel.envelope import Line, Stamp, Writer, unwrap
from nvcre_agent.kernel.fields import FieldBlock
from nvcre_agent.kernel.objects import object_line, replaced
from nvcre_agent.kernel.outside import FIRST_LINES, learned_prefix
from nvcre_agent.kernel.parsers import DRIVER

MAX_LINE = 64 * 1024
MAX_GLUED = 16
_REPEATED = re.compile(r"message repeated (\d{1,9}) times: \[ ?(.*)\]$", re.DOTALL)
# Consoles lose line ends: the next line of the kernel inside one of the driver's.
_GLUED = re.compile(r"(?=\[ {0,16}\d{1,12}\.\d{6}\] (?:NVRM|nvidia-nvswitch\d{1,3}): )")
_RUNTIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:\d\d) (stdout|stderr) ([FP]) ")
_RECORD = re.compile(r"\d{1,4},\d{1,20},\d")  # of /dev/kmsg
# A file that was cut at its head begins inside a prefix.
_CUT_HEAD = re.compile(r"[^\[\"'=]{0,64}?(?:\d\] |kernel: (?:\[ {0,16}\d{1,12}\.\d{1,9}\] )?)")


_PACKED: dict[bytes, Callable[[BinaryIO], object]] = {
    b"\x1f\x8b": lambda packed: gzip.GzipFile(fileobj=packed),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
}
_WIDE = (  # without a byte order mark
    (re.compile(rb"(?:[^\0\xfe\xff]\0){3}"), "utf-16-le"),
    (re.compile(rb"(?:\0[^\0\xfe\xff]){3}"), "utf-16-be"),
)
_DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError)


@dataclass(frozen=True, slots=True)
class Entry:
    """`continues`: the line is a further one of the entry before. `repeats`: how often syslog says it came.

    `cut`: the line has no end, so its last word may have none either.
    """

    line: int
    writer: Writer
    text: str
    stamp: Stamp | None = None
    continues: bool = False
    repeats: int = 1
    cut: bool = False


@dataclass(slots=True)
class Counts:
    lines: int = 0
    kernel: int = 0
    other_programs: int = 0
    blank: int = 0
    fields: int = 0  # lines that are fields, tags or brackets of an entry
    cut: int = 0  # lines longer than MAX_LINE, of which the head was read
    damage: str = ""  # why reading ended before the end


class SavedLog:
    """Iterate once; `counts` is complete afterwards."""

    def __init__(self, stream: BinaryIO) -> None:
        self._text = _decoded(stream)
        self.counts = Counts()
        self._structured = False
        self._after_kmsg = False
        self._indented = False
        self._block: FieldBlock | None = None
        self._parts: dict[str, tuple[int, str]] = {}  # stdout and stderr of a container: what waits for its end

    def __iter__(self) -> Iterator[Entry]:
        lines = self._lines()
        first = list(islice(lines, FIRST_LINES))
        prefix = learned_prefix([raw for _, raw in first])
        for number, raw in chain(first, lines):
            begins = 0 if prefix is None or (found := prefix.match(raw)) is None else found.end()
            if raw.endswith("\n"):
                yield from self._entries(number, raw[begins:-1])
            else:
                yield from (replace(entry, cut=True) for entry in self._entries(number, raw[begins:]))
        if self._block is not None:
            yield from self._end_of_block()
        for number, line in self._parts.values():  # cut before its end
            yield from self._line(number, line)

    def _lines(self) -> Iterator[tuple[int, str]]:
        counts = self.counts
        while True:
            try:
                raw = self._text.readline(MAX_LINE)
                if not raw:
                    return
                counts.lines += 1
                if len(raw) == MAX_LINE and not raw.endswith("\n"):
                    counts.cut += 1
                    while (rest := self._text.readline(MAX_LINE)) and not rest.endswith("\n"):
                        pass
            except _DAMAGED as error:
                counts.damage = str(error)
                return
            yield counts.lines, raw

    def _entries(self, number: int, raw: str) -> Iterator[Entry]:
        if self._block is not None:
            if self._block.feed(number, raw):
                self.counts.fields += 1
                if self._block.complete:
                    yield from self._end_of_block()
                return
            yield from self._end_of_block()
        line = replaced(raw.replace("\0", "") if "\0" in raw else raw)
        if not line or line.isspace():
            self.counts.blank += 1
            return
        if (writer := dull.writer_of_dull(line)) is not None:
            self._after_kmsg = False
            yield self._counted(number, Line(writer, ""))
            return
        if FieldBlock.begins(line):
            self._block = FieldBlock(number, line)
            self.counts.fields += 1
            return
        if (whole := self._unsplit(number, line)) is not None:
            yield from self._line(*whole)

    def _unsplit(self, number: int, line: str) -> tuple[int, str] | None:
        """(number, line), put together where a container runtime split it; None while a part is missing."""
        if (found := _RUNTIME.match(line)) is None:
            return number, line
        begun, head = self._parts.pop(found[1], (number, ""))
        line = f"{head}{line[found.end() :]}" if head else line
        if found[2] == "F":
            return begun, line
        self._parts[found[1]] = begun, line[:MAX_LINE].replace(f" {found[1]} P ", f" {found[1]} F ", 1)
        self.counts.fields += 1
        return None

    def _line(self, number: int, line: str) -> Iterator[Entry]:
        if _is_object(line) and (found := object_line(line)) is not None:
            for one in found:
                yield self._counted(number, one)
            return
        yield from self._plain(number, line)

    def _plain(self, number: int, line: str) -> Iterator[Entry]:
        if self._after_kmsg and line.startswith(" "):
            self.counts.fields += 1  # KEY=VALUE tags of a /dev/kmsg record
            return
        said = unwrap(self._unindented(line))
        if said.writer is not Writer.KERNEL and (inside := self._inside(line, said)) is not None:
            for one in inside:
                yield self._counted(number, one)
        elif said.writer is Writer.KERNEL and said.text.startswith(DRIVER) and _GLUED.search(said.text) is not None:
            first, *others = _GLUED.split(said.text, MAX_GLUED)
            yield self._counted(number, replace(said, text=first))
            for other in others:
                yield self._counted(number, unwrap(other))
        elif said.writer is not Writer.NOBODY_SAYS:
            self._after_kmsg = _RECORD.match(line) is not None
            yield self._counted(number, said)
        elif number == 1 and (cut := _CUT_HEAD.match(line)) is not None:
            self.counts.kernel += 1
            yield Entry(number, Writer.KERNEL, line[cut.end() :])
        elif not self._structured:
            yield Entry(number, Writer.NOBODY_SAYS, said.text.lstrip(), said.stamp)
        elif said.stamp is None:
            yield Entry(number, Writer.NOBODY_SAYS, said.text.strip(), continues=True)
        else:
            yield self._counted(number, replace(said, writer=Writer.PROCESS))

    def _unindented(self, line: str) -> str:
        """Where the first kernel line is indented or quoted (salt's output, a mail) the whole file is."""
        if line[0] not in " \t>" or (self._structured and not self._indented):
            return line
        stripped = line.lstrip(" \t>")
        self._indented = self._indented or unwrap(stripped).writer is Writer.KERNEL
        return stripped if self._indented else line

    @staticmethod
    def _inside(line: str, said: Line) -> list[Line] | None:
        """The entries that stand as an object or in a row inside a line of nobody's."""
        if said.in_stream or said.writer is Writer.NOBODY_SAYS:
            if (found := object_line(said.text)) is not None:
                return [replace(one, stamp=one.stamp or said.stamp) for one in found]
            if (cells := columns.row(line)) is not None:
                return [cells]
        return None

    def _end_of_block(self) -> Iterator[Entry]:
        block, self._block = self._block, None
        if block is not None:
            for said in block.entries():
                yield self._counted(block.number, said)

    def _counted(self, number: int, said: Line) -> Entry:
        self._structured = True
        if said.writer is not Writer.KERNEL:
            self.counts.other_programs += 1
            return Entry(number, Writer.PROCESS, said.text, said.stamp)
        self.counts.kernel += 1
        whole = Entry(number, Writer.KERNEL, said.text, said.stamp)
        if (repeated := _REPEATED.match(said.text)) is not None:
            return replace(whole, text=unwrap(repeated[2]).text, repeats=int(repeated[1]))
        return whole


def _is_object(line: str) -> bool:
    return line.startswith(("{", "\x1e", "[{", "data: {")) or '"=>' in line or "msg=" in line


def _decoded(stream: BinaryIO) -> TextIO:
    """As text: unpacked; a byte order mark tells the encoding, else UTF-8 with bytes kept as surrogates."""
    buffered = io.BufferedReader(cast("io.RawIOBase", stream))  # anything with readinto: a file, or bytes in memory
    head = buffered.peek(8)
    for magic, unpack in _PACKED.items():
        if head.startswith(magic):
            buffered = io.BufferedReader(cast("io.RawIOBase", unpack(buffered)))
            try:
                head = buffered.peek(8)
            except _DAMAGED:
                head = b""  # reading will say it
            break
    if (wide := next((name for pattern, name in _WIDE if pattern.match(head)), None)) is not None:
        return io.TextIOWrapper(buffered, encoding=wide, errors="replace", newline=None)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return io.TextIOWrapper(buffered, encoding="utf-16", errors="replace", newline=None)
    return io.TextIOWrapper(buffered, encoding="utf-8-sig", errors="surrogateescape", newline=None)
