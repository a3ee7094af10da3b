"""Reports as one JSON document on stdout, `{result, simulated, scenario, jobs: [...]}`, and as an exit code."""

from __future__ import annotations

import json
from collections.abc import Sequence

from nvcre_cli.outcome import Result
from nvcre_cli.problems import EXIT_FAILED, EXIT_NOT_TRIED, EXIT_PASSED
from nvcre_cli.report import JobReport


def overall(reports: Sequence[JobReport]) -> Result:
    """One failed Job fails the run; all must have passed for a pass."""
    results = {report.result for report in reports}
    if Result.FAILED in results:
        return Result.FAILED
    return Result.PASSED if results == {Result.PASSED} else Result.RUNNING


def exit_code(reports: Sequence[JobReport]) -> int:
    """A verdict against a run counts more than a Job that never ran, and that more than the others' pass."""
    if overall(reports) is Result.PASSED:
        return EXIT_PASSED
    against = [report for report in reports if report.result is Result.FAILED]
    return EXIT_NOT_TRIED if against and all(report.never_ran for report in against) else EXIT_FAILED


def as_document(reports: Sequence[JobReport], *, scenario: str | None = None) -> str:
    return json.dumps(
        {
            "result": str(overall(reports)),
            "simulated": any(report.simulated for report in reports),
            "scenario": scenario,
            "jobs": [report.as_json() for report in reports],
        },
        indent=2,
    )
