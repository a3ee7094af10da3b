"""The SQLite file of the outbox and the one thread that writes it; what the rows mean is outbox.py's business.

The file mirrors what the outbox has in memory. One job is one transaction (WAL, synchronous=FULL). After any error the
connection is given up and nothing more is written, until a job that holds everything comes: it opens the file anew,
so neither a half-written past nor a commit that the disk only pretended to make is built upon.

The lock is exclusive for as long as the file is open, which keeps a second agent out and needs no shared memory: a
mapped page of a dying disk would end the process. A corrupt file is set aside, never deleted.
"""

import contextlib
import fcntl
import logging
import os
import queue
import sqlite3
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

log = logging.getLogger(__name__)

LOCK_PATIENCE_S = 5.0  # a predecessor that is ending
KEEP_CORRUPT = 3  # files that were set aside
WAL_PAGES = 256  # 1 MiB before it is folded back into the file

Statement = tuple[str, tuple[Any, ...]]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS state (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS events (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS incidents (
    id TEXT PRIMARY KEY, body BLOB NOT NULL, subject TEXT NOT NULL, clears TEXT NOT NULL, boot_id TEXT NOT NULL,
    last_monotonic_s REAL NOT NULL, remedied INTEGER NOT NULL, finding_key TEXT NOT NULL);
"""


class OutboxInUseError(Exception):
    """Another process has the file open."""


class CorruptError(Exception):
    """Not a database, or a damaged one."""


@dataclass(frozen=True, slots=True)
class Contents:
    """All rows, events by ascending seq."""

    state: dict[str, str] = field(default_factory=dict)
    events: tuple[tuple[int, str, bytes], ...] = ()
    incidents: tuple[tuple[Any, ...], ...] = ()

    @property
    def outbox_id(self) -> str | None:
        return self.state.get("outbox_id")


@dataclass(frozen=True, slots=True)
class Opened:
    """`connection` is None while the file cannot be used, and `error` says why; `set_aside` names a corrupt one."""

    connection: sqlite3.Connection | None
    contents: Contents = Contents()
    error: str = ""
    set_aside: str = ""


def open_file(path: Path, *, distrust: bool = False) -> Opened:
    """Open or make the file; with `distrust` whatever is there is set aside. Raises OutboxInUseError."""
    set_aside = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if distrust and path.exists():
            set_aside = _set_aside(path, "a write found it damaged")
        try:
            connection, contents = _connect_and_read(path)
        except CorruptError as error:
            set_aside = _set_aside(path, str(error))
            connection, contents = _connect_and_read(path)
    except (OSError, sqlite3.Error, CorruptError) as error:
        if _code(error) == sqlite3.SQLITE_BUSY:
            raise OutboxInUseError(
                f"{path} is in use by {_holder(path)}: one agent a node; stop the other one, or give another --outbox"
            ) from error
        return Opened(None, error=str(error), set_aside=set_aside)
    return Opened(connection, contents, set_aside=set_aside)


def write(connection: sqlite3.Connection, statements: Sequence[Statement]) -> None:
    """All or nothing."""
    with connection:
        for sql, values in statements:
            connection.execute(sql, values)


def read(connection: sqlite3.Connection) -> Contents:
    """Raises CorruptError where a value is of a kind that was never written, or a table not ours."""
    state = dict(connection.execute("SELECT key, value FROM state"))
    if wrong := [key for key, value in state.items() if not isinstance(key, str) or not isinstance(value, str)]:
        raise CorruptError(f"state {wrong[0]!r} is no text")
    return Contents(
        state=state,
        events=tuple(connection.execute("SELECT seq, kind, body FROM events ORDER BY seq")),
        incidents=tuple(connection.execute("SELECT * FROM incidents ORDER BY rowid")),
    )


def _connect_and_read(path: Path) -> tuple[sqlite3.Connection, Contents]:
    """Raises CorruptError, sqlite3.Error."""
    connection = _connect(path)
    try:
        return connection, read(connection)
    except (sqlite3.Error, CorruptError, UnicodeDecodeError) as error:
        connection.close()
        if is_corruption(error) or _code(error) == sqlite3.SQLITE_ERROR:  # no such column
            raise CorruptError(str(error)) from error
        raise


def _connect(path: Path) -> sqlite3.Connection:
    """Raises CorruptError, sqlite3.Error."""
    connection = sqlite3.connect(path, check_same_thread=False, timeout=LOCK_PATIENCE_S)
    connection.text_factory = _text
    try:
        _prepare(connection)
    except (sqlite3.Error, CorruptError, UnicodeDecodeError) as error:
        connection.close()
        if is_corruption(error):
            raise CorruptError(str(error)) from error
        raise
    return connection


def _text(raw: bytes) -> str:
    """A damaged text is one row's trouble and not that of all."""
    return raw.decode("utf-8", "replace")


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA locking_mode=EXCLUSIVE")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA cache_size=-256")
    connection.execute(f"PRAGMA wal_autocheckpoint={WAL_PAGES}")
    [check] = connection.execute("PRAGMA quick_check(1)").fetchone()
    if check != "ok":
        raise CorruptError(check)
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not {"state", "events", "incidents"} <= tables:  # a full disk has them already, and must not be asked
        connection.executescript(_SCHEMA)


def _inode(path: Path) -> tuple[int, int] | None:
    """None for one that is not there, and for SQLite's :memory:."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _holder(path: Path) -> str:
    """Who has SQLite's lock. Only for a file that this process has not open: closing it here ends its own locks."""
    asked = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)  # struct flock of Linux on 64 bits
    with contextlib.suppress(OSError), path.open("rb+") as file:
        found = struct.unpack("hhqqi", fcntl.fcntl(file, fcntl.F_GETLK, asked))
        if found[0] != fcntl.F_UNLCK and found[4] > 0:
            return f"process {found[4]}"
    return "another process"


