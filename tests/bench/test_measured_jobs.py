"""Many measured Jobs at one time: what the coordinator costs, and how soon a line of a log is in a status.

The API server is the embedded one, the kubelet is played and writes each log while it is followed. A status is written
once in a sampleInterval, so lines wait for half of that on average, and for all of it at most.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from nvcre_kube.informer import Informer
from nvcre_kube.resources import GOODPUT_MEASUREMENTS, LOG_PROFILES, JsonObject
from support.eventually import eventually
from support.figures import in_ms, report, setting
from support.played_cluster import NAMESPACE, Cluster, played_cluster
from support.process_usage import cpu_s, rss_mib

COUNT = setting("NVCRE_BENCH_MEASURED_JOBS", 500)
INTERVAL_S = 10
STEP_EVERY_S = 2.0
MEASURED_S = setting("NVCRE_BENCH_MEASURED_S", 60)
AT_ONCE = 20
PROFILE = Path(__file__).parents[2] / "daemonset/log-profiles/megatron-bridge.yaml"
SPEC = {"goodputMeasurement": {"logProfileRef": "megatron-bridge", "sampleInterval": f"{INTERVAL_S}s"}}


def step(number: int) -> bytes:
    now = datetime.now(UTC)
    figures = "elapsed time per iteration (ms): 2000.0 | throughput per GPU (TFLOP/s/GPU): 400.0 | lm loss: 1.2E+01 |"
    text = f"[{now:%Y-%m-%d %H:%M:%S.%f}] iteration {number:8d}/  100000 | consumed samples: 1 | {figures}"
    return f"{now:%Y-%m-%dT%H:%M:%S.%f}Z  {text}\n".encode()


async def launch(cluster: Cluster, name: str) -> str:
    await cluster.create_job(name, SPEC)
    await cluster.workload(name)
    return await cluster.add_pod(name, "node", "node-0")


async def log_steps(cluster: Cluster, pods: list[str], written: dict[int, float]) -> None:
    number = 0
    while True:
        number += 1
        line = step(number)
        for pod in pods:
            cluster.kubelet.logs[pod] += line
        written[number] = time.monotonic()
        await asyncio.sleep(STEP_EVERY_S)


@pytest.mark.bench
@pytest.mark.timeout(1800)
async def test_many_measured_jobs_at_once(tmp_path: Path) -> None:
    written: dict[int, float] = {}
    lags: list[float] = []
    sampled: set[str] = set()

    def changed(old: JsonObject | None, new: JsonObject | None) -> None:
        before = ((old or {}).get("status") or {}).get("currentStep")
        now = ((new or {}).get("status") or {}).get("currentStep")
        if new is None or now is None or now == before:
            return
        sampled.add(new["metadata"]["name"])
        shown = time.monotonic()
        lags.extend(shown - written[number] for number in range((before or 0) + 1, now + 1))

    async with played_cluster(tmp_path) as cluster, asyncio.TaskGroup() as group:
        await cluster.client.create(LOG_PROFILES, yaml.safe_load(PROFILE.read_text()))
        await cluster.start()
        assert cluster.coordinator is not None
        await cluster.add_node("node-0")
        gate = asyncio.Semaphore(AT_ONCE)

        async def launched(index: int) -> str:
            async with gate:
                return await launch(cluster, f"job-{index:04d}")

        pods = await asyncio.gather(*map(launched, range(COUNT)))
        idle_mib = rss_mib(cluster.coordinator.pid)
        informer: Informer[JsonObject] = Informer(
            cluster.client, GOODPUT_MEASUREMENTS, convert=lambda obj: obj, namespace=NAMESPACE
        )
        tasks = [group.create_task(informer.run()), group.create_task(log_steps(cluster, pods, written))]
        await informer.wait_synced()
        informer.add_handler(changed)

        async def all_sampled() -> bool:
            await asyncio.sleep(0.5)
            return len(sampled) == COUNT

        await eventually(all_sampled, within_s=600, what=f"{COUNT} measurements have a step")
        lags.clear()
        begun, used = time.monotonic(), cpu_s([cluster.coordinator.pid])
        await asyncio.sleep(MEASURED_S)
        share = (cpu_s([cluster.coordinator.pid]) - used) / (time.monotonic() - begun)
        mib = rss_mib(cluster.coordinator.pid)
        for task in tasks:
            task.cancel()

    on = f"{COUNT} Jobs with a step every {STEP_EVERY_S:g} s, sampleInterval {INTERVAL_S} s, embedded API server"
    report(
        "measured Jobs at once",
        f"coordinator {share:.3f} core, RSS {idle_mib:.0f} -> {mib:.0f} MiB; line written -> status: {in_ms(lags)}",
        target="none",
        on=on,
    )
