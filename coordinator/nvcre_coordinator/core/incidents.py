"""Folds what a node's agent reports into the incidents of its NodeHealth. Decides what is open, over, and new.

Two kinds of report meet here. *Events* are sequenced per outbox and may be resent: everything up to the stored cursor
is ignored, so resends, restarts and duplicates have no effect, and incidents and cursor stored in one write make
delivery exactly-once in effect. A *snapshot* is the state after every event up to its seq: what it does not list is
over, so a lost event never latches; what it lists is open. A snapshot may overtake the events it includes. Those still
move the cursor and still reach the history, but they cannot reopen what the snapshot knew to be over (`Floor`).

Times are already on the coordinator's clock (fleet/wire.py corrects and bounds everything that comes from outside).
No I/O, no verdicts (core/node_verdict.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec
from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, IncidentKind, Source

from nvcre_coordinator.core.clock_offset import NEGLIGIBLE

MAX_OPEN = 128
MAX_CLOSED = 32
MAX_CURSORS = 2
OVERFLOW_ID = "overflow"
# Two tellings of one incident may differ this much in time by clock correction alone; that is no news.
SAME_TIME = timedelta(seconds=5)


class EventKind(StrEnum):
    OPENED = "Opened"
    UPDATED = "Updated"
    RECOVERED = "Recovered"


class Component(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: ComponentKind
    index: int | None = None
    uuid: str = ""
    pci_bus_id: str = msgspec.field(name="pciBusId", default="")
    gpu_instance: int | None = msgspec.field(name="gpuInstance", default=None)
    compute_instance: int | None = msgspec.field(name="computeInstance", default=None)


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    code: int
    count: int


class Incident(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of NodeHealth.status.incidents or closedIncidents, field for field."""

    id: str
    kind: IncidentKind
    fault_class: FaultClass = msgspec.field(name="faultClass")
    blame: Blame
    code: int = 0
    mnemonic: str = ""
    blame_condition: str = msgspec.field(name="blameCondition", default="")
    component: Component | None = None
    message: str = ""
    remedy: str = ""
    sources: tuple[Source, ...] = ()
    count: int = 0
    first_seen: datetime | None = msgspec.field(name="firstSeen", default=None)
    last_seen: datetime | None = msgspec.field(name="lastSeen", default=None)
    recovered_at: datetime | None = msgspec.field(name="recoveredAt", default=None)
    injected: bool = False
    simulated: bool = False
    pid: int = 0
    process: str = ""
    caused_by_code: int = msgspec.field(name="causedByCode", default=0)
    effects: tuple[Effect, ...] = ()
    check: str = ""
    raw: str = ""
    unit: str = ""
    pod_uid: str = msgspec.field(name="podUID", default="")
    container_id: str = msgspec.field(name="containerID", default="")
    recovered_by: str = msgspec.field(name="recoveredBy", default="")
    # What the coordinator adds to what the agent told.
    workload: str = ""  # "namespace/name#fingerprint" of the pod it hit, where that is known
    during_maintenance: bool = msgspec.field(name="duringMaintenance", default=False)
    escalation: str = ""  # why it is judged worse than the agent told it (core/escalation.py)
    time_uncertain: bool = msgspec.field(name="timeUncertain", default=False)


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    outbox_id: str = msgspec.field(name="outboxID")
    seq: int


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to one incident; carries the incident as it is afterwards."""

    seq: int
    kind: EventKind
    incident: Incident
    time: datetime


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that is open at `time`, including every event of the outbox up to `seq`.

    `ended_by`: what ended the incidents that it does not list, where that is known.
    """

    outbox_id: str
    seq: int
    time: datetime
    open: tuple[Incident, ...]
    ended_by: str = ""


@dataclass(frozen=True, slots=True)
class Floor:
    """What the last snapshot knew: events up to `seq` are older than it."""

    outbox_id: str
    seq: int
    time: datetime
    listed: frozenset[str]


