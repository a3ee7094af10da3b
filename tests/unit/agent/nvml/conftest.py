"""A simulated node in a directory: driver.json, and a scenario that appends to driver-events.jsonl."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nvcre_agent.nvml import simulated
from nvcre_agent.nvml.driver import Driver, open_driver

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


@pytest.fixture
def simulation(tmp_path: Path) -> SimulationDirectory:
    return SimulationDirectory(tmp_path)


@pytest.fixture
def library(simulation: SimulationDirectory) -> Iterator[simulated.SimulatedNvml]:
    """pynvml over the simulated library, in this process."""
    yield simulated.install(simulation.description)
    simulated.uninstall()


@pytest.fixture
def driver(library: simulated.SimulatedNvml) -> Driver:
    opened = open_driver()
    assert isinstance(opened, Driver)
    return opened
