"""The client of a leading task: it writes nothing once another process may have taken the Lease.

A process that was stopped (SIGSTOP, a debugger, a machine that had no time for it) does not notice its own absence:
it goes on in the middle of what it did, with the answers that were waiting, before anything tells it that it leads no
more. So every write looks at the clock immediately before it is sent, and one that waits for a connection is given up
in time. What is left is a process that is stopped between that look and the system call, less than a millisecond later.
Such a write then still has to pass the API server's own checks (resourceVersion, AlreadyExists). Reads always pass.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp

from nvcre_kube.client import KubeClient


class NotLeading(ConnectionError):
    """A write that was not sent. For who wanted it this is as if the API server did not answer."""


class FencedClient(KubeClient):
    """Shares the connections of `client`, which is the one to close. `write_until` gives a time of the event loop."""

    def __init__(self, client: KubeClient, write_until: Callable[[], float]) -> None:
        self._configuration = client._configuration
        self._rest = client._rest
        self._write_until = write_until

    async def _send(self, method: str, path: str, *arguments: Any, **more: Any) -> aiohttp.ClientResponse:
        if method == "GET":
            return await super()._send(method, path, *arguments, **more)
        until = self._write_until()
        if asyncio.get_running_loop().time() >= until:
            raise NotLeading(f"{method} {path} was not sent: the Lease may be another's by now")
        async with asyncio.timeout_at(until):
            return await super()._send(method, path, *arguments, **more)
