"""Is a loop of the agent stuck?  Work is waiting for it and it has done nothing since: decided when somebody asks.

A wedged event loop answers nobody, which kubelet's probe notices by itself; this finds what only looks alive beside a
loop that works: a kernel log with records that nobody reads, a writer thread that the disk does not let go. There is no
timer in it, each look compares with earlier looks.
"""

from collections.abc import Iterable
from dataclasses import dataclass

PATIENCE_S = 90.0


@dataclass(frozen=True, slots=True)
class Progress:
    """What a loop says of itself: has it work waiting, and how much has it `done` (a count that grows)."""

    name: str
    waiting: bool
    done: int
    patience_s: float = PATIENCE_S


class Liveness:
    def __init__(self) -> None:
        self._without_progress: dict[str, tuple[int, float]] = {}

    def stuck(self, seen: Iterable[Progress], monotonic_s: float) -> dict[str, float]:
        """Loops that were seen waiting and not moving for longer than their patience, with for how long (s)."""
        before, self._without_progress = self._without_progress, {}
        found = {}
        for one in seen:
            if not one.waiting:
                continue
            done, since_s = before.get(one.name, (one.done, monotonic_s))
            if done != one.done:
                since_s = monotonic_s
            self._without_progress[one.name] = (one.done, since_s)
            if monotonic_s - since_s > one.patience_s:
                found[one.name] = monotonic_s - since_s
        return found
