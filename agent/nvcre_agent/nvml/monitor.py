"""Watches the GPUs for the agent: owns the NVML child process and turns what it says into one stream of values.

All NVML calls live in the child (nvcre_agent.nvml.worker), because a call can hang for ever in the driver.  This class
starts the child, notices when it dies or hangs, says Blind with a reason meanwhile, and never has more than one child.
It neither judges snapshots (checks/) nor keeps history.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from pathlib import Path

from nvcre_agent.nvml.snapshot import Inventory, MonitorState, NvmlEvent, Snapshot


class NvmlMonitor:
    """`async for item in monitor.events()` yields events, snapshots and changes of its own state, in order."""

    inventory: Inventory | None
    state: MonitorState

    def __init__(self, *, simulate: Path | None = None, snapshot_interval_s: float = 30.0) -> None: ...

    async def start(self) -> None:
        """Start the child; returns at once, the first MonitorState comes through events()."""

    async def stop(self) -> None:
        """End the child within 6 s; one stuck in the driver is left behind with a log line."""

    def events(self) -> AsyncIterator[NvmlEvent | Snapshot | MonitorState]:
        """One consumer; ends after stop()."""
        raise NotImplementedError

    async def drain(self, deadline_s: float) -> bool:
        """True once every event that NVML had before this call has been handed out by events(); False while Blind."""
        raise NotImplementedError

    async def snapshot(self, deadline_s: float) -> Snapshot | None:
        """A fresh snapshot (it also goes through events()); None when Blind or late."""
        raise NotImplementedError

    def foreign_processes(self, own_pids: Collection[int]) -> int:
        """Processes on the GPUs in the last snapshot that are not in own_pids."""
        raise NotImplementedError
