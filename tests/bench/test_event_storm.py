"""A million repeats of one Xid: what becomes of them."""

import asyncio
import os
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from nvcre_kube.resources import NODE_HEALTHS
from support.figures import report, setting
from support.fleet import Fleet, RealAgent, eventually, fleet, gpu_pci
from support.process_usage import anonymous_mib, cpu_s, rss_mib, tree

LINES = setting("NVCRE_BENCH_LINES", 1_000_000)
SETTLE_S = 3.0
BLOCK = 2000  # lines written at once
LINE = (
    f"NVRM: Xid (PCI:{gpu_pci(5)}): 31, pid=4242, name=python, Ch 00000007, intr 00000000. MMU Fault: ENGINE GRAPHICS"
)


@pytest.mark.bench
@pytest.mark.timeout(1800)
async def test_event_storm(tmp_path: Path) -> None:
    async with fleet(tmp_path) as one:
        agent = await one.start_agent("stormy", fifo=True)
        await eventually(lambda: status(one, agent), what="the agent has told its inventory")
        await asyncio.sleep(SETTLE_S)
        processes = tree(agent.process.pid)
        before_mib, coordinator_mib = anonymous_mib(processes), rss_mib(one.coordinator.pid)
        writes_before, cpu, start = await writes(one), cpu_s(processes), time.monotonic()
        peak = asyncio.create_task(peak_memory(processes))
        await asyncio.to_thread(write_storm, agent.kernel_log)
        read_s = time.monotonic() - start

        async def counted() -> bool:
            incidents = (await status(one, agent)).get("incidents") or []
            return sum(int(item["count"]) for item in incidents) >= LINES

        await eventually(counted, what="every repeat is counted in NodeHealth")
        took_s = time.monotonic() - start
        cpu_used = cpu_s(processes) - cpu
        peak.cancel()
        peak_mib = await peak
        after = await status(one, agent)
        incidents = [*(after.get("incidents") or []), *(after.get("closedIncidents") or [])]
        count = sum(int(item["count"]) for item in incidents)
        written = await writes(one) - writes_before
        report(
            "event storm",
            f"{len(incidents)} incident(s) with count {count}, {written} status writes, "
            f"agent's memory {before_mib:.1f} -> {anonymous_mib(processes):.1f} MiB (peak {peak_mib:.1f}), "
            f"coordinator RSS {coordinator_mib:.0f} -> {rss_mib(one.coordinator.pid):.0f} MiB, "
            f"read in {read_s:.1f} s ({LINES / read_s:,.0f} lines/s), agent CPU {cpu_used:.1f} s, "
            f"stored after {took_s:.1f} s",
            target="one incident, memory flat, <= 10 status writes",
            on=f"{LINES:,} repeats of one Xid through a FIFO as fast as the agent reads",
        )


def write_storm(fifo: Path) -> None:
    """One record a line, sequence and time of their own."""
    fd = os.open(fifo, os.O_WRONLY)
    try:
        for first in range(0, LINES, BLOCK):
            now = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
            numbers = range(first, min(LINES, first + BLOCK))
            block = memoryview("".join(f"3,{number},{now},-;{LINE}\n" for number in numbers).encode())
            while block:
                block = block[os.write(fd, block) :]
    finally:
        os.close(fd)


async def peak_memory(processes: list[int]) -> float:
    highest = 0.0
    try:
        while True:
            highest = max(highest, anonymous_mib(processes))
            await asyncio.sleep(0.5)
    except asyncio.CancelledError:
        return max(highest, anonymous_mib(processes))


async def status(one: Fleet, agent: RealAgent) -> dict[str, Any]:
    found = await one.client.list(NODE_HEALTHS, field_selector=f"metadata.name={agent.node}")
    return dict(found[0].get("status") or {}) if found else {}


async def writes(one: Fleet) -> int:
    """How often the coordinator says that it has written a NodeHealth; the storm's node is the only one."""
    url = f"http://{one.addresses['metrics']}/metrics"
    text = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
    written = 'nvcre_fleet_node_health_writes_total{result="written"}'
    return next((int(float(line.split()[-1])) for line in text.splitlines() if line.startswith(written)), 0)
