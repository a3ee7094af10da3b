"""What Jobs were told by Events already: each thing once, and of one node not more than a person reads.

A node that tells of a new incident each second must not bury what is said of the others. Bounded: an Event too many is
better than memory that only grows.
"""

from __future__ import annotations

from collections import Counter

MOST = 10_000
MOST_OF_NODE = 16  # of one node to one Job


class Told:
    def __init__(self) -> None:
        self._marks: set[tuple[str, str, str]] = set()
        self._of_node: Counter[tuple[str, str]] = Counter()

    def is_new(self, job_uid: str, node: str, what: str) -> bool:
        """Is it to be told now?  Then it is taken for told."""
        mark = (job_uid, node, what)
        if mark in self._marks or self._of_node[job_uid, node] >= MOST_OF_NODE:
            return False
        self._marks.add(mark)
        self._of_node[job_uid, node] += 1
        return True

    def bound(self) -> None:
        if len(self._marks) > MOST:
            self._marks.clear()
            self._of_node.clear()
