"""The command as a person runs it: a subprocess, in a temporary directory of its own that must be empty afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_S = 150


@dataclass(frozen=True)
class Ended:
    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.stdout)
        return found


class Nvcre:
    """`run` to the end, or `start` and do something in between. What it leaves behind is found by `leftovers`."""

    def __init__(self, temporary: Path) -> None:
        self.temporary = temporary
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *words: str | Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "nvcre_cli", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(self.temporary), "COLUMNS": "200", "NO_COLOR": "1"},
        )
        self._started.append(process)
        return process

    def run(self, *words: str | Path) -> Ended:
        return self.end(self.start(*words))

    def end(self, process: subprocess.Popen[str]) -> Ended:
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
        return Ended(process.returncode, stdout, stderr)

    def processes(self, program: str = "") -> list[int]:
        """Those that name our temporary directory; `program` is part of their arguments."""
        found = []
        mark = str(self.temporary).encode()
        for process in Path("/proc").iterdir():
            if not process.name.isdecimal() or int(process.name) == os.getpid():
                continue
            try:
                arguments = (process / "cmdline").read_bytes()
                if mark in arguments + (process / "environ").read_bytes() and program.encode() in arguments:
                    found.append(int(process.name))
            except OSError:
                continue  # it ended while we looked
        return found

    def leftovers(self) -> list[str]:
        """Processes, and files in the temporary directory."""
        return [str(path) for path in self.temporary.iterdir()] + [f"process {number}" for number in self.processes()]

    def kill(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


@pytest.fixture
def nvcre(tmp_path: Path) -> Iterator[Nvcre]:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = Nvcre(temporary)
    try:
        yield command
    finally:
        command.kill()


def until(stream: Any, said: Callable[[str], bool]) -> str:
    """Reads lines until one says it; gives that one."""
    lines = []
    for line in stream:
        lines.append(line)
        if said(line):
            return str(line)
    raise AssertionError(f"never said; instead:\n{''.join(lines)}")
