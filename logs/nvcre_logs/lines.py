"""A log as lines: cut from a stream in bounded memory, and freed of what launchers and terminals put around a line.

Lines end at CRLF, LF or CR (progress bars). A line longer than 1 MiB is emptied and counted, and no other is lost (the
reference gives such a log up). In front of a line may stand, in any order: the kubelet's time (RFC 3339, Z or a numeric
offset), `kubectl --prefix`, the tag of mpirun, srun or torchrun.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache

MAX_LINE_BYTES = 1024 * 1024
_PREFIX = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ")
STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d) ")
"""What looks like the kubelet's time, with the blank behind."""
_PREFIXES = re.compile(b"^" + STAMP.pattern, re.MULTILINE)
_POD = re.compile(r"\[(pod/[^\]\s]{1,300})\] ?")
# mpirun --tag-output (Open MPI 4: [1,0]<stdout>:, 5: [prterun-host-1@1,0]<stdout>:), srun --label, torchrun, PyTorch
_TAG = re.compile(
    r"\[(?:[^\]\s@]{1,200}@)?\d{1,9},(?P<mpi>\d{1,9})\]<std(?:out|err)>: ?"
    r"|\[(?:rank|default)(?P<torch>\d{1,9})\]: ?"
    r"|(?P<srun>\d{1,7}): (?=\D|\d+[ %]|\d{4}-)"
)
_ESCAPE = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")
_ESCAPES = re.compile(_ESCAPE.pattern.encode())
DIGITS_ALIKE = bytes.maketrans(b"123456789", b"000000000")
"""For bytes.translate: a line's shape.  Lines that programs print again and again have the same one."""


def split_prefix(line: str) -> tuple[datetime | None, str]:
    """The kubelet's time and the line without it; None and the unchanged line where there is no valid one."""
    match = _PREFIX.match(line)
    if match is None:
        return None, line
    zone = "+00:00" if match[3] == "Z" else match[3]
    nanoseconds = int((match[2] or "0").ljust(9, "0"))
    try:
        time = datetime.fromisoformat(f"{match[1]}{zone}").astimezone(UTC)
        time += timedelta(microseconds=(nanoseconds + 500) // 1000)
    except (ValueError, OverflowError):  # programs print prefixes too: 9999-12-31 is a favourite
        return None, line
    return time, line[match.end() :]


def is_time(stamp: bytes) -> bool:
    """Of bytes that look like the kubelet's time, without the blank behind: is there such a time?"""
    if stamp.endswith(b"Z") and not stamp.startswith(b"9999"):
        return stamp[17:19] < b"60" and _is_minute(stamp[:16])
    return split_prefix(f"{stamp.decode()} ")[0] is not None


@lru_cache(maxsize=64)
def _is_minute(stamp: bytes) -> bool:
    try:
        datetime.fromisoformat(stamp.decode())
    except ValueError:
        return False
    return True


def split_prefixes(block: bytes) -> bytes:
    """A block of lines without the kubelet's times; one whose first and last line have none is returned as it is."""
    last = block.rfind(b"\n", 0, -1) + 1  # the first may be what came behind a carriage return
    return _PREFIXES.sub(b"", block) if _PREFIXES.match(block) or _PREFIXES.match(block, last) else block


def plain(block: bytes) -> bytes:
    """Lines without escape codes, each with its LF."""
    if b"\x1b" in block:
        block = _ESCAPES.sub(b"", block)
    return block if not block or block.endswith(b"\n") else block + b"\n"


@dataclass(frozen=True, slots=True)
class Line:
    """What a program wrote, and who wrote it when, as far as the log says."""

    text: str
    time: datetime | None = None  # the kubelet's
    pod: str = ""  # pod/NAME/CONTAINER of kubectl --prefix
    rank: int | None = None  # of mpirun, srun or torchrun


def unwrap(raw: bytes | str) -> Line:
    """Escape codes and prefixes removed; bytes that are no UTF-8 become replacement characters."""
    text = raw if isinstance(raw, str) else raw.decode(errors="replace")
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    time, pod, rank = None, "", None
    for _ in range(4):
        stripped = text.lstrip(" ") if rank is None else text
        head = stripped[:1]
        if head == "[":
            if (match := _POD.match(stripped)) is not None:
                pod, text = match[1], stripped[match.end() :]
                continue
        elif not head.isdigit():
            break
        if time is None and (found := split_prefix(stripped))[0] is not None:
            time, text = found
            continue
        match = _TAG.match(stripped)
        if match is None or rank is not None:
            break
        rank = int(match["mpi"] or match["torch"] or match["srun"])
        text = stripped[match.end() :]
    return Line(text, time, pod, rank)


@dataclass(slots=True)
class LineFeed:
    """Cuts a stream of chunks into blocks of whole lines that end in LF."""

    skipped_lines: int = 0  # longer than MAX_LINE_BYTES; an empty line stands in their place
    _rest: bytearray = field(default_factory=bytearray)
    _skipping: bool = False

    def feed(self, chunk: bytes) -> bytes:
        """The lines that are complete now; empty when there are none."""
        # A CR at the very end may be half of a CRLF: it waits for the next byte.
        if self._rest.endswith(b"\r"):
            self._rest.pop()
            chunk = b"\r" + chunk
        held = chunk.endswith(b"\r")
        chunk = _with_line_feeds(chunk[:-1] if held else chunk)
        end = chunk.rfind(b"\n") + 1
        block = self._complete(chunk[:end]) if end else b""
        if not self._skipping:
            self._rest += chunk[end:]
            if len(self._rest) > MAX_LINE_BYTES:
                self._skipping = True
                self.skipped_lines += 1
                self._rest.clear()
        if held:
            self._rest += b"\r"
        return block

    def finish(self) -> bytes:
        """What came after the last line end."""
        rest = bytes(self._rest)
        self._rest.clear()
        if self._skipping:
            self._skipping = False
            return b"\n"
        return rest.removesuffix(b"\r") + b"\n" if rest else b""

    def _complete(self, lines: bytes) -> bytes:
        if self._skipping:
            self._skipping = False
            lines = lines[lines.index(b"\n") :]
        block = bytes(self._rest) + lines
        self._rest.clear()
        if _has_long_line(block):
            kept = [line if len(line) <= MAX_LINE_BYTES else None for line in block.split(b"\n")]
            self.skipped_lines += kept.count(None)
            block = b"\n".join(line or b"" for line in kept)
        return block


def _has_long_line(block: bytes) -> bool:
    position = 0
    while len(block) - position > MAX_LINE_BYTES:
        end = block.rfind(b"\n", position, position + MAX_LINE_BYTES + 1)
        if end < 0:
            return True
        position = end + 1
    return False


def _with_line_feeds(chunk: bytes) -> bytes:
    return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in chunk else chunk
