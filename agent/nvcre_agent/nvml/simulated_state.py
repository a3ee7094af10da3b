"""The state of a simulated node: driver.json, and driver-events.jsonl that a scenario appends to.

Formats: docs/architecture.md, "Simulation directory".  Read for the simulated driver (simulated.py), which answers NVML
calls from it; what a healthy product answers is in the profile_*.yaml files.  Bad lines are logged, counted and
skipped; a bad driver.json is an error, because there is nothing to simulate without it.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from nvcre_agent.nvml.snapshot import READINGS, EventType, MigInstance, PciAddress

log = logging.getLogger(__name__)

MAX_LINE_BYTES = 64 * 1024
_PRODUCTS = ("a100", "h100", "h200", "b200", "gb200")
_WHOLE_GPU = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Profile:
    """What a healthy product answers; a reading that is not in it is NOT_SUPPORTED."""

    readings: Mapping[str, int]
    supported_events: int
    mig_slots: int


@dataclass(slots=True)
class SimulatedGpu:
    uuid: str
    pci: PciAddress
    serial: str
    minor: int
    readings: dict[str, int | None]  # None: NOT_SUPPORTED
    mig_instances: tuple[MigInstance, ...] = ()
    lost: bool = False
    garbled: bool = False  # every text that it answers is no text
    nvlinks_down: list[int] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)
    return_name: str = "SUCCESS"  # NVML return code of every call on it, without NVML_ERROR_
    calls: dict[str, str] = field(default_factory=dict)  # the same for single C functions


@dataclass(frozen=True, slots=True)
class Description:
    """driver.json."""

    product: str
    driver_version: str
    cuda_driver_version: int
    nvlinks: int
    memory_mib: int
    infiniband: bool
    missing_functions: frozenset[str]  # C functions that the library of this driver does not have
    profile: Profile
    gpus: tuple[SimulatedGpu, ...]


class BadDescription(ValueError):
    """driver.json is not what docs/architecture.md describes; the message names the field."""


def profile_of(product: str) -> Profile:
    """ValueError where no profile is of this product."""
    for pattern, profile in _profiles():
        if re.search(pattern, product):
            return profile
    raise ValueError(f"product {product!r}: no profile; there are {', '.join(name.upper() for name in _PRODUCTS)}")


@cache
def _profiles() -> list[tuple[str, Profile]]:
    files = [resources.files(__package__).joinpath(f"profile_{name}.yaml") for name in _PRODUCTS]
    contents = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in files]
    return [(raw["product"], Profile(raw["readings"], raw["supported_events"], raw["mig_slots"])) for raw in contents]


_NEEDED = {"product", "driver_version", "cuda_driver_version", "nvlinks", "memory_mib", "infiniband", "gpus"}
_OPTIONAL = {"missing_functions"}


def read_description(path: Path) -> Description:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadDescription(f"{path}: {error}") from error
    if not isinstance(raw, dict) or not _NEEDED <= set(raw) <= _NEEDED | _OPTIONAL:
        keys = sorted(raw) if isinstance(raw, dict) else type(raw).__name__
        raise BadDescription(f"{path}: needs the keys {sorted(_NEEDED)}, may have {sorted(_OPTIONAL)}, has {keys}")
    try:
        profile = profile_of(str(raw["product"]))
        return Description(
            product=str(raw["product"]),
            driver_version=str(raw["driver_version"]),
            cuda_driver_version=int(raw["cuda_driver_version"]),
            nvlinks=int(raw["nvlinks"]),
            memory_mib=int(raw["memory_mib"]),
            infiniband=bool(raw["infiniband"]),
            missing_functions=frozenset(map(str, raw.get("missing_functions", ()))),
            profile=profile,
            gpus=tuple(_gpu(gpu, profile) for gpu in raw["gpus"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadDescription(f"{path}: {type(error).__name__}: {error}") from error


def _gpu(raw: Mapping[str, Any], profile: Profile) -> SimulatedGpu:
    instances = mig_instances(raw.get("mig_instances", []))
    return SimulatedGpu(
        uuid=str(raw["uuid"]),
        pci=PciAddress.parse(raw["pci"]),
        serial=str(raw["serial"]),
        minor=int(raw["minor"]),
        readings={**profile.readings, **({"mig_mode": 1} if instances else {})},
        mig_instances=instances,
    )


def mig_instances(raw: Iterable[Any]) -> tuple[MigInstance, ...]:
    """ValueError for anything else than objects with gpu_instance, compute_instance, uuid and profile."""
    found = []
    for one in raw:
        match one:
            case {"gpu_instance": int(), "compute_instance": int(), "uuid": str(), "profile": str()} if len(one) == 4:
                found.append(MigInstance(**one))
            case _:
                raise ValueError(f"mig_instances: {one!r} needs gpu_instance, compute_instance, uuid, profile")
    return tuple(found)


@dataclass(frozen=True, slots=True)
class EventLine:
    """An NVML event.  `data` is the Xid where it is one."""

    gpu: int
    event: int
    data: int = 0
    gpu_instance: int = _WHOLE_GPU
    compute_instance: int = _WHOLE_GPU


@dataclass(frozen=True, slots=True)
class SetLine:
    gpu: int | None  # None: the whole node
    values: dict[str, Any]


_EVENTS = {kind.name.lower(): int(kind) for kind in EventType}
_FLAG_READINGS = ("remap_pending", "remap_failure", "retired_pages_pending", "ecc_mode", "persistence_mode", "mig_mode")
_EVENT_VALUES = ("code", "gpu_instance", "compute_instance")
DRIVER_STATES = ("loaded", "unloaded", "mismatch")


def parse_line(line: bytes, gpu_count: int) -> EventLine | SetLine:
    """ValueError says what is wrong with the line."""
    raw = json.loads(line)
    gpu = raw.get("gpu") if isinstance(raw, dict) else None
    if gpu is not None and (type(gpu) is not int or not 0 <= gpu < gpu_count):
        raise ValueError(f"gpu {gpu!r}: this node has GPUs 0 to {gpu_count - 1}")
    match raw:
        case {"gpu": int(), "event": str(name)} if set(raw) <= {"gpu", "event", *_EVENT_VALUES}:
            return _event(raw, name)
        case {"set": dict(values)} if set(raw) <= {"gpu", "set"}:
            for key, value in values.items():
                _check(key, value)
            return SetLine(gpu, values)
    raise ValueError(f'needs {{"gpu", "event", {_EVENT_VALUES}}} or {{"gpu"?, "set": {{...}}}} and no other key')


def _event(raw: dict[str, Any], name: str) -> EventLine:
    if name not in _EVENTS:
        raise ValueError(f"event {name!r}: needs one of {', '.join(_EVENTS)}")
    if name == "xid" and "code" not in raw:
        raise ValueError("code: an Xid needs its number")
    for key in _EVENT_VALUES:
        value = raw.get(key, 0)
        if type(value) is not int or not 0 <= value < 2**32:
            raise ValueError(f"{key} {value!r}: must be a number of 32 bits")
    return EventLine(
        raw["gpu"],
        _EVENTS[name],
        raw.get("code", 0),
        raw.get("gpu_instance", _WHOLE_GPU),
        raw.get("compute_instance", _WHOLE_GPU),
    )


_NUMBER = (int, float)
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(READINGS, (int, type(None))),
    **dict.fromkeys(_FLAG_READINGS, (bool, int, type(None))),
    **dict.fromkeys(("lost", "garbled"), (bool,)),
    **dict.fromkeys(("nvlinks_down", "processes", "mig_instances"), (list,)),
    **dict.fromkeys(("calls", "hang"), (dict,)),
    **dict.fromkeys(("hang_s", "init_s"), _NUMBER),
    **dict.fromkeys(("return", "driver"), (str,)),
}
SETTABLE = tuple(_KINDS)


def _check(key: str, value: Any) -> None:
    if key not in _KINDS:
        raise ValueError(f"unknown key {key!r}; known: {', '.join(SETTABLE)}")
    _is(key, value, _KINDS[key])
    match key:
        case "nvlinks_down" | "processes" if not all(type(item) is int for item in value):
            raise ValueError(f"{key} {value!r}: must be a list of numbers")
        case "hang":
            for function, seconds in value.items():
                _is(f"hang.{function}", seconds, _NUMBER)
        case "mig_instances":
            mig_instances(value)
        case "driver" if value not in DRIVER_STATES:
            raise ValueError(f"driver {value!r}: must be one of {', '.join(DRIVER_STATES)}")


def _is(key: str, value: object, kinds: tuple[type, ...]) -> None:
    if type(value) not in kinds:
        raise ValueError(f"{key} {value!r}: must be {' or '.join(kind.__name__ for kind in kinds)}")


class SimulatedNode:
    """Follows driver-events.jsonl beside driver.json.

    What the file held when the driver was opened is history: its `set` lines are applied, its events are not delivered,
    as with a real driver that only delivers what happens while a set is registered.
    """

    def __init__(self, description_path: Path, *, return_names: frozenset[str]) -> None:
        self.description = read_description(description_path)
        self.gpus = list(self.description.gpus)
        self.hang_until_s: dict[str, float] = {}  # wall clock, by C function; "" is every function
        self.init_s = 0.0  # what nvmlInit takes, as without the persistence daemon
        self.calls: dict[str, str] = {}  # return codes of C functions, on whatever GPU
        self.driver = "loaded"
        self.generation = 0  # of device handles: those of an unloaded driver are worth nothing afterwards
        self.bad_lines = 0
        self.events_path = description_path.with_name("driver-events.jsonl")
        self._return_names = return_names
        self._offset = 0
        self._tail = b""
        self.follow(lambda _event: None)

    def follow(self, deliver: Callable[[EventLine], None]) -> None:
        """Apply the lines that were appended since the last call."""
        try:
            status = os.stat(self.events_path)
        except FileNotFoundError:
            return
        if status.st_size == self._offset:
            return
        with self.events_path.open("rb") as events:
            events.seek(self._offset)
            while chunk := events.read(MAX_LINE_BYTES):
                self._offset += len(chunk)
                *lines, self._tail = (self._tail + chunk).split(b"\n")
                for line in lines:
                    self._read(line, deliver, status.st_mtime)
                if len(self._tail) > MAX_LINE_BYTES:
                    self._reject(self._tail, f"longer than {MAX_LINE_BYTES} bytes")
                    self._tail = b""

    def _read(self, line: bytes, deliver: Callable[[EventLine], None], written_at_s: float) -> None:
        if not line.strip():
            return
        try:
            match parse_line(line, len(self.gpus)):
                case EventLine() as event:
                    deliver(event)
                case SetLine(gpu, values):
                    self._set(gpu, values, written_at_s)
        except (ValueError, RecursionError) as error:  # json gives up on deep nesting with the latter
            self._reject(line, str(error))

    def _reject(self, line: bytes, why: str) -> None:
        self.bad_lines += 1
        log.error("event=bad_simulation_line file=%s bad_lines=%d error=%r line=%r",
                  self.events_path, self.bad_lines, why, line[:120])  # fmt: skip

    def _set(self, gpu: int | None, values: dict[str, Any], written_at_s: float) -> None:
        calls = values.get("calls", {})
        for name in (values.get("return", "SUCCESS"), *calls.values()):
            if name not in self._return_names:
                raise ValueError(f"return {name!r}: not an NVML return code")
        for key, value in values.items():
            match key:
                case "hang_s":
                    # Counted from when it was written: a driver that hangs still hangs for the next process.
                    self.hang_until_s[""] = written_at_s + value
                case "hang":
                    self.hang_until_s |= {name: written_at_s + seconds for name, seconds in value.items()}
                case "init_s":
                    self.init_s = float(value)
                case "driver":
                    self.generation += value == "unloaded" and self.driver != "unloaded"
                    self.driver = value
                case "calls" if gpu is None:
                    self.calls |= value
                case _:
                    for target in self.gpus if gpu is None else [self.gpus[gpu]]:
                        _set_on(target, key, value)


def _set_on(gpu: SimulatedGpu, key: str, value: Any) -> None:
    match key:
        case "return":
            gpu.return_name = value
        case "calls":
            gpu.calls |= value
        case "mig_instances":
            gpu.mig_instances = mig_instances(value)
            gpu.readings["mig_mode"] = int(bool(value))
        case _ if key in READINGS:
            gpu.readings[key] = None if value is None else int(value)
        case _:
            setattr(gpu, key, value)
