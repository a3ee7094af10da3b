"""The agent's page over real sockets: one slow client, or a thousand, keep nobody else from it."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from nvcre_agent.exposition import MAX_CONNECTIONS, Exposition


@pytest.fixture
async def port() -> AsyncIterator[int]:
    exposition = Exposition(lambda: b"nvcre_up 1\n", lambda: (True, {}), lambda: {"large": "x" * (16 << 20)})
    address = await exposition.start("127.0.0.1", 0)
    yield int(address.rpartition(":")[2])
    await exposition.stop()


async def ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


async def test_connections_that_say_nothing_do_not_keep_kubelets_probe_out(port: int) -> None:
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * MAX_CONNECTIONS)]
    async with asyncio.timeout(60):
        assert b"200 OK" in await ask(port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        for reader, _ in idle[:MAX_CONNECTIONS]:  # those that waited for longest made room
            assert await reader.read() == b""
    for _, writer in idle:
        writer.close()


async def test_head_answers_as_get_without_the_content(port: int) -> None:
    got = await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n")
    assert got.endswith(b"\r\nContent-Length: 11\r\nConnection: close\r\n\r\nnvcre_up 1\n")
    assert await ask(port, b"HEAD /metrics HTTP/1.1\r\n\r\n") == got.removesuffix(b"nvcre_up 1\n")


async def test_nothing_is_kept_for_a_client_that_does_not_take_its_answer(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cost the answer's memory and a descriptor for as long as the client lived."""
    monkeypatch.setattr("nvcre_agent.exposition.TIMEOUT_S", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(b"GET /state HTTP/1.1\r\n\r\n")
    transport = writer.transport
    async with asyncio.timeout(60):
        while not transport.is_closing():  # until the other end's reset
            writer.write(b"x")
            await asyncio.sleep(0.02)
    assert isinstance(reader.exception(), ConnectionError | None)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\0" * 20_000,
        b"GET " + b"/" * 20_000,
        b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
        b"\x16\x03\x01\r\n\r\n",
    ],
    ids=["zeroes", "long path", "long header", "TLS"],
)
async def test_what_is_no_request_is_not_answered_with_content(port: int, request_bytes: bytes) -> None:
    async with asyncio.timeout(60):
        try:
            answer = await ask(port, request_bytes)
        except ConnectionError:
            answer = b""
        assert b"200 OK" not in answer
        assert b"nvcre_up 1" in await ask(port, b"GET /metrics HTTP/1.1\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n")
