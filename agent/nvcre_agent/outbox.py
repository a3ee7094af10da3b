"""The durable queue between the agent's rules and the stream: fault events until they are acknowledged.

    outbox.append(changes, keep=..., forget=..., position=...)     # one transaction, returns at once
    outbox.pending(after=seq, limit=64)                            # what may be sent, ascending
    outbox.acknowledge(seq)                                        # stored by the coordinator: delete

Memory has everything, the file (outbox_file.py) mirrors it. An event is sent once it is committed, or after 50 ms: a
dying node's disk may be dying too, and a slow commit must not hold the news back (`OutboxSlow`). While the file cannot
be written events are kept in memory only (`OutboxUnwritable`), and all of it is written as soon as that works again.

Bounded by `Limits`: a newer update of an incident replaces the older one that was not acknowledged, without loss; over
the limits the oldest event goes that accuses least, and what is too old. Each is counted in `events_dropped` by
reason, and `gaps` tells the link that only a snapshot makes it good.

Sequence numbers are reserved in blocks on disk before use, so that an event that was sent but lost with the disk
never shares its number with a later one; an outbox that cannot reserve them takes a new outbox id.
"""

import asyncio
import logging
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvcre_protos import nvcre_agent_v1_pb2 as pb

from nvcre_agent import outbox_rows as rows
from nvcre_agent import wire
from nvcre_agent.incidents.model import Change, ChangeKind, Kept
from nvcre_agent.kernel.kmsg import Position
from nvcre_agent.outbox_file import Contents, CorruptError, Job, Opened, Statement, Writer, open_file, write
from nvcre_agent.outbox_queue import DropReason, EventQueue, Limits, PendingEvent

log = logging.getLogger(__name__)

