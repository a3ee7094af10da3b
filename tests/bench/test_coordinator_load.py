"""What the coordinator costs with a fleet connected that has nothing to tell."""

import asyncio
import time
from pathlib import Path

import pytest
from support.figures import report, setting
from support.fleet import fleet
from support.process_usage import cpu_s, rss_mib

AGENTS = setting("NVCRE_BENCH_AGENTS", 1000)
SECONDS = setting("NVCRE_BENCH_SECONDS", 60)
HEARTBEAT_S = 30.0


@pytest.mark.bench
@pytest.mark.timeout(3600)
async def test_coordinator_with_connected_agents(tmp_path: Path) -> None:
    async with fleet(tmp_path) as one:
        began = time.monotonic()
        await one.open_streams(AGENTS, heartbeat_s=HEARTBEAT_S, within_s=1800)
        connected_s = time.monotonic() - began
        await asyncio.sleep(5 if AGENTS <= 1000 else HEARTBEAT_S)  # NodeHealths are written, first heartbeats come
        pid = one.coordinator.pid
        before, start = cpu_s([pid]), time.monotonic()
        await asyncio.sleep(SECONDS)
        share = (cpu_s([pid]) - before) / (time.monotonic() - start)
        lost = one.streams_lost()
        report(
            "coordinator with connected agents",
            f"{share:.3f} core, {rss_mib(pid):.0f} MiB RSS, {lost} streams lost",
            target="10,000 agents with <= 1 core and <= 1.5 GB",
            on=f"{AGENTS} agents over TLS, heartbeat {HEARTBEAT_S:.0f} s, {SECONDS} s; "
            f"{connected_s:.0f} s to make their Nodes, Pods and tokens and to connect",
        )
