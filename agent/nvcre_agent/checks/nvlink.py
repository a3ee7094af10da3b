"""Are the NVLinks of a GPU up, and do they carry data without errors?"""

from __future__ import annotations

from collections.abc import Iterator

from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass

from nvcre_agent.checks import gpu as gpus
from nvcre_agent.checks.baseline import Baseline
from nvcre_agent.checks.fabric import is_coming_up
from nvcre_agent.checks.limits import Limits
from nvcre_agent.checks.model import Finding, Undecided
from nvcre_agent.nvml.snapshot import Snapshot, Unread

_EITHER_END = "either end of the link may be guilty; blame the GPU when the other end is healthy"


def nvlink_down(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    """Links that are down while they were up before or another GPU's links are up.

    Where no link of the node was ever up the GPUs are not bridged or the fabric manager does not run: nobody's fault
    here.  A GPU without NVLink has no readings at all (the driver tests for presence).  While the fabric comes up its
    links are inactive, and that is a waiting state of fabric_registration.  A driver in trouble may tell of fewer links
    than before: that ends nothing.
    """
    peers_up = any(1 in gpu.nvlinks for gpu in snapshot.gpus)
    for gpu in snapshot.gpus:
        key = gpus.key("nvlink_down", gpu.identity)
        if gpu.access is not None:
            yield Undecided(key)
            continue
        if any(isinstance(link, Unread) and link is not Unread.NOT_SUPPORTED for link in gpu.nvlinks):
            yield Undecided(key)
        known = baseline.gpus.get(gpu.identity.uuid)
        seen_up = known.nvlinks_seen_up if known else frozenset()
        if len(gpu.nvlinks) <= max(seen_up, default=0):
            yield Undecided(key, gpus.NOT_TOLD)
        down = [link for link, up in enumerate(gpu.nvlinks) if up == 0 and (peers_up or link in seen_up)]
        if not down:
            continue
        if is_coming_up(gpu):
            yield Undecided(key, "the fabric is still coming up")
            continue
        yield gpus.finding(
            "nvlink_down",
            gpu.identity,
            kind=ComponentKind.NVLINK,
            index=down[0],
            fault_class=FaultClass.NEEDS_RESET,
            blame=Blame.CONDITIONAL,
            condition=_EITHER_END,
            what=f"has NVLink {', '.join(map(str, down))} of {len(gpu.nvlinks)} down",
            remedy="drain the node and reset the GPU; if the link stays down, inspect the baseboard or NVSwitch",
        )


def nvlink_errors(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    """Errors of the last ten minutes; the totals themselves are lifetime values and never accuse."""
    for gpu in snapshot.gpus:
        totals = (gpu.nvlink_replays, gpu.nvlink_recoveries, gpu.nvlink_crc_errors)
        if gpu.access is not None or any(
            isinstance(total, Unread) and total is not Unread.NOT_SUPPORTED for total in totals
        ):
            yield Undecided(gpus.key("nvlink_errors", gpu.identity))
            continue
        history = gpus.history(baseline, gpu)
        errors = []
        for counter, word in (("nvlink_replays", "replays"), ("nvlink_recoveries", "recoveries")):
            if history.counter(counter).growth() >= limits.nvlink_errors_delta:
                errors.append(word)
        if history.counter("nvlink_crc_errors").per_second(25) >= limits.nvlink_errors_crc_per_s:
            errors.append(f"{limits.nvlink_errors_crc_per_s:g} or more CRC errors a second")
        if errors:
            yield gpus.finding(
                "nvlink_errors",
                gpu.identity,
                fault_class=FaultClass.NEEDS_RESET,
                blame=Blame.CONDITIONAL,
                condition=_EITHER_END,
                what=f"had errors on its NVLinks within 10 minutes: {', '.join(errors)}",
                remedy="compare with the other ends (nvidia-smi nvlink -e); reset the GPU at the next drain",
            )