SLOW_COMMIT_S = 0.05
SLOW_SHOWN_S = 60.0  # how long OutboxSlow stays visible after the last slow commit
RETRY_S = 5.0  # after a failed write, doubled up to
LONGEST_RETRY_S = 60.0
RESERVE = 100_000
MAX_BACKLOG = 10_000  # jobs that wait for a disk that does not answer


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why the outbox is not what it should be; empty reason: all is well."""

    reason: str = ""
    message: str = ""


class Outbox:
    """Made by `open_outbox`. All methods are for the event loop and none blocks it."""

    def __init__(self, path: Path, opened: Opened, *, boot_id: str, limits: Limits) -> None:
        """Raises CorruptError when the rows contradict themselves."""
        self._queue = EventQueue(limits, boot_id)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._crashed: asyncio.Future[None] | None = None
        self._ready_through = 0
        self._acknowledged = 0
        self._unwritable: Trouble | None = None
        self._corrupt = Trouble()
        self._slow_until_s = 0.0
        self._retry_s = RETRY_S
        self._retrying = False
        self.on_change: Callable[[], None] = lambda: None
        self.events_dropped: dict[DropReason, int] = dict.fromkeys(DropReason, 0)
        self.slow_commits = 0
        self.gaps = 0
        self.stored_seq = 0

        contents = opened.contents
        self._state = dict(contents.state)
        known = contents.outbox_id
        self.outbox_id = known if known is not None and rows.usable_id(known) else uuid.uuid4().hex
        self._set_aside(opened.set_aside)
        for one in self._readable(contents):
            self._queue.put(one)
        self.last_seq = max(rows.number(self._state.get("seq_reserved", "0")), self._queue.last or 0)
        self._loaded_through = self._ready_through = self.last_seq
        self.kept = tuple(kept for kept in map(rows.kept, contents.incidents) if kept is not None)
        self._incidents = {one.incident.id: rows.incident_row(one) for one in self.kept}
        unreadable = len(contents.incidents) - len(self.kept)
        self.events_dropped[DropReason.CORRUPT] += unreadable
        if unreadable:  # the kernel log tells it again
            self._state.pop("position", None)
        self.position = rows.position(self._state)
        first: Sequence[Statement] = [self._set("outbox_id", self.outbox_id), self._reserve()]
        if self.events_dropped[DropReason.CORRUPT]:
            first = self._everything().statements
        connection, error = opened.connection, opened.error
        if connection is not None:
            try:
                write(connection, first)
            except sqlite3.Error as refused:
                connection.close()
                connection, error = None, str(refused)
        if connection is None:
            self.outbox_id = uuid.uuid4().hex
            self._state["outbox_id"] = self.outbox_id
            self._say_unwritable(error)
        self._writer = Writer(path, connection, self, taken_over=contents.outbox_id)

    def start(self) -> None:
        """Start the writer thread, inside the running loop."""
        self._loop = asyncio.get_running_loop()
        self._crashed = self._loop.create_future()
        self._writer.start()
        if self._unwritable is not None:
            self._retry_later()

    async def run(self) -> None:
        """Never ends; raises what ended the writer thread, if anything ever does."""
        assert self._crashed is not None, "start() comes first"
        await self._crashed

    async def close(self, timeout_s: float = 3.0) -> None:
        """Write what is not written and end the thread; a stuck disk is left behind after `timeout_s`."""
        if self._unwritable is not None:
            self._writer.submit(self._everything())
        self._loop = None
        if not await asyncio.to_thread(self._writer.close, timeout_s):
            log.warning("outbox not closed reason=disk-does-not-answer unwritten_seq=%d", self.last_seq)

    @property
    def trouble(self) -> Trouble:
        if self._unwritable is not None:
            return self._unwritable
        if self._corrupt.reason:
            return self._corrupt
        if time.monotonic() < self._slow_until_s:
            return Trouble("OutboxSlow", f"a commit took over {SLOW_COMMIT_S * 1000:.0f} ms; the disk may be failing")
        return Trouble()

    @property
    def depth(self) -> int:
        return len(self._queue)

    @property
    def bytes_queued(self) -> int:
        return self._queue.bytes

    @property
    def in_memory(self) -> bool:
        """Nothing of it would survive a restart now."""
        return self._unwritable is not None

    @property
    def progress(self) -> tuple[bool, int]:
        """Of the writer thread: has it something to do, and how often has it written or tried to."""
        return self._writer.progress

    @property
    def newest_seq(self) -> int:
        """Of the newest event there is, or was until it was acknowledged; `last_seq` may be a reserved number above."""
        return self._queue.last or self._acknowledged

    def state(self, key: str) -> str | None:
        return self._state.get(key)

    # --- in

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
        statements: list[Statement] = []
        for change in changes:
            if (older := self._queue.update_of(change.incident.id)) is not None:
                statements.append(self._remove(older))
            statements.append(self._add(change.kind, wire.event(change, boot_id)))
        for kept in keep:
            self._incidents[kept.incident.id] = row = rows.incident_row(kept)
            statements.append(rows.insert_incident(row))
        for gone in forget:
            self._incidents.pop(gone, None)
            statements.append(("DELETE FROM incidents WHERE id = ?", (gone,)))
        if position is not None:
            self.position = position
            statements.append(self._set("position", f"{position.sequence} {position.boot_id}"))
        statements += [self._set(key, value) for key, value in (state or {}).items()]
        statements += self._bound()
        self._submit(statements)
        if changes and self._loop is not None:
            if self._unwritable is None:
                self._loop.call_later(SLOW_COMMIT_S, self._waited_for, self.last_seq)
            else:
                self._ready(self.last_seq)

    def _add(self, kind: ChangeKind, event: pb.Event) -> Statement:
        self.last_seq += 1
        one = PendingEvent(self.last_seq, kind, event, event.ByteSize())
        self._queue.put(one)
        return rows.insert_event(one)

    def _remove(self, seq: int) -> Statement:
        self._queue.remove(seq)
        return rows.delete_event(seq)

    def _bound(self) -> list[Statement]:
        return [self._dropped(seq, reason) for seq, reason in self._queue.remove_excess(time.monotonic())]

    def _dropped(self, seq: int, reason: DropReason) -> Statement:
        if not self.events_dropped[reason]:
            log.warning("outbox drops events reason=%s seq=%d; further ones are only counted", reason, seq)
        self.events_dropped[reason] += 1
        self.gaps += 1
        return rows.delete_event(seq)

    # --- out

    def pending(self, *, after: int, limit: int) -> list[PendingEvent]:
        """Unacknowledged events above `after` that may be sent, in order; stops at the first that must wait."""
        self._submit(self._bound())
        found: list[PendingEvent] = []
        for one in self._queue:
            if one.seq <= after:
                continue
            if one.seq > self._ready_through or len(found) >= limit:
                break
            found.append(one)
        return found

    def unsent(self, sent: int, through: int) -> bool:
        """Is there anything above `sent` and up to `through` that was not acknowledged?"""
        return any(sent < one.seq <= through for one in self._queue)

    def sent_unacknowledged(self, sent: int) -> int:
        return sum(1 for one in self._queue if one.seq <= sent)

    def refuse(self, seq: int) -> None:
        """The coordinator cannot use this event: what is behind it must not wait for ever."""
        log.error("event refused seq=%d incident=%s", seq, self._queue.remove(seq).event.incident.id)
        self._submit([self._dropped(seq, DropReason.REFUSED)])

    def resume(self, cursor: int, *, sent: int) -> None:
        """A new stream: the coordinator has everything up to `cursor`; `sent` is the highest number we ever sent.

        A number up to the cursor that this process gave and never sent was another event's: the file was put back to
        an older state (a restored disk). The event gets a new one.
        """
        given_twice = [one for one in self._queue if max(self._loaded_through, sent) < one.seq <= cursor]
        if given_twice:
            log.warning("outbox older than the coordinator's cursor cursor=%d renumbered=%d", cursor, len(given_twice))
            statements = [self._remove(one.seq) for one in given_twice]
            self.last_seq = max(self.last_seq, cursor)
            self._submit(statements + [self._add(one.kind, one.event) for one in given_twice])
            self._ready(self.last_seq)
        self.acknowledge(cursor)

    def acknowledge(self, seq: int) -> None:
        """Everything up to `seq` is stored by the coordinator."""
        # Higher than ours: the file is older than what the coordinator saw. Never use those numbers again.
        self.last_seq = max(self.last_seq, seq)
        self._acknowledged = max(self._acknowledged, seq)
        before = len(self._queue)
        while (first := self._queue.first) is not None and first <= seq:
            self._queue.remove(first)
        if len(self._queue) < before:
            self._submit([("DELETE FROM events WHERE seq <= ?", (seq,))])
            self.on_change()

    def _ready(self, through_seq: int) -> None:
        if through_seq > self._ready_through:
            self._ready_through = through_seq
            self.on_change()

    def _waited_for(self, through_seq: int) -> None:
        if through_seq <= self._ready_through:
            return
        self.slow_commits += 1
        if time.monotonic() >= self._slow_until_s:
            log.warning("outbox slow limit_ms=%d through_seq=%d", SLOW_COMMIT_S * 1000, through_seq)
        self._slow_until_s = time.monotonic() + SLOW_SHOWN_S
        self._ready(through_seq)

    # --- the file

    def _set(self, key: str, value: str) -> Statement:
        self._state[key] = value
        return rows.insert_state(key, value)

    def _reserve(self) -> Statement:
        self._reserved = self.last_seq + RESERVE
        return self._set("seq_reserved", str(self._reserved))

    def _submit(self, statements: list[Statement]) -> None:
        if self.last_seq + RESERVE // 2 > self._reserved:
            statements = [*statements, self._reserve()]
        if not statements:
            return
        if self._writer.backlog < MAX_BACKLOG:
            self._writer.submit(Job(statements, self.last_seq))
        elif self._unwritable is None:
            self._failed("the disk does not answer")

    def _everything(self) -> Job:
        """What replaces the file's contents, whatever they are."""
        reserve = self._reserve()
        statements = [
            *rows.EVERYTHING_GONE,
            *(rows.insert_state(key, value) for key, value in self._state.items()),
            *map(rows.insert_event, self._queue),
            *map(rows.insert_incident, self._incidents.values()),
        ]
        return Job([*statements, reserve], self.last_seq, whole_of=self.outbox_id)

    def _retry_later(self) -> None:
        if self._loop is not None and not self._retrying:
            self._retrying = True
            self._loop.call_later(self._retry_s, self._retry)
            self._retry_s = min(self._retry_s * 2, LONGEST_RETRY_S)

    def _retry(self) -> None:
        self._retrying = False
        if self._writer.backlog < MAX_BACKLOG:
            self._writer.submit(self._everything())
        else:
            self._retry_later()

    # --- what the writer thread says

    def committed(self, through_seq: int, *, whole: bool, set_aside: str) -> None:
        self._tell(self._committed, through_seq, whole, set_aside)

    def failed(self, error: str) -> None:
        self._tell(self._failed, error)

    def found(self, contents: Contents) -> None:
        self._tell(self._take_over, contents)

    def crashed(self, error: Exception) -> None:
        self._tell(self._crash, error)

    def _tell(self, callback: Callable[..., None], *values: object) -> None:
        if (loop := self._loop) is not None and not loop.is_closed():
            loop.call_soon_threadsafe(callback, *values)

    def _committed(self, through_seq: int, whole: bool, set_aside: str) -> None:
        self.stored_seq = max(self.stored_seq, through_seq)
        self._set_aside(set_aside)
        if whole and self._unwritable is not None:
            log.info("outbox writable again events=%d", self.depth)
            self._unwritable, self._retry_s = None, RETRY_S
            self.on_change()
        self._ready(through_seq)

    def _failed(self, error: str) -> None:
        self._say_unwritable(error)
        self._ready(self.last_seq)
        self._retry_later()

    def _take_over(self, contents: Contents) -> None:
        """The file can be used again and holds what an earlier agent could not tell: after ours, what we know nothing
        of."""
        known = self._incidents.keys() | {one.event.incident.id for one in self._queue}
        for one in self._readable(contents):
            if one.event.incident.id not in known:
                self._add(one.kind, one.event)
        self.gaps += 1  # a snapshot says what of it is over
        self._bound()
        self._writer.submit(self._everything())

    def _crash(self, error: Exception) -> None:
        if self._crashed is not None and not self._crashed.done():
            self._crashed.set_exception(error)

    def _say_unwritable(self, error: str) -> None:
        if self._unwritable is None:
            log.error("outbox cannot be written error=%r; going on from memory", error)
        self._unwritable = Trouble("OutboxUnwritable", f"{error}; events are kept in memory only")

    def _set_aside(self, name: str) -> None:
        if name:
            self._corrupt = Trouble("OutboxCorrupt", f"the file was corrupt; kept as {name}, a new one was made")
            self.events_dropped[DropReason.CORRUPT] += 1

    def _readable(self, contents: Contents) -> Iterator[PendingEvent]:
        for row in contents.events:
            if (one := rows.event_of(row)) is not None:
                yield one
            else:
                self.events_dropped[DropReason.CORRUPT] += 1


def open_outbox(path: Path, *, boot_id: str = "", limits: Limits | None = None) -> Outbox:
    """Open or make the file. A corrupt one is set aside, one that cannot be written replaced by memory for as long.

    Raises OutboxInUseError.
    """
    limits = limits or Limits()
    opened = open_file(path)
    try:
        return Outbox(path, opened, boot_id=boot_id, limits=limits)
    except CorruptError:
        if opened.connection is not None:
            opened.connection.close()
        return Outbox(path, open_file(path, distrust=True), boot_id=boot_id, limits=limits)
