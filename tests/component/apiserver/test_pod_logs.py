"""pods/log: from the kubelet's HTTPS endpoint through the server, while it is being written."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from nvcre_local.apiserver import certificates

from .conftest import KUBELET_TOKEN

PODS = "/api/v1/namespaces/default/pods"


class Kubelet:
    """The outer edge: an HTTPS endpoint that serves one log, line by line, as the test lets it."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.seen: list[web.Request] = []
        self.port = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        if request.match_info["pod"] == "broken":
            return web.Response(status=404, text="container has no log yet")
        response = web.StreamResponse()
        await response.prepare(request)
        while (line := await self.lines.get()) is not None:
            await response.write(line)
        return response


@pytest.fixture
async def kubelet() -> AsyncIterator[Kubelet]:
    found = Kubelet()
    app = web.Application()
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", found.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    context: ssl.SSLContext = certificates.make(datetime.now(UTC)).context
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    found.port = runner.addresses[0][1]
    yield found
    await runner.cleanup()


async def place(api: aiohttp.ClientSession, pod: str, port: int) -> None:
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    async with api.post("/api/v1/nodes", json={"metadata": {"name": f"node-{pod}"}, "status": status}) as answer:
        assert answer.status == 201
    spec = {"nodeName": f"node-{pod}", "containers": [{"name": "main", "image": "none"}]}
    async with api.post(PODS, json={"metadata": {"name": pod}, "spec": spec}) as answer:
        assert answer.status == 201


async def test_lines_arrive_while_the_log_is_written(api: aiohttp.ClientSession, kubelet: Kubelet) -> None:
    await place(api, "talks", kubelet.port)
    query = {"follow": "true", "tailLines": "3", "timestamps": "true"}
    async with api.get(f"{PODS}/talks/log", params=query) as answer:
        assert answer.status == 200
        for n in range(2):
            kubelet.lines.put_nowait(b"line %d\n" % n)
            assert await answer.content.readline() == b"line %d\n" % n
        kubelet.lines.put_nowait(None)
        assert await answer.content.read() == b""
    (asked,) = kubelet.seen
    assert asked.path == "/containerLogs/default/talks/main"
    assert dict(asked.query) == query
    assert asked.headers["Authorization"] == f"Bearer {KUBELET_TOKEN}"


async def test_the_kubelets_refusal_is_passed_on(api: aiohttp.ClientSession, kubelet: Kubelet) -> None:
    await place(api, "broken", kubelet.port)
    async with api.get(f"{PODS}/broken/log") as answer:
        found = await answer.json()
    assert (answer.status, found["message"]) == (404, "container has no log yet")


async def test_a_kubelet_that_is_down_is_an_internal_error(api: aiohttp.ClientSession) -> None:
    await place(api, "lost", 1)
    async with api.get(f"{PODS}/lost/log") as answer:
        found: dict[str, Any] = await answer.json()
    assert (answer.status, found["reason"]) == (500, "InternalError")
    assert "127.0.0.1:1/containerLogs/default/lost/main" in found["message"]
