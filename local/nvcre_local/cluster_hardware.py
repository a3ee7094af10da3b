"""What GPUs does this machine really have, and can nccl-tests run here?  Looks once; starts nothing.

Only for runs without a scenario. What is missing is an answer with its reason, never a reason to simulate.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path


class NoGpus(Exception):
    """One line: what is missing."""


@dataclass(frozen=True, slots=True)
class Hardware:
    gpus: int
    product: str


def find_gpus() -> Hardware:
    """Asks NVML. Raises NoGpus."""
    try:
        import pynvml  # noqa: PLC0415  (only the agent's extra brings it)
    except ImportError:
        raise NoGpus("the NVML bindings are not installed (nvidia-ml-py, extra nvcre[agent])") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoGpus(f"NVML does not load: {error}") from None
    try:
        count = pynvml.nvmlDeviceGetCount()
        if count == 0:
            raise NoGpus("NVML finds no GPU")
        product = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
    except pynvml.NVMLError as error:
        raise NoGpus(f"NVML cannot list the GPUs: {error}") from None
    finally:
        pynvml.nvmlShutdown()
    return Hardware(count, product if isinstance(product, str) else product.decode())


def find_nccl_tests() -> Path | None:
    """`all_reduce_perf` in $NCCL_TESTS_DIR, else on the PATH."""
    directory = os.environ.get("NCCL_TESTS_DIR")
    found = shutil.which("all_reduce_perf", path=directory) if directory else shutil.which("all_reduce_perf")
    return Path(found).resolve() if found else None
