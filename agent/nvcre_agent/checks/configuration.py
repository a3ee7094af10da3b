"""Settings of a GPU that are no fault and that somebody should know about.  They never blame."""

from __future__ import annotations

from collections.abc import Iterator

from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass

from nvcre_agent.checks import gpu as gpus
from nvcre_agent.checks.baseline import Baseline
from nvcre_agent.checks.limits import Limits
from nvcre_agent.checks.model import Finding, Undecided
from nvcre_agent.nvml.snapshot import GpuSnapshot, Snapshot


def persistence_mode(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    def off(gpu: GpuSnapshot, mode: int) -> Finding | None:
        remedy = "start nvidia-persistenced, or nvidia-smi -pm 1: without it every start of a job waits for the driver"
        return None if mode else _note("persistence_mode", gpu, "has its persistence mode off", remedy)

    said = gpus.judge(snapshot, "persistence_mode", lambda gpu: gpu.persistence_mode, off)
    return gpus.alike(said, snapshot, "persistence_mode", ComponentKind.NODE)


def ecc_mode(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    def off(gpu: GpuSnapshot, mode: int) -> Finding | None:
        remedy = "nvidia-smi -e 1 and reset the GPU, unless it is meant to be off"
        return None if mode else _note("ecc_mode", gpu, "has ECC off: memory errors stay unseen", remedy)

    said = gpus.judge(snapshot, "ecc_mode", lambda gpu: gpu.ecc_mode, off)
    return gpus.alike(said, snapshot, "ecc_mode", ComponentKind.NODE)


def mig(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    """A GPU in MIG mode is of use only through its instances."""

    def empty(gpu: GpuSnapshot, mode: int) -> Finding | None:
        if not mode or gpu.mig_instances != ():
            return None
        remedy = "make instances (nvidia-smi mig -cgi ... -C, or the GPU operator's MIG manager), or turn MIG off"
        return _note("mig", gpu, "is in MIG mode without an instance: no workload can use it", remedy)

    said = gpus.judge(snapshot, "mig", lambda gpu: gpu.mig_mode, empty)
    return gpus.alike(said, snapshot, "mig", ComponentKind.NODE)


def _note(check: str, gpu: GpuSnapshot, what: str, remedy: str) -> Finding:
    return gpus.finding(
        check, gpu.identity, fault_class=FaultClass.INFORMATIONAL, blame=Blame.NO, what=what, remedy=remedy
    )
