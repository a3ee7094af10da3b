"""The log of one run of one container: written from its output pipe, read by any number of followers.

The file is the truth; readers hold an offset, not data. Where a read starts (`tailLines`, `sinceTime`) is found from
the end or by bisection, so that a log of gigabytes costs no more than the part that is read. A file that is full is put
aside and a new one begun, as kubelets do (containerLogMaxSize, containerLogMaxFiles): who follows reads on in the new
one, who comes later finds only that.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from nvcre_local.node.log_records import (
    HEADER_LENGTH,
    RECORD_LIMIT,
    TIMESTAMP_LENGTH,
    LineReader,
    RecordWriter,
    is_full,
    timestamp,
)

logger = logging.getLogger(__name__)

BLOCK = 64 * 1024
MAX_BYTES = 10 << 20  # the defaults of a kubelet
MAX_FILES = 5


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The query of `/containerLogs`, as Kubernetes' PodLogOptions."""

    follow: bool = False
    timestamps: bool = False
    since: datetime | None = None
    tail_lines: int | None = None
    limit_bytes: int | None = None


class ContainerLog:
    """Append-only; `ended` once the container's output is complete."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._full = 0  # files that were put aside
        self.ended = False
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO | None = open(path, "ab", buffering=0)  # noqa: SIM115 (open as long as the container runs)
        self._records = RecordWriter()
        self._changed = asyncio.Event()

    def write(self, chunk: bytes) -> None:
        self._append(self._records.feed(chunk, time.time_ns()))

    def finish(self) -> None:
        if self.ended:
            return
        self._append(self._records.finish(time.time_ns()))
        if self._file is not None:
            self._file.close()
            self._file = None
        self.ended = True
        self._wake()

    def _append(self, records: bytes) -> None:
        if not records or self._file is None:
            return
        view = memoryview(records)
        try:
            if self._file.tell() >= self._max_bytes:
                self._rotate(self._file)
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            # A full disk must not stop the workload: its log ends here, and says so in ours.
            logger.error("log cannot be written, the rest of it is lost path=%s error=%r", self.path, str(error))  # noqa: TRY400
            self._file.close()
            self._file = None
        self._wake()

    def _rotate(self, full: BinaryIO) -> None:
        self._full += 1
        full.close()
        self.path.rename(self._aside(self._full))
        self._aside(self._full - MAX_FILES + 1).unlink(missing_ok=True)
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (as the first)

    def _aside(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def remove(self) -> None:
        """With what was put aside."""
        for number in range(max(1, self._full - MAX_FILES + 2), self._full + 1):
            self._aside(number).unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def read(self, options: LogOptions) -> AsyncIterator[bytes]:
        """Chunks of the log; with `follow` until the container's output ended."""
        lines = LineReader(timestamps=options.timestamps, limit=options.limit_bytes)
        full = self._full
        file = open(self.path, "rb")  # noqa: ASYNC230, SIM115 (page cache; a thread for each block would cost more)
        try:
            file.seek(start_offset(file, options))
            while not lines.exhausted:
                # Taken before the read: nothing between them is missed.
                changed, ended, newest = self._changed, self.ended, self._full
                chunk = file.read(BLOCK)
                if chunk:
                    if text := lines.feed(chunk):
                        yield text
                    await asyncio.sleep(0)  # a reader that is never slow must not keep the loop to itself
                elif options.follow and full != newest:
                    full = newest
                    file.close()
                    file = open(self.path, "rb")  # noqa: ASYNC230, SIM115 (as above)
                elif not options.follow or ended:
                    return
                else:
                    await changed.wait()
        finally:
            file.close()


def start_offset(file: BinaryIO, options: LogOptions) -> int:
    """Where to start reading; both conditions hold when both are given."""
    offset = 0
    if options.tail_lines is not None:
        offset = tail_offset(file, options.tail_lines)
    if options.since is not None:
        offset = max(offset, since_offset(file, timestamp(options.since)))
    return offset


def tail_offset(file: BinaryIO, lines: int) -> int:
    """The offset of the first record of the last `lines` lines. Reads from the end, block by block."""
    position = file.seek(0, os.SEEK_END)
    if lines <= 0:
        return position
    carry = b""
    starts = 0  # beginnings of lines seen, from the end
    next_record: int | None = None  # the record after the one looked at
    while position > 0:
        block_start = max(0, position - BLOCK)
        file.seek(block_start)
        data = file.read(position - block_start) + carry
        position = block_start
        first = 0 if position == 0 else data.find(b"\n") + 1
        if position != 0 and first == 0:
            carry = data
            continue
        offset = position + len(data)
        records = data[first:].split(b"\n")[:-1]
        for record in reversed(records):
            offset -= len(record) + 1
            if is_full(record) and next_record is not None:
                starts += 1
                if starts == lines:
                    return next_record
            next_record = offset
        carry = data[:first]
    return 0


def since_offset(file: BinaryIO, since: bytes) -> int:
    """The offset of the first record at or after a timestamp: bisection, as timestamps grow."""
    low, high = 0, file.seek(0, os.SEEK_END)
    while high - low > RECORD_LIMIT:
        middle = (low + high) // 2
        file.seek(middle)
        window = file.read(RECORD_LIMIT + HEADER_LENGTH)
        newline = window.find(b"\n")
        record = middle + newline + 1
        stamp = window[newline + 1 : newline + 1 + TIMESTAMP_LENGTH]
        if newline < 0 or record >= high or len(stamp) < TIMESTAMP_LENGTH:
            high = middle
        elif stamp < since:
            low = record
        else:
            high = middle
    file.seek(low)
    offset = low
    while record_bytes := file.readline(RECORD_LIMIT):
        if record_bytes[:TIMESTAMP_LENGTH] >= since:
            return offset
        offset += len(record_bytes)
    return offset
