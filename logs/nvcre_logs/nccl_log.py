"""What a log of nccl-tests says, as values: tables, GPUs and failures, and whether they make a usable measurement.

Times in microseconds, bandwidths in GB/s, sizes in bytes.  The text is read by nccl_output.py, reports of -J by
nccl_report.py.  The words of `reasons` are those of tests/corpus: wrong_results, nccl_error, cuda_error, cuda_oom,
timeout, network_error, gpu_missing, truncated, no_footer, non_finite, below_min_bw, single_rank, not_distributed and,
of a whole log, retried.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "alltoall",
    "alltoallv",
    "scatter",
    "gather",
    "sendrecv",
    "hypercube",
)


@dataclass(frozen=True, slots=True)
class PerIteration:
    """What -I prints behind each #wrong; `cv_pct` is the standard deviation in percent of the mean."""

    min_us: float
    max_us: float
    p99_us: float
    cv_pct: float


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
    per_iteration: PerIteration | None = None

    @property
    def finite(self) -> bool:
        return math.isfinite(self.time_us) and math.isfinite(self.algbw_gbps) and math.isfinite(self.busbw_gbps)


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
    pid: int | None
    host: str
    index: int
    pci: str
    product: str
    group: int = 0


@dataclass(slots=True)
class NcclTest:
    """One table, or one attempt that printed none."""

    name: str | None = None  # all_reduce, ...; None where the log does not say
    name_source: str = "unknown"  # banner, command, args
    stream: str = ""  # pod/NAME/CONTAINER, where the log holds several pods
    version: str | None = None
    library_version: int | None = None  # nccl-library=22903
    devices: list[Device] = field(default_factory=list)
    devices_cut: bool = False  # a process' list of GPUs ended in "..."
    threads: int = 1
    gpus_per_process: int = 1
    max_bytes: int | None = None
    step_factor: int = 0
    step_bytes: int = 0
    rows: list[Row] = field(default_factory=list)
    avg_busbw_gbps: float | None = None
    below_min_bandwidth: bool = False  # NCCL_TESTS_MIN_BW
    out_of_bounds: int | None = None
    out_of_bounds_ok: bool | None = None
    failures: list[str] = field(default_factory=list)
    suspect_hosts: list[str] = field(default_factory=list)
    lost_rows: int = 0
    dropped_rows: int = 0  # over MAX_ROWS
    concluded: bool = False
    has_error_column: bool = False
    time_is_cpu: bool = False
    one_of_many: bool = False  # tables of several processes that knew nothing of each other
    failure_reasons: list[str] = field(default_factory=list)

    @property
    def hosts(self) -> dict[str, int]:
        """Ranks by host.  Of a process whose list was cut, as many as it was told to use."""
        if not self.devices_cut:
            return dict(Counter(device.host for device in self.devices))
        processes = Counter((device.host, device.pid) for device in self.devices)
        counted: Counter[str] = Counter()
        for (host, _), listed in processes.items():
            counted[host] += max(listed, self.gpus_per_process)
        return dict(counted)

    @property
    def ranks(self) -> int | None:
        """None where the header is lost."""
        return sum(self.hosts.values()) or None

    @property
    def ranks_per_group(self) -> int | None:
        """With NCCL_TESTS_SPLIT, the ranks of one communicator: the bus factor uses them.  None without."""
        groups = Counter(device.group for device in self.devices)
        return groups[self.devices[0].group] if len(groups) > 1 else None

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
        footer = self.out_of_bounds is not None and self.avg_busbw_gbps is not None
        return footer and not self.lost_rows and not self._lacks_rows

    @property
    def _lacks_rows(self) -> bool:
        """The average is the mean of every busbw in the table: where that of the rows is another one, some are lost.

        Before 2022 each thread measured for itself, and only the first one's figures were printed.
        """
        cells = [side.busbw_gbps for row in self.rows for side in row.sides]
        average = self.avg_busbw_gbps
        if average is None or not cells or self.dropped_rows or self.one_of_many:
            return False
        if self.has_error_column and self.threads > 1:
            return False
        mean = math.fsum(cells) / len(cells)
        return math.isfinite(mean) and math.isfinite(average) and abs(mean - average) > 0.0055 + 2e-4 * mean

    @property
    def single_rank(self) -> bool:
        """One rank moves nothing over any link: the factor and every busbw are 0."""
        ranks = self.ranks_per_group or self.ranks
        if ranks is not None:
            return ranks == 1 and bool(self.rows)
        moved = [side for row in self.rows for side in row.sides if side.algbw_gbps >= 1]
        return bool(moved) and all(side.busbw_gbps == 0 for side in moved)

    @property
    def counts_shares_of_others(self) -> bool:
        """Before mid-2020 all_gather and reduce_scatter divided n-1 shares by the time: algbw is busbw already."""
        if not self.has_error_column or self.name not in ("all_gather", "reduce_scatter") or not self.rows:
            return False
        return all(side.algbw_gbps == side.busbw_gbps for row in self.rows for side in row.sides)

    @property
    def reasons(self) -> tuple[str, ...]:
        said = list(self.failure_reasons)
        if self.wrong_elements or self.out_of_bounds_ok is False:
            said.append("wrong_results")
        if not self.complete and not said:
            said.append("no_footer" if self._all_sizes_done and self.out_of_bounds is None else "truncated")
        if any(not side.finite for row in self.rows for side in row.sides):
            said.append("non_finite")
        if self.below_min_bandwidth:
            said.append("below_min_bw")
        if self.single_rank:
            said.append("single_rank")
        if self.one_of_many:
            said.append("not_distributed")
        return tuple(dict.fromkeys(said))

    @property
    def _all_sizes_done(self) -> bool:
        if not self.rows or self.max_bytes is None or self.lost_rows:
            return False
        last = self.rows[-1].size_bytes
        following = last * self.step_factor if self.step_factor > 1 else last + self.step_bytes
        return last >= self.max_bytes or following > self.max_bytes

    @property
    def status(self) -> str:
        """ok, incomplete (cut, nothing else is wrong) or failed."""
        match self.reasons:
            case ():
                return "ok"
            case ("truncated",) | ("no_footer",):
                return "incomplete"
        return "failed"


