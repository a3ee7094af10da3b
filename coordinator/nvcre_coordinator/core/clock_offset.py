"""How far an agent's clock is from ours, and how sure that is. Pure arithmetic over heartbeats; asks nobody.

A heartbeat that arrives at R and says it was sent at S proves offset >= S - R (it cannot have travelled backwards in
time). An answer S to a question asked at Q proves offset <= S - Q. The newest samples narrow the interval from both
sides; the estimate is its middle, the uncertainty half its width. Before the first answered question only the lower
side is known, and the uncertainty is assumed. An answer that took long proves too little to be worth its width.

All of it is what the agent says. What its node's kubelet stamps is a second witness: no stamp is from after we saw it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

MAX_SAMPLES = 16
ASSUMED_DELAY = timedelta(seconds=2)  # of a heartbeat, while no question has been answered
SLOWEST_ANSWER = timedelta(seconds=5)  # else whoever answers late makes everything simultaneous with itself
# Below this the clocks agree as far as anybody can tell, and correcting would only make equal times differ.
NEGLIGIBLE = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """`offset` is agent minus coordinator."""

    offset: timedelta
    uncertainty: timedelta

    @property
    def correction(self) -> timedelta:
        """What to subtract from the agent's times: whole seconds, and nothing while the clocks roughly agree.

        Coarse on purpose: the same event told twice must get the same time.
        """
        if abs(self.offset) <= max(NEGLIGIBLE, self.uncertainty):
            return timedelta(0)
        return timedelta(seconds=round(self.offset.total_seconds()))

    @property
    def error(self) -> timedelta:
        """By how much a time that was put on our clock may still be wrong."""
        return abs(self.offset - self.correction) + self.uncertainty

    def ahead_at_least(self, least: timedelta | None) -> ClockOffset:
        """Where another witness of the same clock disproves this one, it is believed instead."""
        if least is None or self.offset + self.uncertainty >= least:
            return self
        return ClockOffset(least, ASSUMED.uncertainty)

    def on_our_clock(self, time: datetime) -> datetime:
        return time - self.correction

    @property
    def uncertain(self) -> bool:
        """Is the error of corrected times larger than what attribution may ignore (DESIGN 6.5: 2 s)?"""
        return self.uncertainty > NEGLIGIBLE


ASSUMED = ClockOffset(timedelta(0), timedelta(seconds=1))
"""Of a node whose agent never said anything: NTP's worst in practice."""


@dataclass(frozen=True, slots=True)
class ClockSamples:
    lower: tuple[timedelta, ...] = ()
    upper: tuple[timedelta, ...] = ()

    def heard(self, *, sent_at: datetime, received_at: datetime, asked_at: datetime | None = None) -> ClockSamples:
        """With one more heartbeat; `asked_at` is when the question it answers was sent (our clock)."""
        lower = (*self.lower, sent_at - received_at)[-MAX_SAMPLES:]
        told = asked_at is not None and received_at - asked_at <= SLOWEST_ANSWER
        upper = (*self.upper, sent_at - asked_at)[-MAX_SAMPLES:] if told and asked_at is not None else self.upper
        return ClockSamples(lower, upper)

    @property
    def doubtful(self) -> bool:
        """The newest heartbeat was slow, or the clock was set back: only a question tells which."""
        return bool(self.lower) and max(self.lower) - self.lower[-1] > NEGLIGIBLE

    def estimate(self) -> ClockOffset | None:
        """None before the first heartbeat."""
        if not self.lower:
            return None
        low = max(self.lower)
        # A stepped clock makes old samples contradict new ones; then the newest pair alone is the truth.
        high = min(self.upper, default=low + ASSUMED_DELAY)
        if high < low:
            low, high = self.lower[-1], max(self.upper[-1], self.lower[-1])
        return ClockOffset((low + high) / 2, (high - low) / 2)
