"""The queue between informers and reconcilers: each key once, never two workers on one key, later additions not lost.

Same contract as client-go's: a key added while it is worked on is handed out again after ``done``. Delays and
rate-limited retries are timers of the event loop. ``run_workers`` is the loop of a controller around it.
"""

import asyncio
import heapq
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from nvcre_kube.client import CONNECTION_ERRORS, ApiError

K = TypeVar("K")

logger = logging.getLogger(__name__)

FIRST_RETRY_S = 0.05
MAX_RETRY_S = 60.0
REPLACED_TIMERS = 64
"""Timers that an earlier one replaced stay in the heap up to this number and that of the others."""


class WorkQueue(Generic[K]):
    """A set of keys that wait, with timers. ``now`` and the timers come from the running event loop."""

    def __init__(self) -> None:
        self._ready: deque[K] = deque()
        self._dirty: set[K] = set()
        self._processing: set[K] = set()
        self._failures: dict[K, int] = {}
        self._due: dict[K, float] = {}
        self._timers: list[tuple[float, int, K]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._counter = 0
        self._wakeup = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, key: K) -> None:
        """Now. A pending delayed addition of the key stays: it may be a deadline."""
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._processing:
            self._ready.append(key)
            self._wakeup.set()

    def add_after(self, key: K, delay_s: float) -> None:
        """After ``delay_s``; of several pending delays of one key the earliest counts."""
        if delay_s <= 0:
            self.add(key)
            return
        due = asyncio.get_running_loop().time() + delay_s
        if due >= self._due.get(key, float("inf")):
            return
        self._due[key] = due
        self._counter += 1
        heapq.heappush(self._timers, (due, self._counter, key))
        if len(self._timers) > 2 * len(self._due) + REPLACED_TIMERS:
            self._timers = [timer for timer in self._timers if self._due.get(timer[2]) == timer[0]]
            heapq.heapify(self._timers)
        self._arm()

    def add_rate_limited(self, key: K) -> None:
        """After a delay that doubles with each failure until ``forget``."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        ceiling = min(MAX_RETRY_S, FIRST_RETRY_S * 2 ** min(failures, 16))
        self.add_after(key, random.uniform(ceiling / 2, ceiling))  # noqa: S311 (jitter)

    def forget(self, key: K) -> None:
        self._failures.pop(key, None)

    async def get(self) -> K:
        """The next key; it is the caller's until ``done``."""
        while not self._ready:
            self._wakeup.clear()
            await self._wakeup.wait()
        key = self._ready.popleft()
        self._dirty.discard(key)
        self._processing.add(key)
        return key

    def done(self, key: K) -> None:
        self._processing.discard(key)
        if key in self._dirty:
            self._ready.append(key)
            self._wakeup.set()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._timers:
            self._timer = asyncio.get_running_loop().call_at(self._timers[0][0], self._fire)

    def _fire(self) -> None:
        now = asyncio.get_running_loop().time()
        # A timer may fire one clock tick early; without the tolerance it would be armed again for nothing.
        while self._timers and self._timers[0][0] <= now + 1e-3:
            due, _, key = heapq.heappop(self._timers)
            if self._due.get(key) == due:  # else replaced by an earlier one
                del self._due[key]
                self.add(key)
        self._arm()


async def run_workers(
    queue: WorkQueue[K],
    reconcile: Callable[[K], Awaitable[float | None]],
    *,
    workers: int,
    name: str,
    on_result: Callable[[K, str, float], None] | None = None,
) -> None:
    """Reconciles keys until cancelled.

    ``reconcile`` returns after how many seconds to look again, or None. An exception is logged with its key and the key
    tried again with backoff: one object that cannot be reconciled must not stop the others. ``on_result`` hears
    (key, "success" | "requeue" | "error", seconds).
    """

    async def work() -> None:
        loop = asyncio.get_running_loop()
        while True:
            key = await queue.get()
            started = loop.time()
            result = "error"
            try:
                again = await reconcile(key)
                queue.forget(key)
                result = "success" if again is None else "requeue"
                if again is not None:
                    queue.add_after(key, again)
            except (ApiError, *CONNECTION_ERRORS) as error:
                # A server in trouble refuses every key again and again: a line each, without the way here.
                logger.warning("reconcile failed controller=%s key=%s error=%r", name, key, str(error) or repr(error))
                queue.add_rate_limited(key)
            except Exception:
                logger.exception("reconcile failed controller=%s key=%s", name, key)
                queue.add_rate_limited(key)
            finally:
                queue.done(key)
                if on_result is not None:
                    on_result(key, result, loop.time() - started)

    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(work())