@dataclass(frozen=True, slots=True)
class NcclLog:
    tests: tuple[NcclTest, ...]
    oversized_lines: int = 0  # longer than MAX_LINE_BYTES, skipped
    undecodable_lines: int = 0  # not UTF-8, read with replacement characters
    last_words: str = ""  # the last line that is not of nccl-tests' own report: what a loader or a shell complains of

    @property
    def last_tests(self) -> tuple[NcclTest, ...]:
        """The last one of each pod."""
        return tuple({test.stream: test for test in self.tests}.values())

    @property
    def ok(self) -> bool:
        """Is there a usable, correct and complete measurement at the end of the log?  Wrong results spoil all of it."""
        if not self.tests or any("wrong_results" in test.reasons for test in self.tests):
            return False
        return all(test.status == "ok" and test.rows for test in self.last_tests)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Of every test; those of an attempt that succeeded later are only that it was tried again."""
        repeated = [
            test for position, test in enumerate(self.tests) if _succeeds_later(test, self.tests[position + 1 :])
        ]
        left = (reason for test in self.tests if test not in repeated for reason in test.reasons)
        return tuple(dict.fromkeys([*left, *(["retried"] if repeated else [])]))


def _succeeds_later(test: NcclTest, later: Iterable[NcclTest]) -> bool:
    if test.status == "ok" or "wrong_results" in test.reasons:
        return False
    return any(
        other.status == "ok"
        and other.stream == test.stream
        and (other.name == test.name or None in (other.name, test.name))
        for other in later
    )
