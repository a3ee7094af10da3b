"""How much of the event loop may one node's agent take? A burst, and then a tenth; time is an argument.

An agent that sends without end (broken, or hostile) is read more slowly, and HTTP/2 flow control makes it wait; the
others do not. The share is the node's, not the stream's: a new stream does not begin with a new one. An agent of ours
stays below it whatever its kernel log does: what it tells next must not wait behind a storm.
"""

from __future__ import annotations

from dataclasses import dataclass

BURST_S = 0.5  # the backlog of an outage, some thousand events, goes without a pause
SHARE = 0.1
STREAM_S = 0.01  # of a new stream: handshake, cached review, Welcome, first question
MESSAGE_S = 0.0003  # of any message beside what is measured: reading it, and waking who waits for it
BYTE_S = 5e-9


@dataclass(slots=True)
class FairShare:
    """Of one node. Times are seconds; `now` is monotonic."""

    left_s: float = BURST_S
    at: float = float("-inf")

    def spend(self, cost_s: float, now: float) -> float:
        """Takes the cost; returns for how long nothing more is to be read."""
        self.left_s = min(BURST_S, self.left_s + max(0.0, now - self.at) * SHARE) - cost_s
        self.at = now
        return max(0.0, -self.left_s / SHARE)
