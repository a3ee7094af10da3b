"""The last minutes of one GPU: what a single snapshot cannot tell, because only a rate accuses.

A bounded pure value, one for each GPU, that is extended by each snapshot and forgotten when the agent ends.  Times are
monotonic seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nvcre_agent.nvml.snapshot import GpuSnapshot

WINDOW_S = 600.0  # the longest that a rule looks back
MAX_SAMPLES = 32  # ten minutes at one snapshot in 30 s, and some that were asked for in between
SLOWDOWN_SLOT_S = 30.0  # snapshots within one of these count as one: some are taken on demand

# Bits of the clock event reasons that say the hardware slows the clocks down: slowdown, thermal, power brake.
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
HW_SLOWDOWN, HW_THERMAL, HW_POWER_BRAKE = 0x8, 0x40, 0x80
_SLOWDOWNS = HW_SLOWDOWN | HW_THERMAL | HW_POWER_BRAKE

# Totals that only grow until the driver or the GPU is reset.
COUNTERS = (
    "ecc_corrected_volatile",
    "nvlink_crc_errors",
    "nvlink_replays",
    "nvlink_recoveries",
    "pcie_replays",
)


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    value: int


@dataclass(frozen=True, slots=True)
class Series:
    """Samples of one counter, oldest first; a total below the last one was reset and starts anew."""

    samples: tuple[Sample, ...] = ()

    def extended(self, at_s: float, value: int) -> Series:
        kept = self.samples
        if kept and (value < kept[-1].value or at_s < kept[-1].at_s):
            kept = ()
        recent = [sample for sample in kept if at_s - sample.at_s <= WINDOW_S]
        return Series((*recent, Sample(at_s, value))[-MAX_SAMPLES:])

    def growth(self) -> int:
        """How much was added within the window."""
        return self.samples[-1].value - self.samples[0].value if self.samples else 0

    def per_second(self, at_least_s: float) -> float:
        """The newest rate over `at_least_s` or the shortest longer time that the samples cover; 0 while too few."""
        if not self.samples:
            return 0.0
        newest = self.samples[-1]
        for sample in reversed(self.samples):
            if (seconds := newest.at_s - sample.at_s) >= at_least_s > 0:
                return (newest.value - sample.value) / seconds
        return 0.0


@dataclass(frozen=True, slots=True)
class Slowdown:
    """One stretch of at most SLOWDOWN_SLOT_S in which the hardware held the clocks down, and for which reasons."""

    at_s: float
    reasons: int


@dataclass(frozen=True, slots=True)
class GpuHistory:
    counters: tuple[Series, ...] = (Series(),) * len(COUNTERS)
    slowdowns: tuple[Slowdown, ...] = ()

    def counter(self, name: str) -> Series:
        return self.counters[COUNTERS.index(name)]

    def extended(self, gpu: GpuSnapshot, at_s: float) -> GpuHistory:
        """A value that was not read leaves its series as it is."""
        counters = tuple(
            series.extended(at_s, value) if isinstance(value := getattr(gpu, name), int) else series
            for name, series in zip(COUNTERS, self.counters, strict=True)
        )
        recent = tuple(one for one in self.slowdowns if 0 <= at_s - one.at_s < WINDOW_S)
        return GpuHistory(counters, _slowed(recent, gpu, at_s))


def _slowed(recent: tuple[Slowdown, ...], gpu: GpuSnapshot, at_s: float) -> tuple[Slowdown, ...]:
    reasons = gpu.clocks_event_reasons & _SLOWDOWNS if isinstance(gpu.clocks_event_reasons, int) else 0
    if not reasons:
        return recent
    if recent and at_s - recent[-1].at_s < SLOWDOWN_SLOT_S * 0.9:  # a snapshot is never exactly on time
        return (*recent[:-1], replace(recent[-1], reasons=recent[-1].reasons | reasons))
    return (*recent, Slowdown(at_s, reasons))[-MAX_SAMPLES:]
