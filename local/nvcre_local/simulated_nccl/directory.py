"""The simulation directory as the shims see it: figures, drivers, crash orders, and the handshake of one workload.

Reads and writes files, each written atomically; it knows nothing of nccl-tests. The layout is the contract in
docs/architecture.md ("Simulation directory").
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvcre_local.simulated_nccl.fabric import NodeLinks

# A JobSet's Pods: <jobset>-<replicated job>-<job index>-<completion index>[-<random>].
_POD_NAME = re.compile(r"(?P<jobset>.+?)-(?P<part>launcher|node)-\d+-(?P<rank>\d+)(?:-[a-z0-9]+)?")


class SimulationBroken(Exception):
    """Something a scenario must have written is missing; the message says what."""


@dataclass(frozen=True, slots=True)
class Crash:
    """What the worker of a node prints before it exits."""

    exit_code: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Worker:
    """A started rank group: one Pod that owns all GPUs of its node."""

    rank: int
    node: str
    pid: int


@dataclass(frozen=True, slots=True)
class PodIdentity:
    jobset: str
    part: str
    rank: int

    @classmethod
    def parse(cls, pod_name: str) -> PodIdentity:
        match = _POD_NAME.fullmatch(pod_name)
        if match is None:
            raise SimulationBroken(f"NVCRE_POD_NAME={pod_name!r} is not a Pod of a JobSet's `launcher` or `node`")
        return cls(match["jobset"], match["part"], int(match["rank"]))


def write_json(path: Path, value: object) -> None:
    """Atomically: readers see the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(value))
    temporary.rename(path)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise SimulationBroken(f"{path} is missing: the scenario did not describe this node") from None


@dataclass(frozen=True, slots=True)
class Directory:
    root: Path

    def driver(self, node: str) -> dict[str, Any]:
        answer: dict[str, Any] = _read_json(self.root / "nodes" / node / "driver.json")
        return answer

    def links(self, node: str) -> NodeLinks:
        figures = _read_json(self.root / "bandwidth.json")["nodes"].get(node)
        if figures is None:
            raise SimulationBroken(f"{self.root / 'bandwidth.json'} has no figures for node {node}")
        gpus = len(self.driver(node)["gpus"])
        return NodeLinks(
            node, gpus, float(figures["nvlink_gbps"]), float(figures["nic_gbps"]), figures.get("uplink_gbps")
        )

    def slow_links_gbps(self, nodes: Collection[str]) -> tuple[float, ...]:
        """Of the links between two of these nodes."""
        links = _read_json(self.root / "bandwidth.json").get("slow_links") or ()
        return tuple(float(link["gbps"]) for link in links if set(link["nodes"]) <= set(nodes))

    def seconds(self, key: str, default: float) -> float:
        """`run_seconds` (a workload) or `probe_seconds` (an agent's probe): how long the rows take to appear."""
        return float(_read_json(self.root / "bandwidth.json").get(key, default))

    def lost_gpus(self, node: str) -> set[int]:
        """GPUs that fell off the bus, as the simulated driver was told."""
        lost: set[int] = set()
        events = self.root / "nodes" / node / "driver-events.jsonl"
        if events.exists():
            for line in events.read_text().splitlines():
                event = json.loads(line) if line.strip() else {}
                if "lost" in event.get("set", {}) and "gpu" in event:
                    (lost.add if event["set"]["lost"] else lost.discard)(event["gpu"])
        return lost

    def crash(self, node: str) -> Crash | None:
        path = self.root / "nodes" / node / "crash.json"
        if not path.exists():
            return None
        order = _read_json(path)
        return Crash(int(order["exit_code"]), tuple(order["lines"]))


@dataclass(frozen=True, slots=True)
class Handshake:
    """How the workers and the launcher of one JobSet learn of each other."""

    directory: Directory
    jobset: str
    path: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", self.directory.root / "workloads" / self.jobset)

    def start(self, worker: Worker) -> None:
        write_json(self.path / f"started-{worker.rank}", {"node": worker.node, "pid": worker.pid})

    def fail(self, worker: Worker, exit_code: int) -> None:
        write_json(self.path / f"failed-{worker.rank}", {"node": worker.node, "exit_code": exit_code})

    def finish(self) -> None:
        write_json(self.path / "done", {})

    @property
    def done(self) -> bool:
        return (self.path / "done").exists()

    def workers(self) -> list[Worker]:
        """Those that have started, by rank."""
        found = []
        for path in self.path.glob("started-*"):
            content = _read_json(path)
            found.append(Worker(int(path.name.partition("-")[2]), content["node"], content["pid"]))
        return sorted(found, key=lambda worker: worker.rank)

    def failed(self) -> int | None:
        """The lowest rank that has crashed."""
        return min((int(path.name.partition("-")[2]) for path in self.path.glob("failed-*")), default=None)
