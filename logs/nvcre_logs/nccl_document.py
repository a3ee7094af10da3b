"""An nccl-tests log as the JSON document nccl/1 (tests/corpus has its description); GB/s and microseconds."""

from __future__ import annotations

import math
from typing import Any

from nvcre_logs.nccl_log import NcclLog, NcclTest, Row, Side

_WHY = {
    "wrong_results": "wrong results were computed",
    "nccl_error": "NCCL or CUDA failed",
    "cuda_oom": "a GPU ran out of memory",
    "timeout": "the test did not finish in its time",
    "network_error": "the network between the ranks failed",
    "gpu_missing": "GPUs that it was told to use are not there",
    "truncated": "the table is cut: rows are missing",
    "no_footer": "every size was measured, but the end of the report is missing",
    "non_finite": "a bandwidth is no finite number",
    "below_min_bw": "the average is below NCCL_TESTS_MIN_BW",
    "single_rank": "one rank moves nothing over any link, so busbw is 0",
    "not_distributed": "the processes ran side by side and not as one run (a binary without MPI)",
}


def document(log: NcclLog, case: str) -> dict[str, Any]:
    return {
        "schema": "nccl/1",
        "case": case,
        "ok": log.ok,
        "reasons": list(dict.fromkeys(_code(reason) for reason in log.reasons)),
        "why": why(log),
        "tests": [_test(test) for test in log.tests],
    }


def why(log: NcclLog) -> str:
    """One sentence for a person."""
    if not log.tests:
        return (
            f"The log has no table of nccl-tests; its last words: {log.last_words}"
            if log.last_words
            else ("The log has no table of nccl-tests.")
        )
    if log.ok:
        again = " after an attempt that failed" if "retried" in log.reasons else ""
        return (
            f"The last table is complete and no element is wrong{again}."
            if log.last_tests[-1].checked
            else (f"The last table is complete{again}; its results were not checked.")
        )
    said = [_WHY[_code(reason)] for reason in log.reasons if _code(reason) in _WHY]
    failures = [failure for test in log.tests for failure in test.failures]
    detail = f" ({failures[0]})" if failures else ""
    sentence = "; ".join(said) or "a table without rows"
    return f"{sentence[0].upper()}{sentence[1:]}{detail}."


def _test(test: NcclTest) -> dict[str, Any]:
    found: dict[str, Any] = {
        "test": test.name,
        "test_source": test.name_source,
        "status": test.status,
        "reasons": list(dict.fromkeys(_code(reason) for reason in test.reasons)),
        "ranks": test.ranks,
        "hosts": test.hosts,
        "rows": [_row(row, test) for row in test.rows],
        "avg_busbw": _number(test.avg_busbw_gbps),
        "peak_busbw": test.peak_busbw_gbps,
        "out_of_bounds": None
        if test.out_of_bounds is None
        else {"count": test.out_of_bounds, "ok": test.out_of_bounds_ok},
        "complete": test.complete,
    }
    optional = {
        "ranks_per_group": test.ranks_per_group,
        "time_is_cpu": test.time_is_cpu,
        "correctness": "unchecked" if test.rows and not test.checked else None,
        "algbw_era": "n-1" if test.counts_shares_of_others else None,
        "stream": test.stream,
        "suspect_hosts": test.suspect_hosts,
    }
    return found | {name: value for name, value in optional.items() if value}


def _row(row: Row, test: NcclTest) -> dict[str, Any]:
    return {
        "size_bytes": row.size_bytes,
        "count": row.count,
        "type": row.type,
        "redop": row.redop,
        "root": row.root,
        "out_of_place": _side(row.out_of_place, has_error=test.has_error_column),
        "in_place": _side(row.in_place, has_error=test.has_error_column),
    }


def _side(side: Side, *, has_error: bool) -> dict[str, Any]:
    words: dict[str, Any] = {
        "time_us": _number(side.time_us),
        "algbw": _number(side.algbw_gbps),
        "busbw": _number(side.busbw_gbps),
        "wrong": side.wrong,
    }
    if has_error:
        words["error"] = _number(side.error)
    if (spread := side.per_iteration) is not None:
        words["per_iter"] = {
            "min_us": spread.min_us,
            "max_us": spread.max_us,
            "p99_us": spread.p99_us,
            "cv_pct": spread.cv_pct,
        }
    return words


def _number(value: float | None) -> float | str | None:
    """JSON has no infinity: inf and nan are strings."""
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf"


def _code(reason: str) -> str:
    """The document has no word for a CUDA failure of another kind."""
    return "nccl_error" if reason == "cuda_error" else reason
