"""Prints nccl-tests tables as its releases did, with the values a reader must find in them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

TYPES = {"float": 4, "half": 2, "bfloat16": 2, "int8": 1, "double": 8}
PER_RANK = ("all_gather", "reduce_scatter", "alltoall", "alltoallv", "scatter", "gather", "hypercube")
REDUCING = ("all_reduce", "reduce_scatter", "reduce", "sendrecv")
ROOTED = ("broadcast", "reduce", "scatter", "gather")
NOT_IN_PLACE = ("alltoall", "alltoallv", "sendrecv")


@dataclass(frozen=True)
class Run:
    """What was run.  `era`: 2018 (ms, no #), 2020 (error column), 2022-08 (blank redop), 2023, 2025 (banner), 2.19."""

    test: str = "all_reduce"
    era: str = "2.19"
    ranks: int = 8
    hosts: tuple[str, ...] = ("node-a",)
    type: str = "float"
    sizes: tuple[int, ...] = (1 << 20, 1 << 22, 1 << 24)
    checked: bool = True
    cputime: bool = False
    stamps: bool = False
    per_iteration: bool = False
    groups: int = 1
    wrong: int = 0  # elements out of place in the last row
    min_bandwidth: str = ""
    pid: int = 4000

    @property
    def old(self) -> bool:
        return self.era in ("2018", "2020")


def factor(run: Run) -> float:
    n = run.ranks // run.groups
    if run.test == "all_reduce":
        return 2 * (n - 1) / n
    if run.test in ("broadcast", "reduce", "sendrecv", "hypercube"):
        return 1.0
    return (n - 1) / n


def expected_rows(run: Run) -> list[dict[str, Any]]:
    return [_row(run, index, size) for index, size in enumerate(run.sizes)]


def _row(run: Run, index: int, size: int) -> dict[str, Any]:
    per_rank = run.ranks if run.test in PER_RANK else 1
    count = size // TYPES[run.type] // per_rank
    size = count * TYPES[run.type] * per_rank
    last = index == len(run.sizes) - 1
    return {
        "size_bytes": size,
        "count": count,
        "type": run.type,
        "redop": _redop(run),
        "root": _root(run),
        "out_of_place": _side(run, size, 40.0 + 7 * index, run.wrong if last else 0, checked=run.checked),
        "in_place": _side(
            run, size, 41.5 + 7 * index, 0, checked=run.checked and (run.old or run.test not in NOT_IN_PLACE)
        ),
    }


def _redop(run: Run) -> str | None:
    if run.test in REDUCING and not (run.era == "2020" and run.test in ("reduce_scatter", "sendrecv")):
        return "sum"
    if run.test == "hypercube" or run.era in ("2018", "2020", "2022-08"):
        return None
    return "none"


def _root(run: Run) -> int | None:
    if run.era == "2018" or (run.era == "2020" and run.test not in ROOTED):
        return None
    return 2 if run.test in ROOTED else -1


def _side(run: Run, size: int, time: float, wrong: int, *, checked: bool) -> dict[str, Any]:
    algbw = round(size / time / 1e3, 2)
    side: dict[str, Any] = {"time_us": time, "algbw": algbw, "busbw": round(algbw * factor(run), 2)}
    if run.old:
        side |= {"wrong": None, "error": 2e-07 if checked else None}
    else:
        side["wrong"] = wrong if checked else None
    if run.per_iteration:
        side["per_iter"] = {"min_us": 39.5, "max_us": 55.25, "p99_us": 54.0, "cv_pct": 3.5}
    return side


def header(run: Run) -> list[str]:
    lines = []
    if run.era == "2.19":
        lines.append("# nccl-tests version 2.19.6 nccl-headers=23007 nccl-library=23007")
    if run.era in ("2.19", "2025"):
        lines.append(f"# Collective test starting: {run.test}_perf")
    hash_mark = "" if run.era == "2018" else "# "
    lines.append(
        f"{hash_mark}nThread 1 nGpus 1 minBytes {run.sizes[0]} maxBytes {run.sizes[-1]} step: 4(factor) "
        f"warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0 "
    )
    lines += ["#", "# Using devices"]
    share = run.ranks // len(run.hosts)
    for rank in range(run.ranks):
        host = run.hosts[rank // share]
        pid = "" if run.era == "2018" else f"Pid {run.pid + rank:6d} "
        group = "" if run.old or run.era == "2022-08" else f"Group {rank % run.groups:2d} "
        pci = "[0000:1b:00]" if run.era in ("2025", "2.19") else "[0x1b]"
        lines.append(
            f"#  Rank {rank:2d} {group}{pid}on {host:>10s} device {rank % share:2d} {pci} NVIDIA H100 80GB HBM3"
        )
    return [*lines, "#", *heading(run)]


def heading(run: Run) -> list[str]:
    if run.era == "2018":
        return [
            "#                                                 out-of-place                    in-place",
            "#      bytes          N    type      op     time  algbw  busbw    res     time  algbw  busbw    res",
        ]
    left = ["size", "count", "type"]
    if run.era == "2020":
        left += [name for name, there in (("redop", _redop(run)), ("root", _root(run) is not None)) if there]
    else:
        left += ["redop", "root"]
    side = ["cputime" if run.cputime else "time", "algbw", "busbw", "error" if run.old else "#wrong"]
    if run.per_iteration:
        side += ["i_min", "i_max", "i_p99", "i_cv%"]
    names = [*left, *side, *side, *(["timestamp"] if run.stamps else [])]
    return [
        "#  " + "  ".join(f"{name:>8s}" for name in names),
        "#       (B)    (elements)          (us)  (GB/s)  (GB/s)",
    ]


def rows(run: Run) -> list[str]:
    return ["".join(pieces(run, row)) for row in expected_rows(run)]


def pieces(run: Run, row: dict[str, Any]) -> tuple[str, str, str]:
    """The three pieces in which a row is printed."""
    left = f"{row['size_bytes']:12d}  {row['count']:12d}  {row['type']:>8s}"
    if row["redop"] is not None or run.era not in ("2018", "2020"):
        left += f"  {row['redop'] or '':>6s}"
    if row["root"] is not None:
        left += f"  {row['root']:6d}"
    stamp = "  2026-07-09 12:00:01" if run.stamps else ""
    return left, _cells(run, row["out_of_place"]), _cells(run, row["in_place"]) + stamp


def _cells(run: Run, side: dict[str, Any]) -> str:
    time = f"{side['time_us'] / 1000:7.4f}" if run.era == "2018" else f"{side['time_us']:7.2f}"
    last = side.get("error") if run.old else side["wrong"]
    text = f"  {time}  {side['algbw']:6.2f}  {side['busbw']:6.2f}  {'N/A' if last is None else f'{last:g}':>6s}"
    if run.per_iteration:
        text += "  " + "  ".join(f"{value:7.2f}" for value in side["per_iter"].values())
    return text


def footer(run: Run) -> list[str]:
    hash_mark = "" if run.era == "2018" else "#"
    wrong = 1 if run.wrong else 0
    lines = [
        f"{hash_mark} Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
        f"{hash_mark} Avg bus bandwidth    : {average(run):g} {run.min_bandwidth}",
        "#",
    ]
    if run.era in ("2.19", "2025"):
        lines.append(f"# Collective test concluded: {run.test}_perf")
    return lines


def average(run: Run) -> float:
    values = [row[side]["busbw"] for row in expected_rows(run) for side in ("out_of_place", "in_place")]
    return float(f"{sum(values) / len(values):g}")


def text(run: Run) -> str:
    return joined([*header(run), *rows(run), *footer(run)])


def joined(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"


def copies(run: Run, number: int) -> list[Run]:
    """Processes of one rank each that do not know of each other."""
    return [replace(run, ranks=1, hosts=("node-a",), pid=run.pid + 10 * index) for index in range(number)]
