"""When may a node's status be written? A small budget for news, a long wait for counters; time is an argument.

etcd keeps every version until it is compacted (the API server does it each 5 minutes), so a large status costs more: a
few nodes with the largest ones must not fill its 2 GiB.
"""

from __future__ import annotations

from dataclasses import dataclass

BURST = 5  # writes of one node at once ...
REFILL_S = 1.0  # ... and then one in this time
QUIET_S = 10.0  # what nobody waits for is written this rarely
FREE_BYTES = 32 * 1024  # each so many more cost another write


@dataclass(slots=True)
class WriteBudget:
    """Of one node. Times are monotonic seconds."""

    tokens: float = BURST
    refilled_at: float = 0.0
    written_at: float = float("-inf")

    def spend(self, now: float, *, urgent: bool) -> float:
        """0 when the write may go ahead, and then it is paid for; else the seconds to wait before asking again."""
        if not urgent and now < self.written_at + QUIET_S:
            return self.written_at + QUIET_S - now
        self.tokens = min(BURST, self.tokens + max(0.0, now - self.refilled_at) / REFILL_S)
        self.refilled_at = now
        if self.tokens < 1:
            return (1 - self.tokens) * REFILL_S + 0.01
        self.tokens -= 1
        self.written_at = now
        return 0.0

    def wrote(self, size: int) -> None:
        """How large it was; what it costs beyond one write is owed."""
        self.tokens -= size // FREE_BYTES
