"""How fast logs are read for their measurements, beside Go's regexp over the same lines in the same run.

The readers are the shipped ones, whole: what follows a pod's log for a BandwidthMeasurement and a GoodputMeasurement,
with the kubelet's stamps that they ask for, and what `nvcre parse` reads a saved log with.
"""

import asyncio
import os
import random
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import yaml
from nvcre_coordinator.api.log_profile import LogProfile
from nvcre_coordinator.controllers.caches import CachedPod
from nvcre_coordinator.controllers.goodput_follower import GoodputFollower
from nvcre_coordinator.controllers.log_follower import LogFollower
from nvcre_coordinator.core.log_profile import CompiledProfile, compile_bandwidth_profile
from nvcre_coordinator.core.pods import PodRecord
from nvcre_kube.client import KubeClient
from nvcre_logs.nccl_log import NcclLog
from nvcre_logs.profile import LOG_FORMAT
from nvcre_logs.saved_log import NamedProfile, measure
from nvcre_logs.training import Kind, TrainingProfile, compile_training
from support.figures import report

ROOT = Path(__file__).parents[2]
PROFILES = ROOT / "daemonset/log-profiles"
GO_SOURCE = Path(__file__).parent / "go_regexp/main.go"
SIZE = int(os.environ.get("NVCRE_BENCH_LOG_MB", "100")) * 1_000_000
CHUNK = 64 * 1024  # what a log stream gives at once
SAVED_CHUNK = 1 << 20  # what `nvcre parse` reads at once
RUNS = 3
POD = CachedPod("team", "run-workload", PodRecord("pod", "uid"), ("node",), "")
NAMES = {"nccl": "nccl-bandwidth", "megatron": "megatron-training"}
TARGETS = {"1 in 20": ">= 200 MB/s", "all": ">= 50 MB/s and no slower than Go's regexp"}

HEADING = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1
#
# Using devices
#  Rank  0 Group  0 Pid   4297 on node-h100-a device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   4298 on node-h100-a device  1 [0000:1c:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
OTHERS = {
    "nccl": [
        "node-1:4297:4421 [0] NCCL INFO Channel 03/0 : 1[1] -> 2[2] via P2P/CUMEM/read",
        "node-1:4297:4421 [0] NCCL INFO threadThresholds 8/8/64 | 128/8/64 | 512 | 512",
        "node-h100-a: Warning: Permanently added 'node-h100-b' (ED25519) to the list of known hosts.",
        "node-1:4297:4425 [3] NCCL INFO Connected NVLS tree, 24 channels, 0 nvls channels per rank",
        "node-1:4298:4430 [1] NCCL INFO Channel 11/0 : 9[1] -> 1[1] [receive] via NET/IB/1/GDRDMA",
    ],
    "megatron": [
        "[2026-02-05 16:03:40] (min, max) time across ranks (ms): forward-backward .....: (13010.11, 13012.54)",
        "WARNING:megatron.core.utils: NVTX range mismatch; profiling of this step is off, rank 7",
        "> building train, validation, and test datasets for GPT ... done after 12.81 s on rank 0",
        "node-1:4297:4421 [0] NCCL INFO comm 0x55d0c8 rank 0 nranks 64 cudaDev 0 busId 1b000 - Init COMPLETE",
        "INFO:megatron.core.optimizer: Setting up optimizer with config OptimizerConfig(optimizer='adam', lr=0.00015)",
    ],
}


def nccl_row(number: int, _: datetime, rng: random.Random) -> str:
    """A sweep from 8 bytes to 8 GiB, again and again (-N 0)."""
    size = 8 << number % 31

    def side() -> str:
        time_us = 20 + size / 2e5 * rng.uniform(0.98, 1.02)
        return f"{time_us:9.1f}{size / time_us / 1e3:8.2f}{size / time_us / 1e3 * 1.75:8.2f}{0:7d}"

    return f"{size:12d}{size // 4:14d}{'float':>10}{'sum':>8}{-1:8d}{side()}{side()}"


def megatron_step(number: int, now: datetime, rng: random.Random) -> str:
    return (
        f" [{now:%Y-%m-%d %H:%M:%S.%f}] iteration {number:8d}/ 1500000 | consumed samples: {number * 768:12d} |"
        f" elapsed time per iteration (ms): {rng.uniform(13000, 14000):.1f} | throughput per GPU (TFLOP/s/GPU):"
        f" {rng.uniform(130, 140):.1f} | learning rate: {rng.uniform(1, 9):.6E} | global batch size:   768 | lm loss:"
        f" {rng.uniform(1, 12):.6E} | loss scale: 1.0 | grad norm: {rng.uniform(0.1, 9):.3f} | number of skipped"
        " iterations:   0 | number of nan iterations:   0 |"
    )


LINES = {"nccl": nccl_row, "megatron": megatron_step}
SECONDS = {"nccl": 0.5, "megatron": 13.5}  # between two of them


def log_of(kind: str, density: str, size: int) -> bytes:
    """As the kubelet gives it: each line with its stamp, whose trailing zeros are left out."""
    rng, now = random.Random(1), datetime(2026, 2, 5, 16, tzinfo=UTC)
    others = [*islice(cycle(OTHERS[kind]), 19 if density == "1 in 20" else 0)]
    first = HEADING.splitlines() if kind == "nccl" else []
    lines, written, number = list[str](), 0, 0
    while written < size:
        number += 1
        now += timedelta(seconds=SECONDS[kind] * rng.uniform(0.9, 1.1))
        stamp = f"{now:%Y-%m-%dT%H:%M:%S.%f}{rng.randrange(1000):03d}".rstrip("0.") + "Z "
        new = [*(first if number == 1 else ()), *others, LINES[kind](number, now, rng)]
        lines.append("".join(f"{stamp}{line}\n" for line in new))
        written += len(lines[-1])
    return "".join(lines).encode()


