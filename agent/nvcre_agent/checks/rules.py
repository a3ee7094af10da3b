"""The checks: what is wrong with the GPUs of one snapshot, seen against the baseline.

Each check is a pure function `(Snapshot, Baseline, Limits) -> Iterable[Finding | Undecided]`.  `evaluate` runs all of
them; `tracker` decides when a finding opens and when it has recovered.  A check that could not read its value says
`Undecided`, so that a hung or lost GPU never looks recovered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass

from nvcre_agent.checks.baseline import Baseline
from nvcre_agent.checks.limits import Limits, RecoveryAction
from nvcre_agent.checks.model import Component, Finding, Undecided
from nvcre_agent.nvml.snapshot import GpuIdentity, GpuSnapshot, Snapshot, Unread

Check = Callable[[Snapshot, Baseline, Limits], Iterable[Finding | Undecided]]


def evaluate(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> tuple[Finding | Undecided, ...]:
    """What all checks say; of a GPU that is missing the others cannot say that it has recovered."""
    said = [answer for check in CHECKS for answer in check(snapshot, baseline, limits)]
    found = {answer.key for answer in said if isinstance(answer, Finding)}
    for identity in _missing(snapshot, baseline):
        keys = [_key(check.__name__, identity) for check in CHECKS if check is not gpu_missing]
        said += [Undecided(key) for key in keys if key not in found]
    return tuple(said)


def gpu_lost(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    """The device answers GPU_IS_LOST or RESET_REQUIRED.  Other failures are the monitor's trouble, not the GPU's."""
    for gpu in snapshot.gpus:
        yield from _access(gpu.identity, gpu.access)
    for identity in _lost_unseen(snapshot, baseline):
        yield from _access(identity, Unread.LOST)


def _access(identity: GpuIdentity, access: Unread | None) -> Iterator[Finding | Undecided]:
    match access:
        case Unread.LOST:
            yield _gpu_finding(
                "gpu_lost",
                identity,
                fault_class=FaultClass.NEEDS_REBOOT,
                blame=Blame.YES,
                what="has fallen off the bus: NVML answers GPU is lost",
                remedy="drain the node and power-cycle it; if the GPU is lost again, replace it",
            )
        case Unread.RESET_REQUIRED:
            yield _gpu_finding(
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
            yield Undecided(_key("gpu_lost", identity))


def gpu_missing(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    """A GPU of the stored inventory is not there at all; a GPU that took its slot replaced it."""
    for identity in _missing(snapshot, baseline):
        if identity in _lost_unseen(snapshot, baseline):
            continue
        if not isinstance(snapshot.device_count, int):
            yield Undecided(_key("gpu_missing", identity))
            continue
        yield _gpu_finding(
            "gpu_missing",
            identity,
            fault_class=FaultClass.NEEDS_REBOOT,
            blame=Blame.YES,
            what=f"is missing: NVML lists {snapshot.device_count} GPUs, the node had {len(baseline.gpus)}",
            remedy="look for the card with lspci; reboot the node; if it stays away, reseat or replace the GPU",
        )


def row_remap_failure(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    for gpu, failed in _read(snapshot, "row_remap_failure", lambda gpu: gpu.remap_failure):
        if isinstance(failed, Undecided):
            yield failed
        elif failed:
            yield _gpu_finding(
                "row_remap_failure",
                gpu.identity,
                fault_class=FaultClass.FATAL_HARDWARE,
                blame=Blame.YES,
                what="could not remap a faulty memory row: no spare row is left",
                remedy="replace the GPU; a reset may hide the flag but does not repair the memory",
            )


def row_remap_pending(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    for gpu, pending in _read(snapshot, "row_remap_pending", lambda gpu: gpu.remap_pending):
        if isinstance(pending, Undecided):
            yield pending
        elif pending:
            yield _gpu_finding(
                "row_remap_pending",
                gpu.identity,
                fault_class=FaultClass.INFORMATIONAL,
                blame=Blame.NO,
                what="has a memory row remap waiting for a reset",
                remedy="reset the GPU the next time the node is drained; it may run on until then",
            )


def ecc_uncorrected(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    """Counts from the baseline: totals are lifetime values and old ones say nothing about today."""
    for gpu, total in _read(snapshot, "ecc_uncorrected", lambda gpu: gpu.ecc_uncorrected_volatile):
        if isinstance(total, Undecided):
            yield total
            continue
        known = baseline.gpus.get(gpu.identity.uuid)
        start = known.ecc_uncorrected_volatile if known else None
        new = total - start if start is not None else 0
        if new >= limits.ecc_uncorrected_delta:
            yield _gpu_finding(
                "ecc_uncorrected",
                gpu.identity,
                fault_class=FaultClass.NEEDS_RESET,
                blame=Blame.YES,
                what=f"had {new} uncorrectable ECC error{'s' if new != 1 else ''} since it was last known good",
                remedy="drain the node and reset the GPU; replace it if errors return after the reset",
            )


def nvlink_down(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    """Links that are down while they were up before or another GPU's links are up.

    Where no link of the node was ever up the GPUs are not bridged or the fabric manager does not run: nobody's fault
    here.  A GPU without NVLink has no readings at all (the driver tests for presence).
    """
    for gpu in snapshot.gpus:
        if gpu.access is not None:
            yield Undecided(_key("nvlink_down", gpu.identity))
            continue
        if any(isinstance(link, Unread) and link is not Unread.NOT_SUPPORTED for link in gpu.nvlinks):
            yield Undecided(_key("nvlink_down", gpu.identity))
        known = baseline.gpus.get(gpu.identity.uuid)
        seen_up = known.nvlinks_seen_up if known else frozenset()
        peers_up = any(1 in other.nvlinks for other in snapshot.gpus)
        down = [link for link, up in enumerate(gpu.nvlinks) if up == 0 and (peers_up or link in seen_up)]
        if not down:
            continue
        which = ", ".join(map(str, down))
        yield Finding(
            key=_key("nvlink_down", gpu.identity),
            check="nvlink_down",
            component=Component(ComponentKind.NVLINK, down[0], gpu.identity.uuid, str(gpu.identity.pci)),
            fault_class=FaultClass.NEEDS_RESET,
            blame=Blame.CONDITIONAL,
            blame_condition="either end of the link may be guilty; blame the GPU when the other end is healthy",
            message=f"GPU {gpu.identity.index}: NVLink {which} of {len(gpu.nvlinks)} down",
            remedy="drain the node and reset the GPU; if the link stays down, inspect the baseboard or NVSwitch",
        )


def recovery_action(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    """The driver's own verdict.  The value decides, never its text: drivers renamed the actions."""
    for gpu, value in _read(snapshot, "recovery_action", lambda gpu: gpu.recovery_action):
        if isinstance(value, Undecided):
            yield value
        elif value:
            action = limits.recovery_actions.get(value) or RecoveryAction(
                f"unknown action {value}", FaultClass.UNKNOWN, "look the value up in the driver's release notes"
            )
            yield _gpu_finding(
                "recovery_action",
                gpu.identity,
                fault_class=action.fault_class,
                blame=Blame.NO if action.fault_class is FaultClass.UNKNOWN else Blame.YES,
                what=f"asks for recovery action {value} ({action.name})",
                remedy=action.remedy,
            )


