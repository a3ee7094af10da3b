"""Which node is slow? Decides Pass / Slow / CannotCompare from what per-node probes measured.

Used after a slow run (DESIGN 6.6): every node of the run was probed alone, and the question is whether one of them is
clearly below a fixed limit or clearly below its peers. A node that was not tested, or whose probe crashed, is never
slow and never a peer: a busy node must not look broken, and must not move the median that others are judged by.
Does not order probes (core/probe_rounds.py) and writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from statistics import median

import msgspec


class ProbeKind(StrEnum):
    NVLINK_ALL_REDUCE = "NVLinkAllReduce"
    NIC_LOOPBACK = "NICLoopback"


class ProbeState(StrEnum):
    MEASURED = "Measured"
    NOT_TESTED = "NotTested"
    ERROR = "Error"


class ProbeVerdict(StrEnum):
    PASS = "Pass"  # noqa: S105 - not a password
    SLOW = "Slow"
    CANNOT_COMPARE = "CannotCompare"
    NONE = ""  # nothing to judge: not tested, or not judged yet


class SizeBandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """Bandwidth at one message size, GB/s with two decimals as text (the API's own form)."""

    size_bytes: int = msgspec.field(name="sizeBytes", default=0)
    alg_bw: str = msgspec.field(name="algBW", default="0.00")
    bus_bw: str = msgspec.field(name="busBW", default="0.00")


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of NodeHealth.status.probes, field for field; the node is the NodeHealth's name."""

    probe_id: str = msgspec.field(name="probeID")
    kind: ProbeKind
    state: ProbeState
    reason: str = ""
    message: str = ""
    job_namespace: str = msgspec.field(name="jobNamespace", default="")
    job_name: str = msgspec.field(name="jobName", default="")
    job_uid: str = msgspec.field(name="jobUID", default="")
    bus_bandwidth_gbps: str = msgspec.field(name="busBandwidthGBps", default="")  # GB/s; best run, largest size
    runs: tuple[str, ...] = ()  # GB/s of every run at its largest size, in their order: a cold first one shows
    results: tuple[SizeBandwidth, ...] = ()  # of the best run
    verdict: ProbeVerdict = ProbeVerdict.NONE
    comparison: str = ""  # sentence with the numbers behind the verdict
    gpu_product: str = msgspec.field(name="gpuProduct", default="")
    driver_version: str = msgspec.field(name="driverVersion", default="")
    nccl_version: str = msgspec.field(name="ncclVersion", default="")
    arguments: str = ""
    simulated: bool = False
    started_at: datetime | None = msgspec.field(name="startedAt", default=None)
    finished_at: datetime | None = msgspec.field(name="finishedAt", default=None)

    @property
    def busbw_gbps(self) -> float | None:
        """The measured figure, None where nothing was measured."""
        if self.state is not ProbeState.MEASURED:
            return None
        try:
            return float(self.bus_bandwidth_gbps)
        except ValueError:
            return None

    @property
    def peer_group(self) -> tuple[str, str, str, str, str]:
        """Only probes that agree in all of these may be compared."""
        return (self.kind, self.gpu_product, self.driver_version, self.nccl_version, self.arguments)


@dataclass(frozen=True, slots=True)
class Limits:
    """When a figure is low. `fixed_gbps` is what the operator demands (GB/s), absent where he demands nothing."""

    fixed_gbps: Mapping[ProbeKind, float] = field(default_factory=dict)
    min_peers: int = 3  # other nodes; DESIGN 6.6
    mad_factor: float = 6 * 1.4826  # 1.4826 makes the median absolute deviation a standard deviation (normal data)
    min_gap: float = 0.10  # of the median; nodes of one kind differ by a few percent in health


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: ProbeVerdict
    comparison: str


_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def size_text(size_bytes: int) -> str:
    for unit, name in _UNITS:
        if size_bytes >= unit:
            return f"{size_bytes / unit:g} {name}"
    return f"{size_bytes} B"


def judge(results: Mapping[str, ProbeResult], limits: Limits) -> dict[str, Judgement]:
    """Judge the probes of one kind, one a node, each against the others.

    A fixed limit is absolute: a node below it is slow whatever its peers do. A node at or above it is still compared,
    and with too few peers the limit alone decides.
    """
    return {node: _judge_one(node, result, results, limits) for node, result in results.items()}


def _judge_one(node: str, result: ProbeResult, everyone: Mapping[str, ProbeResult], limits: Limits) -> Judgement:
    figure = result.busbw_gbps
    if figure is None:
        return Judgement(ProbeVerdict.NONE, "")
    at = f"bus bandwidth {figure:.2f} GB/s" + (f" at {size_text(_largest(result))}" if result.results else "")
    fixed = limits.fixed_gbps.get(result.kind)
    if fixed is not None and figure < fixed:
        return Judgement(ProbeVerdict.SLOW, f"{at} is below the fixed limit of {fixed:.2f} GB/s")
    others = [
        value
        for name, other in sorted(everyone.items())
        if name != node and other.peer_group == result.peer_group and (value := other.busbw_gbps) is not None
    ]
    if len(others) < limits.min_peers:
        if fixed is not None:
            return Judgement(ProbeVerdict.PASS, f"{at} is not below the fixed limit of {fixed:.2f} GB/s")
        return Judgement(
            ProbeVerdict.CANNOT_COMPARE,
            f"{at}; {len(others)} other node(s) with the same GPU, driver, NCCL and arguments, {limits.min_peers} are"
            " needed, and no fixed limit is set",
        )
    centre, gap = spread(others, limits)
    floor = centre - gap
    numbers = f"the median of {len(others)} other nodes is {centre:.2f} GB/s, the limit {floor:.2f} GB/s"
    if figure < floor:
        share = 100 * (1 - figure / centre)
        return Judgement(ProbeVerdict.SLOW, f"{at} is {share:.0f} % below its peers ({numbers})")
    return Judgement(ProbeVerdict.PASS, f"{at} is in line with its peers ({numbers})")


def spread(figures: Sequence[float], limits: Limits) -> tuple[float, float]:
    """(median, how far below it is still normal), both GB/s."""
    centre = median(figures)
    deviation = median([abs(figure - centre) for figure in figures])
    return centre, max(limits.mad_factor * deviation, limits.min_gap * centre)


def _largest(result: ProbeResult) -> int:
    return max(row.size_bytes for row in result.results)
