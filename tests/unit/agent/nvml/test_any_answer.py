"""Whatever NVML returns: no answer ends the worker, and none becomes a value that cannot be.

Hypothesis chooses return codes for any C functions, of one GPU or of the whole library, and garbage for any reading,
below the real pynvml; the loop of the worker's NVML thread runs over it in this process.
"""

import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvcre_agent.nvml import simulated, simulated_device, watching
from nvcre_agent.nvml.driver import open_driver
from nvcre_agent.nvml.plausible import plausible
from nvcre_agent.nvml.snapshot import (
    READINGS,
    GpuSnapshot,
    Unread,
    event_from_json,
    inventory_from_json,
    snapshot_from_json,
)

from tests.support.simulated_nvml import SimulationDirectory

LIBRARY = (
    "nvmlInitWithFlags", "nvmlShutdown", "nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlEventSetCreate", "nvmlEventSetFree",
    "nvmlEventSetWait_v2", "nvmlDeviceRegisterEvents", "nvmlDeviceGetMigDeviceHandleByIndex",
)  # fmt: skip
DEVICE = tuple(
    sorted({name for name in dir(simulated_device.DeviceFunctions) if name.startswith("nvml")})
    + sorted(simulated_device._ONE_VALUE)
)
MIG = [{"gpu_instance": 1, "compute_instance": 0, "uuid": "MIG-1", "profile": "1g.10gb"}]

codes = st.sampled_from(sorted(simulated.RETURN_CODES))
calls = st.dictionaries(st.sampled_from(LIBRARY + DEVICE), codes, max_size=6)
numbers = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([0x7FFFFFF0, 0xFFFFFFFF, 2**63 - 1, 0x7FFFFFFFFFFFFFF2]),
    st.none(),
)
FLAGS = {"remap_pending", "remap_failure", "retired_pages_pending", "ecc_mode", "persistence_mode", "mig_mode"}
faults = st.fixed_dictionaries(
    {},
    optional={
        "calls": calls,
        "return": codes,
        "lost": st.booleans(),
        "garbled": st.booleans(),
        "mig_instances": st.sampled_from([[], MIG, [{**MIG[0], "gpu_instance": 2**40}]]),
        "nvlinks_down": st.lists(st.integers(-1, 40), max_size=3),
        "processes": st.lists(st.integers(-(2**31), 2**32), max_size=3),
        "driver": st.sampled_from(["loaded", "unloaded", "mismatch"]),
        **dict.fromkeys(READINGS, numbers),
    },
)
events = st.fixed_dictionaries(
    {"gpu": st.integers(0, 2), "event": st.just("xid"), "code": st.integers(0, 2**32 - 1)},
    optional={"gpu_instance": st.integers(0, 2**32 - 1), "compute_instance": st.integers(0, 2**32 - 1)},
)
lines = st.one_of(
    st.builds(lambda gpu, values: {"gpu": gpu, "set": values}, st.integers(0, 2), faults),
    st.builds(lambda values: {"set": values}, faults),
    events,
)


class Ear:
    """Hears what the worker would write to the agent, as the agent would read it; ends the loop after a while."""

    def __init__(self, node: SimulationDirectory, later: list[dict[str, Any]]) -> None:
        self._node = node
        self._later = later
        self.heard: list[str] = []
        self.thread: watching.Watching | None = None

    def say(self, kind: str, **values: Any) -> None:
        said = json.loads(json.dumps({"say": kind, **values}))
        self.heard.append(kind)
        match said:
            case {"say": "snapshot", "snapshot": raw}:
                for gpu in snapshot_from_json(raw).gpus:
                    check(gpu)
                if self._later:
                    self._node.append(self._later.pop(0))
                elif self.thread is not None:
                    self.thread.stop()
            case {"say": "event", "event": raw}:
                event_from_json(raw)
            case {"say": "watching", "inventory": raw}:
                inventory_from_json(raw)
        if len(self.heard) > 50 and self.thread is not None:
            self.thread.stop()


def check(gpu: GpuSnapshot) -> None:
    for name in READINGS:
        value = getattr(gpu, name)
        assert plausible(name, value) == value, name
    assert all(link in (0, 1) or isinstance(link, Unread) for link in gpu.nvlinks)
    assert isinstance(gpu.processes, Unread) or all(pid > 0 for pid in gpu.processes)
    assert isinstance(gpu.mig_instances, Unread) or all(one.gpu_instance < 64 for one in gpu.mig_instances)


@contextmanager
def simulated_node(first: list[dict[str, Any]]) -> Iterator[SimulationDirectory]:
    with tempfile.TemporaryDirectory() as directory:
        node = SimulationDirectory(Path(directory))
        node.describe(gpus=json.loads(node.description.read_text())["gpus"][:3])
        node.append(*first)
        simulated.install(node.description)
        yield node
        simulated.uninstall()


@settings(max_examples=80, deadline=None)
@given(first=st.lists(lines, max_size=3), later=st.lists(lines, max_size=4))
def test_no_answer_of_nvml_ends_the_worker_or_becomes_an_impossible_value(
    first: list[dict[str, Any]], later: list[dict[str, Any]]
) -> None:
    with simulated_node(first) as node:
        ear, ended = Ear(node, later), threading.Event()
        thread = watching.Watching(
            open_driver,
            ear,  # type: ignore[arg-type]
            wait_s=0.001,
            snapshot_interval_s=0.0,
            ended=ended.set,
        )
        ear.thread = thread
        thread.run()  # here, so that what it raises is seen
    assert not thread.failed
    assert ended.is_set()
    assert ear.heard
    assert {"snapshot", "blind"} & set(ear.heard)


@pytest.mark.parametrize("name", READINGS)
def test_every_reading_has_a_range_that_lets_a_plain_value_pass(name: str) -> None:
    assert plausible(name, 1) == 1
    assert plausible(name, -(1 << 63)) is Unread.FAILED
    assert plausible(name, 1 << 63) is Unread.FAILED
    assert plausible(name, Unread.LOST) is Unread.LOST