CHECKS: tuple[Check, ...] = (
    gpu_lost,
    gpu_missing,
    row_remap_failure,
    row_remap_pending,
    ecc_uncorrected,
    nvlink_down,
    recovery_action,
)


def _missing(snapshot: Snapshot, baseline: Baseline) -> list[GpuIdentity]:
    seen = {gpu.identity.uuid for gpu in snapshot.gpus}
    taken = {gpu.identity.pci for gpu in snapshot.gpus}
    return [
        known.identity for uuid, known in baseline.gpus.items() if uuid not in seen and known.identity.pci not in taken
    ]


def _lost_unseen(snapshot: Snapshot, baseline: Baseline) -> list[GpuIdentity]:
    """GPUs lost before this NVML process started: it lists as many that say so as the inventory misses."""
    missing = _missing(snapshot, baseline)
    lost = [why for why in snapshot.unidentified if why is Unread.LOST]
    return missing if lost and len(lost) == len(missing) else []


def _read(
    snapshot: Snapshot, check: str, value: Callable[[GpuSnapshot], int | Unread]
) -> Iterator[tuple[GpuSnapshot, int | Undecided]]:
    """One value of every GPU; not supported means that this check has nothing to say about the GPU."""
    for gpu in snapshot.gpus:
        read = gpu.access or value(gpu)
        match read:
            case Unread.NOT_SUPPORTED:
                pass
            case Unread():
                yield gpu, Undecided(_key(check, gpu.identity))
            case number:
                yield gpu, number


def _key(check: str, identity: GpuIdentity) -> str:
    return f"{check}/{identity.uuid}"


def _gpu_finding(
    check: str, identity: GpuIdentity, *, fault_class: FaultClass, blame: Blame, what: str, remedy: str
) -> Finding:
    return Finding(
        key=_key(check, identity),
        check=check,
        component=Component(ComponentKind.GPU, identity.index, identity.uuid, str(identity.pci)),
        fault_class=fault_class,
        blame=blame,
        message=f"GPU {identity.index} {what}",
        remedy=remedy,
    )
