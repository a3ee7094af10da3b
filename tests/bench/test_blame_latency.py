"""From the kernel's line to the FailedNode that a client of the API can read."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from nvcre_kube.informer import Informer, keep_object
from nvcre_kube.resources import JOBS, NODE_HEALTHS, JsonObject
from support.figures import in_ms, report, setting
from support.fleet import NAMESPACE, Fleet, RealAgent, eventually, fleet, gpu_pci

AGENTS = setting("NVCRE_BENCH_AGENTS", 100)
INCIDENTS = setting("NVCRE_BENCH_INCIDENTS", 50)
AGENTS_AT_ONCE = 5
SETTLE_S = 0.3


@pytest.mark.bench
@pytest.mark.timeout(3600)
async def test_kernel_line_to_failed_node(tmp_path: Path) -> None:
    async with fleet(tmp_path) as one, asyncio.TaskGroup() as group:
        others = await one.open_streams(AGENTS - 1)
        seen: dict[str, float] = {}  # Job or NodeHealth -> when its blame was first readable
        jobs = Informer(one.client, JOBS, convert=keep_object, namespace=NAMESPACE)
        healths = Informer(one.client, NODE_HEALTHS, convert=keep_object)
        jobs.add_handler(lambda _, new: note(seen, new, "failedNodes"))
        healths.add_handler(lambda _, new: note(seen, new, "incidents"))
        watching = [group.create_task(jobs.run()), group.create_task(healths.run())]
        whole: list[float] = []
        stored: list[float] = []
        while len(whole) < INCIDENTS:
            batch = range(len(whole), min(INCIDENTS, len(whole) + AGENTS_AT_ONCE))
            agents = await asyncio.gather(*(one.start_agent(f"measured-{index}") for index in batch))
            for agent in agents:
                await eventually(watched(healths, agent.node), what=f"{agent.node} is watched")
            for index, agent in zip(batch, agents, strict=True):
                written = await break_gpu(one, agent, f"job-{index}", others[:3], gpu=index % 8, seen=seen)
                whole.append(seen[f"job-{index}"] - written)
                stored.append(seen[agent.node] - written)
            for agent in agents:
                await one.stop_agent(agent)
                await one.remove_node(agent.node)
        for task in watching:
            task.cancel()
    on_the_way = f"NodeHealth readable: {in_ms(stored)}"
    report(
        "kernel line written -> FailedNode readable",
        f"{in_ms(whole)} ({on_the_way})",
        target="p99 <= 250 ms at 1,000 connected agents",
        on=f"{INCIDENTS} incidents, each its own node, agent process and Job of 4 nodes; {AGENTS} connected agents",
    )


async def break_gpu(
    one: Fleet, agent: RealAgent, job: str, others: list[str], *, gpu: int, seen: dict[str, float]
) -> float:
    """Runs a Job over the agent's node and others, breaks a GPU; when the line was written."""
    await one.run_job(job, [agent.node, *others])
    await asyncio.sleep(SETTLE_S)  # what the start of the Job has caused is not what is measured
    assert job not in seen
    written = time.perf_counter()
    pci = gpu_pci(gpu)
    agent.kernel(1, f"NVRM: Xid (PCI:{pci}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")

    async def blamed() -> bool:
        return job in seen

    await eventually(blamed, what=f"{agent.node} is named by {job}")
    await one.forget_job(job)
    return written


def note(seen: dict[str, float], obj: JsonObject | None, field: str) -> None:
    if obj is not None and (obj.get("status") or {}).get(field):
        seen.setdefault(obj["metadata"]["name"], time.perf_counter())


def watched(healths: Informer[JsonObject], node: str) -> Any:
    async def condition() -> bool:
        status = (healths.get(node) or {}).get("status") or {}
        return bool(status.get("inventory")) and status.get("verdict") == "Healthy"

    return condition
