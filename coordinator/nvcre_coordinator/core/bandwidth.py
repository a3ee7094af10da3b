"""Collective bandwidth: rows of a log -> mean per message size, and the peak that thresholds judge.

Every row counts once; rows of one size (the cycles of a sweep) are averaged arithmetically and printed with two
decimals; the peak is the maximum over all sizes of those means (spec/reference-behaviour.md 4.4, 2.7).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import msgspec

from nvcre_coordinator.api.measurement import BandwidthResult

MAX_SIZES = 256  # maxItems of status.results
MAX_INT64 = 2**63 - 1
MAX_GBPS = 1e6  # more than any interconnect does: somebody's noise, which must not become a mean or a sum without end


class BandwidthRow(NamedTuple):  # a frozen dataclass takes three times as long to make, and logs have many rows
    size_bytes: int
    algbw_gbps: float
    busbw_gbps: float


@dataclass(slots=True)
class _Sum:
    algbw_gbps: float = 0.0
    busbw_gbps: float = 0.0
    samples: int = 0


_Size = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT64)]
_Total = Annotated[float, msgspec.Meta(ge=0.0, le=MAX_GBPS * 2**31)]
_Rows = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Sums = Annotated[tuple[tuple[_Size, _Total, _Total, _Rows], ...], msgspec.Meta(max_length=MAX_SIZES)]
"""Of each size in bytes: the sums of algbw and busbw in GB/s, and of how many rows."""


@dataclass(slots=True)
class BandwidthTable:
    """Accumulates rows; memory is bounded by the number of sizes kept, however long the log is."""

    _sums: dict[int, _Sum] = field(default_factory=dict)
    rows_beyond_size_limit: int = 0

    @classmethod
    def of(cls, sums: Sums) -> BandwidthTable:
        return cls({size: _Sum(algbw, busbw, samples) for size, algbw, busbw, samples in sums})

    def sums(self) -> Sums:
        return tuple((size, one.algbw_gbps, one.busbw_gbps, one.samples) for size, one in self._sums.items())

    def add(self, rows: Iterable[tuple[int, float, float]]) -> int:
        """Adds rows (as BandwidthRow), returns how many; implausible ones are none."""
        count, sums, most = 0, self._sums, MAX_GBPS
        for size, algbw, busbw in rows:
            if not (0 <= algbw <= most and 0 <= busbw <= most and size <= MAX_INT64):
                continue
            count += 1
            total = sums.get(size)
            if total is None:
                if len(sums) >= MAX_SIZES:
                    self.rows_beyond_size_limit += 1
                    continue
                total = sums[size] = _Sum()
            total.algbw_gbps += algbw
            total.busbw_gbps += busbw
            total.samples += 1
        return count

    def results(self) -> tuple[BandwidthResult, ...]:
        return tuple(
            BandwidthResult(
                size_bytes=size,
                alg_bw=f"{total.algbw_gbps / total.samples:.2f}",
                bus_bw=f"{total.busbw_gbps / total.samples:.2f}",
                samples=total.samples,
            )
            for size, total in sorted(self._sums.items())
        )


@dataclass(frozen=True, slots=True)
class Peak:
    algbw_gbps: float
    busbw_gbps: float


def peak(results: Iterable[BandwidthResult]) -> Peak | None:
    """The best size of each; None without results."""
    rows = tuple(results)
    if not rows:
        return None
    return Peak(max(float(row.alg_bw) for row in rows), max(float(row.bus_bw) for row in rows))
