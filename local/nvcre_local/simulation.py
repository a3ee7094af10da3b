"""Writes the simulation directory of a scenario and, later, what happens in it.

The only hand that touches a simulated world: files whose layout is the contract in docs/architecture.md ("Simulation
directory"), read by the agents' simulated driver and by the shims. It decides neither what breaks nor when.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nvcre_local
from nvcre_local.scenario import Scenario, node_name
from nvcre_local.simulated_nccl.directory import write_json

PROGRAMS = ("all_reduce_perf", "all_reduce_perf_mpi", "mpirun", "sshd")
KERNEL_ERROR = 3  # facility kernel, level err: what the driver's Xid lines carry
KERNEL_INFO = 6
_UUIDS = uuid.uuid5(uuid.NAMESPACE_URL, "https://github.com/nvcre/simulated-gpus")


class SimulationDirectory:
    """One scenario on disk. All methods are quick and synchronous."""

    def __init__(self, root: Path, scenario: Scenario) -> None:
        self.root = root
        self._scenario = scenario
        self._kernel_sequence: dict[str, int] = {}

    def write(self) -> None:
        """Everything the agents and the shims read at start."""
        scenario = self._scenario
        names = [node_name(index) for index in range(scenario.nodes)]
        links = [scenario.links_of(index) for index in range(scenario.nodes)]
        write_json(
            self.root / "bandwidth.json",
            {
                "nodes": {
                    name: {"nvlink_gbps": link.nvlink_gbps, "nic_gbps": link.nic_gbps, "uplink_gbps": link.uplink_gbps}
                    for name, link in zip(names, links, strict=True)
                },
                "slow_links": [
                    {"nodes": [node_name(node) for node in link.nodes], "gbps": link.gbps}
                    for link in scenario.slow_links
                ],
                "run_seconds": scenario.run_seconds,
                "probe_seconds": scenario.probe_seconds,
            },
        )
        self._write_shims(self.root / "bin", ())
        for name in names:
            write_json(self.driver_file(name), self._driver(name))
            (self._node(name) / "driver-events.jsonl").touch()
            self._write_shims(self.probe_programs(name), ("--node", name))
            version = scenario.product.driver_version
            self.kernel(name, [f"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {version}"], level=KERNEL_INFO)

    def driver_file(self, node: str) -> Path:
        return self._node(node) / "driver.json"

    def kernel_log(self, node: str) -> Path:
        return self._node(node) / "kmsg"

    def probe_programs(self, node: str) -> Path:
        """nccl-tests for the agent of this node: a probe's environment says nothing about where it runs."""
        return self._node(node) / "bin"

    def kernel(self, node: str, lines: Iterable[str], *, level: int = KERNEL_ERROR) -> None:
        """Append records as /dev/kmsg gives them: `priority,sequence,microseconds since boot,flags;message`."""
        with self.kernel_log(node).open("a") as log:
            for line in lines:
                sequence = self._kernel_sequence.get(node, 1000)
                self._kernel_sequence[node] = sequence + 1
                microseconds = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
                log.write(f"{level},{sequence},{microseconds},-;{line}\n")

    def driver_event(self, node: str, event: dict[str, Any]) -> None:
        with (self._node(node) / "driver-events.jsonl").open("a") as events:
            events.write(json.dumps(event) + "\n")

    def crash(self, node: str, *, exit_code: int, lines: Iterable[str]) -> None:
        write_json(self._node(node) / "crash.json", {"exit_code": exit_code, "lines": list(lines)})

    def forget_workload(self, jobset: str) -> None:
        """Its Pods are gone: the next run under this name starts with healthy workers and no handshake."""
        for order in self.root.glob("nodes/*/crash.json"):
            order.unlink(missing_ok=True)
        for trace in (self.root / "workloads" / jobset).glob("*"):
            trace.unlink(missing_ok=True)

    def pci(self, gpu: int) -> str:
        return self._scenario.product.pci[gpu]

    def worker_pid(self, jobset: str, node: str) -> int | None:
        """The process the driver would name: the one that the worker Pod on this node runs."""
        for started in (self.root / "workloads" / jobset).glob("started-*"):
            content = json.loads(started.read_text())
            if content["node"] == node:
                return int(content["pid"])
        return None

    def _node(self, node: str) -> Path:
        directory = self.root / "nodes" / node
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def _driver(self, node: str) -> dict[str, Any]:
        product = self._scenario.product
        return {
            "product": product.product,
            "driver_version": product.driver_version,
            "cuda_driver_version": product.cuda_driver_version,
            "nvlinks": product.nvlinks,
            "memory_mib": product.memory_mib,
            "infiniband": True,
            "gpus": [
                {
                    "uuid": f"GPU-{uuid.uuid5(_UUIDS, f'{node}/{index}')}",
                    "pci": product.pci[index],
                    "serial": str(1652000000000 + uuid.uuid5(_UUIDS, f"{node}/{index}").int % 1_000_000_000),
                    "minor": index,
                }
                for index in range(self._scenario.gpus_per_node)
            ],
        }

    def _write_shims(self, directory: Path, options: tuple[str, ...]) -> None:
        """Small scripts, because a shebang line can hold neither our options nor a long path."""
        directory.mkdir(parents=True, exist_ok=True)
        packages = Path(nvcre_local.__file__).parent.parent
        for program in PROGRAMS:
            words = [
                sys.executable,
                "-S",
                "-m",
                "nvcre_local.simulated_nccl.programs",
                str(self.root),
                *options,
                program,
            ]
            shim = directory / program
            shim.write_text(
                f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(packages))} exec {shlex.join(words)} "$@"\n',
            )
            shim.chmod(0o755)
