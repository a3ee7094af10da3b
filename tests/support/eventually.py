"""Waiting for what other processes do: a condition asked again and again, bounded, its last answer in the failure."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

WITHIN_S = 40.0


async def eventually(
    condition: Callable[[], Awaitable[Any]], *, within_s: float = WITHIN_S, what: str | None = None
) -> Any:
    """The first truthy answer of `condition`; fails with the last one, and with `what` was waited for."""
    deadline = asyncio.get_running_loop().time() + within_s
    while not (answer := await condition()):
        waited_for = f" waiting for {what}" if what else ""
        assert asyncio.get_running_loop().time() < deadline, f"still {answer!r} after {within_s} s{waited_for}"
        await asyncio.sleep(0.02)
    return answer
