"""The log format: what a container's output becomes on disk, and what a reader of the log gets back.

Pure bytes in, bytes out. The format is that of the container runtimes (CRI): one record a line,
`<RFC3339Nano, 30 characters> stdout <F|P> <content>`, where P says that the line goes on in the next record. Both
outputs of a container share one pipe, so that their order is the order of arrival, and are called stdout here. Nothing
is lost, whatever the bytes; memory is bounded by one record.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

CONTENT_LIMIT = 16 * 1024
"""Longer lines are split into records of this size, as containerd does."""
TIMESTAMP_LENGTH = 30
HEADER_LENGTH = TIMESTAMP_LENGTH + len(" stdout F ")
_TAG = HEADER_LENGTH - 2
RECORD_LIMIT = HEADER_LENGTH + CONTENT_LIMIT + 1

FULL, PARTIAL = b"F", b"P"


class RecordWriter:
    """Turns chunks of output into records. Timestamps grow strictly, so that a reader can resume after one."""

    def __init__(self) -> None:
        self._pending = b""
        self._last_ns = 0
        self._second = -1
        self._second_text = b""

    def feed(self, chunk: bytes, now_ns: int) -> bytes:
        """The records that are complete with this chunk; an unfinished line waits."""
        *lines, rest = (self._pending + chunk).split(b"\n")
        records: list[bytes] = []
        for line in lines:
            last_piece = self._split(line, records, now_ns)
            records.append(self._record(FULL, last_piece, now_ns))
        self._pending = self._split(rest, records, now_ns)
        return b"".join(records)

    def finish(self, now_ns: int) -> bytes:
        """The rest, at the end of the output: a last line without its newline stays without."""
        pending, self._pending = self._pending, b""
        return self._record(PARTIAL, pending, now_ns) if pending else b""

    def _split(self, line: bytes, records: list[bytes], now_ns: int) -> bytes:
        while len(line) > CONTENT_LIMIT:
            records.append(self._record(PARTIAL, line[:CONTENT_LIMIT], now_ns))
            line = line[CONTENT_LIMIT:]
        return line

    def _record(self, tag: bytes, content: bytes, now_ns: int) -> bytes:
        self._last_ns = max(now_ns, self._last_ns + 1)
        second, fraction = divmod(self._last_ns, 1_000_000_000)
        if second != self._second:
            self._second = second
            self._second_text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S.").encode()
        return b"%s%09dZ stdout %s %s\n" % (self._second_text, fraction, tag, content)


def timestamp(moment: datetime) -> bytes:
    """A moment as a record's timestamp, comparable bytewise with those of records."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z").encode()


def is_full(record: bytes) -> bool:
    return record[_TAG : _TAG + 1] == FULL


@dataclass(slots=True)
class LineReader:
    """Turns records back into what the container wrote, at most `limit` bytes of it."""

    timestamps: bool = False
    limit: int | None = None
    _unfinished: bytes = b""
    _inside_line: bool = False

    @property
    def exhausted(self) -> bool:
        return self.limit is not None and self.limit <= 0

    def feed(self, chunk: bytes) -> bytes:
        *records, self._unfinished = (self._unfinished + chunk).split(b"\n")
        out: list[bytes] = []
        for record in records:
            if self.timestamps and not self._inside_line:
                out += (record[:TIMESTAMP_LENGTH], b" ")
            out.append(record[HEADER_LENGTH:])
            self._inside_line = not is_full(record)
            if not self._inside_line:
                out.append(b"\n")
        text = b"".join(out)
        if self.limit is not None:
            text = text[: max(self.limit, 0)]
            self.limit -= len(text)
        return text


def parse_time(text: str) -> datetime:
    """An RFC3339 time of a query; raises ValueError."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return moment
