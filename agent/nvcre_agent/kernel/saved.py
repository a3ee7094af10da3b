"""Reads a saved kernel log of any tool (envelope.py, fields.py) and gives its entries in order with their line numbers.

One pass, one line in memory, so the size of the file does not matter. Lines end at CRLF, LF or CR and are counted from
1. What is no entry of the kernel is counted by reason and never silently dropped.

A bare line (nothing says who wrote it) is the kernel's in a file that has nothing but bare lines (journalctl -o cat,
dmesg -t). In any other file it is the rest of the entry before it, which is how every tool prints an entry of several
lines; with a time of its own it is a container's.
"""

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO, TextIO, cast

from nvcre_agent.kernel.envelope import Line, Stamp, Writer, unwrap
from nvcre_agent.kernel.fields import FieldBlock, json_line, replaced
from nvcre_agent.kernel.parsers import DRIVER

MAX_LINE = 64 * 1024
MAX_GLUED = 16
_REPEATED = re.compile(r"message repeated (\d{1,9}) times: \[ ?(.*)\]$", re.DOTALL)
# Consoles lose line ends: the next line of the kernel inside one of the driver's.
_GLUED = re.compile(r"(?=\[ {0,16}\d{1,12}\.\d{6}\] (?:NVRM|nvidia-nvswitch\d{1,3}): )")
_RECORD = re.compile(r"\d{1,4},\d{1,20},\d")  # of /dev/kmsg
# A file that was cut at its head begins inside a prefix.
_CUT_HEAD = re.compile(r"[^\[\"'=]{0,64}?(?:\d\] |kernel: (?:\[ {0,16}\d{1,12}\.\d{1,9}\] )?)")


@dataclass(frozen=True, slots=True)
class Entry:
    """`continues`: the line is a further one of the entry before. `repeats`: how often syslog says it came."""

    line: int
    writer: Writer
    text: str
    stamp: Stamp | None = None
    continues: bool = False
    repeats: int = 1


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
        self._block: FieldBlock | None = None

    def __iter__(self) -> Iterator[Entry]:
        for number, raw in self._lines():
            yield from self._entries(number, raw)
        if self._block is not None:
            yield from self._end_of_block()

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
            except (OSError, EOFError, zlib.error) as error:
                counts.damage = str(error)
                return
            yield counts.lines, raw.removesuffix("\n")

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
        if FieldBlock.begins(line):
            self._block = FieldBlock(number, line)
            self.counts.fields += 1
            return
        if line[0] in "{\x1ed" and (said := json_line(line)) is not None:
            yield self._counted(number, said)
            return
        yield from self._plain(number, line)

    def _plain(self, number: int, line: str) -> Iterator[Entry]:
        if self._after_kmsg and line.startswith(" "):
            self.counts.fields += 1  # KEY=VALUE tags of a /dev/kmsg record
            return
        said = unwrap(line)
        if said.writer is Writer.KERNEL and said.text.startswith(DRIVER) and _GLUED.search(said.text) is not None:
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
            yield Entry(number, Writer.NOBODY_SAYS, said.text.strip(), said.stamp)
        elif said.stamp is None:
            yield Entry(number, Writer.NOBODY_SAYS, said.text.strip(), continues=True)
        else:
            yield self._counted(number, replace(said, writer=Writer.PROCESS))

    def _end_of_block(self) -> Iterator[Entry]:
        block, self._block = self._block, None
        if block is not None and (said := block.entry()) is not None:
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


def _decoded(stream: BinaryIO) -> TextIO:
    """As text: gzip is unpacked, a byte order mark tells the encoding, else UTF-8 with bytes kept as surrogates."""
    buffered = io.BufferedReader(cast("io.RawIOBase", stream))  # anything with readinto: a file, or bytes in memory
    head = buffered.peek(4)
    if head.startswith(b"\x1f\x8b"):
        buffered = io.BufferedReader(cast("io.RawIOBase", gzip.GzipFile(fileobj=buffered)))
        try:
            head = buffered.peek(4)
        except (OSError, EOFError, zlib.error):
            head = b""  # reading will say it
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return io.TextIOWrapper(buffered, encoding="utf-16", errors="replace", newline=None)
    return io.TextIOWrapper(buffered, encoding="utf-8-sig", errors="surrogateescape", newline=None)
