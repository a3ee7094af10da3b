"""One reading of the host beside each NVML snapshot, without ever holding up the event loop.

The state of a port comes from the NIC's firmware, and a read blocks as long as that hangs.  So a node with such ports
reads them in a short-lived thread that is waited for briefly; while one is stuck there is no second one, and the ports
are unread.  A node without them never has a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from pathlib import Path

from nvcre_agent.host.fabric_manager import FabricManagerReader
from nvcre_agent.host.infiniband import has_ports, read_ports
from nvcre_agent.host.model import Host, IbPort

log = logging.getLogger(__name__)

PATIENCE_S = 2.0

_Ports = tuple[IbPort, ...] | None


class HostReader:
    """`sysfs` and `proc` are the host's /sys and /proc."""

    def __init__(self, sysfs: Path, proc: Path, *, patience_s: float = PATIENCE_S) -> None:
        self._sysfs = sysfs
        self._patience_s = patience_s
        self._fabric_manager = FabricManagerReader(proc)
        self._pending: asyncio.Future[_Ports] | None = None

    async def read(self, *, manager_seen: bool = False) -> Host:
        """`manager_seen`: the fabric manager once ran on this node, so it is searched for each time."""
        return Host(ports=await self._ports(), fabric_manager=self._fabric_manager.read(seen_before=manager_seen))

    async def _ports(self) -> _Ports:
        if self._pending is None:
            if not has_ports(self._sysfs):
                return None
            self._pending = _in_a_thread(self._sysfs)
            await asyncio.wait({self._pending}, timeout=self._patience_s)
            if not self._pending.done():
                log.warning("sysfs does not answer path=%s; the ports are unread until it does", self._sysfs)
        if not self._pending.done():
            return None
        read, self._pending = self._pending.result(), None
        return read


def host_reader(sysfs: Path | None, procfs: Path | None, simulate: Path | None) -> HostReader:
    """A simulated node has its own: `sys` and `proc` beside its description, never those of this machine."""
    root = simulate.parent if simulate is not None else Path("/")
    return HostReader(sysfs or root / "sys", procfs or root / "proc")


def _in_a_thread(sysfs: Path) -> asyncio.Future[_Ports]:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[_Ports] = loop.create_future()

    def settle(ports: _Ports, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(ports)

    def work() -> None:
        ports, error = None, None
        try:
            ports = read_ports(sysfs)
        except BaseException as raised:  # noqa: BLE001 - raised again in the event loop, where it ends the agent
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody asks any more
            loop.call_soon_threadsafe(settle, ports, error)

    # A daemon, because a stuck read must not keep the agent from ending.
    threading.Thread(target=work, name="nvcre-sysfs", daemon=True).start()
    return answer
