"""Rows of the outbox's tables from and to our values. What cannot be read and may be lost is None."""

import logging
import re
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from google.protobuf.message import DecodeError
from nvcre_protos import nvcre_agent_v1_pb2 as pb

from nvcre_agent import wire
from nvcre_agent.incidents.model import ChangeKind, Kept
from nvcre_agent.kernel.kmsg import Position
from nvcre_agent.outbox_file import CorruptError, Statement
from nvcre_agent.outbox_queue import PendingEvent
from nvcre_agent.xid.model import Clears

log = logging.getLogger(__name__)

MAX_SEQ = 2**62  # what SQLite can hold, with room above
MAX_POSITION = 10**20  # what a record of a kernel log may say of itself

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")  # what the coordinator takes


def usable_id(text: str | None) -> bool:
    return text is not None and _ID.fullmatch(text) is not None


EVERYTHING_GONE: tuple[Statement, ...] = (
    ("DELETE FROM state", ()),
    ("DELETE FROM events", ()),
    ("DELETE FROM incidents", ()),
)


def event_of(row: tuple[int, str, bytes]) -> PendingEvent | None:
    """None for one that cannot be read."""
    seq, kind, body = row
    try:
        if not isinstance(seq, int) or not 0 < seq <= MAX_SEQ:
            raise TypeError(f"no number of an event: {seq!r}")  # noqa: TRY301
        return PendingEvent(seq, ChangeKind(kind), pb.Event.FromString(body), len(body))
    except (DecodeError, ValueError, TypeError) as error:
        log.warning("outbox event unreadable seq=%r error=%r", seq, str(error))
        return None


def delete_event(seq: int) -> Statement:
    return "DELETE FROM events WHERE seq = ?", (seq,)


def insert_state(key: str, value: str) -> Statement:
    return "INSERT OR REPLACE INTO state VALUES (?, ?)", (key, value)


def insert_event(one: PendingEvent) -> Statement:
    values = (one.seq, one.kind.value, one.event.SerializeToString())
    return "INSERT OR REPLACE INTO events VALUES (?, ?, ?)", values


def insert_incident(row: tuple[Any, ...]) -> Statement:
    return "INSERT OR REPLACE INTO incidents VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row


def number(text: str, most: int = MAX_SEQ) -> int:
    try:
        if 0 <= (value := int(text)) <= most:
            return value
    except ValueError:
        pass
    raise CorruptError(f"state: {text[:64]!r} is no number that was ever written")


def position(state: Mapping[str, str]) -> Position | None:
    """Raises CorruptError."""
    if (text := state.get("position")) is None:
        return None
    sequence, _, boot_id = text.partition(" ")
    return Position(boot_id, number(sequence, most=MAX_POSITION))


def incident_row(kept: Kept) -> tuple[Any, ...]:
    return (
        kept.incident.id,
        wire.incident(kept.incident).SerializeToString(),
        kept.subject,
        kept.clears.value,
        kept.boot_id,
        kept.last_monotonic_s,
        int(kept.remedied),
        kept.finding_key,
    )


def kept(row: Sequence[Any]) -> Kept | None:
    """None for a row of another version, or a damaged one."""
    try:
        _, body, subject, clears, boot_id, last_monotonic_s, remedied, finding_key = row
        incident = wire.incident_from(pb.Incident.FromString(body))
        texts = all(isinstance(value, str) for value in (subject, boot_id, finding_key))
        if not texts or not isfinite(last_monotonic_s) or not usable_id(incident.id):
            raise TypeError("a value of a kind that was never written")  # noqa: TRY301
        return Kept(incident, subject, Clears(clears), boot_id, last_monotonic_s, bool(remedied), finding_key)
    except (DecodeError, KeyError, ValueError, TypeError) as error:
        log.warning("outbox incident unreadable id=%s error=%r", row[0], str(error))
        return None
