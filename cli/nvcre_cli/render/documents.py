"""Reports as one JSON document on stdout: `{result, simulated, scenario, jobs: [...]}`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from nvcre_cli.outcome import Result
from nvcre_cli.report import JobReport


def overall(reports: Sequence[JobReport]) -> Result:
    """One failed Job fails the run; all must have passed for a pass."""
    results = {report.result for report in reports}
    if Result.FAILED in results:
        return Result.FAILED
    return Result.PASSED if results == {Result.PASSED} else Result.RUNNING


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
