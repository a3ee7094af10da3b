"""Reads the kernel log of the node and hands each record to one callback, in order, for the agent's event loop.

The source is /dev/kmsg (one record a read), a FIFO, or a regular file in the same format with one record a line. The
device and the FIFO wake the loop when there is something to read, and so does a file through inotify (without it, it
is looked at every 50 ms). What cannot be read as a record is a counted skip, an overwritten position (EPIPE) and
missing sequence numbers are counted, and reading goes on.

Records that were there before the agent looked (the backlog) are marked: their time is derived from the boot clock and
uncertain, and those at or before the persisted position are not told again. It does not recognise lines (parsers.py).
"""

import asyncio
import contextlib
import errno
import logging
import os
import select
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from nvcre_agent.kernel.growth import FileGrowth
from nvcre_agent.kernel.record import MalformedRecordError, Record, parse_record

log = logging.getLogger(__name__)

READ_BYTES = 64 * 1024  # a record of the device needs 8 KB at most; a smaller buffer gives EINVAL
MAX_LINE = 64 * 1024
BATCH = 256  # records between two turns of the event loop
POLL_S = 0.05  # looking at a file without inotify
LOOK_AGAIN_S = 5.0  # with it: a file that was replaced tells nothing
REOPEN_S = 1.0


@dataclass(frozen=True, slots=True)
class Position:
    """Up to where the log has been read; a sequence is only meaningful within its boot."""

    boot_id: str
    sequence: int


@dataclass(slots=True)
class KmsgCounts:
    records: int = 0
    overruns: int = 0  # EPIPE: the kernel overwrote what we had not read
    gaps: int = 0  # sequence numbers that never came
    skipped: int = 0  # no record, or far too long


class _Kind(Enum):
    DEVICE = "device"
    FIFO = "fifo"
    FILE = "file"


