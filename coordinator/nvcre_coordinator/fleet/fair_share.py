"""How much of the event loop may one node's agent take? A burst, and then a twentieth; time is an argument.

An agent that sends without end (broken, or hostile) is read more slowly, and HTTP/2 flow control makes it wait; the
others do not. The share is the node's, not the stream's: a new stream does not begin with a new one.
"""

from __future__ import annotations

from dataclasses import dataclass

BURST_S = 0.5  # the backlog of an outage, some thousand events, goes without a pause
SHARE = 0.05
STREAM_S = 0.01  # of a new stream: handshake, cached review, Welcome, first question
MESSAGE_S = 0.002  # of any message beside its folding: reading it, and a look at the node and at its Jobs
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
