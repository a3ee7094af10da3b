"""What is kept of a run's logs, and whose ConfigMap it is kept in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from nvcre_coordinator.controllers.caches import CachedPod
from nvcre_coordinator.controllers.run_memory import RunMemory
from nvcre_kube.client import ApiError

RUN = ("team", "run-workload")


class Server:
    """Pod logs, and at most one ConfigMap."""

    def __init__(self, config_map: dict[str, Any] | None = None) -> None:
        self.config_map = config_map
        self.reading = asyncio.Event()

    async def pod_log(self, *_: Any, **__: Any) -> AsyncIterator[bytes]:
        await self.reading.wait()
        yield b"2026-12-01T12:01:00Z CUDA error: an illegal memory access\n"

    async def get(self, *_: Any) -> dict[str, Any]:
        if self.config_map is None:
            raise ApiError(404, "NotFound", "no such ConfigMap")
        return self.config_map

    async def create(self, _resource: Any, obj: dict[str, Any], _namespace: str) -> dict[str, Any]:
        if self.config_map is not None:
            raise ApiError(409, "AlreadyExists", "there is one")
        self.config_map = obj
        return obj

    async def merge_patch(self, _resource: Any, _name: str, patch: dict[str, Any], _namespace: str) -> None:
        assert self.config_map is not None
        self.config_map["data"] |= patch["data"]

    async def update(self, _resource: Any, obj: dict[str, Any]) -> dict[str, Any]:
        self.config_map = obj
        return obj


def crashed(build: Any, name: str = "a") -> CachedPod:
    return CachedPod("team", "run-workload", build.pod(name, node="n1", code=1, log=None), (), "")


def saved(server: Server) -> str:
    assert server.config_map is not None
    return str(server.config_map["data"]["pods.json"])


@pytest.mark.parametrize("before_the_verdict", [True, False])
async def test_the_tails_of_logs_are_kept_until_the_verdict_and_no_longer(build: Any, before_the_verdict: bool) -> None:
    server, wanted, heard = Server(), [True], asyncio.Event()
    memory = RunMemory(server, lambda _: heard.set(), lambda _: wanted[0])  # type: ignore[arg-type]
    memory.note(crashed(build))
    if before_the_verdict:
        server.reading.set()
        await heard.wait()
        assert "illegal memory access" in "".join(memory.tails(RUN).values())
    wanted[0] = False
    memory.drop_tails(RUN)
    server.reading.set()
    await heard.wait()
    assert memory.tails(RUN) == {}
    await memory.stop()


async def test_the_config_map_of_an_earlier_job_of_the_name_is_replaced(build: Any) -> None:
    labels = {"app.kubernetes.io/managed-by": "nvcre"}
    server = Server({"metadata": {"name": "run-pods", "resourceVersion": "7", "labels": labels}, "data": {}})
    memory = RunMemory(server, lambda _: None, lambda _: False)  # type: ignore[arg-type]
    memory.note(crashed(build))
    await memory.save(RUN, build.job())
    assert len(msgspec.json.decode(saved(server))["pods"]) == 1


async def test_a_config_map_that_is_somebody_else_s_is_left_alone_and_named_once(
    build: Any, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = {"metadata": {"name": "run-pods", "resourceVersion": "7"}, "data": {"precious": "x"}}
    server = Server(msgspec.json.decode(msgspec.json.encode(theirs)))
    memory = RunMemory(server, lambda _: None, lambda _: False)  # type: ignore[arg-type]
    for uid in ("a", "b", "c"):
        memory.note(crashed(build, uid))
        await memory.save(RUN, build.job())
    assert server.config_map == theirs
    assert caplog.text.count("ConfigMap team/run-pods is not ours") == 1
    assert len(memory.pods(RUN, build.job())) == 3
    server.config_map = None  # they moved it away
    memory.note(crashed(build, "d"))
    await memory.save(RUN, build.job())
    memory.note(crashed(build, "e"))
    await memory.save(RUN, build.job())
    assert len(msgspec.json.decode(saved(server))["pods"]) == 5
