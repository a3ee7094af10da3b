"""The durable queue between the agent's rules and the stream: fault events until they are acknowledged.

    outbox.append(changes, keep=..., forget=..., position=...)     # one transaction, returns at once
    outbox.pending(after=seq, limit=64)                            # what may be sent, ascending
    outbox.acknowledge(seq)                                        # stored by the coordinator: delete

One thread owns the SQLite file (WAL, synchronous=FULL). An event is sent once it is committed, or after 50 ms: a
dying node's disk may be dying too, and a slow commit must not hold the news back (`OutboxSlow`). A newer update of an
incident replaces the older one that was not acknowledged, so the file is bounded by the number of incidents.

Sequence numbers are reserved in blocks on disk before use, so that an event that was sent but lost with the disk
never shares its number with a later one. A corrupt file is set aside; a place that cannot be written means memory
only, under a new outbox id. Both are said in `trouble`, neither ends the agent.
"""

import asyncio
import logging
import queue
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvcre_protos import nvcre_agent_v1_pb2 as pb

from nvcre_agent import wire
from nvcre_agent.incidents.model import Change, ChangeKind, Kept
from nvcre_agent.kernel.kmsg import Position
from nvcre_agent.xid.model import Clears

log = logging.getLogger(__name__)

SLOW_COMMIT_S = 0.05
SLOW_SHOWN_S = 60.0  # how long OutboxSlow stays visible after the last slow commit
RETRY_S = 5.0
RESERVE = 100_000
MAX_PENDING = 4096
MAX_UNWRITTEN = 10_000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS state (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS events (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS incidents (
    id TEXT PRIMARY KEY, body BLOB NOT NULL, subject TEXT NOT NULL, clears TEXT NOT NULL, boot_id TEXT NOT NULL,
    last_monotonic_s REAL NOT NULL, remedied INTEGER NOT NULL, finding_key TEXT NOT NULL);
"""


@dataclass(slots=True)
class PendingEvent:
    seq: int
    kind: ChangeKind
    event: pb.Event
    ready: bool = False  # committed, or waited long enough


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why the outbox is not what it should be; empty reason: all is well."""

    reason: str = ""
    message: str = ""


@dataclass(slots=True)
class _Job:
    statements: list[tuple[str, tuple[Any, ...]]]
    through_seq: int
    started_s: float = field(default_factory=time.monotonic)


class Outbox:
    """Made by `open_outbox`. All methods are for the event loop and none blocks it."""

    def __init__(self, connection: sqlite3.Connection, *, trouble: Trouble) -> None:
        self._connection = connection
        self._lasting_trouble = trouble
        self._write_failed: Trouble | None = None
        self._slow_until_s = 0.0
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._crashed: asyncio.Future[None] | None = None
        self._pending: dict[int, PendingEvent] = {}
        self._acknowledged = 0
        self.on_change: Callable[[], None] = lambda: None
        self.dropped = 0
        self.slow_commits = 0
        state = dict(connection.execute("SELECT key, value FROM state"))
        self.outbox_id = state.get("outbox_id") or uuid.uuid4().hex
        self.position = _position(state)
        self._state: dict[str, str] = state
        self._reserved = int(state.get("seq_reserved", "0"))
        self.kept = tuple(_kept(row) for row in connection.execute("SELECT * FROM incidents"))
        highest = self._reserved
        for seq, kind, body in connection.execute("SELECT seq, kind, body FROM events ORDER BY seq"):
            self._pending[seq] = PendingEvent(seq, ChangeKind(kind), pb.Event.FromString(body), ready=True)
            highest = max(highest, seq)
        self.last_seq = highest
        with connection:
            self._reserved = self.last_seq + RESERVE
            connection.execute(*_set_state("outbox_id", self.outbox_id))
            connection.execute(*_set_state("seq_reserved", str(self._reserved)))

    def start(self) -> None:
        """Start the writer thread, inside the running loop."""
        self._loop = asyncio.get_running_loop()
        self._crashed = self._loop.create_future()
        self._thread = threading.Thread(target=self._write_for_ever, name="outbox", daemon=True)
        self._thread.start()

    async def run(self) -> None:
        """Never ends; raises what ended the writer thread, if anything ever does."""
        assert self._crashed is not None, "start() comes first"
        await self._crashed

    async def close(self, timeout_s: float = 3.0) -> None:
        """Write what is queued and end the thread; a stuck disk is left behind after `timeout_s`."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._jobs.put(None)
        await asyncio.to_thread(thread.join, timeout_s)
        if thread.is_alive():
            log.warning("outbox not closed reason=disk-does-not-answer unwritten_seq=%d", self.last_seq)

    @property
    def trouble(self) -> Trouble:
        if self._write_failed is not None:
            return self._write_failed
        if self._lasting_trouble.reason:
            return self._lasting_trouble
        if time.monotonic() < self._slow_until_s:
            return Trouble("OutboxSlow", f"a commit took over {SLOW_COMMIT_S * 1000:.0f} ms; the disk may be failing")
        return Trouble()

    @property
    def depth(self) -> int:
        return len(self._pending)

    @property
    def newest_seq(self) -> int:
        """Of the newest event there is, or was until it was acknowledged; `last_seq` may be a reserved number above."""
        return next(reversed(self._pending), self._acknowledged)

    def state(self, key: str) -> str | None:
        return self._state.get(key)

    def append(
        self,
        changes: Sequence[Change],
        *,
        boot_id: str,
        keep: Iterable[Kept] = (),
        forget: Iterable[str] = (),
        position: Position | None = None,
        state: Mapping[str, str] | None = None,
    ) -> None:
        """Events, open incidents and the position in the kernel log, in one transaction."""
        statements: list[tuple[str, tuple[Any, ...]]] = []
        for change in changes:
            self._replace_older(change, statements)
            self.last_seq += 1
            event = wire.event(change, boot_id)
            self._pending[self.last_seq] = PendingEvent(self.last_seq, change.kind, event)
            statements.append(
                (
                    "INSERT OR REPLACE INTO events VALUES (?, ?, ?)",
                    (self.last_seq, change.kind.value, event.SerializeToString()),
                )
            )
        if self.last_seq + RESERVE // 2 > self._reserved:
            self._reserved = self.last_seq + RESERVE
            statements.append(_set_state("seq_reserved", str(self._reserved)))
        statements.extend(_keep_row(kept) for kept in keep)
        statements.extend(("DELETE FROM incidents WHERE id = ?", (gone,)) for gone in forget)
        if position is not None:
            self.position = position
            statements.append(_set_state("position", f"{position.sequence} {position.boot_id}"))
        for key, value in (state or {}).items():
            self._state[key] = value
            statements.append(_set_state(key, value))
        if statements:
            self._submit(statements)
        if changes and self._loop is not None:
            self._loop.call_later(SLOW_COMMIT_S, self._ready, self.last_seq, True)

    def pending(self, *, after: int, limit: int) -> list[PendingEvent]:
        """Unacknowledged events above `after` that may be sent, in order; stops at the first that must wait."""
        found: list[PendingEvent] = []
        for one in self._pending.values():
            if one.seq <= after:
                continue
            if not one.ready or len(found) == limit:
                break
            found.append(one)
        return found

    def unsent(self, sent: int, through: int) -> bool:
        """Is there anything above `sent` and up to `through` that was not acknowledged?"""
        return any(sent < seq <= through for seq in self._pending)

    def sent_unacknowledged(self, sent: int) -> int:
        return sum(1 for seq in self._pending if seq <= sent)

    def acknowledge(self, seq: int) -> None:
        """Everything up to `seq` is stored by the coordinator."""
        # Higher than ours: the file is older than what the coordinator saw. Never use those numbers again.
        self.last_seq = max(self.last_seq, seq)
        self._acknowledged = max(self._acknowledged, seq)
        if gone := [one for one in self._pending if one <= seq]:
            for one in gone:
                del self._pending[one]
            self._submit([("DELETE FROM events WHERE seq <= ?", (seq,))])
            self.on_change()

    def _replace_older(self, change: Change, statements: list[tuple[str, tuple[Any, ...]]]) -> None:
        older = [
            one.seq
            for one in self._pending.values()
            if one.kind is ChangeKind.UPDATED and one.event.incident.id == change.incident.id
        ]
        if len(self._pending) - len(older) >= MAX_PENDING:
            self.dropped += 1
            older.append(next(iter(self._pending)))
        for seq in older:
            self._pending.pop(seq, None)
            statements.append(("DELETE FROM events WHERE seq = ?", (seq,)))

    def _submit(self, statements: list[tuple[str, tuple[Any, ...]]]) -> None:
        self._jobs.put(_Job(statements, self.last_seq))

    def _ready(self, through_seq: int, waited: bool = False) -> None:
        changed = slow = False
        for one in self._pending.values():
            if one.seq > through_seq:
                break
            if not one.ready:
                one.ready = changed = True
                slow = waited
        if slow:
            self.slow_commits += 1
            if time.monotonic() >= self._slow_until_s:
                log.warning("outbox slow limit_ms=%d through_seq=%d", SLOW_COMMIT_S * 1000, through_seq)
            self._slow_until_s = time.monotonic() + SLOW_SHOWN_S
        if changed:
            self.on_change()

    # --- the writer thread

    def _write_for_ever(self) -> None:
        try:
            self._write_until_closed()
        except Exception as error:  # noqa: BLE001 - handed to run(), which takes the process down visibly
            self._tell(self._crash, error)

    def _crash(self, error: Exception) -> None:
        if self._crashed is not None and not self._crashed.done():
            self._crashed.set_exception(error)

    def _write_until_closed(self) -> None:
        unwritten: list[_Job] = []
        retry_at_s = 0.0
        closing = False
        while not closing:
            try:
                job = self._jobs.get(timeout=max(0.0, retry_at_s - time.monotonic()) if unwritten else None)
            except queue.Empty:
                job = _Job([], 0)
            while True:
                if job is None:
                    closing = True
                else:
                    unwritten.append(job)
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
            if time.monotonic() < retry_at_s and not closing:  # a full disk is not asked again for every event
                unwritten = unwritten[-MAX_UNWRITTEN:]
                continue
            unwritten = self._write(unwritten)
            retry_at_s = time.monotonic() + RETRY_S if unwritten else 0.0
        self._connection.close()

    def _write(self, jobs: list[_Job]) -> list[_Job]:
        """Commit all jobs at once; on failure all are kept for the next try: every statement may be repeated."""
        try:
            with self._connection:
                for job in jobs:
                    for sql, values in job.statements:
                        self._connection.execute(sql, values)
        except sqlite3.Error as error:
            self._tell(self._failed, str(error))
            return jobs[-MAX_UNWRITTEN:]
        self._tell(self._committed, max((job.through_seq for job in jobs), default=0))
        return []

    def _tell(self, callback: Callable[..., None], *values: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *values)

    def _committed(self, through_seq: int) -> None:
        if self._write_failed is not None:
            log.info("outbox writable again")
            self._write_failed = None
            self.on_change()
        self._ready(through_seq)

    def _failed(self, error: str) -> None:
        if self._write_failed is None:
            log.error("outbox cannot be written error=%r; going on from memory", error)
            self._write_failed = Trouble("OutboxUnwritable", f"{error}; events are kept in memory only")
            self.on_change()


def open_outbox(path: Path) -> Outbox:
    """Open or make the file. A corrupt one is renamed; one that cannot be written is replaced by memory."""
    trouble = Trouble()
    for _ in range(2):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return Outbox(_connect(str(path)), trouble=trouble)
        except (OSError, sqlite3.OperationalError) as error:
            log.warning("outbox not usable path=%s error=%r; going on from memory", path, str(error))
            trouble = Trouble("OutboxInMemory", f"{path}: {error}; events do not survive a restart")
            break
        except (sqlite3.DatabaseError, ValueError, KeyError) as error:
            aside = path.with_name(f"{path.name}.corrupt-{time.time_ns()}")
            trouble = Trouble(
                "OutboxCorrupt", f"{path} was corrupt ({error}); kept as {aside.name}, a new one was made"
            )
            log.warning("outbox corrupt path=%s kept_as=%s error=%r", path, aside.name, str(error))
            try:
                path.rename(aside)
                for suffix in ("-wal", "-shm"):
                    path.with_name(path.name + suffix).unlink(missing_ok=True)
            except OSError:
                break
    return Outbox(_connect(":memory:"), trouble=trouble)


def _connect(name: str) -> sqlite3.Connection:
    connection = sqlite3.connect(name, check_same_thread=False, timeout=5.0)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA cache_size=-256")
        [check] = connection.execute("PRAGMA quick_check(1)").fetchone()
        if check != "ok":
            raise sqlite3.DatabaseError(check)
        connection.executescript(_SCHEMA)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _set_state(key: str, value: str) -> tuple[str, tuple[Any, ...]]:
    return "INSERT OR REPLACE INTO state VALUES (?, ?)", (key, value)


def _position(state: Mapping[str, str]) -> Position | None:
    if (text := state.get("position")) is None:
        return None
    sequence, _, boot_id = text.partition(" ")
    return Position(boot_id, int(sequence))


def _keep_row(kept: Kept) -> tuple[str, tuple[Any, ...]]:
    values = (
        kept.incident.id,
        wire.incident(kept.incident).SerializeToString(),
        kept.subject,
        kept.clears.value,
        kept.boot_id,
        kept.last_monotonic_s,
        int(kept.remedied),
        kept.finding_key,
    )
    return "INSERT OR REPLACE INTO incidents VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values


def _kept(row: Sequence[Any]) -> Kept:
    return Kept(
        incident=wire.incident_from(pb.Incident.FromString(row[1])),
        subject=row[2],
        clears=Clears(row[3]),
        boot_id=row[4],
        last_monotonic_s=row[5],
        remedied=bool(row[6]),
        finding_key=row[7],
    )
