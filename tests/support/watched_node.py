"""The agent's watching over a simulated node: both sources, folding and a volatile outbox, without a coordinator."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from nvcre_agent.host.reading import HostReader
from nvcre_agent.metrics import Metrics
from nvcre_agent.nvml.monitor import NvmlMonitor
from nvcre_agent.nvml.timing import Timing
from nvcre_agent.outbox import open_outbox
from nvcre_agent.watch import Watch
from nvcre_protos import nvcre_agent_v1_pb2 as pb

from tests.support.simulated_nvml import SimulationDirectory, eventually


@dataclass
class WatchedNode:
    node: SimulationDirectory
    kernel_log: Path
    nvml: NvmlMonitor
    watch: Watch
    _sequence: int = 1000

    def kernel(self, line: str) -> None:
        self._sequence += 1
        with self.kernel_log.open("a") as log:
            log.write(f"3,{self._sequence},{time.monotonic_ns() // 1000},-;{line}\n")

    @property
    def incidents(self) -> list[tuple[int, str]]:
        """Xid and GPU of what is open, in the order of its beginning."""
        return [(one.code, one.component.uuid) for one in self.watch.folding.open_incidents]

    async def sees(self, *incidents: tuple[int, str]) -> None:
        await eventually(lambda: self.incidents == list(incidents))

    async def nvml_says(self, reason: str) -> None:
        """`reason` as the coordinator is told it; empty while watching."""
        await eventually(lambda: self._nvml_monitor().reason == reason)

    def _nvml_monitor(self) -> pb.Monitor:
        return next(one for one in self.watch.monitors() if one.name == "nvml")


@contextlib.asynccontextmanager
async def watching(node: SimulationDirectory, timing: Timing) -> AsyncIterator[WatchedNode]:
    root = node.description.parent
    kernel_log = root / "kmsg"
    kernel_log.touch()
    outbox = open_outbox(Path(":memory:"))
    nvml = NvmlMonitor(simulate=node.description, timing=timing)
    watch = Watch(
        boot_id="boot-1",
        kernel_log=kernel_log,
        nvml=nvml,
        host=HostReader(root / "sys", root / "proc"),
        outbox=outbox,
        metrics=Metrics("node-0", "0"),
        simulated=True,
    )
    outbox.start()
    await nvml.start()
    tasks = [asyncio.create_task(one) for one in (outbox.run(), watch.run_nvml(), watch.run_kernel_log())]
    watched = WatchedNode(node, kernel_log, nvml, watch)
    try:
        await watched.nvml_says("")
        yield watched
    finally:
        await nvml.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await outbox.close()
