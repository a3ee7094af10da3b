"""How fast logs are read for their measurements, beside Go's regexp over the same lines in the same run."""

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path

import msgspec
import pytest
import yaml
from nvcre_coordinator.api.log_profile import LogProfile
from nvcre_coordinator.controllers.log_follower import LogSums
from nvcre_coordinator.core.log_profile import compile_bandwidth_profile
from nvcre_logs.lines import LineFeed
from nvcre_logs.patterns import compile_pattern
from nvcre_logs.profile import EventPattern
from nvcre_logs.training import Kind, TrainingReader, compile_training
from support.figures import report

ROOT = Path(__file__).parents[2]
PROFILES = ROOT / "daemonset/log-profiles"
GO_SOURCE = Path(__file__).parent / "go_regexp/main.go"
SIZE = 8 << 20
CHUNK = 64 * 1024  # what a log stream gives at once
RUNS = 3
MATCHING_PROFILES = {"nccl": ("nccl-bandwidth", "bandwidth_result"), "megatron": ("megatron-training", "training_step")}
OTHERS = {
    "nccl": [
        "node-1:4297:4421 [0] NCCL INFO Channel 03/0 : 1[1] -> 2[2] via P2P/CUMEM/read",
        "node-1:4297:4421 [0] NCCL INFO threadThresholds 8/8/64 | 128/8/64 | 512 | 512",
        "#  Rank  3 Group  0 Pid   4297 on node-h100-a device  3 [0000:4f:00] NVIDIA H100 80GB HBM3",
        "node-1:4297:4425 [3] NCCL INFO Connected NVLS tree, 24 channels, 0 nvls channels per rank",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
    ],
    "megatron": [
        "[2026-02-05 16:03:40] (min, max) time across ranks (ms): forward-backward .....: (13010.11, 13012.54)",
        "WARNING:megatron.core.utils: NVTX range mismatch; profiling of this step is off, rank 7",
        "> building train, validation, and test datasets for GPT ... done after 12.81 s on rank 0",
        "node-1:4297:4421 [0] NCCL INFO comm 0x55d0c8 rank 0 nranks 64 cudaDev 0 busId 1b000 - Init COMPLETE",
        "INFO:megatron.core.optimizer: Setting up optimizer with config OptimizerConfig(optimizer='adam', lr=0.00015)",
    ],
}
TARGETS = {"1 in 20": ">= 200 MB/s", "all": ">= 50 MB/s and no slower than Go's regexp"}


def log_of(kind: str, density: str) -> bytes:
    """Steps go forward: a training log that repeats one is that of several ranks."""
    others = [] if density == "all" else [*islice(cycle(OTHERS[kind]), 19)]
    line, lines, size = matching_line(kind), list[str](), 0
    while size < SIZE:
        lines += [*others, re.sub(r"iteration +\d+/", f"iteration {len(lines) + 1}/", line)]
        size += sum(len(one) + 1 for one in lines[-len(others) - 1 :])
    return ("\n".join(lines) + "\n").encode()


def profile(name: str) -> LogProfile:
    return msgspec.convert(yaml.safe_load((PROFILES / f"{name}.yaml").read_text()), LogProfile)


def matching_line(kind: str) -> str:
    """The profile's own example."""
    name, pattern = MATCHING_PROFILES[kind]
    return str(getattr(profile(name).spec.patterns, pattern).example)


def training_step() -> EventPattern:
    pattern = profile("megatron-training").spec.patterns.training_step
    assert pattern is not None
    return pattern


def nccl_matcher() -> Callable[[bytes], int]:
    """The patterns alone, as a profile of somebody's own has them: what Go's side of the comparison does."""
    compiled = compile_bandwidth_profile(profile("nccl-bandwidth"))
    assert compiled.transport is not None
    both = (compiled.bandwidth, compiled.transport)
    return lambda block: sum(1 for pattern in both for _ in pattern.scan(block))


