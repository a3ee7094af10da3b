"""Follows one pod's log as training events, each line once, over broken connections and new coordinators.

What was read is taken by `drain` together with the position behind it, so that both are written down together or not at
all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from nvcre_kube.client import KubeClient
from nvcre_logs.training import Kind, TrainingEvent, TrainingProfile, TrainingReader

from nvcre_coordinator.controllers.caches import CachedPod
from nvcre_coordinator.controllers.log_stream import FollowedLog
from nvcre_coordinator.core.log_cursor import Position
from nvcre_coordinator.core.log_gaps import Gaps

MAX_WAITING = 10_000
"""Events that nobody has taken yet; a log that is this far ahead waits."""


@dataclass(frozen=True, slots=True)
class Drained:
    events: list[TrainingEvent] = field(default_factory=list)
    position: Position | None = None
    gaps: Gaps = ()

    @property
    def last_activity(self) -> datetime | None:
        """Of the newest line; where the kubelet's stamps are missing, of the newest event."""
        times = [event.time for event in self.events if event.time is not None]
        return self.position.time if self.position is not None else max(times, default=None)


class GoodputFollower:
    """Of one pod.  `full` is called where the log waits for `drain`."""

    def __init__(
        self,
        client: KubeClient,
        profile: TrainingProfile,
        pod: CachedPod,
        position: Position | None,
        *,
        full: Callable[[], None] = lambda: None,
        exists: Callable[[], bool] = lambda: True,
    ) -> None:
        self.profile = profile
        self._full = full
        self._reader = TrainingReader(profile)
        self._rank: tuple[str, int | None] | None = None
        self._waiting: list[TrainingEvent] = []
        self._position = position
        self._taken = asyncio.Event()
        container = profile.spec.container_name
        self.log = FollowedLog(client, pod, container, self._events, self._add, position=position, exists=exists)

    def drain(self) -> Drained:
        drained = Drained(self._waiting, self._position, self.log.gaps)
        self._waiting = []
        self._taken.set()
        return drained

    async def _add(self, events: list[TrainingEvent]) -> None:
        """Returns when there is room for more."""
        self._waiting += events
        self._position = self.log.position
        while len(self._waiting) > MAX_WAITING:
            self._taken.clear()
            self._full()
            await self._taken.wait()

    def _events(self, block: bytes) -> list[TrainingEvent]:
        return [event for event in self._reader.feed(block) if self._of_one_rank(event)]

    def _of_one_rank(self, event: TrainingEvent) -> bool:
        """Every rank of the pod may print its steps: those of the first one that did count."""
        if event.kind is not Kind.STEP:
            return True
        if self._rank is None:
            self._rank = event.source
        return event.source == self._rank
