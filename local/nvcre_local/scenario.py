"""What a scenario is: how many nodes, which GPUs, how fast, what breaks and when, and what must come out.

Values only. `scenario_file` reads them from YAML, `simulation` writes them to disk, `scenario_engine` plays the faults.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any


class ScenarioError(ValueError):
    """A scenario that cannot be: the message names file, key and what is allowed."""


class Source(StrEnum):
    """Where the driver reports an Xid."""

    KERNEL_LOG = "kernel-log"
    NVML = "nvml"


@dataclass(frozen=True, slots=True)
class Product:
    """What the driver answers for a GPU model, and what a healthy node of eight reaches."""

    product: str
    driver_version: str
    cuda_driver_version: int
    nvlinks: int
    memory_mib: int
    pci: tuple[str, ...]
    nvlink_gbps: float
    nic_gbps: float


@dataclass(frozen=True, slots=True)
class Links:
    """`uplink_gbps`: of one NIC to other nodes, where that is less; a NIC loopback does not see it."""

    nvlink_gbps: float
    nic_gbps: float
    uplink_gbps: float | None = None


@dataclass(frozen=True, slots=True)
class SlowLink:
    """Between two nodes, each of which is fast with all others; `gbps` of one NIC."""

    nodes: tuple[int, int]
    gbps: float


@dataclass(frozen=True, slots=True)
class XidFault:
    """The driver reports an Xid. `process` is what the kernel line names; the pid is the node's worker."""

    after_s: float
    node: int
    gpu: int
    code: int
    sources: tuple[Source, ...]
    lines: tuple[str, ...]
    process: str = "all_reduce_perf"


@dataclass(frozen=True, slots=True)
class DriverFault:
    """The simulated driver answers differently from now on; `values` are the keys of driver-events.jsonl."""

    after_s: float
    node: int
    gpu: int | None
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CrashFault:
    """The worker on the node prints `lines` ({host} and {pid} filled in) and exits."""

    after_s: float
    node: int
    exit_code: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CoordinatorKill:
    """SIGKILL for the coordinator, and a new one `restart_after_s` later."""

    after_s: float
    restart_after_s: float


Fault = XidFault | DriverFault | CrashFault | CoordinatorKill


@dataclass(frozen=True, slots=True)
class ExpectedNode:
    name: str
    reason: str
    component: dict[str, Any] | None = None
    codes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a run of this scenario must report; read by `make demo` and by the tests."""

    result: str
    conditions: dict[str, str] = field(default_factory=dict)
    failed_nodes: tuple[ExpectedNode, ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    description: str
    product: Product
    nodes: int
    gpus_per_node: int
    links: Links
    node_links: dict[int, Links]
    slow_links: tuple[SlowLink, ...]
    run_seconds: float
    probe_seconds: float
    faults: tuple[Fault, ...]
    expect: Expectation | None

    def links_of(self, node: int) -> Links:
        return self.node_links.get(node, self.links)

    def with_nodes(self, nodes: int) -> Scenario:
        """Another size of the cluster; a fault must still have its node. Raises ScenarioError."""
        linked = [node for link in self.slow_links for node in link.nodes]
        faulty = [fault.node for fault in self.faults if not isinstance(fault, CoordinatorKill)]
        highest = max([*self.node_links, *linked, *faulty], default=0)
        if nodes <= highest:
            raise ScenarioError(f"scenario {self.name} uses node {highest}: --nodes must be at least {highest + 1}")
        return replace(self, nodes=nodes)


def node_name(index: int) -> str:
    return f"node-{index}"
