"""How long a person waits: the embedded API server until it serves, and the command's help."""

import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.api_server import api_server
from support.figures import report

RUNS = 5


@pytest.mark.bench
def test_embedded_api_server_gets_ready(tmp_path: Path) -> None:
    times = []
    for run in range(RUNS):
        directory = tmp_path / str(run)
        directory.mkdir()
        start = time.perf_counter()
        with api_server(directory):
            times.append(time.perf_counter() - start)
    report(
        "embedded API server, start to ready",
        f"median {statistics.median(times):.2f} s (of {', '.join(f'{t:.2f}' for t in times)})",
        target="under a second",
        on=f"{RUNS} starts, all CRDs of daemonset/crds and local",
    )


@pytest.mark.bench
def test_help_of_the_command() -> None:
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "nvcre_cli", "--help"], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    report(
        "nvcre --help",
        f"median {statistics.median(times):.2f} s (of {', '.join(f'{t:.2f}' for t in times)})",
        target="none in DESIGN; a person should not notice",
        on=f"{RUNS} runs",
    )