def _set_aside(path: Path, why: str) -> str:
    """Raises OSError."""
    aside = path.with_name(f"{path.name}.corrupt-{time.time_ns()}")
    path.rename(aside)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    for older in sorted(path.parent.glob(f"{path.name}.corrupt-*"))[:-KEEP_CORRUPT]:  # a dying disk makes them for ever
        older.unlink(missing_ok=True)
    log.warning("outbox corrupt path=%s kept_as=%s error=%r", path, aside.name, why)
    return aside.name


def _code(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_corruption(error: Exception) -> bool:
    """What SQLite says of a damaged schema may be no text itself."""
    return isinstance(error, CorruptError | UnicodeDecodeError) or _code(error) in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
    )


# --- the writer thread


@dataclass(frozen=True, slots=True)
class Job:
    """Statements of one transaction; `whole` ones replace everything, for the file of this outbox."""

    statements: Sequence[Statement]
    through_seq: int
    whole_of: str | None = None


class Listener(Protocol):
    """Who hears from the thread, in the thread."""

    def committed(self, through_seq: int, *, whole: bool, set_aside: str) -> None: ...
    def failed(self, error: str) -> None: ...
    def found(self, contents: Contents) -> None:
        """The file can be used again and is another outbox's: its events want to be taken over first."""

    def crashed(self, error: Exception) -> None: ...


class Writer:
    """`taken_over` is the outbox whose contents the listener has already, if the file is still that one's."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection | None, listener: Listener, *, taken_over: str | None
    ) -> None:
        self._path = path
        self._connection = connection
        self._inode = _inode(path)  # of the file that is open
        self._listener = listener
        self._distrust = False
        self._set_aside = ""  # not told yet
        self._taken_over = taken_over
        self._writing = False
        self._passes = 0
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def backlog(self) -> int:
        return self._jobs.qsize()

    @property
    def progress(self) -> tuple[bool, int]:
        """Is there something to write, and how often has it written or tried to."""
        return self._writing or not self._jobs.empty(), self._passes

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    def close(self, timeout_s: float) -> bool:
        """Blocks until all is written; False when the disk does not answer in time."""
        if self._thread.ident is None:
            if self._connection is not None:
                self._connection.close()
            return True
        self._jobs.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._write_until_closed()
        except Exception as error:  # noqa: BLE001 - the listener takes the process down visibly
            self._listener.crashed(error)

    def _write_until_closed(self) -> None:
        while self._write_what_waits():
            pass
        if self._connection is not None:
            self._connection.close()

    def _write_what_waits(self) -> bool:
        """False at the end. Returns, so that what a storm left behind is not held until the next write."""
        waiting = [self._jobs.get()]
        while not self._jobs.empty():
            waiting.append(self._jobs.get())
        jobs = [job for job in waiting if job is not None]
        if jobs:
            self._writing = True
            self._write(jobs)
            self._writing = False
            self._passes += 1
        return None not in waiting

    def _write(self, jobs: list[Job]) -> None:
        """All jobs in one transaction. Without a connection only a whole one counts: memory has the others too."""
        if self._connection is not None and self._inode != _inode(self._path):
            self._connection.close()  # SQLite would go on writing to what nobody can open again
            self._connection = None
            self._listener.failed("the file was deleted or replaced")
        if self._connection is None:
            first = next((index for index, job in enumerate(jobs) if job.whole_of is not None), None)
            if first is None:
                return
            jobs = jobs[first:]
            try:
                opened = open_file(self._path, distrust=self._distrust)
            except OutboxInUseError as error:
                self._listener.failed(str(error))
                return
            self._set_aside = opened.set_aside or self._set_aside
            if opened.connection is None:
                self._listener.failed(opened.error)
                return
            other = opened.contents.outbox_id
            if opened.contents.events and other not in (jobs[0].whole_of, self._taken_over):
                opened.connection.close()
                self._taken_over = other
                self._listener.found(opened.contents)
                return
            self._connection, self._inode, self._distrust = opened.connection, _inode(self._path), False
        try:
            write(self._connection, [statement for job in jobs for statement in job.statements])
        except sqlite3.Error as error:
            self._distrust = is_corruption(error)
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
            self._listener.failed(str(error))
        else:
            whole = any(job.whole_of is not None for job in jobs)
            set_aside, self._set_aside = self._set_aside, ""
            self._listener.committed(max(job.through_seq for job in jobs), whole=whole, set_aside=set_aside)
