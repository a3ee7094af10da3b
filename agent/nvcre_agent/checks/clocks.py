"""Does the hardware hold the GPU's clocks down, and how near is it to doing so?

Heat and power are the room's trouble as often as the GPU's, so these warn and never make a node bad by themselves: a
slow probe does.  A software power cap is how a GPU at its limit works, and says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nvcre_protos.vocabulary import Blame, FaultClass

from nvcre_agent.checks import gpu as gpus
from nvcre_agent.checks.baseline import Baseline
from nvcre_agent.checks.history import HW_POWER_BRAKE, HW_SLOWDOWN, HW_THERMAL, WINDOW_S
from nvcre_agent.checks.limits import Limits
from nvcre_agent.checks.model import Finding, Undecided
from nvcre_agent.nvml.snapshot import GpuSnapshot, Snapshot

_REASONS = {HW_THERMAL: "heat", HW_POWER_BRAKE: "the power brake", HW_SLOWDOWN: "hardware slowdown"}
_REMEDIES = {
    HW_THERMAL: "check fans, inlet temperature and dust; compare with the neighbours in the rack",
    HW_POWER_BRAKE: "check power supplies and the rack's power capping",
    HW_SLOWDOWN: "check cooling and power of the node; compare with the neighbours in the rack",
}


def hw_slowdown(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    """Often enough within the last ten minutes; one slowdown alone may be a change of the performance state."""

    def slowed(gpu: GpuSnapshot, _now: int) -> Finding | None:
        slowdowns = gpus.history(baseline, gpu).slowdowns
        if len(slowdowns) / (WINDOW_S / 60) < limits.hw_slowdown_per_min:
            return None
        seen = [bit for bit in _REASONS if any(one.reasons & bit for one in slowdowns)]
        reasons = " and ".join(_REASONS[bit] for bit in seen[:2])
        return gpus.finding(
            "hw_slowdown",
            gpu.identity,
            fault_class=FaultClass.INFORMATIONAL,
            blame=Blame.CONDITIONAL,
            condition="a bandwidth probe is slow, or its peers under the same load are not slowed down",
            what=f"was slowed down by {reasons} again and again within 10 minutes",
            remedy=_REMEDIES[seen[0]],
        )

    return gpus.judge(snapshot, "hw_slowdown", lambda gpu: gpu.clocks_event_reasons, slowed)


def temperature_margin(snapshot: Snapshot, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    def hot(gpu: GpuSnapshot, margin_c: int) -> Finding | None:
        limit_c = _limit_of(gpu.identity.product, limits)
        if margin_c > limit_c:
            return None
        return gpus.finding(
            "temperature_margin",
            gpu.identity,
            fault_class=FaultClass.INFORMATIONAL,
            blame=Blame.CONDITIONAL,
            condition="a bandwidth probe is slow, or its peers under the same load stay cooler",
            what=f"is so hot that it slows down: its margin is {limit_c:g} degrees Celsius or less",
            remedy=_REMEDIES[HW_THERMAL],
        )

    return gpus.judge(snapshot, "temperature_margin", lambda gpu: gpu.temperature_margin_c, hot)


def _limit_of(product: str, limits: Limits) -> float:
    """By whole words of the name: "GH200" contains "H200" and is another product."""
    words = re.split(r"[\s-]+", product)
    known = (
        limits.temperature_margin_celsius_of[word] for word in words if word in limits.temperature_margin_celsius_of
    )
    return next(known, limits.temperature_margin_celsius)