@dataclass(frozen=True, slots=True)
class Ledger:
    """The incidents of one node. `open`, `closed` and `cursors` are stored; `floor` and `touched` are memory.

    Both memories may be lost at any moment: every new stream begins with a snapshot, which restores what they are for.
    """

    open: tuple[Incident, ...] = ()
    closed: tuple[Incident, ...] = ()  # newest first
    cursors: tuple[Cursor, ...] = ()  # newest last
    floor: Floor | None = None
    touched: Mapping[str, tuple[str, int]] = field(
        default_factory=dict
    )  # incident id -> (outbox, seq) of its last event

    def cursor(self, outbox_id: str) -> int:
        """Highest stored seq of this outbox; 0 for an unknown one."""
        return next((cursor.seq for cursor in self.cursors if cursor.outbox_id == outbox_id), 0)

    def stored(self) -> tuple[tuple[Incident, ...], tuple[Incident, ...], tuple[Cursor, ...]]:
        """The part that belongs into NodeHealth: two ledgers equal in it need no write."""
        return self.open, self.closed, self.cursors


def fold_events(ledger: Ledger, outbox_id: str, events: Iterable[Event]) -> Ledger:
    """The ledger after these events. Events at or below the cursor, or out of order, have no effect."""
    fold = _Fold(ledger)
    cursor = ledger.cursor(outbox_id)
    seen = cursor
    for event in events:
        if event.seq <= seen:
            continue
        seen = event.seq
        fold.event(outbox_id, event)
    return fold.result(_advanced(ledger.cursors, outbox_id, seen) if seen != cursor else ledger.cursors, ledger.floor)


def fold_snapshot(ledger: Ledger, snapshot: Snapshot) -> Ledger:
    """The ledger after a snapshot; the cursor stays, because the events it includes must still reach the history."""
    fold = _Fold(ledger)
    fold.snapshot(snapshot, ledger.cursor(snapshot.outbox_id))
    listed = frozenset(incident.id for incident in snapshot.open)
    return fold.result(ledger.cursors, Floor(snapshot.outbox_id, snapshot.seq, snapshot.time, listed))


def told_by(incident: Incident, now: datetime) -> Incident:
    """Nothing that we were told by now happens later, whatever the clock of the node says."""
    times = {"first_seen": incident.first_seen, "last_seen": incident.last_seen, "recovered_at": incident.recovered_at}
    later = {name: now for name, time in times.items() if time is not None and time > now + NEGLIGIBLE}
    return msgspec.structs.replace(incident, **later, time_uncertain=True) if later else incident


def maintenance_ended(ledger: Ledger) -> Ledger:
    """What is still open after a maintenance is judged like anything else; what it saw begin and end is not."""
    if not any(incident.during_maintenance for incident in ledger.open):
        return ledger
    still = tuple(msgspec.structs.replace(incident, during_maintenance=False) for incident in ledger.open)
    return replace(ledger, open=still)


class _Fold:
    """One fold in progress: the ledger opened up into dictionaries, bounded again by `result`."""

    def __init__(self, ledger: Ledger) -> None:
        self._open = {incident.id: incident for incident in ledger.open if incident.id != OVERFLOW_ID}
        self._overflow = next((incident for incident in ledger.open if incident.id == OVERFLOW_ID), None)
        self._closed = {incident.id: incident for incident in reversed(ledger.closed)}  # newest last
        self._touched = dict(ledger.touched)
        self._floor = ledger.floor

    def event(self, outbox_id: str, event: Event) -> None:
        incident = event.incident
        floor = self._floor
        if floor is not None and floor.outbox_id == outbox_id and event.seq <= floor.seq:
            if incident.id not in floor.listed:
                self._close(incident, incident.recovered_at or floor.time)
            return
        self._touched[incident.id] = (outbox_id, event.seq)
        if event.kind is EventKind.RECOVERED or incident.recovered_at is not None:
            self._close(incident, incident.recovered_at or event.time)
        else:
            self._put_open(incident)

    def snapshot(self, snapshot: Snapshot, cursor: int) -> None:
        listed = {incident.id: incident for incident in snapshot.open if incident.recovered_at is None}
        for incident_id, incident in list(self._open.items()):
            if incident_id not in listed and not self._newer_than(snapshot, incident_id, cursor):
                self._close(incident, snapshot.time, snapshot.ended_by)
        for incident_id, incident in listed.items():
            known = incident_id in self._open or incident_id in self._closed
            if not (known and self._newer_than(snapshot, incident_id, cursor)):
                self._put_open(incident)
        self._overflow = None  # counted anew below, exactly

    def _newer_than(self, snapshot: Snapshot, incident_id: str, cursor: int) -> bool:
        """Was this incident's last event sent after the snapshot was taken?"""
        last = self._touched.get(incident_id)
        if last is None:  # before our time; then it is covered unless the snapshot is older than what is stored
            return cursor > snapshot.seq
        return last[0] == snapshot.outbox_id and last[1] > snapshot.seq

    def _put_open(self, incident: Incident) -> None:
        before = self._open.get(incident.id) or self._closed.pop(incident.id, None)
        self._open[incident.id] = _retold(before, incident)

    def _close(self, incident: Incident, at: datetime, by: str = "") -> None:
        before = self._open.pop(incident.id, None) or self._closed.pop(incident.id, None)
        retold = _retold(before, incident)
        recovered_at = (before.recovered_at if before is not None else None) or at
        self._closed[incident.id] = msgspec.structs.replace(
            retold, recovered_at=recovered_at, recovered_by=retold.recovered_by or by
        )

    def result(self, cursors: tuple[Cursor, ...], floor: Floor | None) -> Ledger:
        kept = tuple(self._open.values())
        if len(kept) > MAX_OPEN:
            ranked = sorted(kept, key=importance)
            # one place is for the entry that counts the rest
            kept_ids = {incident.id for incident in ranked[: MAX_OPEN - 1]}
            folded = ranked[MAX_OPEN - 1 :]
            kept = tuple(incident for incident in kept if incident.id in kept_ids)
            self._overflow = _overflowed(self._overflow, folded)
        elif not kept:
            self._overflow = None
        if self._overflow is not None:
            kept = (*kept[: MAX_OPEN - 1], self._overflow)
        closed = tuple(reversed(self._closed.values()))[:MAX_CLOSED]
        alive = {incident.id for incident in kept} | {incident.id for incident in closed}
        touched = {incident_id: last for incident_id, last in self._touched.items() if incident_id in alive}
        return Ledger(open=kept, closed=closed, cursors=cursors, floor=floor, touched=touched)


