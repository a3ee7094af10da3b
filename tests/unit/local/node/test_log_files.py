"""Rotation of a container's log: a follower reads on, who comes later finds the newest file, and disks stay bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from nvcre_local.node.log_files import MAX_FILES, ContainerLog, LogOptions

FOLLOW = LogOptions(follow=True)


async def text_of(chunks: AsyncIterator[bytes]) -> bytes:
    return b"".join([chunk async for chunk in chunks])


async def test_a_follower_reads_every_line_over_rotations_it_keeps_up_with(tmp_path: Path) -> None:
    log = ContainerLog(tmp_path / "0.log", max_bytes=200)
    lines = [f"line {number}\n".encode() for number in range(40)]
    reading = asyncio.create_task(text_of(log.read(FOLLOW)))
    for line in lines:
        log.write(line)
        for _ in range(5):
            await asyncio.sleep(0)
    log.finish()
    assert await reading == b"".join(lines)


async def test_who_comes_later_finds_only_the_newest_file(tmp_path: Path) -> None:
    log = ContainerLog(tmp_path / "0.log", max_bytes=200)
    for number in range(10):
        log.write(f"line {number}\n".encode())
    log.finish()
    late = await text_of(log.read(FOLLOW))
    assert late.endswith(b"line 9\n")
    assert b"line 0" not in late


def test_old_files_go_and_the_rest_with_the_log(tmp_path: Path) -> None:
    log = ContainerLog(tmp_path / "0.log", max_bytes=100)
    for number in range(200):
        log.write(f"line {number}\n".encode())
    assert len(list(tmp_path.iterdir())) == MAX_FILES
    log.finish()
    log.remove()
    assert list(tmp_path.iterdir()) == []
