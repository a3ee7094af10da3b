"""Runs the agent with a wall clock that is wrong by as much as a file says: `... FILE ARGUMENTS`, for `Clock`.

Only what the process asks `time` for is shifted: the kernel's own clocks, and the agent's child, stay as they are.
"""

import mmap
import runpy
import struct
import sys
import time
from pathlib import Path

_SECONDS = struct.Struct("d")


class Clock:
    """The wall clock of a process that runs under this module; may jump while it runs."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.jump_to(0.0)

    def jump_to(self, offset_s: float) -> None:
        with self.file.open("r+b" if self.file.exists() else "w+b") as file:
            file.write(_SECONDS.pack(offset_s))

    @property
    def launcher(self) -> tuple[str, ...]:
        """In place of `-m nvcre_agent`."""
        return "-m", "support.shifted_clock", str(self.file)


def main() -> None:
    with Path(sys.argv[1]).open("rb") as file:
        offset = mmap.mmap(file.fileno(), _SECONDS.size, prot=mmap.PROT_READ)
    right = time.time
    time.time = lambda: right() + _SECONDS.unpack_from(offset)[0]  # type: ignore[assignment]
    sys.argv = ["nvcre-agent", *sys.argv[2:]]
    runpy.run_module("nvcre_agent", run_name="__main__", alter_sys=False)


if __name__ == "__main__":
    main()