def nccl_reader() -> tuple[Callable[[bytes], int], list[str]]:
    """What a BandwidthMeasurement does with each block, and the patterns of its profile."""
    of_profile = profile("nccl-bandwidth")
    sums = LogSums(compile_bandwidth_profile(of_profile))

    def read(block: bytes) -> int:
        before = sums.rows
        sums.scan(block)
        return sums.rows - before

    patterns = of_profile.spec.patterns
    return read, [pattern.regex for pattern in (patterns.bandwidth_result, patterns.network_transport) if pattern]


def megatron_matcher() -> Callable[[bytes], int]:
    names = ("timestamp", "iteration", "elapsedTime", "tflops", "loss")
    compiled = compile_pattern(training_step(), "spec.patterns.trainingStep", names)
    return lambda block: sum(1 for _ in compiled.scan(block))


def megatron_reader() -> tuple[Callable[[bytes], int], list[str]]:
    """What a GoodputMeasurement does with each block, but for the position that it keeps, and the pattern it counts."""
    reader = TrainingReader(compile_training("megatron-training", profile("megatron-training").spec))
    steps = Kind.STEP
    return lambda block: sum(1 for event in reader.feed(block) if event.kind is steps), [training_step().regex]


@pytest.fixture(scope="module")
def go_program(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    go = shutil.which("go")
    if go is None:
        return None
    program = tmp_path_factory.mktemp("go") / "go_regexp"
    subprocess.run([go, "build", "-o", str(program), str(GO_SOURCE)], check=True, cwd=program.parent)
    return program


@pytest.mark.bench
@pytest.mark.timeout(300)
@pytest.mark.parametrize("density", ["1 in 20", "all"])
@pytest.mark.parametrize("kind", ["nccl", "megatron"])
def test_log_parsing(kind: str, density: str, tmp_path: Path, go_program: Path | None) -> None:
    text = log_of(kind, density)
    reader, matcher = (nccl_reader, nccl_matcher) if kind == "nccl" else (megatron_reader, megatron_matcher)
    _, patterns = reader()
    ours, hits = best(lambda: reader()[0], text)
    alone = f", patterns alone {len(text) / 1e6 / best(matcher, text)[0]:.0f} MB/s"
    go = "Go is not installed"
    if go_program is not None:
        log, file = tmp_path / "log", tmp_path / "patterns"
        log.write_bytes(text)
        file.write_text("\n".join(patterns))
        answer = subprocess.run(
            [go_program, str(log), str(file), str(RUNS)], check=True, capture_output=True, text=True
        )
        seconds, go_hits = answer.stdout.split()
        assert int(go_hits) == hits
        go = f"Go's regexp line by line {len(text) / 1e6 / float(seconds):.0f} MB/s"
    report(
        f"log parsing, {kind}, {density} lines matching",
        f"{len(text) / 1e6 / ours:.0f} MB/s ({hits / ours:,.0f} hits/s){alone}; {go}",
        target=TARGETS[density],
        on=f"{len(text) / 1e6:.0f} MB in chunks of {CHUNK // 1024} KiB, {hits:,} hits, CPU time, best of {RUNS}",
    )


def best(fresh: Callable[[], Callable[[bytes], int]], text: bytes) -> tuple[float, int]:
    """CPU seconds of the fastest run (others may use the machine), and the hits."""
    fastest, hits = float("inf"), 0
    chunks = [text[at : at + CHUNK] for at in range(0, len(text), CHUNK)]
    for _ in range(RUNS):
        read, feed, hits, start = fresh(), LineFeed(), 0, time.process_time()
        for chunk in chunks:
            hits += read(feed.feed(chunk))
        hits += read(feed.finish())
        fastest = min(fastest, time.process_time() - start)
    return fastest, hits


def test_each_log_has_the_hits_it_claims() -> None:
    """The benchmark's own check, outside of the clock."""
    for kind, reader in (("nccl", nccl_reader), ("megatron", megatron_reader)):
        read, patterns = reader()
        assert read((matching_line(kind) + "\n").encode()) == 1
        assert read(("\n".join(OTHERS[kind]) + "\n").encode()) == 0
        assert not any(re.search(pattern, line) for pattern in patterns for line in OTHERS[kind])
