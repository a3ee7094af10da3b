"""When must a fault have been open to matter for a run?

From 5 minutes before the start (a fault may be older than the run) to 30 seconds after the end (NCCL often aborts
before the driver prints the Xid); DESIGN 6.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

BEFORE_START = timedelta(minutes=5)
AFTER_END = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class RunWindow:
    """A run that has no end yet is open to the future."""

    start: datetime
    end: datetime | None = None

    @property
    def opens(self) -> datetime:
        return self.start - BEFORE_START

    @property
    def closes(self) -> datetime | None:
        return None if self.end is None else self.end + AFTER_END

    def covers(self, first_seen: datetime | None, recovered_at: datetime | None) -> bool:
        """Was something open at any moment of the window?  Without a first sighting nothing can be said: no."""
        if first_seen is None:
            return False
        if self.closes is not None and first_seen > self.closes:
            return False
        return recovered_at is None or recovered_at >= self.opens

    def too_late(self, first_seen: datetime | None) -> bool:
        return first_seen is not None and self.closes is not None and first_seen > self.closes
