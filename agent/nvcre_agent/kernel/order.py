"""Gives the events of a saved log in the order of their lines, and a GPU that did not start once.

An event of several lines stands at its first and is known at its last: what was found in between waits for it. What the
driver says about the firmware of a GPU names none; it waits for the line that says which GPU did not start and is part
of that, or, where none comes, is an event. Waiting is bounded by lines.
"""

import heapq
from collections.abc import Iterator

from nvcre_agent.kernel.model import KernelEvent, KernelEventKind
from nvcre_agent.kernel.saved import Entry

MAX_WAIT = 32  # lines
_NOT_STARTED = "RmInitAdapter failed"
_NO_PART = (_NOT_STARTED, "The NVIDIA probe routine", "None of the NVIDIA")


class InOrder:
    """Add the events as they are found; `settled` gives those that nothing found later can come before."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, KernelEvent, Entry]] = []
        self._found = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, event: KernelEvent, entry: Entry) -> None:
        if event.kind is KernelEventKind.RM_INIT_FAILED and event.pci and event.message.startswith(_NOT_STARTED):
            self._waiting = [one for one in self._waiting if not (_is_part(one[2]) and one[2].pci in (None, event.pci))]
            heapq.heapify(self._waiting)
        self._found += 1
        heapq.heappush(self._waiting, (event.line, self._found, event, entry))

    def settled(self, line: int, unfinished: int | None) -> Iterator[tuple[KernelEvent, Entry]]:
        """`line` is the one that was read last, `unfinished` the first of an event whose end is still to come."""
        while self._waiting:
            begins, _, event, _ = self._waiting[0]
            if line - begins <= MAX_WAIT and (_is_part(event) or (unfinished is not None and unfinished <= begins)):
                return
            yield heapq.heappop(self._waiting)[2:]

    def rest(self) -> Iterator[tuple[KernelEvent, Entry]]:
        while self._waiting:
            yield heapq.heappop(self._waiting)[2:]


def _is_part(event: KernelEvent) -> bool:
    return event.kind is KernelEventKind.RM_INIT_FAILED and not event.message.startswith(_NO_PART)
