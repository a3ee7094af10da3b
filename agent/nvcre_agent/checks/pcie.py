"""Is a GPU connected to its host as well as it could be?

The link is judged only while the GPU works: an idle one is slow on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator

from nvcre_protos.vocabulary import Blame, FaultClass

from nvcre_agent.checks import gpu as gpus
from nvcre_agent.checks.baseline import Baseline
from nvcre_agent.checks.limits import Limits
from nvcre_agent.checks.model import Finding, Undecided
from nvcre_agent.nvml.snapshot import GpuSnapshot, Snapshot, Unread


def pcie_link(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    """Generation or width below what GPU and slot can do together, under load and for several snapshots."""
    for gpu in snapshot.gpus:
        key = gpus.key("pcie_link", gpu.identity)
        now, best = (gpu.pcie_generation, gpu.pcie_width), (gpu.pcie_generation_max, gpu.pcie_width_max)
        readings = (*now, *best, gpu.pstate, gpu.utilization_gpu)
        if gpu.access is not None:
            yield Undecided(key)
        elif Unread.NOT_SUPPORTED in readings:
            yield Undecided(key, "MIG hides how busy the GPU is" if gpu.mig_mode == 1 else gpus.NOT_TOLD)
        elif any(isinstance(value, Unread) for value in readings):
            yield Undecided(key)
        elif not _works(gpu, limits):
            yield Undecided(key, "the GPU is idle")
        elif any(
            isinstance(is_, int) and isinstance(can, int) and is_ < can for is_, can in zip(now, best, strict=True)
        ):
            yield gpus.finding(
                "pcie_link",
                gpu.identity,
                fault_class=FaultClass.NEEDS_REBOOT,
                blame=Blame.YES,
                what=f"runs on PCIe generation {now[0]} x{now[1]} under load, it could do {best[0]} x{best[1]}",
                remedy="drain and power-cycle the node; if the link stays slow, reseat the GPU, check riser and slot",
            )


def pcie_replays(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    def many(gpu: GpuSnapshot, total: int) -> Finding | None:
        per_min = gpus.history(baseline, gpu).counter("pcie_replays").per_second(55) * 60
        if per_min <= limits.pcie_replays_per_min:
            return None
        return gpus.finding(
            "pcie_replays",
            gpu.identity,
            fault_class=FaultClass.NEEDS_REBOOT,
            blame=Blame.CONDITIONAL,
            condition="the link is slow too, or the kernel reports PCIe errors (AER) of this GPU",
            what=f"repeats PCIe packets: more than {limits.pcie_replays_per_min:g} replays a minute",
            remedy="look for AER lines in the kernel log; reseat the GPU and check riser and slot at the next drain",
        )

    return gpus.judge(snapshot, "pcie_replays", lambda gpu: gpu.pcie_replays, many)


def _works(gpu: GpuSnapshot, limits: Limits) -> bool:
    return (
        isinstance(gpu.pstate, int)
        and gpu.pstate <= limits.pcie_link_pstate
        and isinstance(gpu.utilization_gpu, int)
        and gpu.utilization_gpu >= limits.pcie_link_utilization_percent
    )
