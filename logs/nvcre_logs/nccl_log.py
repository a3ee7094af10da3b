"""What a log of nccl-tests says, as values: tables, GPUs and failures, and whether they make a usable measurement.

Times in microseconds, bandwidths in GB/s, sizes in bytes.  The text is read by nccl_output.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Side:
    """Out-of-place or in-place half of a row.  `wrong` is None where it was not checked (N/A).

    Tables before 2022-08 have `error`, the largest relative error, instead of a count of wrong elements.
    """

    time_us: float
    algbw_gbps: float
    busbw_gbps: float
    wrong: int | None = None
    error: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    size_bytes: int
    count: int
    type: str
    redop: str | None
    root: int | None
    out_of_place: Side
    in_place: Side

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.out_of_place, self.in_place


@dataclass(frozen=True, slots=True)
class Device:
    rank: int
    pid: int
    host: str
    index: int
    pci: str
    product: str


@dataclass(slots=True)
class NcclTest:
    """One table, or one attempt that printed none.

    `reasons` (words of the corpus): wrong_results, nccl_error, cuda_error, cuda_oom, timeout, gpu_missing, truncated,
    non_finite, single_rank.
    """

    name: str | None = None  # all_reduce, ...; None where the log does not say
    version: str | None = None
    library_version: int | None = None  # nccl-library=22903
    devices: list[Device] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    avg_busbw_gbps: float | None = None
    out_of_bounds: int | None = None
    out_of_bounds_ok: bool | None = None
    failures: list[str] = field(default_factory=list)
    suspect_hosts: list[str] = field(default_factory=list)
    lost_rows: int = 0
    dropped_rows: int = 0  # over MAX_ROWS
    concluded: bool = False
    has_error_column: bool = False
    has_parameters: bool = False
    failure_reasons: list[str] = field(default_factory=list)

    @property
    def ranks(self) -> int | None:
        return len(self.devices) or None

    @property
    def hosts(self) -> dict[str, int]:
        counted: dict[str, int] = {}
        for device in self.devices:
            counted[device.host] = counted.get(device.host, 0) + 1
        return counted

    @property
    def wrong_elements(self) -> int:
        return sum(side.wrong or 0 for row in self.rows for side in row.sides)

    @property
    def checked(self) -> bool:
        """Was any result compared?  -c 0 prints N/A everywhere."""
        return any(side.wrong is not None or side.error is not None for row in self.rows for side in row.sides)

    @property
    def peak_busbw_gbps(self) -> float | None:
        finite = [side.busbw_gbps for row in self.rows for side in row.sides if math.isfinite(side.busbw_gbps)]
        return max(finite, default=None)

    @property
    def complete(self) -> bool:
        return self.out_of_bounds is not None and not self.lost_rows

    @property
    def reasons(self) -> tuple[str, ...]:
        said = list(self.failure_reasons)
        if self.wrong_elements or self.out_of_bounds_ok is False:
            said.append("wrong_results")
        if not self.complete and not said:
            said.append("truncated")
        if any(not math.isfinite(side.busbw_gbps) for row in self.rows for side in row.sides):
            said.append("non_finite")
        if len(self.devices) == 1:
            said.append("single_rank")
        return tuple(dict.fromkeys(said))

    @property
    def status(self) -> str:
        """ok, incomplete (cut, nothing else is wrong) or failed."""
        match self.reasons:
            case ():
                return "ok"
            case ("truncated",):
                return "incomplete"
        return "failed"


@dataclass(frozen=True, slots=True)
class NcclLog:
    tests: tuple[NcclTest, ...]
    oversized_lines: int  # longer than MAX_LINE_BYTES, skipped
    undecodable_lines: int  # not UTF-8, read with replacement characters
    last_words: str = ""  # the last line that is not of nccl-tests' own report: what a loader or a shell complains of

    @property
    def ok(self) -> bool:
        """Is there a usable, correct and complete measurement at the end of the log?"""
        return bool(self.tests) and self.tests[-1].status == "ok" and bool(self.tests[-1].rows)
