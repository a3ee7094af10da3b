"""One event loop for all inputs of a process: a new one for each would be most of the work."""

import asyncio
from collections.abc import Coroutine
from functools import cache


def in_loop(coroutine: Coroutine[object, object, None]) -> None:
    """Run it to its end. Whatever the loop was told of a task that failed alone is raised too."""
    runner = _runner()
    failed: list[dict[str, object]] = []
    runner.get_loop().set_exception_handler(lambda _loop, context: failed.append(context))
    runner.run(coroutine)
    assert not failed, failed


@cache
def _runner() -> asyncio.Runner:
    return asyncio.Runner()
