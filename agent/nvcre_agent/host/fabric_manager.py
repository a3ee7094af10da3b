"""Is NVIDIA's fabric manager alive, and is it needed here?  Looks for its process in /proc; it restarts nothing.

Listing all processes is the costly part (some 10 us each): a process that was found is looked at again by its number
alone, and where nothing needs it, it is searched for only now and then.
"""

from __future__ import annotations

from pathlib import Path

from nvcre_agent.host.model import FabricManager

_KERNEL_THREADS = b"kthreadd"  # process 2 of the host, and of no container
_COMM = b"nv-fabricmanage"  # the kernel keeps 15 characters of "nv-fabricmanager"
SEARCH_EVERY = 20  # readings, where it neither runs nor is needed


class FabricManagerReader:
    """`proc` is the host's /proc: the agent's Pod has hostPID.  A container without it would miss every service."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._pid: str | None = None
        self._readings = 0

    def read(self, *, seen_before: bool) -> FabricManager | None:
        """None where the host's processes are not to be seen.  `seen_before`: it once ran on this node."""
        if not self._is(_KERNEL_THREADS, "2"):
            return None
        needed = self._lists_switches()
        if self._pid is None or not self._is(_COMM, self._pid):
            self._pid = None
            if needed or seen_before or self._readings % SEARCH_EVERY == 0:
                try:
                    self._pid = self._find()
                except OSError:
                    return None
        self._readings += 1
        return FabricManager(needed=needed, running=self._pid is not None)

    def _lists_switches(self) -> bool:
        try:
            return any((self._proc / "driver/nvidia-nvswitch/devices").iterdir())
        except OSError:
            return False

    def _find(self) -> str | None:
        pids = (entry.name for entry in self._proc.iterdir() if entry.name.isdigit())
        return next((pid for pid in pids if self._is(_COMM, pid)), None)

    def _is(self, comm: bytes, pid: str) -> bool:
        try:
            return (self._proc / pid / "comm").read_bytes().strip() == comm
        except OSError:
            return False
