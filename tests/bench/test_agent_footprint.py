"""What an agent costs on a node where nothing happens."""

import asyncio
import contextlib
import time
from pathlib import Path

import pytest
from nvcre_kube.resources import NODE_HEALTHS
from support.figures import report, setting
from support.fleet import eventually, fleet
from support.process_usage import cpu_s, inotify_instances, inotify_is_to_be_had, pss_mib, tree

SECONDS = setting("NVCRE_BENCH_SECONDS", 60)
SETTLE_S = 10.0


@pytest.mark.bench
@pytest.mark.timeout(600)
async def test_agent_in_steady_state(tmp_path: Path) -> None:
    async with fleet(tmp_path) as one:
        with contextlib.suppress(AssertionError):  # the figure says how it went
            await eventually(has_inotify, what="an inotify instance, of which a user has few")
        agent = await one.start_agent("calm", fifo=True)

        async def connected() -> bool:
            found = await one.client.list(NODE_HEALTHS)
            return bool(found and (found[0].get("status") or {}).get("inventory"))

        await eventually(connected, what="the agent has told its inventory")
        await asyncio.sleep(SETTLE_S)
        processes = tree(agent.process.pid)
        before, start = {pid: cpu_s([pid]) for pid in processes}, time.monotonic()
        await asyncio.sleep(SECONDS)
        elapsed_s = time.monotonic() - start
        shares = [(cpu_s([pid]) - before[pid]) / elapsed_s * 100 for pid in processes]
        sizes = [pss_mib([pid]) for pid in processes]
        each = ", ".join(f"{share:.3f} %/{size:.1f} MiB" for share, size in zip(shares, sizes, strict=True))
        report(
            "agent in steady state",
            f"{sum(shares):.3f} % of a core, {sum(sizes):.1f} MiB PSS ({len(processes)} processes: {each})",
            target="<= 0.12 % of a core, <= 65 MB PSS",
            on=f"8 simulated GPUs, heartbeat 30 s, connected to a coordinator over TLS, user and system time over "
            f"{SECONDS} s, kernel log through a FIFO (the loop's reader, as for /dev/kmsg), driver's events "
            + ("by inotify" if inotify_instances(processes) else "LOOKED FOR every 50 ms for want of inotify"),
        )


async def has_inotify() -> bool:
    return inotify_is_to_be_had()
