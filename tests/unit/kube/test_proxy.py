"""Requests go where the environment says, and carry nothing but our own credentials."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kubernetes.aio.client.configuration import Configuration
from nvcre_kube.client import KubeClient
from nvcre_kube.proxy import environment_proxy
from nvcre_kube.resources import NODES


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("environment", "url", "expected"),
    [
        ({}, "https://10.0.0.1:6443", None),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "https://10.0.0.1:6443", "http://proxy:3128"),
        ({"https_proxy": "http://proxy:3128", "NO_PROXY": "10.0.0.1"}, "https://10.0.0.1:6443", None),
        ({"https_proxy": "http://proxy:3128"}, "http://10.0.0.1:6443", None),
    ],
)
def test_the_proxy_is_that_of_the_environment(
    environment: dict[str, str], url: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert environment_proxy(url) == expected


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[str, list[str]]]:
    """A server, or proxy, without any Nodes: its URL, and the heads of the requests that come."""
    heads: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        body = b'{"metadata": {}, "items": []}'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads


async def test_a_request_goes_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as (proxy, heads):
        monkeypatch.setenv("http_proxy", proxy)
        async with KubeClient(Configuration(host="http://api.example:6443")) as client:
            assert await client.list(NODES) == []
    assert heads[0].startswith("GET http://api.example:6443/api/v1/nodes")


async def test_netrc_is_not_asked_for_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    async with listening() as (url, heads):
        configuration = Configuration(host=url, api_key={"BearerToken": "Bearer ours"})
        async with KubeClient(configuration) as client:
            assert await client.list(NODES) == []
    assert "Authorization: Bearer ours\r\n" in heads[0]
