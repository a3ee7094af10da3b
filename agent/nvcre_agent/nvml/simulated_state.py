"""The state of a simulated node: driver.json, and driver-events.jsonl that a scenario appends to.

Formats: docs/architecture.md, "Simulation directory".  Read for the simulated driver (simulated.py), which answers NVML
calls from it.  Bad lines are logged, counted and skipped; a bad driver.json is an error, because there is nothing to
simulate without it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvcre_agent.nvml.snapshot import PciAddress

log = logging.getLogger(__name__)

MAX_LINE_BYTES = 64 * 1024


@dataclass(slots=True)
class SimulatedGpu:
    uuid: str
    pci: PciAddress
    serial: str
    minor: int
    lost: bool = False
    recovery_action: int = 0
    ecc_uncorrected_volatile: int = 0
    ecc_uncorrected_aggregate: int = 0
    ecc_corrected_volatile: int = 0
    ecc_corrected_aggregate: int = 0
    remap_pending: bool = False
    remap_failure: bool = False
    nvlinks_down: list[int] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)
    return_name: str = "SUCCESS"  # NVML return code of every call on it, without NVML_ERROR_


_SETTABLE: dict[str, type] = {
    "lost": bool,
    "recovery_action": int,
    "ecc_uncorrected_volatile": int,
    "ecc_uncorrected_aggregate": int,
    "ecc_corrected_volatile": int,
    "ecc_corrected_aggregate": int,
    "remap_pending": bool,
    "remap_failure": bool,
    "nvlinks_down": list,
    "processes": list,
    "return": str,
    "hang_s": float,
}


@dataclass(frozen=True, slots=True)
class Description:
    """driver.json."""

    product: str
    driver_version: str
    cuda_driver_version: int
    nvlinks: int
    memory_mib: int
    infiniband: bool
    gpus: tuple[SimulatedGpu, ...]


class BadDescription(ValueError):
    """driver.json is not what docs/architecture.md describes; the message names the field."""


def read_description(path: Path) -> Description:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadDescription(f"{path}: {error}") from error
    known = {"product", "driver_version", "cuda_driver_version", "nvlinks", "memory_mib", "infiniband", "gpus"}
    if not isinstance(raw, dict) or set(raw) != known:
        keys = sorted(raw) if isinstance(raw, dict) else type(raw).__name__
        raise BadDescription(f"{path}: needs exactly the keys {sorted(known)}, has {keys}")
    try:
        return Description(
            product=str(raw["product"]),
            driver_version=str(raw["driver_version"]),
            cuda_driver_version=int(raw["cuda_driver_version"]),
            nvlinks=int(raw["nvlinks"]),
            memory_mib=int(raw["memory_mib"]),
            infiniband=bool(raw["infiniband"]),
            gpus=tuple(
                SimulatedGpu(str(gpu["uuid"]), PciAddress.parse(gpu["pci"]), str(gpu["serial"]), int(gpu["minor"]))
                for gpu in raw["gpus"]
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadDescription(f"{path}: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class XidLine:
    gpu: int
    code: int


@dataclass(frozen=True, slots=True)
class SetLine:
    gpu: int | None  # None: the whole node
    values: dict[str, Any]


def parse_line(line: bytes, gpu_count: int) -> XidLine | SetLine:
    """ValueError says what is wrong with the line."""
    raw = json.loads(line)
    gpu = raw.get("gpu") if isinstance(raw, dict) else None
    if gpu is not None and (type(gpu) is not int or not 0 <= gpu < gpu_count):
        raise ValueError(f"gpu {gpu!r}: this node has GPUs 0 to {gpu_count - 1}")
    match raw:
        case {"gpu": int(), "event": "xid", "code": int(code)} if len(raw) == 3:
            if not 0 <= code < 2**32:
                raise ValueError(f"code {code}: not an Xid")
            return XidLine(raw["gpu"], code)
        case {"set": dict(values)} if set(raw) <= {"gpu", "set"}:
            for key, value in values.items():
                _check(key, value)
            return SetLine(gpu, values)
    raise ValueError('needs {"gpu", "event": "xid", "code"} or {"gpu"?, "set": {...}} and no other key')


def _check(key: str, value: object) -> None:
    kind = _SETTABLE.get(key)
    if kind is None:
        raise ValueError(f"unknown key {key!r}; known: {', '.join(_SETTABLE)}")
    allowed = (int, float) if kind is float else (kind,)
    if type(value) not in allowed:
        raise ValueError(f"{key} {value!r}: must be {kind.__name__}")
    if isinstance(value, list) and not all(type(item) is int for item in value):
        raise ValueError(f"{key} {value!r}: must be a list of numbers")


class SimulatedNode:
    """Follows driver-events.jsonl beside driver.json.

    What the file held when the driver was opened is history: its `set` lines are applied, its events are not delivered,
    as with a real driver that only delivers what happens while a set is registered.
    """

    def __init__(self, description_path: Path, *, return_names: frozenset[str]) -> None:
        self.description = read_description(description_path)
        self.gpus = list(self.description.gpus)
        self.hang_until_s = 0.0  # wall clock
        self.bad_lines = 0
        self.events_path = description_path.with_name("driver-events.jsonl")
        self._return_names = return_names
        self._offset = 0
        self._tail = b""
        self.follow(lambda _gpu, _code: None)

    def follow(self, deliver_xid: Callable[[int, int], None]) -> None:
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
                    self._read(line, deliver_xid, status.st_mtime)
                if len(self._tail) > MAX_LINE_BYTES:
                    self._reject(self._tail, f"longer than {MAX_LINE_BYTES} bytes")
                    self._tail = b""

    def _read(self, line: bytes, deliver_xid: Callable[[int, int], None], written_at_s: float) -> None:
        if not line.strip():
            return
        try:
            self._apply(parse_line(line, len(self.gpus)), deliver_xid, written_at_s)
        except (ValueError, RecursionError) as error:  # json gives up on deep nesting with the latter
            self._reject(line, str(error))

    def _reject(self, line: bytes, why: str) -> None:
        self.bad_lines += 1
        log.error("event=bad_simulation_line file=%s bad_lines=%d error=%r line=%r",
                  self.events_path, self.bad_lines, why, line[:120])  # fmt: skip

    def _apply(self, said: XidLine | SetLine, deliver_xid: Callable[[int, int], None], written_at_s: float) -> None:
        match said:
            case XidLine(gpu, code):
                deliver_xid(gpu, code)
            case SetLine(gpu, values):
                if (name := values.get("return")) is not None and name not in self._return_names:
                    raise ValueError(f"return {name!r}: not an NVML return code")
                for target in self.gpus if gpu is None else [self.gpus[gpu]]:
                    for key, value in values.items():
                        if key != "hang_s":
                            setattr(target, "return_name" if key == "return" else key, value)
                if "hang_s" in values:
                    # Counted from when it was written: a driver that hangs still hangs for the next process.
                    self.hang_until_s = written_at_s + values["hang_s"]
