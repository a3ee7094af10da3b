"""Where the command prints: a reader who leaves (`| head`, a closed window) does not change how a run ends.

What it prints has words of programs and pods in it, and none of their control characters commands the terminal.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

# They take no room, so tables are laid out without them: C0 and C1, what turns the direction of writing, no characters.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufffe\uffff\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Without control characters, which XML cannot hold either, but with line ends; nor halves of UTF-16 pairs."""
    return _CONTROLS.sub("", text).encode("utf-8", "replace").decode()


class Terminal(Console):
    """rich's own console ends the process with 1 when its reader left; here 1 is a verdict about a run."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control is None and _CONTROLS.search(segment.text):
                yield Segment(_CONTROLS.sub("", segment.text), segment.style)
            else:
                yield segment

    def on_broken_pipe(self) -> None:
        self.quiet = True
        to_nowhere(sys.stderr if self.stderr else sys.stdout)


def to_nowhere(stream: TextIO) -> None:
    """What is still buffered would fail again when Python ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def complain(message: str) -> None:
    """To stderr, at once."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"nvcre: {printable(message)}\n")
        sys.stderr.flush()


def write_result(text: str) -> None:
    """To stdout, at once."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        to_nowhere(sys.stdout)
