"""How a benchmark says what it measured: one line with figure, target, and what it was measured on. Asserts nothing."""

import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path


def report(what: str, figure: str, *, target: str, on: str) -> None:
    """`on` names the sizes; machine, Python and load come by themselves."""
    print(f"\nBENCH {what} | {figure} | to hold: {target} | {on} | {machine()}", flush=True)


def machine() -> str:
    python = f"Python {platform.python_version()}"
    return f"{cpu_model()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {python}, {today()}"


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown CPU"


def today() -> str:
    return time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime())


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest rank: of 50 values, p99 is the greatest."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def in_ms(seconds: Sequence[float]) -> str:
    return ", ".join(f"p{percent} {percentile(seconds, percent) * 1000:.0f} ms" for percent in (50, 99))


def setting(name: str, default: int) -> int:
    return int(os.environ.get(name, str(default)))