class KernelLog:
    """`on_record(record, backlog)` is called in the loop; `blind` is the reason while the source cannot be read."""

    def __init__(
        self,
        path: Path,
        *,
        after: Position | None,
        boot_id: str,
        on_record: Callable[[Record, bool], None],
        on_blind: Callable[[str, str], None],
    ) -> None:
        self._path = path
        self._seen = after.sequence if after is not None and after.boot_id == boot_id else -1
        self._on_record = on_record
        self._on_blind = on_blind
        self._fd = -1
        self._kind = _Kind.FILE
        self._in_backlog = True
        self._last_sequence = self._seen if self._seen >= 0 else None  # what was overwritten meanwhile is a gap
        self._buffer = b""
        self._discarding = False
        self._inode = 0
        self._gone_since_s: float | None = None
        self._offset = 0
        self._wake = asyncio.Event()
        self._watched_fd = -1
        self._growth: FileGrowth | None = None
        self._reads = 0
        self.counts = KmsgCounts()
        self.blind: str | None = "NotOpened"

    @property
    def is_device(self) -> bool:
        """Its records carry this machine's boot clock; what a file's carry, nobody knows."""
        return self._kind is _Kind.DEVICE

    async def run(self) -> None:
        """Read for ever. Raises what `on_record` raises; trouble with the source is Blind and tried again."""
        try:
            while True:
                if self._fd < 0 and not self._open():
                    await asyncio.sleep(REOPEN_S)
                    continue
                more = self.read_available()
                if self._fd < 0:
                    await asyncio.sleep(REOPEN_S)
                elif more:
                    await asyncio.sleep(0)
                else:
                    await self._something_to_read()
        finally:
            self._close()

    async def drain(self, deadline_s: float) -> bool:
        """Read everything that is there now. False while blind, or when a flood does not end within `deadline_s`."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + deadline_s
        while self._fd >= 0 and loop.time() < give_up_at:
            if not self.read_available():
                return self._fd >= 0
            await asyncio.sleep(0)
        return False

    @property
    def last_sequence(self) -> int | None:
        return self._last_sequence

    @property
    def progress(self) -> tuple[bool, int]:
        """Is there something that was not read yet, and how often was read."""
        return self._has_more(), self._reads

    def read_available(self) -> bool:
        """Read one batch; True when there may be more right now."""
        self._reads += 1
        try:
            match self._kind:
                case _Kind.DEVICE:
                    more = self._read_device()
                case _Kind.FIFO:
                    more = self._read_stream()
                case _Kind.FILE:
                    more = self._read_file()
        except OSError as error:
            self._lose(error)
            return False
        if self._fd >= 0:
            self._set_blind(None, "")
        return more

    # --- opening

    def _open(self) -> bool:
        try:
            status = os.stat(self._path)
            if stat.S_ISCHR(status.st_mode):
                self._kind = _Kind.DEVICE
                self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            elif stat.S_ISFIFO(status.st_mode):
                self._kind = _Kind.FIFO
                # Opened for writing too: a FIFO without a writer would be at its end all the time.
                self._fd = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
                self._in_backlog = False
            elif stat.S_ISREG(status.st_mode):
                self._kind = _Kind.FILE
                self._growth = FileGrowth.open(self._path)
                if self._growth is None:
                    log.warning("no inotify (fs.inotify.max_user_instances?) path=%s poll_s=%.2f", self._path, POLL_S)
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            else:
                self._set_blind("NotALog", f"{self._path} is neither a device, a FIFO nor a file")
                return False
        except OSError as error:
            self._lose(error)
            return False
        self._inode, self._offset, self._buffer, self._discarding = status.st_ino, 0, b"", False
        return True

    def _lose(self, error: OSError) -> None:
        reason = {errno.ENOENT: "NotFound", errno.EACCES: "NoPermission", errno.EPERM: "NoPermission"}.get(
            error.errno or 0, "ReadFailed"
        )
        if self._last_sequence is not None:  # opened again it begins with what is known already
            self._seen, self._in_backlog = max(self._seen, self._last_sequence), True
        self._set_blind(
            reason, f"{self._path}: {error.strerror}; the agent needs it readable (CAP_SYSLOG for the device)"
        )
        self._close()

    def _set_blind(self, reason: str | None, message: str) -> None:
        """It sees once a read has worked: a source that opens and cannot be read must not seem to be well each time."""
        if reason != self.blind:
            self.blind = reason
            self._on_blind(reason or "", message)
            if reason is None:
                log.info("kernel log read path=%s kind=%s after_sequence=%d", self._path, self._kind.value, self._seen)

    def _close(self) -> None:
        if self._watched_fd >= 0:
            asyncio.get_running_loop().remove_reader(self._watched_fd)
            self._watched_fd = -1
        if self._growth is not None:
            self._growth.close()
            self._growth = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    async def _something_to_read(self) -> None:
        if self._kind is not _Kind.FILE:
            self._wake_on(self._fd)
            await self._wake.wait()
            self._wake.clear()
        elif self._growth is None:
            await asyncio.sleep(POLL_S)
        else:
            self._wake_on(self._growth.fd)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await self._wake.wait()
            self._wake.clear()
            if self._growth is not None:
                self._growth.clear()

    def _wake_on(self, fd: int) -> None:
        if self._watched_fd < 0:
            asyncio.get_running_loop().add_reader(fd, self._wake.set)
            self._watched_fd = fd

    # --- reading

    def _has_more(self) -> bool:
        if self._fd < 0:
            return False
        if self._kind is _Kind.FILE:
            return os.fstat(self._fd).st_size > self._offset
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(0))

    def _read_device(self) -> bool:
        before = self.counts.overruns + self.counts.skipped
        for _ in range(BATCH):
            try:
                raw = os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                return self._backlog_ends()
            except OSError as error:
                if error.errno == errno.EPIPE:
                    self.counts.overruns += 1
                    continue
                if error.errno == errno.EINVAL:
                    self.counts.skipped += 1
                    continue
                raise
            if not raw:
                raise OSError(errno.ENODATA, "it ends, as no kernel log does")
            self._take(raw.rstrip(b"\n"))
        if self.counts.overruns + self.counts.skipped - before == BATCH:  # going on would take a core for nothing
            raise OSError(errno.EIO, f"{BATCH} reads in a row gave no record")
        return True

    def _read_stream(self) -> bool:
        try:
            chunk = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return False
        self._frame(chunk)
        return bool(chunk)

    def _read_file(self) -> bool:
        chunk = os.read(self._fd, READ_BYTES)
        if chunk:
            self._offset += len(chunk)
            self._frame(chunk)
            return True
        if self._backlog_ends():
            return True
        size = os.fstat(self._fd).st_size
        try:
            inode, self._gone_since_s = os.stat(self._path).st_ino, None
        except FileNotFoundError:
            inode = self._inode  # being replaced; keep the old one until the new one is there
            self._gone_since_s = self._gone_since_s or time.monotonic()
            if time.monotonic() - self._gone_since_s > LOOK_AGAIN_S:
                raise
        if size < self._offset or inode != self._inode:
            return self._begin_anew()
        return False

    def _backlog_ends(self) -> bool:
        """True when it is to be read again: it ends before what was read of it, so it is another one.

        The file was emptied while the agent was down, or the boot id does not tell one boot from the next.
        """
        if self._in_backlog and self._last_sequence is not None and self._last_sequence < self._seen:
            return self._begin_anew()
        self._in_backlog = False
        return False

    def _begin_anew(self) -> bool:
        log.info("kernel log truncated or replaced path=%s", self._path)
        self._close()
        self._last_sequence = None
        self._seen = -1
        return self._open()

    def _frame(self, chunk: bytes) -> None:
        """Cut a byte stream into lines; a line over the limit is dropped up to its end and counted once."""
        if b"\n" not in chunk:
            self._keep(chunk)
            return
        first, *whole, rest = (self._buffer + chunk).split(b"\n")
        if self._discarding:
            self._discarding = False
        else:
            self._take_line(first)
        for line in whole:
            self._take_line(line)
        self._buffer = b""
        self._keep(rest)

    def _keep(self, part: bytes) -> None:
        if self._discarding:
            return
        self._buffer += part
        if len(self._buffer) > MAX_LINE:
            self.counts.skipped += 1
            self._buffer, self._discarding = b"", True

    def _take_line(self, line: bytes) -> None:
        # Lines that begin with a space are KEY=VALUE tags of the record before.
        if line and not line.startswith(b" "):
            if len(line) > MAX_LINE:
                self.counts.skipped += 1
            else:
                self._take(line)

    def _take(self, raw: bytes) -> None:
        try:
            record = parse_record(raw)
        except MalformedRecordError:
            self.counts.skipped += 1
            return
        if self._in_backlog and record.sequence <= self._seen:
            self._last_sequence = record.sequence
            return
        if self._last_sequence is not None and record.sequence > self._last_sequence + 1:
            self.counts.gaps += record.sequence - self._last_sequence - 1
        self._last_sequence = record.sequence
        self.counts.records += 1
        self._on_record(record, self._in_backlog)
