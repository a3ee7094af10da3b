"""The NVML child's way to speak: one JSON object a line to the agent, whatever else the process prints."""

from __future__ import annotations

import json
import os
from typing import Any


class Mouth:
    """For one thread."""

    def __init__(self) -> None:
        # Whatever else in this process prints to stdout, a C library included, must not end up between our lines.
        self._fd = os.dup(1)
        os.dup2(2, 1)

    def say(self, kind: str, **values: Any) -> None:
        line = json.dumps({"say": kind, **values}, separators=(",", ":")).encode() + b"\n"
        view = memoryview(line)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except BrokenPipeError:
            os._exit(0)  # the parent is gone, and so is the reason for this process
