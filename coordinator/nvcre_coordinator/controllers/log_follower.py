"""Follows the log of one pod to its end and sums up its bandwidth rows.

Each counts once, over broken connections and new coordinators: what was summed up is kept with the position behind it.
Where the kubelet's stamps are missing, a connection that breaks begins again from the first line with an empty table;
until it has caught up, the older sums stand.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated

import msgspec
from nvcre_kube.client import CONNECTION_ERRORS, ApiError, KubeClient
from nvcre_logs.lines import LineFeed, split_prefixes
from nvcre_logs.nccl_output import NcclOutputParser
from nvcre_logs.nccl_row import Figures

from nvcre_coordinator.api.measurement import MAX_GAPS, LogGap
from nvcre_coordinator.controllers.caches import CachedPod
from nvcre_coordinator.controllers.log_stream import FollowedLog, parsed
from nvcre_coordinator.core.bandwidth import BandwidthTable, Sums
from nvcre_coordinator.core.log_cursor import Position
from nvcre_coordinator.core.log_profile import CompiledProfile, bandwidth_rows
from nvcre_coordinator.core.measurement_lifecycle import LogRead

READ_DEADLINE_S = 120.0
MAX_TRANSPORTS = 32


class Kept(msgspec.Struct, frozen=True):
    """What a pod's log has given up to a position, for the next coordinator to go on from."""

    pod_uid: str
    position: Position
    sums: Sums = ()
    transport: tuple[Annotated[str, msgspec.Meta(max_length=256)], ...] = ()
    rows: int = 0
    gaps: Annotated[tuple[LogGap, ...], msgspec.Meta(max_length=MAX_GAPS)] = ()


@dataclass(slots=True)
class Found:
    rows: Sequence[Figures]
    transport: list[str]


@dataclass(slots=True)
class LogSums:
    """What one pass over a log has given so far.  `parse` may run in a thread, one block at a time."""

    profile: CompiledProfile
    table: BandwidthTable = field(default_factory=BandwidthTable)
    feed: LineFeed = field(default_factory=LineFeed)
    transport: set[str] = field(default_factory=set)
    rows: int = 0
    _found: list[list[Figures]] = field(default_factory=list)
    _tables: NcclOutputParser | None = None

    def __post_init__(self) -> None:
        if self.profile.reads_tables:
            self._tables = NcclOutputParser(self._found.append)

    @classmethod
    def resumed(cls, profile: CompiledProfile, kept: Kept) -> LogSums:
        return cls(profile, BandwidthTable.of(kept.sums), transport=set(kept.transport), rows=kept.rows)

    async def take(self, chunks: AsyncIterator[bytes]) -> None:
        async for _ in parsed(chunks, self.feed, self.scan):
            pass
        self.scan(self.feed.finish())

    def scan(self, block: bytes) -> None:
        self.add(self.parse(block))

    def parse(self, block: bytes) -> Found:
        """Whole lines."""
        found = Found(self._rows(block), [])
        if self.profile.transport is not None:
            names = (name for (name,) in self.profile.transport.scan(block) if name)
            found.transport = [name[:256].decode(errors="replace").strip() for name in names]
        return found

    def add(self, found: Found) -> None:
        self.rows += self.table.add(found.rows)
        for name in found.transport:
            if len(self.transport) < MAX_TRANSPORTS:
                self.transport.add(name)

    def _rows(self, block: bytes) -> Sequence[Figures]:
        if self._tables is None:
            return bandwidth_rows(self.profile.bandwidth, split_prefixes(block))
        self._tables.read(block)
        rows = [*chain.from_iterable(self._found)]
        self._found.clear()
        return rows

    def read(self, gaps: tuple[LogGap, ...] = ()) -> LogRead:
        return LogRead(
            results=self.table.results(),
            transport=tuple(sorted(self.transport)),
            rows=self.rows,
            skipped_lines=self.feed.skipped_lines,
            gaps=gaps,
        )


class LogFollower:
    """Of one pod; `sample` is what is known now."""

    def __init__(
        self,
        client: KubeClient,
        profile: CompiledProfile,
        pod: CachedPod,
        kept: Kept | None,
        *,
        exists: Callable[[], bool] = lambda: True,
    ) -> None:
        self.uid = pod.record.uid
        self.profile = profile
        if kept is None or kept.pod_uid != self.uid:
            kept = None
        self._sums = LogSums(profile) if kept is None else LogSums.resumed(profile, kept)
        self._best = LogRead()
        self.log = FollowedLog(
            client,
            pod,
            profile.container,
            self._parse,
            self._add,
            position=None if kept is None else kept.position,
            gaps=() if kept is None else kept.gaps,
            begin=self._begin,
            exists=exists,
        )

    def sample(self) -> LogRead:
        self._sums.feed.skipped_lines = self.log.skipped_lines
        now = self._sums.read(self.log.gaps)
        if self.log.complete or self.log.position is not None or now.samples >= self._best.samples:
            self._best = now
        return self._best

    def kept(self) -> Kept | None:
        """None for a log without stamps: the next coordinator begins again."""
        if self.log.position is None:
            return None
        sums, transport = self._sums.table.sums(), tuple(sorted(self._sums.transport))
        return Kept(self.uid, self.log.position, sums, transport, self._sums.rows, self.log.gaps)

    def _parse(self, block: bytes) -> Found:
        return self._sums.parse(block)

    def _begin(self) -> None:
        self.sample()
        self._sums = LogSums(self.profile)

    async def _add(self, found: Found) -> None:
        self._sums.add(found)


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