_SEVERITY = {FaultClass.FATAL_HARDWARE: 0, FaultClass.NEEDS_REBOOT: 1, FaultClass.NEEDS_RESET: 2}


def importance(incident: Incident) -> tuple[bool, int, int, float, str]:
    """Sort key, what matters most first: what may be blamed before what may not, then the worst, then the oldest."""
    rank = {Blame.YES: 0, Blame.CONDITIONAL: 1, Blame.NO: 2}[incident.blame]
    first = incident.first_seen.timestamp() if incident.first_seen is not None else 0.0
    return incident.injected, rank, _SEVERITY.get(incident.fault_class, 9), first, incident.id


def _retold(before: Incident | None, now: Incident) -> Incident:
    """The newer telling of an incident; its first time stays, and a difference of clocks alone is no difference."""
    if before is None:
        return now
    now = msgspec.structs.replace(
        now,
        first_seen=before.first_seen or now.first_seen,
        workload=before.workload or now.workload,
        during_maintenance=before.during_maintenance,
    )
    if _near(before.last_seen, now.last_seen):
        now = msgspec.structs.replace(now, last_seen=before.last_seen)
    if now.recovered_at is not None and _near(before.recovered_at, now.recovered_at):
        now = msgspec.structs.replace(now, recovered_at=before.recovered_at)
    # a snapshot's incidents do not say how sure their times are, their events did
    return msgspec.structs.replace(now, time_uncertain=before.time_uncertain or now.time_uncertain)


def _near(one: datetime | None, other: datetime | None) -> bool:
    return one is not None and other is not None and abs(one - other) < SAME_TIME


def _overflowed(before: Incident | None, folded: Sequence[Incident]) -> Incident:
    count = (before.count if before is not None else 0) + len(folded)
    times = [incident.last_seen for incident in folded if incident.last_seen is not None]
    last = max(times, default=None)
    return Incident(
        id=OVERFLOW_ID,
        kind=IncidentKind.HEALTH_CHECK,
        fault_class=FaultClass.INFORMATIONAL,
        blame=Blame.NO,
        check="IncidentOverflow",
        message=f"more incidents are open than the {MAX_OPEN - 1} shown; reports about the others are only counted",
        remedy="look at the node's kernel log; what blames hardware is shown first",
        count=count,
        first_seen=(before.first_seen if before is not None else None) or min(times, default=None),
        last_seen=last or (before.last_seen if before is not None else None),
    )


def _advanced(cursors: tuple[Cursor, ...], outbox_id: str, seq: int) -> tuple[Cursor, ...]:
    others = tuple(cursor for cursor in cursors if cursor.outbox_id != outbox_id)
    return (*others, Cursor(outbox_id=outbox_id, seq=seq))[-MAX_CURSORS:]
