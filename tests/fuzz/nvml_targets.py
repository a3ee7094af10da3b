"""NVML below the real pynvml: any return code and any bytes in what a call fills, up to findings and incidents."""

import ctypes
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pynvml
from nvcre_agent import wire
from nvcre_agent.checks import baseline, rules, tracker
from nvcre_agent.checks.limits import shipped
from nvcre_agent.incidents.folding import Folding
from nvcre_agent.incidents.model import Change
from nvcre_agent.incidents.signals import from_nvml
from nvcre_agent.metrics import Metrics
from nvcre_agent.nvml import simulated
from nvcre_agent.nvml.driver import Driver, open_driver
from nvcre_agent.nvml.event_set import EventSet
from nvcre_agent.nvml.snapshot import (
    NvmlEvent,
    Snapshot,
    event_from_json,
    inventory_from_json,
    snapshot_from_json,
    to_json,
)

from fuzz.choices import Choices
from fuzz.scratch import scratch

WALL_S = 1_800_000_000.0
LOOKS = 2
GPUS = 1
PATTERN_BYTES = 8  # that garbage repeats


def nvml(data: bytes) -> None:
    choices = Choices(data)
    with _library(choices):
        driver = open_driver()
        if not isinstance(driver, Driver):
            assert driver.reason
            assert driver.message
            return
        node = _Node()
        for _ in range(LOOKS):
            inventory_from_json(_over_the_pipe(driver.inventory()))
            snapshot = driver.snapshot()
            told = snapshot_from_json(_over_the_pipe(snapshot))
            assert (told.gpus, told.unidentified, told.device_count) == (
                snapshot.gpus,
                snapshot.unidentified,
                snapshot.device_count,
            )
            node.snapshot(told)
            _events(driver, node)
        node.scraped()
        driver.lost()
        driver.trouble()
        driver.close()


def _events(driver: Driver, node: "_Node") -> None:
    made = EventSet.create(driver, sorted(driver.handles()))
    if not isinstance(made, EventSet):
        return
    for _ in range(LOOKS):
        if isinstance(event := made.wait(0), NvmlEvent):
            node.event(event_from_json(_over_the_pipe(event)))
    made.free()


def _over_the_pipe(value: Any) -> Any:
    return json.loads(json.dumps(to_json(value)))


class _Node:
    """What the agent makes of it."""

    def __init__(self) -> None:
        numbers = itertools.count()
        self._limits = _limits()
        self._baseline = baseline.Baseline()
        self._tracker = tracker.Tracker()
        self._folding = Folding(boot_id="boot", simulated=True, new_id=lambda: f"id-{next(numbers)}")
        self._metrics = Metrics("node", "1.0")
        self._clock_s = 1000.0

    def snapshot(self, snapshot: Snapshot) -> None:
        self._clock_s += 3600.0
        now = {"now_s": WALL_S + self._clock_s, "monotonic_s": self._clock_s}
        self._metrics.snapshot_seen(snapshot)
        said = rules.evaluate(snapshot, self._baseline, self._limits)
        self._tracker, found = self._tracker.step(said, self._clock_s, self._limits)
        for one in found:
            match one:
                case tracker.Opened(finding):
                    self._tell(self._folding.finding_opened(finding, **now))
                case tracker.Updated(finding):
                    self._tell(self._folding.finding_updated(finding, **now))
                case tracker.Recovered(finding):
                    self._tell(self._folding.finding_recovered(finding, **now))
        self._baseline = self._baseline.advance(snapshot)
        baseline.Baseline.from_json(json.loads(json.dumps(self._baseline.to_json("boot"))), "boot")

    def event(self, event: NvmlEvent) -> None:
        if (signal := from_nvml(event)) is not None:
            self._metrics.signal_seen(signal)
            self._tell(self._folding.fold(signal))

    def scraped(self) -> None:
        assert len(self._metrics.scrape()) < (1 << 20)

    def _tell(self, changes: tuple[Change, ...]) -> None:
        for change in changes:
            message = wire.event(change, "boot")
            wire.incident_from(type(message).FromString(message.SerializeToString()).incident)


_limits = cache(shipped)


# --- the library below pynvml


@contextmanager
def _library(choices: Choices) -> Iterator[None]:
    well_behaved = _simulated()
    simulated.uninstall()  # and what pynvml remembers of the library before
    pynvml.nvmlLib = _Hostile(well_behaved, choices)
    try:
        yield
    finally:
        simulated.uninstall()


class _Hostile:
    """Behaves as the simulated driver until `choices` says otherwise."""

    def __init__(self, library: simulated.SimulatedNvml, choices: Choices) -> None:
        self._library = library
        self._choices = choices

    def __getattr__(self, name: str) -> Callable[..., int]:
        real: Callable[..., int] = getattr(self._library, name)  # AttributeError: a symbol that is missing

        def call(*arguments: Any) -> int:
            match self._choices.number() % 8:
                case 4:
                    return self._choices.number(2) % 1024
                case 5:
                    code = real(*arguments)
                    self._scribble(arguments)
                    return code
                case 6:
                    self._scribble(arguments)
                    return int(pynvml.NVML_SUCCESS)
                case 7:
                    self._scribble(arguments)
                    return self._choices.number()
                case _:
                    return real(*arguments)

        return call

    def _scribble(self, arguments: tuple[Any, ...]) -> None:
        """Over everything that the call may fill: what it was given by reference, and buffers."""
        for argument in arguments:
            target = getattr(argument, "_obj", argument if isinstance(argument, ctypes.Array) else None)
            if target is not None:
                size = ctypes.sizeof(target)
                garbage = self._choices.take(min(size, PATTERN_BYTES))
                ctypes.memmove(ctypes.addressof(target), (garbage * size)[:size], size)


@cache
def _simulated() -> simulated.SimulatedNvml:
    return simulated.install(_description())


def _description() -> Path:
    path = scratch("driver.json")
    gpus = [
        {"uuid": f"GPU-{index}", "pci": f"0000:{0x1B + index:02x}:00", "serial": f"s{index}", "minor": index}
        for index in range(GPUS)
    ]
    path.write_text(
        json.dumps(
            {
                "product": "NVIDIA H100 80GB HBM3",
                "driver_version": "570.133.20",
                "cuda_driver_version": 12080,
                "nvlinks": 18,
                "memory_mib": 81559,
                "infiniband": False,
                "gpus": gpus,
            }
        )
    )
    return path
