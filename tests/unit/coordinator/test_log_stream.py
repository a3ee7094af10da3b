"""How the chunks of a followed log come to their parser."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from nvcre_coordinator.controllers.log_stream import GATHERED_BYTES, parsed
from nvcre_logs.lines import LineFeed


async def stream(chunks: list[bytes], error: Exception | None = None) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
    if error is not None:
        raise error


async def blocks(chunks: AsyncIterator[bytes]) -> list[bytes]:
    return [block async for block in parsed(chunks, LineFeed(), lambda block: block)]


async def test_chunks_that_come_together_are_parsed_together() -> None:
    assert await blocks(stream([b"a\nb", b"c\n", b"d\n"])) == [b"a\nbc\nd\n"]


async def test_no_more_is_gathered_than_fits() -> None:
    chunk = b"x" * 63 + b"\n"
    found = await blocks(stream([chunk] * (3 * GATHERED_BYTES // len(chunk))))
    assert [len(block) for block in found] == [GATHERED_BYTES] * 3


async def test_a_chunk_that_comes_alone_is_parsed_at_once() -> None:
    came: asyncio.Queue[bytes] = asyncio.Queue()

    async def live() -> AsyncIterator[bytes]:
        while chunk := await came.get():
            yield chunk

    found = parsed(live(), LineFeed(), lambda block: block)
    for line in (b"one\n", b"two\n"):
        came.put_nowait(line)
        assert await anext(found) == line
    came.put_nowait(b"")
    assert [block async for block in found] == []


async def test_what_came_before_the_connection_broke_is_parsed_and_then_the_error_is_told() -> None:
    found = parsed(stream([b"one\n", b"two"], ConnectionResetError()), LineFeed(), lambda block: block)
    assert await anext(found) == b"one\n"
    with pytest.raises(ConnectionResetError):
        await anext(found)


async def test_who_stops_listening_leaves_no_task_behind() -> None:
    def reading() -> list[str]:
        return [repr(task) for task in asyncio.all_tasks() if "_gathered" in repr(task)]

    found = parsed(stream([b"x" * GATHERED_BYTES + b"\n"] * 3), LineFeed(), lambda block: block)
    await anext(found)
    assert len(reading()) == 1
    await found.aclose()
    assert reading() == []
