"""Where a followed log was left, so that no line counts twice when it is asked for again.

The API takes sinceTime in whole seconds, so the log is asked for from the floored second, and lines are dropped until
the one that was seen last: by the kubelet's stamp to the nanosecond, and by how many lines came from the first with
that stamp on.  Where that line is not there any more the log was rotated meanwhile, and what stood behind it is lost: a
gap.  Stamps may go back, by microseconds where a program writes to both outputs, by more where a clock is set: so the
newest stamp is known beside the last one.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, NamedTuple

import msgspec

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ")

Stamp = tuple[int, int]
"""Seconds since 1970 and nanoseconds."""
FIRST_SECOND = int(datetime.min.replace(tzinfo=UTC).timestamp())
LAST_SECOND = int(datetime.max.replace(microsecond=0, tzinfo=UTC).timestamp())
OUT_OF_ORDER_LINES = 64
"""So many lines from the end of a block are searched for a newer stamp; of earlier blocks the last stamp is known."""
MOST_BACK_S = 600.0
"""A clock that is set back by more: the lines before count twice if the log is asked for again, and a gap is told."""

_Second = Annotated[int, msgspec.Meta(ge=FIRST_SECOND, le=LAST_SECOND)]
_Nanosecond = Annotated[int, msgspec.Meta(ge=0, lt=1_000_000_000)]


class Position(msgspec.Struct, frozen=True, array_like=True):
    second: _Second
    nanosecond: _Nanosecond
    lines: Annotated[int, msgspec.Meta(ge=0)]  # seen, from the first one with this stamp to the last of all
    newest: tuple[_Second, _Nanosecond] | None = None  # a stamp before it, where that is a later time

    @property
    def stamp(self) -> Stamp:
        return self.second, self.nanosecond

    @property
    def since(self) -> datetime:
        return datetime.fromtimestamp(self.second, UTC)

    @property
    def time(self) -> datetime:
        return self.since.replace(microsecond=self.nanosecond // 1000)


class Gap(NamedTuple):
    """Lines between these two times may be missing."""

    after: datetime
    before: datetime


class LogCursor:
    def __init__(self, position: Position | None = None) -> None:
        self.position = position
        self._gap: Gap | None = None
        self._seen_again = 0  # lines from the position's stamp on, since the log was asked for again
        self._newest_seen = False  # so that the position's stamp may come
        self._catching_up = False
        self._had_ended = False

    def ask_again(self, *, had_ended: bool = False) -> datetime | None:
        """The log begins anew at this time (None: at its beginning), with lines that were seen.

        Where it `had_ended` it may be that of the next container, in which none of them is.
        """
        self._had_ended = had_ended
        self._catching_up = self.position is not None
        self._seen_again = 0
        self._newest_seen = self.position is None or self.position.newest is None
        return self.position.since if self.position is not None else None

    def take_gap(self) -> Gap | None:
        """A gap that was found since the last call."""
        gap, self._gap = self._gap, None
        return gap

    def take(self, block: bytes) -> bytes:
        """The lines of a block that are new; of lines without a stamp those behind new ones are."""
        if self._catching_up and self.position is not None:
            block = self._unseen(block, self.position)
        self._advance(block)
        return block

    def _unseen(self, block: bytes, position: Position) -> bytes:
        newest = position.newest or position.stamp
        at = 0
        while at < len(block):
            stamp = _stamp(block, at)
            if stamp is not None and stamp > newest:
                self._catching_up = False
                self._note_gap(position, stamp)
                return block[at:]
            end = block.find(b"\n", at)
            at = len(block) if end < 0 else end + 1
            if self._seen_again or (self._newest_seen and stamp == position.stamp):
                self._seen_again += 1
                if self._seen_again >= position.lines:
                    self._catching_up = False
                    return block[at:]
            elif stamp == position.newest:
                self._newest_seen = True
        return b""

    def _note_gap(self, position: Position, first_new: Stamp) -> None:
        if not self._seen_again and not self._had_ended:
            self._gap = Gap(position.time, Position(*first_new, 0).time)

    def _advance(self, block: bytes) -> None:
        """To the last line that has a stamp, and the newest stamp before it."""
        known = self.position
        if known is None and not _STAMP.match(block) and not _STAMP.match(block, block.rfind(b"\n", 0, -1) + 1):
            return  # a log without stamps is not searched line by line
        end, lines = len(block), 0
        last: Stamp | None = None
        from_last, unbroken = 0, True  # lines from the first one with the last stamp on; no other stamp is between
        stamps = [known.newest or known.stamp] if known is not None else []
        while end > 0 and (unbroken or lines < OUT_OF_ORDER_LINES):
            start = block.rfind(b"\n", 0, end - 1) + 1
            stamp = _stamp(block, start)
            lines += 1
            if stamp is not None:
                last = last or stamp
                stamps.append(stamp)
                unbroken = unbroken and stamp == last
                from_last = lines if unbroken else from_last
            end = start
        if last is None:
            if known is not None:  # a bar that is drawn on and on
                self.position = msgspec.structs.replace(known, lines=known.lines + lines)
            return
        if unbroken and known is not None and known.stamp == last:
            from_last = known.lines + lines
        newest = max(stamps)
        self.position = Position(*last, from_last, newest if 0 < _seconds(newest, last) <= MOST_BACK_S else None)


def _seconds(later: Stamp, earlier: Stamp) -> float:
    return later[0] - earlier[0] + (later[1] - earlier[1]) / 1e9


def _stamp(block: bytes, at: int) -> Stamp | None:
    match = _STAMP.match(block, at)
    if match is None:
        return None
    zone = "+00:00" if match[3] == b"Z" else match[3].decode()
    try:
        moment = datetime.fromisoformat(match[1].decode() + zone)
    except ValueError:
        return None
    second = int(moment.timestamp())
    if not FIRST_SECOND <= second <= LAST_SECOND:  # in its zone it is the year 1 or 9999, in UTC it is no time at all
        return None
    return second, int((match[2] or b"0").ljust(9, b"0"))
