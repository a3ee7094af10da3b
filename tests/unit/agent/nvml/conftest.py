"""A simulated node, and the driver layer over it in this process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from nvcre_agent.nvml import simulated
from nvcre_agent.nvml.driver import Driver, open_driver

from tests.support.simulated_nvml import SimulationDirectory


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
