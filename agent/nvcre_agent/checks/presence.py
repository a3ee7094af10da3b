"""Is every GPU of the node there and answering, and what does its driver ask for?"""

from __future__ import annotations

from collections.abc import Iterator

from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass

from nvcre_agent.checks import gpu as gpus
from nvcre_agent.checks.baseline import Baseline
from nvcre_agent.checks.limits import Limits
from nvcre_agent.checks.model import Component, Finding, Undecided
from nvcre_agent.nvml.snapshot import GpuIdentity, GpuSnapshot, Snapshot, Unread
from nvcre_agent.xid.catalogue import catalogue
from nvcre_agent.xid.model import Classification, Clears

_ACCUSING = (Unread.LOST, Unread.RESET_REQUIRED)
_READABLE_ELSEWHERE = "nvidia-smi on the node cannot read it either: else the agent's container lost it"
_LOOK = "run nvidia-smi on the node; if that reads it restart the agent's Pod, else drain and reboot"
_UNKNOWN_ACTION = Classification(
    FaultClass.UNKNOWN, Blame.NO, Clears.RESET, remedy="look the value up in the driver's release notes"
)


def gpu_lost(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    """The device answers GPU_IS_LOST or RESET_REQUIRED.  Of other failures tells gpu_unreadable, or the monitor."""
    for gpu in snapshot.gpus:
        yield from _access(gpu.identity, gpu.access)
    for identity, why in _nameless(snapshot, baseline):
        yield from _access(identity, why)
    if count := sum(why in _ACCUSING for why in _strangers(snapshot, baseline)):
        yield _of_strangers(
            "gpu_lost",
            Blame.YES,
            f"{count} of {snapshot.device_count} GPUs that NVML lists: lost, and too lost to say which",
            "find it with lspci, drain the node and power-cycle it; if a GPU is lost again, replace it",
        )


def _access(identity: GpuIdentity, access: Unread | None) -> Iterator[Finding | Undecided]:
    match access:
        case Unread.LOST:
            yield gpus.finding(
                "gpu_lost",
                identity,
                fault_class=FaultClass.NEEDS_REBOOT,
                blame=Blame.YES,
                what="has fallen off the bus: NVML answers GPU is lost",
                remedy="drain the node and power-cycle it; if the GPU is lost again, replace it",
            )
        case Unread.RESET_REQUIRED:
            yield gpus.finding(
                "gpu_lost",
                identity,
                fault_class=FaultClass.NEEDS_RESET,
                blame=Blame.YES,
                what="does not work until it is reset: NVML answers reset required",
                remedy="drain the node and reset the GPU (nvidia-smi --gpu-reset)",
            )
        case None:
            pass
        case _:
            yield Undecided(gpus.key("gpu_lost", identity))


def gpu_missing(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    """A GPU of the stored inventory is not there at all, and no new one stands in its slot.

    One that NVML lists and that does not say who it is may be the one that seems to be missing.
    """
    missing = absent(snapshot, baseline)
    lost = [identity for identity, why in _nameless(snapshot, baseline) if why in _ACCUSING]
    unknown = not isinstance(snapshot.device_count, int) or len(missing) <= len(snapshot.unidentified)
    for identity in missing:
        if identity in lost:
            continue
        if unknown or _is_being_replaced(identity, snapshot, baseline):
            yield Undecided(gpus.key("gpu_missing", identity))
            continue
        yield gpus.finding(
            "gpu_missing",
            identity,
            fault_class=FaultClass.NEEDS_REBOOT,
            blame=Blame.YES,
            what=f"at {identity.pci} ({identity.uuid}) is missing: NVML lists {snapshot.device_count} GPUs, "
            f"the node had {len(baseline.gpus)}",
            remedy="look for the card with lspci; reboot the node; if it stays away, reseat or replace the GPU",
        )


def gpu_unreadable(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    """Every call on it fails while other GPUs answer: how many drivers speak of a GPU that is off the bus."""
    others_answer = any(gpu.access is None for gpu in snapshot.gpus)
    named = [(gpu.identity, gpu.access) for gpu in snapshot.gpus if gpu.access is not None]
    for identity, why in (*named, *_nameless(snapshot, baseline)):
        match why:
            case Unread.LOST | Unread.RESET_REQUIRED:
                pass  # gpu_lost says more
            case Unread.NO_PERMISSION:
                yield Undecided(gpus.key("gpu_unreadable", identity))
            case _ if others_answer:
                yield gpus.finding(
                    "gpu_unreadable",
                    identity,
                    fault_class=FaultClass.NEEDS_REBOOT,
                    blame=Blame.CONDITIONAL,
                    condition=_READABLE_ELSEWHERE,
                    what="does not answer: every NVML call on it fails while other GPUs answer",
                    remedy=_LOOK,
                )
            case _:
                yield Undecided(gpus.key("gpu_unreadable", identity))
    silent = [why for why in _strangers(snapshot, baseline) if why not in (*_ACCUSING, Unread.NO_PERMISSION)]
    if silent and others_answer:
        yield _of_strangers(
            "gpu_unreadable",
            Blame.CONDITIONAL,
            f"{len(silent)} of {snapshot.device_count} GPUs that NVML lists: no answer at all, not even who it is",
            _LOOK,
        )


def recovery_action(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    """The driver's own verdict.  The value decides, never its text: drivers renamed the actions."""

    def asks(gpu: GpuSnapshot, value: int) -> Finding | None:
        if value == 0:
            return None
        name = limits.recovery_action_names.get(value, f"unknown action {value}")
        verdict = catalogue().recovery_action.get(value, _UNKNOWN_ACTION)
        return gpus.finding(
            "recovery_action",
            gpu.identity,
            fault_class=verdict.fault_class,
            blame=verdict.blame,
            condition=verdict.condition,
            what=f"asks for recovery action {value} ({name})",
            remedy=verdict.remedy,
        )

    return gpus.judge(snapshot, "recovery_action", lambda gpu: gpu.recovery_action, asks)


def absent(snapshot: Snapshot, baseline: Baseline) -> list[GpuIdentity]:
    """GPUs of the inventory that the snapshot does not have."""
    seen = {gpu.identity.uuid for gpu in snapshot.gpus}
    return [known.identity for uuid, known in baseline.gpus.items() if uuid not in seen]


def _is_being_replaced(identity: GpuIdentity, snapshot: Snapshot, baseline: Baseline) -> bool:
    return any(
        gpu.identity.pci == identity.pci and gpu.access is None and gpu.identity.uuid not in baseline.gpus
        for gpu in snapshot.gpus
    )


def _nameless(snapshot: Snapshot, baseline: Baseline) -> list[tuple[GpuIdentity, Unread]]:
    """GPUs that did not answer before this NVML process started, and why.

    It lists as many that do not say who they are as the inventory misses; where their reasons differ nobody knows whose
    is which, and each may have the one that accuses.
    """
    missing = absent(snapshot, baseline)
    if not missing or len(missing) != len(snapshot.unidentified):
        return []
    accusing = [why for why in snapshot.unidentified if why in _ACCUSING]
    why = accusing[0] if accusing else snapshot.unidentified[0]
    return [(identity, why) for identity in missing]


def _strangers(snapshot: Snapshot, baseline: Baseline) -> tuple[Unread, ...]:
    """Why GPUs do not answer that nobody knows: more are nameless than the inventory misses, which may be new."""
    return snapshot.unidentified if len(snapshot.unidentified) > len(absent(snapshot, baseline)) else ()


def _of_strangers(check: str, blame: Blame, message: str, remedy: str) -> Finding:
    return Finding(
        key=f"{check}/node",
        check=check,
        component=Component(ComponentKind.NODE),
        fault_class=FaultClass.NEEDS_REBOOT,
        blame=blame,
        message=message,
        remedy=remedy,
        blame_condition=_READABLE_ELSEWHERE if blame is Blame.CONDITIONAL else "",
    )