def profile(name: str) -> LogProfile:
    return msgspec.convert(yaml.safe_load((PROFILES / f"{name}.yaml").read_text()), LogProfile)


class Logs:
    """A client that has one log."""

    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    async def pod_log(self, *_: Any, **__: Any) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk

    @classmethod
    def client(cls, text: bytes) -> KubeClient:
        return cast(KubeClient, cls(cut(text, CHUNK)))


def cut(text: bytes, size: int) -> list[bytes]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@cache
def bandwidth_profile() -> CompiledProfile:
    return compile_bandwidth_profile(profile(NAMES["nccl"]))


@cache
def training_profile() -> TrainingProfile:
    return compile_training("megatron", profile(NAMES["megatron"]).spec)


async def follow_nccl(client: KubeClient) -> int:
    """What a BandwidthMeasurement does: the number of rows it counts."""
    follower = LogFollower(client, bandwidth_profile(), POD, None)
    await follower.log.end(deadline_s=600)
    return follower.sample().rows


async def follow_megatron(client: KubeClient) -> int:
    """What a GoodputMeasurement does before its arithmetic: the number of steps it hears of."""
    follower, steps = GoodputFollower(client, training_profile(), POD, None), 0
    while not follower.log.complete:
        await follower.log.end(deadline_s=0.05)
        steps += sum(event.kind is Kind.STEP for event in follower.drain().events)
    return steps + sum(event.kind is Kind.STEP for event in follower.drain().events)


FOLLOWERS: dict[str, Callable[[KubeClient], Awaitable[int]]] = {"nccl": follow_nccl, "megatron": follow_megatron}


def follow(kind: str, client: KubeClient) -> int:
    async def run() -> int:
        return await FOLLOWERS[kind](client)

    return asyncio.run(run())


def read_saved(kind: str, chunks: list[bytes]) -> int:
    """What `nvcre parse` does before it prints: rows or steps."""
    manifest = profile(NAMES[kind])
    named = NamedProfile(manifest.metadata.name, manifest.metadata.annotations[LOG_FORMAT], manifest.spec)
    log = measure(lambda: chunks, named).log
    if isinstance(log, NcclLog):
        return sum(len(test.rows) + test.dropped_rows for test in log.tests)
    return len(log.records)


def patterns_of(kind: str) -> list[str]:
    """What Go is given: the patterns that the measurement counts by."""
    patterns = profile(NAMES[kind]).spec.patterns
    chosen = (patterns.bandwidth_result, patterns.network_transport, patterns.training_step)
    return [pattern.regex for pattern in chosen if pattern is not None]


@pytest.fixture(scope="module")
def go_program(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    go = shutil.which("go")
    if go is None:
        return None
    program = tmp_path_factory.mktemp("go") / "go_regexp"
    subprocess.run([go, "build", "-o", str(program), str(GO_SOURCE)], check=True, cwd=program.parent)
    return program


@pytest.mark.bench
@pytest.mark.timeout(600)
@pytest.mark.parametrize("density", ["1 in 20", "all"])
@pytest.mark.parametrize("kind", ["nccl", "megatron"])
def test_log_parsing(kind: str, density: str, tmp_path: Path, go_program: Path | None) -> None:
    text = log_of(kind, density, SIZE)
    mb = len(text) / 1e6
    followed, hits = best(partial(follow, kind, Logs.client(text)))
    saved, hits_of_saved = best(partial(read_saved, kind, cut(text, SAVED_CHUNK)))
    assert hits == hits_of_saved
    go = "Go is not installed"
    if go_program is not None:
        log, file = tmp_path / "log", tmp_path / "patterns"
        log.write_bytes(text)
        file.write_text("\n".join(patterns_of(kind)))
        command = [str(go_program), str(log), str(file), str(RUNS)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True)
        log.unlink()
        seconds, go_hits = answer.stdout.split()
        assert int(go_hits) == hits
        go = f"Go's regexp line by line {mb / float(seconds):.0f} MB/s"
    report(
        f"log parsing, {kind}, {density} lines matching",
        f"followed {mb / followed:.0f} MB/s ({hits / followed:,.0f} hits/s), nvcre parse {mb / saved:.0f} MB/s; {go}",
        target=TARGETS[density],
        on=f"{mb:.0f} MB in chunks of {CHUNK // 1024} KiB, {hits:,} hits, CPU time, best of {RUNS}",
    )


def best(read: Callable[[], int]) -> tuple[float, int]:
    """CPU seconds of the fastest run (others may use the machine), and the hits."""
    fastest, hits = float("inf"), 0
    for _ in range(RUNS):
        start = time.process_time()
        hits = read()
        fastest = min(fastest, time.process_time() - start)
    return fastest, hits


@pytest.mark.parametrize("kind", ["nccl", "megatron"])
def test_each_log_has_the_hits_it_claims(kind: str) -> None:
    """The benchmark's own check, outside of the clock."""
    dense, sparse = (log_of(kind, density, 100_000) for density in ("all", "1 in 20"))
    headings = len(HEADING.splitlines()) if kind == "nccl" else 0
    assert follow(kind, Logs.client(dense)) == dense.count(b"\n") - headings
    assert follow(kind, Logs.client(sparse)) == (sparse.count(b"\n") - headings) / 20
