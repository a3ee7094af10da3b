"""Is the memory of a GPU sound?  ECC errors, remapped rows, and the retired pages of GPUs before Ampere."""

from __future__ import annotations

from collections.abc import Iterator

from nvcre_protos.vocabulary import Blame, FaultClass

from nvcre_agent.checks import gpu as gpus
from nvcre_agent.checks.baseline import Baseline
from nvcre_agent.checks.limits import Limits
from nvcre_agent.checks.model import Finding, Undecided
from nvcre_agent.nvml.snapshot import GpuSnapshot, Snapshot, Unread

_AT_NEXT_DRAIN = "reset the GPU the next time the node is drained; it may run on until then"


def ecc_uncorrected(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    """Counts from the baseline: totals are lifetime values and old ones say nothing about today."""

    def rose(gpu: GpuSnapshot, total: int) -> Finding | None:
        known = baseline.gpus.get(gpu.identity.uuid)
        start = known.ecc_uncorrected_volatile if known else None
        new = total - start if start is not None else 0
        if new < limits.ecc_uncorrected_delta:
            return None
        return gpus.finding(
            "ecc_uncorrected",
            gpu.identity,
            fault_class=FaultClass.NEEDS_RESET,
            blame=Blame.YES,
            what=f"had {new} uncorrectable ECC error{'s' if new != 1 else ''} since it was last known good",
            remedy="drain the node and reset the GPU; replace it if errors return after the reset",
        )

    return gpus.judge(snapshot, "ecc_uncorrected", lambda gpu: gpu.ecc_uncorrected_volatile, rose)


def ecc_corrected(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    """Corrected errors did no harm; many of them are a note, never an accusation."""

    def many(gpu: GpuSnapshot, total: int) -> Finding | None:
        series = gpus.history(baseline, gpu).counter("ecc_corrected_volatile")
        if series.per_second(60) * 60 <= limits.ecc_corrected_per_min:
            return None
        return gpus.finding(
            "ecc_corrected",
            gpu.identity,
            fault_class=FaultClass.INFORMATIONAL,
            blame=Blame.NO,
            what=f"corrects more than {limits.ecc_corrected_per_min:g} ECC errors a minute",
            remedy="watch it; run dcgmi diag at the next drain if it goes on",
        )

    return gpus.judge(snapshot, "ecc_corrected", lambda gpu: gpu.ecc_corrected_volatile, many)


def row_remap_failure(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    def failed(gpu: GpuSnapshot, value: int) -> Finding | None:
        if not value:
            return None
        return gpus.finding(
            "row_remap_failure",
            gpu.identity,
            fault_class=FaultClass.FATAL_HARDWARE,
            blame=Blame.YES,
            what="could not remap a faulty memory row: no spare row is left",
            remedy="replace the GPU; a reset may hide the flag but does not repair the memory",
        )

    return gpus.judge(snapshot, "row_remap_failure", lambda gpu: gpu.remap_failure, failed)


def row_remap_pending(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    def pending(gpu: GpuSnapshot, value: int) -> Finding | None:
        if not value:
            return None
        return gpus.finding(
            "row_remap_pending",
            gpu.identity,
            fault_class=FaultClass.INFORMATIONAL,
            blame=Blame.NO,
            what="has a memory row remap waiting for a reset",
            remedy=_AT_NEXT_DRAIN,
        )

    return gpus.judge(snapshot, "row_remap_pending", lambda gpu: gpu.remap_pending, pending)


def row_remap_limit(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    def full(gpu: GpuSnapshot, value: int) -> Finding | Undecided | None:
        correctable = gpu.remapped_correctable
        rows = value + (correctable if isinstance(correctable, int) else 0)
        if rows < limits.row_remap_limit_rows:
            return gpus.unread("row_remap_limit", gpu, correctable) if isinstance(correctable, Unread) else None
        return gpus.finding(
            "row_remap_limit",
            gpu.identity,
            fault_class=FaultClass.FATAL_HARDWARE,
            blame=Blame.YES,
            what=f"has remapped {rows} memory rows; {limits.row_remap_limit_rows:g} are all it can",
            remedy="replace the GPU: the next faulty row cannot be remapped",
        )

    return gpus.judge(snapshot, "row_remap_limit", lambda gpu: gpu.remapped_uncorrectable, full)


def retired_pages(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    def retired(gpu: GpuSnapshot, pages: int) -> Finding | None:
        if pages < limits.retired_pages_soft:
            return None
        if pages < limits.retired_pages_hard:
            return gpus.finding(
                "retired_pages",
                gpu.identity,
                fault_class=FaultClass.INFORMATIONAL,
                blame=Blame.NO,
                what=f"has {pages} retired memory pages, {limits.retired_pages_hard:g} are the limit",
                remedy="watch it; plan a replacement when the number keeps growing",
            )
        return gpus.finding(
            "retired_pages",
            gpu.identity,
            fault_class=FaultClass.FATAL_HARDWARE,
            blame=Blame.YES,
            what=f"has {pages} retired memory pages, the limit is {limits.retired_pages_hard:g}",
            remedy="drain the node and replace the GPU",
        )

    return gpus.judge(snapshot, "retired_pages", lambda gpu: gpu.retired_pages, retired)


def page_retirement_pending(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    def pending(gpu: GpuSnapshot, value: int) -> Finding | None:
        if not value:
            return None
        return gpus.finding(
            "page_retirement_pending",
            gpu.identity,
            fault_class=FaultClass.INFORMATIONAL,
            blame=Blame.NO,
            what="has a memory page whose retirement waits for a reset",
            remedy=_AT_NEXT_DRAIN,
        )

    return gpus.judge(snapshot, "page_retirement_pending", lambda gpu: gpu.retired_pages_pending, pending)
