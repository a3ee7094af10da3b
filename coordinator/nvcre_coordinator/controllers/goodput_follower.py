"""Follows one pod's log as training events, each line once, over broken connections and new coordinators.

What was read is taken by `drain` together with the position behind it, so that both are written down together or not at
all.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime

from nvcre_kube.client import KubeClient
from nvcre_logs.lines import LineFeed
from nvcre_logs.training import Kind, TrainingEvent, TrainingProfile, TrainingReader

from nvcre_coordinator.controllers.caches import CachedPod
from nvcre_coordinator.controllers.log_stream import parsed, read_to_its_end
from nvcre_coordinator.core.log_cursor import LogCursor, Position

MAX_WAITING = 10_000
"""Events that nobody has taken yet; a log that is this far ahead waits."""


@dataclass(frozen=True, slots=True)
class Drained:
    events: list[TrainingEvent] = field(default_factory=list)
    position: Position | None = None

    @property
    def last_activity(self) -> datetime | None:
        """Of the newest line; where the kubelet's stamps are missing, of the newest event."""
        times = [event.time for event in self.events if event.time is not None]
        return self.position.time if self.position is not None else max(times, default=None)


class GoodputFollower:
    """`complete` once the log's end was reached; `gone` when there is no such log any more."""

    def __init__(
        self,
        client: KubeClient,
        profile: TrainingProfile,
        pod: CachedPod,
        position: Position | None,
    ) -> None:
        self._client = client
        self._profile = profile
        self._namespace = pod.namespace
        self._pod = pod.record.name
        self.complete = self.gone = False
        self._reader = TrainingReader(profile)
        self._cursor = LogCursor(position)
        self._rank: tuple[str, int | None] | None = None
        self._waiting: list[TrainingEvent] = []
        self._position = position
        self._taken = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    def drain(self) -> Drained:
        drained = Drained(self._waiting, self._position)
        self._waiting = []
        self._taken.set()
        return drained

    def go_on(self) -> None:
        """The pod runs though its log ended: a container that was started again, or a kubelet."""
        if self.complete:
            self.complete = False
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        self.complete = await read_to_its_end(self._read, self._namespace, self._pod)
        self.gone = not self.complete

    async def _read(self) -> None:
        chunks = self._client.pod_log(
            self._pod,
            self._namespace,
            container=self._profile.spec.container_name or None,
            follow=True,
            timestamps=True,
            since_time=self._cursor.ask_again(),
        )
        async for events in parsed(chunks, LineFeed(), self._events):
            self._waiting += events
            self._position = self._cursor.position
            while len(self._waiting) > MAX_WAITING:
                self._taken.clear()
                await self._taken.wait()

    def _events(self, block: bytes) -> list[TrainingEvent]:
        return [event for event in self._reader.feed(self._cursor.take(block)) if self._of_one_rank(event)]

    def _of_one_rank(self, event: TrainingEvent) -> bool:
        """Every rank of the pod may print its steps: those of the first one that did count."""
        if event.kind is not Kind.STEP:
            return True
        if self._rank is None:
            self._rank = event.source
        return event.source == self._rank
