"""A log as lines: cut from a stream in bounded memory, without the kubelet's prefix.

The prefix is an RFC 3339 time (Z or a numeric offset) and one space, when timestamps are asked for; a line without a
valid one is returned unchanged and without a time. A line longer than 1 MiB is skipped and counted, and no other is
lost (the reference gives such a log up).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime

MAX_LINE_BYTES = 1024 * 1024
_PREFIX = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ")
_PREFIXES = re.compile(rb"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d) ", re.MULTILINE)


def split_prefix(line: str) -> tuple[datetime | None, str]:
    match = _PREFIX.match(line)
    if match is None:
        return None, line
    zone = "+00:00" if match[3] == "Z" else match[3]
    try:
        time = datetime.fromisoformat(f"{match[1]}.{(match[2] or '0')[:6].ljust(6, '0')}{zone}")
    except ValueError:
        return None, line
    return time.astimezone(UTC), line[match.end() :]


def split_prefixes(block: bytes) -> bytes:
    """A block of lines without their prefixes; a block whose first line has none is returned as it is."""
    return block if _PREFIXES.match(block) is None else _PREFIXES.sub(b"", block)


@dataclass(slots=True)
class LineFeed:
    """Cuts a stream of chunks into blocks of whole lines, in bounded memory."""

    skipped_lines: int = 0  # longer than MAX_LINE_BYTES
    _rest: bytearray = field(default_factory=bytearray)
    _skipping: bool = False

    def feed(self, chunk: bytes) -> bytes:
        """The whole lines that are complete now, prefixes removed; empty when there are none."""
        if self._skipping:
            newline = chunk.find(b"\n")
            if newline < 0:
                return b""
            chunk = chunk[newline + 1 :]
            self._skipping = False
        last = chunk.rfind(b"\n")
        if last < 0:
            self._rest += chunk
            if len(self._rest) > MAX_LINE_BYTES:
                self.skipped_lines += 1
                self._skipping = True
                self._rest.clear()
            return b""
        block = bytes(self._rest) + chunk[: last + 1]
        self._rest = bytearray(chunk[last + 1 :])
        if len(self._rest) > MAX_LINE_BYTES:
            self.skipped_lines += 1
            self._skipping = True
            self._rest.clear()
        return self._clean(block)

    def finish(self) -> bytes:
        """What came after the last newline."""
        block, self._rest = bytes(self._rest), bytearray()
        return self._clean(block)

    def _clean(self, block: bytes) -> bytes:
        if len(block) > MAX_LINE_BYTES:
            lines = block.split(b"\n")
            kept = [line for line in lines if len(line) <= MAX_LINE_BYTES]
            self.skipped_lines += len(lines) - len(kept)
            block = b"\n".join(kept)
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n")
        return split_prefixes(block)
