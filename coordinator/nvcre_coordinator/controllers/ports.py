"""What the job side asks of the fleet side, as it needs it; __main__ plugs fleet/service.py in.

Controllers and fleet do not import each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Protocol

from nvcre_coordinator.api.job import Job
from nvcre_coordinator.core.clock_offset import ClockOffset
from nvcre_coordinator.core.incidents import Cursor
from nvcre_coordinator.core.observed import ProbeProgress


class Confirmations(Protocol):
    """Have the agents told everything up to a moment?  (docs/architecture.md, Inside the coordinator)"""

    def confirmed_through(self, node: str) -> datetime | None: ...

    def confirmed_cursor(self, node: str) -> Cursor | None: ...

    def clock_offset(self, node: str) -> ClockOffset | None: ...

    def request(self, nodes: Iterable[str]) -> None: ...

    def subscribe(self, callback: Callable[[str], None]) -> None: ...


class ProbeOrders(Protocol):
    """Probes of the nodes of a Job; level triggered."""

    def ensure(self, job: Job, nodes: tuple[str, ...]) -> ProbeProgress: ...

    def subscribe(self, callback: Callable[[str, str], None]) -> None:
        """`callback(job namespace, job name)` on every change of a round."""
        ...
