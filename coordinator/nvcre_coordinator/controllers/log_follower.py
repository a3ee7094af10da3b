"""Follows the log of one pod from its first line to its end and sums up its bandwidth rows.

A connection that breaks begins again from the first line with an empty table, so no row counts twice; until it has
caught up, the older sums stand.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from nvcre_kube.client import CONNECTION_ERRORS, ApiError, KubeClient
from nvcre_logs.lines import LineFeed, split_prefixes
from nvcre_logs.nccl_log import Row
from nvcre_logs.nccl_output import NcclOutputParser

from nvcre_coordinator.controllers.log_stream import parsed, read_to_its_end
from nvcre_coordinator.core.bandwidth import BandwidthRow, BandwidthTable
from nvcre_coordinator.core.log_profile import MAX_INT64, CompiledProfile, bandwidth_rows
from nvcre_coordinator.core.measurement_lifecycle import LogRead

READ_DEADLINE_S = 120.0
MAX_TRANSPORTS = 32


@dataclass(slots=True)
class LogSums:
    """What one pass over a log has given so far."""

    profile: CompiledProfile
    table: BandwidthTable = field(default_factory=BandwidthTable)
    feed: LineFeed = field(default_factory=LineFeed)
    transport: set[str] = field(default_factory=set)
    rows: int = 0
    _found: list[Row] = field(default_factory=list)
    _tables: NcclOutputParser | None = None

    def __post_init__(self) -> None:
        if self.profile.reads_tables:
            self._tables = NcclOutputParser(self._found.append)

    async def take(self, chunks: AsyncIterator[bytes]) -> None:
        async for _ in parsed(chunks, self.feed, self.scan):
            pass

    def scan(self, block: bytes) -> None:
        """Whole lines."""
        self.rows += self.table.add(self._rows(block))
        if self.profile.transport is None:
            return
        for (name,) in self.profile.transport.scan(block):
            if name and len(self.transport) < MAX_TRANSPORTS:
                self.transport.add(name[:256].decode(errors="replace").strip())

    def _rows(self, block: bytes) -> list[BandwidthRow]:
        if self._tables is None:
            return bandwidth_rows(self.profile.bandwidth, split_prefixes(block))
        self._tables.read(block)
        rows = [
            BandwidthRow(row.size_bytes, row.out_of_place.algbw_gbps, row.out_of_place.busbw_gbps)
            for row in self._found
            if row.size_bytes <= MAX_INT64
        ]
        self._found.clear()
        return rows

    def read(self) -> LogRead:
        return LogRead(
            results=self.table.results(),
            transport=tuple(sorted(self.transport)),
            rows=self.rows,
            skipped_lines=self.feed.skipped_lines,
        )


class LogFollower:
    """A background task for one pod; `sample` is what is known now, `complete` once the log's end was reached."""

    def __init__(self, client: KubeClient, profile: CompiledProfile, namespace: str, pod: str, uid: str) -> None:
        self._client = client
        self._profile = profile
        self._namespace = namespace
        self._pod = pod
        self.uid = uid
        self.complete = False
        self._current = LogSums(profile)
        self._best = LogRead()
        self._task = asyncio.create_task(self._run())

    def sample(self) -> LogRead:
        now = self._current.read()
        if self.complete or now.samples >= self._best.samples:
            self._best = now
        return self._best

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        # A clean end is the container's end, or a kubelet that restarts: the final read settles which.
        self.complete = await read_to_its_end(self._read, self._namespace, self._pod)

    async def _read(self) -> None:
        self.sample()
        self._current = LogSums(self._profile)
        await self._current.take(
            self._client.pod_log(self._pod, self._namespace, container=self._profile.container or None, follow=True)
        )


async def read_whole(client: KubeClient, profile: CompiledProfile, namespace: str, pod: str) -> LogRead:
    """The complete log of a finished pod, every row once."""
    sums = LogSums(profile)
    try:
        async with asyncio.timeout(READ_DEADLINE_S):
            await sums.take(client.pod_log(pod, namespace, container=profile.container or None))
    except ApiError as error:
        return LogRead(error=f"pod {pod}: {error}")
    except CONNECTION_ERRORS as error:
        return LogRead(error=f"pod {pod}: {error!r}")
    return sums.read()
