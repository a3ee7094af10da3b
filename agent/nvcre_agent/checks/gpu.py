"""What the checks of GPUs have in common: one value of every GPU, and a finding that names its GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TypeAlias

from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass

from nvcre_agent.checks.baseline import Baseline
from nvcre_agent.checks.history import GpuHistory
from nvcre_agent.checks.model import Component, Finding, Undecided
from nvcre_agent.nvml.snapshot import GpuIdentity, GpuSnapshot, Reading, Snapshot, Unread

Value: TypeAlias = Callable[[GpuSnapshot], Reading]
Verdict: TypeAlias = Callable[[GpuSnapshot, int], Finding | Undecided | None]

NOT_TOLD = "the driver does not tell it of this GPU"


def read(snapshot: Snapshot, check: str, value: Value) -> Iterator[tuple[GpuSnapshot, int | Undecided]]:
    """One value of every GPU; not supported is no sign of health: a driver in trouble says it of what it once told."""
    for gpu in snapshot.gpus:
        match gpu.access or value(gpu):
            case Unread() as why:
                yield gpu, unread(check, gpu, why)
            case number:
                yield gpu, number


def unread(check: str, gpu: GpuSnapshot, why: Unread) -> Undecided:
    """A check that lacks a value of this GPU."""
    return Undecided(key(check, gpu.identity), NOT_TOLD if why is Unread.NOT_SUPPORTED else "")


def judge(snapshot: Snapshot, check: str, value: Value, verdict: Verdict) -> Iterator[Finding | Undecided]:
    """A check that rests on one value: `verdict` says what is wrong with it, if anything is."""
    for gpu, read_value in read(snapshot, check, value):
        if isinstance(read_value, Undecided):
            yield read_value
        elif (found := verdict(gpu, read_value)) is not None:
            yield found


def alike(
    said: Iterable[Finding | Undecided], snapshot: Snapshot, check: str, kind: ComponentKind
) -> Iterator[Finding | Undecided]:
    """What every GPU of the node has is one finding of the node: its cause is common to them."""
    answers = tuple(said)
    found = [answer for answer in answers if isinstance(answer, Finding)]
    if 1 < len(found) == sum(gpu.access is None for gpu in snapshot.gpus):
        message = f"all {len(found)} GPUs alike: {found[0].message}"
        yield replace(found[0], key=f"{check}/node", component=Component(kind), message=message)
        yield from (Undecided(one.key, "every GPU of the node says so") for one in found)
        return
    yield from answers
    if len(found) < len(answers):
        yield Undecided(f"{check}/node", "a GPU could not be read")


def history(baseline: Baseline, gpu: GpuSnapshot) -> GpuHistory:
    known = baseline.gpus.get(gpu.identity.uuid)
    return known.history if known else GpuHistory()


def key(check: str, identity: GpuIdentity) -> str:
    return f"{check}/{identity.uuid}"


def finding(
    check: str,
    identity: GpuIdentity,
    *,
    fault_class: FaultClass,
    blame: Blame,
    what: str,
    remedy: str,
    condition: str = "",
    kind: ComponentKind = ComponentKind.GPU,
    index: int | None = None,
) -> Finding:
    """`what` goes on from "GPU 5 "; `index` is the GPU's unless it is given."""
    return Finding(
        key=key(check, identity),
        check=check,
        component=Component(kind, identity.index if index is None else index, identity.uuid, str(identity.pci)),
        fault_class=fault_class,
        blame=blame,
        message=f"GPU {identity.index} {what}",
        remedy=remedy,
        blame_condition=condition,
    )
