"""Has a GPU joined its NVSwitch fabric, is the fabric well, and does its manager run?

Only GPUs with a fabric have these readings.  What all GPUs of the node say is one fault of the node: its manager or a
switch is the likelier cause than each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, Source

from nvcre_agent.checks import gpu as gpus
from nvcre_agent.checks.baseline import Baseline
from nvcre_agent.checks.limits import Limits
from nvcre_agent.checks.model import Component, Finding, Undecided
from nvcre_agent.host.model import Host
from nvcre_agent.nvml.snapshot import GpuSnapshot, Snapshot, Unread

# https://docs.nvidia.com/deploy/nvml-api/ (NVML_GPU_FABRIC_STATE_*, NVML_GPU_FABRIC_HEALTH_SUMMARY_*)
_STATES = {1: "not started", 2: "in progress"}
_COMPLETED = 3
_UNHEALTHY, _LIMITED_CAPACITY = 2, 3


def is_coming_up(gpu: GpuSnapshot) -> bool:
    """Registration is not over: links are inactive, and that is no fault yet."""
    return gpu.fabric_state in _STATES


def fabric_registration(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    """A waiting state after boot (its grace period is its hysteresis), a fault when it does not end."""

    def waits(gpu: GpuSnapshot, state: int) -> Finding | None:
        if state not in _STATES:
            return None
        return gpus.finding(
            "fabric_registration",
            gpu.identity,
            kind=ComponentKind.FABRIC,
            fault_class=FaultClass.NEEDS_RESET,
            blame=Blame.YES,
            what=f"has not joined the NVLink fabric: its registration is {_STATES[state]}",
            remedy="check the fabric manager (systemctl status nvidia-fabricmanager) and its log; then reset the GPU",
        )

    said = gpus.judge(snapshot, "fabric_registration", lambda gpu: gpu.fabric_state, waits)
    return gpus.alike(said, snapshot, "fabric_registration", ComponentKind.FABRIC)


def fabric_status(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    """The outcome of a registration that is over; before that the value means nothing."""

    def failed(gpu: GpuSnapshot, status: int) -> Finding | Undecided | None:
        if isinstance(gpu.fabric_state, Unread):
            return gpus.unread("fabric_status", gpu, gpu.fabric_state)
        if not _has_failed(gpu):
            return None
        return gpus.finding(
            "fabric_status",
            gpu.identity,
            kind=ComponentKind.FABRIC,
            fault_class=FaultClass.NEEDS_RESET,
            blame=Blame.YES,
            what=f"could not join the NVLink fabric: registration ended with NVML error {status}",
            remedy="read the fabric manager's log; drain the node and reset the GPU, then restart the fabric manager",
        )

    said = gpus.judge(snapshot, "fabric_status", lambda gpu: gpu.fabric_status, failed)
    return gpus.alike(said, snapshot, "fabric_status", ComponentKind.FABRIC)


def fabric_health(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    """The health mask bit by bit, and the summary where the driver has one (some H100 always say "not supported")."""

    def sick(gpu: GpuSnapshot, mask: int) -> Finding | Undecided | None:
        faults, recovering = _decoded(gpu, mask, limits)
        if not faults and gpu.fabric_health_summary is Unread.FAILED:
            return gpus.unread("fabric_health", gpu, gpu.fabric_health_summary)
        if not faults and not recovering:
            return None
        return gpus.finding(
            "fabric_health",
            gpu.identity,
            kind=ComponentKind.FABRIC,
            fault_class=FaultClass.NEEDS_RESET if faults else FaultClass.INFORMATIONAL,
            blame=Blame.YES if faults else Blame.NO,
            what=f"reports about its NVLink fabric: {', '.join((*faults, *recovering))}",
            remedy="look at the switches and the fabric manager's log; drain the node and reset the GPU"
            if faults
            else "nothing to do while it recovers by itself",
        )

    said = gpus.judge(snapshot, "fabric_health", lambda gpu: gpu.fabric_health_mask, sick)
    return gpus.alike(said, snapshot, "fabric_health", ComponentKind.FABRIC)


def fabric_manager(host: Host, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    """The service died, or never ran on a node with NVSwitches.  The GPUs are fine, yet CUDA cannot start on them."""
    manager = host.fabric_manager
    if manager is None:
        yield Undecided(
            "fabric_manager/node", "" if baseline.fabric_manager_seen else "the host's processes are not to be seen"
        )
    elif not manager.running and (manager.needed or baseline.fabric_manager_seen):
        yield Finding(
            key="fabric_manager/node",
            check="fabric_manager",
            component=Component(ComponentKind.FABRIC),
            fault_class=FaultClass.NEEDS_RESET,
            blame=Blame.YES,
            message="fabric: NVIDIA's fabric manager does not run on this node; the GPUs themselves are fine",
            remedy="restart the service (systemctl restart nvidia-fabricmanager) and read its log; no GPU is at fault",
            source=Source.HOST,
        )


def explained(said: Iterable[Finding | Undecided]) -> Iterator[Finding | Undecided]:
    """No registration ends without the manager: where that is dead, its death is the only fault."""
    answers = tuple(said)
    dead = any(isinstance(one, Finding) and one.check == "fabric_manager" for one in answers)
    for one in answers:
        if dead and isinstance(one, Finding) and one.check == "fabric_registration":
            yield Undecided(one.key, "the fabric manager does not run")
        else:
            yield one


def _has_failed(gpu: GpuSnapshot) -> bool:
    return gpu.fabric_state == _COMPLETED and isinstance(gpu.fabric_status, int) and gpu.fabric_status != 0


def _decoded(gpu: GpuSnapshot, mask: int, limits: Limits) -> tuple[list[str], list[str]]:
    """(faults, what recovers by itself)"""
    faults, recovering = [], []
    for field in limits.fabric_health_fields:
        value = mask >> field.shift & (1 << field.width) - 1
        if value in field.faults:
            faults.append(field.faults[value])
        elif value in field.recovering:
            recovering.append(field.recovering[value])
    if gpu.fabric_health_summary == _UNHEALTHY and not faults:
        faults.append("unhealthy")
    elif gpu.fabric_health_summary == _LIMITED_CAPACITY:
        faults.append("limited capacity")
    return faults, recovering
