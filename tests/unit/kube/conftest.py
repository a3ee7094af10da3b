"""A loop whose clock jumps to the next timer, and an API server reduced to optimistic concurrency."""

import asyncio
import copy
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from nvcre_kube.client import ApiError


class JumpingSelector(selectors.DefaultSelector):
    """Never waits: where a real selector would sleep, the loop's time moves on by as much."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout:
            self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


@pytest.fixture
def run_virtually() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine to its end in virtual time."""

    def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            return runner.run(coroutine)

    return run


class LeaseServer:
    """Get, create and update of one object with resource versions; ``broken`` makes every request fail or hang."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.written_at = 0.0
        self.broken: str | None = None
        self.deaf_to: set[str] = set()

    def seen_by(self, client: str) -> "LeaseClient":
        return LeaseClient(self, client)

    def store(self, obj: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.written_at = asyncio.get_running_loop().time()
        self.lease = copy.deepcopy(obj)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.lease)

    async def answer(self, client: str) -> None:
        await asyncio.sleep(0.01)
        match self.broken:
            case "refuses":
                raise ConnectionRefusedError
            case "hangs":
                await asyncio.sleep(1e6)
        if client in self.deaf_to:
            raise ConnectionRefusedError


class LeaseClient:
    """One replica's connection to it."""

    def __init__(self, server: LeaseServer, name: str) -> None:
        self._server = server
        self._name = name

    async def get(self, _resource: Any, name: str, _namespace: str) -> dict[str, Any]:
        await self._server.answer(self._name)
        if self._server.lease is None:
            raise ApiError(404, "NotFound", name)
        return copy.deepcopy(self._server.lease)

    async def create(self, _resource: Any, obj: dict[str, Any], _namespace: str) -> dict[str, Any]:
        await self._server.answer(self._name)
        if self._server.lease is not None:
            raise ApiError(409, "AlreadyExists", "lease")
        return self._server.store(obj)

    async def update(self, _resource: Any, obj: dict[str, Any]) -> dict[str, Any]:
        await self._server.answer(self._name)
        if obj["metadata"]["resourceVersion"] != str(self._server.version):
            raise ApiError(409, "Conflict", "lease")
        return self._server.store(obj)
