"""How fast is a collective over these nodes?  A latency and bandwidth model: time = latency + size / algbw.

Decides figures only; it reads no files and prints nothing. Figures of a healthy H100 node, measured: 480 GB/s bus
bandwidth with NVLS, 370 without (https://github.com/NVIDIA/nccl-tests/issues/212 and 309), a plateau from about
512 MiB, 43 us at 1 MiB; one NDR NIC 46 to 48 GB/s (https://github.com/NVIDIA/nccl-tests/issues/290).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

NVLS_SHARE = 370.0 / 480.0  # what is left of the peak without NVLink SHARP
NODE_LATENCY_US = 38.0
NETWORK_LATENCY_US = 34.0  # a step over the network, twice per doubling of the node count
NOISE = 0.012


@dataclass(frozen=True, slots=True)
class NodeLinks:
    """Bus bandwidth of a node's links. There is a NIC a GPU; `uplink_gbps` is what one reaches to other nodes."""

    name: str
    gpus: int
    nvlink_gbps: float
    nic_gbps: float
    uplink_gbps: float | None = None


@dataclass(frozen=True, slots=True)
class Fabric:
    """The nodes one communicator spans and what its environment switched off."""

    nodes: tuple[NodeLinks, ...]
    ranks: int
    nvls: bool = True
    peer_to_peer: bool = True
    slow_links_gbps: tuple[float, ...] = ()
    """Those between two of the nodes, of one NIC."""

    @classmethod
    def over(
        cls,
        nodes: tuple[NodeLinks, ...],
        ranks: int,
        environment: Mapping[str, str],
        slow_links_gbps: tuple[float, ...] = (),
    ) -> Fabric:
        """With NVLink and shared memory both disabled even neighbours talk through their NICs (the loopback test)."""
        loopback = environment.get("NCCL_P2P_DISABLE") == "1" and environment.get("NCCL_SHM_DISABLE") == "1"
        nvls = environment.get("NCCL_NVLS_ENABLE") != "0"
        return cls(nodes, ranks, nvls=nvls, peer_to_peer=not loopback, slow_links_gbps=slow_links_gbps)

    @property
    def peak_busbw_gbps(self) -> float:
        """A ring or tree is as fast as its slowest link."""
        limits = []
        for node in self.nodes:
            if not self.peer_to_peer:
                limits.append(node.nic_gbps)
                continue
            limits.append(node.nvlink_gbps * (1.0 if self.nvls else NVLS_SHARE))
            if len(self.nodes) > 1:
                uplink_gbps = node.nic_gbps if node.uplink_gbps is None else min(node.nic_gbps, node.uplink_gbps)
                limits += [gbps * node.gpus for gbps in (uplink_gbps, *self.slow_links_gbps)]
        return min(limits)

    @property
    def busbw_factor(self) -> float:
        """all_reduce: 2(n-1)/n (nccl-tests, doc/PERFORMANCE.md)."""
        return 2.0 * (self.ranks - 1) / self.ranks

    def time_us(self, size: int, side: str) -> float:
        """Time of one all-reduce of `size` bytes; the same arguments always give the same figure."""
        latency = NODE_LATENCY_US + 2 * NETWORK_LATENCY_US * (len(self.nodes) - 1).bit_length()
        if self.ranks == 1:
            return 4.0 + size / 1.3e6  # one rank: a copy within the GPU's memory
        transfer = size * self.busbw_factor / (self.peak_busbw_gbps * 1e3)
        return (latency + transfer) * (1.0 + NOISE * self._noise(size, side))

    def _noise(self, size: int, side: str) -> float:
        seed = f"{','.join(node.name for node in self.nodes)}/{size}/{side}/{self.nvls}/{self.peer_to_peer}"
        return (zlib.crc32(seed.encode()) % 2001) / 1000.0 - 1.0
