"""Where a followed log was left, so that no line counts twice when it is asked for again.

The API takes sinceTime in whole seconds, so the log is asked for from the floored second, and lines are dropped until
the one that was seen last: by the kubelet's stamp to the nanosecond, and by how many lines had that stamp.  Where that
line is not there any more the log was rotated meanwhile, and what stood behind it is lost: a gap.
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


class Position(msgspec.Struct, frozen=True, array_like=True):
    second: Annotated[int, msgspec.Meta(ge=FIRST_SECOND, le=LAST_SECOND)]
    nanosecond: Annotated[int, msgspec.Meta(ge=0, lt=1_000_000_000)]
    lines: Annotated[int, msgspec.Meta(ge=0)]  # with this stamp, that were seen

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
        self._seen_again = 0  # lines with the position's stamp, since the log was asked for again
        self._catching_up = False
        self._had_ended = False

    def ask_again(self, *, had_ended: bool = False) -> datetime | None:
        """The log begins anew at this time (None: at its beginning), with lines that were seen.

        Where it `had_ended` it may be that of the next container, in which none of them is.
        """
        self._had_ended = had_ended
        self._catching_up = self.position is not None
        self._seen_again = 0
        return self.position.since if self.position is not None else None

    def take_gap(self) -> Gap | None:
        """A gap that was found since the last call."""
        gap, self._gap = self._gap, None
        return gap

    def take(self, block: bytes) -> bytes:
        """The lines of a block that are new; lines without a stamp always are."""
        if self._catching_up:
            block = self._unseen(block)
        self._advance(block)
        return block

    def _unseen(self, block: bytes) -> bytes:
        at = 0
        while at < len(block):
            stamp = _stamp(block, at)
            if stamp is not None and not self._was_seen(stamp):
                self._catching_up = False
                self._note_gap(stamp)
                return block[at:]
            end = block.find(b"\n", at)
            at = len(block) if end < 0 else end + 1
        return b""

    def _was_seen(self, stamp: Stamp) -> bool:
        position = self.position
        if position is None or stamp > (position.second, position.nanosecond):
            return False
        if stamp < (position.second, position.nanosecond):
            return True
        self._seen_again += 1
        return self._seen_again <= position.lines

    def _note_gap(self, first_new: Stamp) -> None:
        if self.position is not None and not self._seen_again and not self._had_ended:
            self._gap = Gap(self.position.time, Position(*first_new, 0).time)

    def _advance(self, block: bytes) -> None:
        """To the last line that has a stamp."""
        end, last, lines = len(block), None, 0
        while end > 0:
            start = block.rfind(b"\n", 0, end - 1) + 1
            stamp = _stamp(block, start)
            if stamp is not None:
                if last is not None and stamp != last:
                    break
                last, lines = stamp, lines + 1
            elif last is None and end == len(block) and not _STAMP.match(block):
                return  # a log without stamps is not searched line by line
            end = start
        if last is None:
            return
        known = self.position
        if known is not None and (known.second, known.nanosecond) == last:
            lines += known.lines
        self.position = Position(*last, lines)


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
