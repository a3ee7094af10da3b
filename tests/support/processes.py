"""Processes of ours as tests start them: in a clean environment, until they serve, to their end."""

import ctypes
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

PATIENCE_S = 20.0
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None)


def clean_environment() -> dict[str, str]:
    """Ours without what would change a process of ours."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("NVCRE_", "KUBE"))}


def die_with_parent() -> None:
    """For `preexec_fn`, where no threads run: however the test run ends, what it started does not outlive it."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def wait_for_file(
    file: Path, process: subprocess.Popen[bytes], log: Path, within_s: float = PATIENCE_S
) -> dict[str, Any]:
    """What the process writes to its ready-file once it serves. Fails with the end of its log when it does not."""
    until = time.monotonic() + within_s
    while not file.exists():
        ended = process.poll() is not None
        if ended or time.monotonic() > until:
            process.kill()
            why = f"ended with {process.returncode}" if ended else f"not ready after {within_s} s"
            raise AssertionError(f"{why}; {log.name} says:\n{log.read_text(errors='replace')[-4000:]}")
        time.sleep(0.01)
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def end(process: subprocess.Popen[bytes]) -> int:
    """SIGTERM, and SIGKILL for one that does not listen; the exit code."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()
