"""What following a log takes, whatever it is read for: whole lines, parsed beside the event loop, until its end.

Parsing of large blocks runs in a thread: the event loop carries the agents' streams.  What a broken connection means
for what was read so far is the follower's matter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from nvcre_kube.client import CONNECTION_ERRORS, ApiError
from nvcre_logs.lines import LineFeed

logger = logging.getLogger(__name__)

T = TypeVar("T")

IN_THREAD_BYTES = 32 * 1024
RETRY_S = 3.0


async def parsed(chunks: AsyncIterator[bytes], feed: LineFeed, parse: Callable[[bytes], T]) -> AsyncIterator[T]:
    """What `parse` makes of each block of whole lines."""
    async for chunk in chunks:
        if block := feed.feed(chunk):
            yield await _beside_the_loop(parse, block)
    if block := feed.finish():
        yield await _beside_the_loop(parse, block)


async def _beside_the_loop(parse: Callable[[bytes], T], block: bytes) -> T:
    return await asyncio.to_thread(parse, block) if len(block) > IN_THREAD_BYTES else parse(block)


async def read_to_its_end(read: Callable[[], Awaitable[None]], namespace: str, pod: str) -> bool:
    """`read` is tried until a log ends cleanly; False where there is no such log any more."""
    while True:
        try:
            await read()
        except ApiError as error:
            logger.debug("log not followed namespace=%s pod=%s error=%r", namespace, pod, str(error))
            if error.not_found:
                return False
        except CONNECTION_ERRORS as error:
            logger.debug("log follow broke namespace=%s pod=%s error=%r", namespace, pod, error)
        else:
            return True
        await asyncio.sleep(RETRY_S)
