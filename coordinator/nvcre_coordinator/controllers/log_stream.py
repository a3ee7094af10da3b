"""What following a log takes, whatever it is read for: whole lines, parsed beside the event loop, until its end.

Parsing of large blocks runs in threads of its own: the event loop carries the agents' streams, and the loop's own
threads look up names.  A connection that breaks goes on behind the line that was seen last (core/log_cursor.py); what
is lost meanwhile is noted as a gap.  What the lines mean is the follower's matter.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Generic, TypeVar

from nvcre_kube.client import CONNECTION_ERRORS, ApiError, KubeClient
from nvcre_logs.lines import LineFeed

from nvcre_coordinator.controllers.caches import CachedPod
from nvcre_coordinator.core.log_cursor import LogCursor, Position
from nvcre_coordinator.core.log_gaps import Gaps, pod_gone, rotated, unread

logger = logging.getLogger(__name__)

T = TypeVar("T")

IN_THREAD_BYTES = 4 * 1024
IN_THREAD_S = 0.005  # a parser that takes so long for less than that is slow: somebody's heavy pattern
GATHERED_BYTES = 512 * 1024
RETRY_S = 3.0
PARSER_BROKE_S = 60.0
MOST_ASKED_IN_VAIN = 3
PARSERS = ThreadPoolExecutor(2, "log-parser")  # the event loop shares the interpreter with them


class FollowedLog(Generic[T]):
    """A background task that reads the log of one pod's container.

    `parse` gets blocks of whole lines that were not seen before, maybe in a thread; `take` gets what it makes of each,
    with `position` behind it.  `begin` is called before the first line, so again where a log without stamps breaks.
    `exists`: the pod is still there, and not another one of its name.  `complete` once the log's end was reached,
    `gone` when there is no such log any more; `problem` is why it cannot be read now.
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
        exists: Callable[[], bool] = lambda: True,
    ) -> None:
        self._client = client
        self._namespace, self.pod = pod.namespace, pod.record.name
        self._restarts = pod.restarts
        self._container = container
        self._parse = parse
        self._take = take
        self._begin = begin
        self._exists = exists
        self._cursor = LogCursor(position)
        self._next_container = False
        self._has_lines = False
        self._unfinished = b""  # a last line that had no end when the log ended
        self.complete = self.gone = False
        self.problem = ""
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

    @property
    def unread(self) -> Gaps:
        """What is lost where nobody waits for the end any longer."""
        return () if self.complete or self.gone else unread((), self.pod, self.position)

    async def end(self, deadline_s: float) -> None:
        """Waits for the end of the log of a pod that has finished."""
        await asyncio.wait({self._task}, timeout=deadline_s)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        while True:
            pause_s = RETRY_S
            try:
                await self._read()
            except ApiError as error:
                self.problem = str(error)
                logger.debug("log not followed namespace=%s pod=%s error=%r", self._namespace, self.pod, self.problem)
                if error.not_found:
                    await self._end_without()
                    return
            except CONNECTION_ERRORS as error:
                self.problem = repr(error)
                logger.debug("log follow broke namespace=%s pod=%s error=%r", self._namespace, self.pod, error)
            except Exception as error:
                self.problem = repr(error)
                self.gaps = unread(self.gaps, self.pod, self.position)  # the block that broke it is not given again
                logger.exception("log follow broke namespace=%s pod=%s; tried again", self._namespace, self.pod)
                pause_s = PARSER_BROKE_S
            else:
                self.problem = ""
                self.complete = True
                return
            await asyncio.sleep(pause_s)
            if not self._exists():
                await self._end_without()
                return

    async def _end_without(self) -> None:
        """There is no such log any more; where all that it lacked was a line's end, that was its end."""
        if self._unfinished:
            await self._finish()
            self.complete = True
        else:
            self.gaps = pod_gone(self.gaps, self.pod, self.position)
            self.gone = True

    async def _read(self) -> None:
        """To the end of the log.  A kubelet that ends leaves a line half told: it is asked again how that goes on."""
        asked_in_vain = 0
        while asked_in_vain < MOST_ASKED_IN_VAIN:
            rest, held = await self._read_once(), self._unfinished
            if rest == held or (self._has_lines and self._cursor.position is None):
                self._unfinished = rest
                break
            if not held.startswith(rest[:-1]):  # else it is less than was told before
                if not rest.startswith(held[:-1]):
                    await self._finish()
                self._unfinished, asked_in_vain = rest, 0
            else:
                asked_in_vain += 1
        if self._unfinished:
            await self._finish()

    async def _read_once(self) -> bytes:
        """The last line where it had no end; it is not taken."""
        since = self._cursor.ask_again(had_ended=self._next_container or bool(self._unfinished))
        self._next_container = False
        if since is None:
            self._begin()
        feed, skipped = LineFeed(), self.skipped_lines
        chunks = self._client.pod_log(
            self.pod,
            self._namespace,
            container=self._container or None,
            follow=True,
            timestamps=True,
            since_time=since,
        )
        async for found in parsed(chunks, feed, self._unseen):
            self.skipped_lines = skipped + feed.skipped_lines
            await self._told(found)
        unfinished = feed.finish()
        self.skipped_lines = skipped + feed.skipped_lines
        return unfinished

    async def _finish(self) -> None:
        """The unfinished line was the last one of its container."""
        unfinished, self._unfinished = self._unfinished, b""
        await self._told(self._unseen(unfinished))

    async def _told(self, found: T) -> None:
        self.problem = ""
        self._has_lines = True
        self.position = self._cursor.position
        self.gaps = rotated(self.gaps, self.pod, self._cursor.take_gap())
        await self._take(found)

    def _unseen(self, block: bytes) -> T:
        block = self._cursor.take(block)
        if self._unfinished and block:
            if not block.startswith(self._unfinished[:-1]):
                block = self._unfinished + block
            self._unfinished = b""
        return self._parse(block)


async def parsed(chunks: AsyncIterator[bytes], feed: LineFeed, parse: Callable[[bytes], T]) -> AsyncGenerator[T, None]:
    """What `parse` makes of each block of whole lines: of all that came while the one before was parsed."""
    slow = False
    async with aclosing(_gathered(chunks)) as pieces:
        async for piece in pieces:
            if not (block := feed.feed(piece)):
                continue
            if slow or len(block) > IN_THREAD_BYTES:
                yield await asyncio.get_running_loop().run_in_executor(PARSERS, parse, block)
            else:
                began = time.perf_counter()
                found = parse(block)
                slow = time.perf_counter() - began > IN_THREAD_S
                yield found


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
