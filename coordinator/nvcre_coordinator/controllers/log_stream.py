"""What following a log takes, whatever it is read for: whole lines, parsed beside the event loop, until its end.

Parsing of large blocks runs in a thread: the event loop carries the agents' streams.  A connection that breaks goes on
behind the line that was seen last (core/log_cursor.py); what is lost meanwhile is noted as a gap.  What the lines mean
is the follower's matter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Generic, TypeVar

from nvcre_kube.client import CONNECTION_ERRORS, ApiError, KubeClient
from nvcre_logs.lines import LineFeed

from nvcre_coordinator.controllers.caches import CachedPod
from nvcre_coordinator.core.log_cursor import LogCursor, Position
from nvcre_coordinator.core.log_gaps import Gaps, pod_gone, rotated

logger = logging.getLogger(__name__)

T = TypeVar("T")

IN_THREAD_BYTES = 32 * 1024
GATHERED_BYTES = 512 * 1024
RETRY_S = 3.0


class FollowedLog(Generic[T]):
    """A background task that reads the log of one pod's container.

    `parse` gets blocks of whole lines that were not seen before, maybe in a thread; `take` gets what it makes of each,
    with `position` behind it.  `begin` is called before the first line, so again where a log without stamps breaks.
    `complete` once the log's end was reached, `gone` when there is no such log any more.
    """

    def __init__(
        self,
        client: KubeClient,
        pod: CachedPod,
        container: str,
        parse: Callable[[bytes], T],
        take: Callable[[T], Awaitable[None]],
        *,
        position: Position | None = None,
        gaps: Gaps = (),
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._namespace, self._pod = pod.namespace, pod.record.name
        self._restarts = pod.restarts
        self._container = container
        self._parse = parse
        self._take = take
        self._begin = begin
        self._cursor = LogCursor(position)
        self._next_container = False
        self.complete = self.gone = False
        self.position = position
        self.gaps = gaps
        self.skipped_lines = 0
        self._task = asyncio.create_task(self._run())

    def go_on(self, pod: CachedPod) -> None:
        """The pod runs though its log ended: a container that was started again, or a kubelet."""
        if self.complete:
            self.complete = False
            self._next_container = pod.restarts != self._restarts
            self._restarts = pod.restarts
            self._task = asyncio.create_task(self._run())

    async def end(self, deadline_s: float) -> None:
        """Waits for the end of the log of a pod that has finished."""
        await asyncio.wait({self._task}, timeout=deadline_s)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        while True:
            try:
                await self._read()
            except ApiError as error:
                logger.debug("log not followed namespace=%s pod=%s error=%r", self._namespace, self._pod, str(error))
                if error.not_found:
                    self.gaps = pod_gone(self.gaps, self._pod, self.position)
                    self.gone = True
                    return
            except CONNECTION_ERRORS as error:
                logger.debug("log follow broke namespace=%s pod=%s error=%r", self._namespace, self._pod, error)
            else:
                self.complete = True
                return
            await asyncio.sleep(RETRY_S)

    async def _read(self) -> None:
        since = self._cursor.ask_again(had_ended=self._next_container)
        self._next_container = False
        if since is None:
            self._begin()
        feed, skipped = LineFeed(), self.skipped_lines
        chunks = self._client.pod_log(
            self._pod,
            self._namespace,
            container=self._container or None,
            follow=True,
            timestamps=True,
            since_time=since,
        )
        async for found in parsed(chunks, feed, self._unseen):
            self.position = self._cursor.position
            self.gaps = rotated(self.gaps, self._pod, self._cursor.take_gap())
            self.skipped_lines = skipped + feed.skipped_lines
            await self._take(found)

    def _unseen(self, block: bytes) -> T:
        return self._parse(self._cursor.take(block))


async def parsed(chunks: AsyncIterator[bytes], feed: LineFeed, parse: Callable[[bytes], T]) -> AsyncGenerator[T, None]:
    """What `parse` makes of each block of whole lines: of all that came while the one before was parsed."""
    async with aclosing(_gathered(chunks)) as pieces:
        async for piece in pieces:
            if block := feed.feed(piece):
                yield await _beside_the_loop(parse, block)
    if block := feed.finish():
        yield await _beside_the_loop(parse, block)


async def _gathered(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The same bytes in fewer pieces where they come faster than they are taken: a thread for each costs more."""
    waiting: list[bytes] = []
    held = 0  # bytes of them
    arrived, taken = asyncio.Event(), asyncio.Event()

    async def read() -> None:
        nonlocal held
        try:
            async for chunk in chunks:
                waiting.append(chunk)
                held += len(chunk)
                arrived.set()
                while held >= GATHERED_BYTES:
                    taken.clear()
                    await taken.wait()
        finally:
            arrived.set()

    reading = asyncio.create_task(read())
    try:
        while waiting or not reading.done():
            await arrived.wait()
            arrived.clear()
            if waiting:
                piece = b"".join(waiting)
                waiting.clear()
                held = 0
                taken.set()
                yield piece
            if reading.done():
                arrived.set()
        await reading
    finally:
        reading.cancel()
        await asyncio.wait({reading})


async def _beside_the_loop(parse: Callable[[bytes], T], block: bytes) -> T:
    return await asyncio.to_thread(parse, block) if len(block) > IN_THREAD_BYTES else parse(block)
