"""How long a person waits: the embedded API server until it serves, and the command's help."""

import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.api_server import api_server
from support.figures import report
from support.process_usage import cpu_s

RUNS = 5


@pytest.mark.bench
def test_embedded_api_server_gets_ready(tmp_path: Path) -> None:
    times, cpu = [], []
    for run in range(RUNS):
        directory = tmp_path / str(run)
        directory.mkdir()
        start = time.perf_counter()
        with api_server(directory) as server:
            times.append(time.perf_counter() - start)
            cpu.append(cpu_s([server.process.pid]))
    report(
        "embedded API server, start to ready",
        spread(times, cpu),
        target="under a second",
        on=f"{RUNS} starts, all CRDs of daemonset/crds and local",
    )


@pytest.mark.bench
def test_help_of_the_command() -> None:
    times, cpu = [], []
    for _ in range(RUNS):
        start, before = time.perf_counter(), children_s()
        subprocess.run([sys.executable, "-m", "nvcre_cli", "--help"], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
        cpu.append(children_s() - before)
    report(
        "nvcre --help",
        spread(times, cpu),
        target="none in DESIGN; a person should not notice",
        on=f"{RUNS} runs",
    )


def children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def spread(times: list[float], cpu: list[float]) -> str:
    """CPU time says what a machine with nothing else to do would need."""
    low, high = min(times), max(times)
    return f"median {statistics.median(times):.2f} s ({low:.2f} to {high:.2f}), CPU {statistics.median(cpu):.2f} s"
