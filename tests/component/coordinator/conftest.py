"""A played cluster (tests/support/played_cluster.py) a test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from support.played_cluster import Cluster, played_cluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with played_cluster(tmp_path) as running:
        yield running


@pytest.fixture
def fetch() -> Callable[[str], Awaitable[tuple[int, str]]]:
    async def get(url: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return response.status, await response.text()

    return get


@pytest.fixture
async def start_replica(cluster: Cluster) -> AsyncIterator[Callable[[str], Awaitable[Callable[[], Awaitable[int]]]]]:
    """`await start_replica(name)` starts one that competes for the Lease and gives what stops it."""
    started: list[asyncio.subprocess.Process] = []

    async def start(name: str) -> Callable[[], Awaitable[int]]:
        await cluster.start("--leader-elect")
        process = cluster.coordinator
        assert process is not None
        started.append(process)

        async def stop() -> int:
            process.terminate()
            return await process.wait()

        return stop

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
