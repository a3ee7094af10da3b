"""A simulated node in a directory, and the NVML monitor with its real child process over it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvcre_agent.nvml.monitor import NvmlMonitor, Observation
from nvcre_agent.nvml.snapshot import MonitorState, NvmlEvent, Sight
from nvcre_agent.nvml.timing import Timing

GPUS = 8


class SimulationDirectory:
    def __init__(self, root: Path) -> None:
        self.description = root / "driver.json"
        self.events = root / "driver-events.jsonl"
        self.describe()

    def describe(self, **changes: Any) -> None:
        gpus = [
            {"uuid": f"GPU-{i}", "pci": f"0000:{0x1B + i:02x}:00", "serial": f"165{i}", "minor": i} for i in range(GPUS)
        ]
        plain = {
            "product": "NVIDIA H100 80GB HBM3",
            "driver_version": "570.133.20",
            "cuda_driver_version": 12080,
            "nvlinks": 18,
            "memory_mib": 81559,
            "infiniband": True,
            "gpus": gpus,
        }
        self.description.write_text(json.dumps({**plain, **changes}))

    def append(self, *lines: dict[str, Any] | str) -> None:
        text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
        with self.events.open("a") as events:
            events.write(text)

    def xid(self, gpu: int, code: int) -> None:
        self.append({"gpu": gpu, "event": "xid", "code": code})

    def set(self, gpu: int | None, **values: Any) -> None:
        values = {"return" if key == "return_" else key: value for key, value in values.items()}
        self.append({"set": values} if gpu is None else {"gpu": gpu, "set": values})


TIMING = Timing(wait_s=0.2, check_s=0.1, hang_s=1.0, abandon_s=1.5, first_backoff_s=0.05)
SOON_S = 20.0  # how long a test waits for something that must come; never how long it takes


@dataclass
class Listener:
    """Collects the stream, so that a test can wait for what it expects."""

    monitor: NvmlMonitor
    heard: list[Observation] = field(default_factory=list)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def listen(self) -> None:
        async for item in self.monitor.events():
            async with self._news:
                self.heard.append(item)
                self._news.notify_all()

    async def until(self, wanted: Callable[[Observation], bool], *, after: int = 0) -> Observation:
        async with asyncio.timeout(SOON_S), self._news:
            await self._news.wait_for(lambda: any(wanted(item) for item in self.heard[after:]))
        return next(item for item in self.heard[after:] if wanted(item))

    async def watching(self, *, after: int = 0) -> None:
        await self.until(lambda item: isinstance(item, MonitorState) and item.sight is Sight.WATCHING, after=after)

    async def blind(self, *, after: int = 0) -> MonitorState:
        state = await self.until(lambda item: isinstance(item, MonitorState) and item.sight is Sight.BLIND, after=after)
        assert isinstance(state, MonitorState)
        return state

    def xids(self) -> list[tuple[str, int]]:
        return [(item.gpu.uuid, item.data) for item in self.heard if isinstance(item, NvmlEvent) and item.gpu]


@contextlib.asynccontextmanager
async def monitoring(simulate: Path | None, timing: Timing = TIMING) -> AsyncIterator[Listener]:
    monitor = NvmlMonitor(simulate=simulate, timing=timing)
    listener = Listener(monitor)
    await monitor.start()
    listening = asyncio.create_task(listener.listen())
    try:
        yield listener
    finally:
        await monitor.stop()
        await listening


async def eventually(wanted: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_S):
        while not wanted():  # noqa: ASYNC110  about another process, which sets no event of ours
            await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    """False for a zombie too: an orphan's may stay where no init process reaps it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
