"""Where the command prints: a reader who leaves (`| head`, a closed window) does not change how a run ends."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from rich.console import Console


class Terminal(Console):
    """rich's own console ends the process with 1 when its reader left; here 1 is a verdict about a run."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        to_nowhere(sys.stderr if self.stderr else sys.stdout)


def to_nowhere(stream: TextIO) -> None:
    """What is still buffered would fail again when Python ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def write_result(text: str) -> None:
    """To stdout, at once."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        to_nowhere(sys.stdout)
