"""Has a Job ended, and how?  Pure: the Job as JSON and a clock in, an answer out.

PASSED is Succeeded with nothing against it; Failed, HardwareFailed or ValidationFailed True is FAILED, and one of the
two can be said only when the evidence is in (condition Attributed, docs/architecture.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from nvcre_kube.resources import JsonObject

FAILURES = ("HardwareFailed", "Failed", "ValidationFailed")  # as they are shown: the cause before what follows from it
HANGS_ON_FOR_S = 60.0
ATTRIBUTION_APPEARS_WITHIN_S = 10.0
RESULTS_APPEAR_WITHIN_S = 30.0


class Result(StrEnum):
    PASSED = "PASSED"
    FAILED = "FAILED"
    RUNNING = "RUNNING"


def condition(obj: JsonObject, kind: str) -> JsonObject:
    """An empty one when it was never written."""
    for entry in (obj.get("status") or {}).get("conditions") or ():
        if entry.get("type") == kind:
            return dict(entry)
    return {}


def is_true(obj: JsonObject, kind: str) -> bool:
    return condition(obj, kind).get("status") == "True"


def terminal(job: JsonObject) -> bool:
    return is_true(job, "Succeeded") or is_true(job, "Failed")


def failure(job: JsonObject) -> JsonObject | None:
    """The condition that makes it FAILED; several may be True, the first of FAILURES is the one to show."""
    for kind in FAILURES:
        if is_true(job, kind):
            return condition(job, kind)
    return None


def never_ran(job: JsonObject) -> bool:
    """The workload was refused: no verdict about any node, something in the manifest has to be mended."""
    failed = condition(job, "Failed")
    return failed.get("status") == "True" and failed.get("reason") == "WorkloadCreationError"


def result(job: JsonObject) -> Result:
    if failure(job) is not None:
        return Result.FAILED
    judged = not thresholds(job) or condition(job, "ValidationFailed").get("status") == "False"
    return Result.PASSED if is_true(job, "Succeeded") and judged else Result.RUNNING


def thresholds(job: JsonObject) -> dict[str, str]:
    return dict((job.get("spec") or {}).get("thresholds") or {})


def finished(job: JsonObject, measurements: Iterable[JsonObject], *, terminal_for_s: float) -> bool:
    """Terminal, judged, attributed, and its figures final. Nothing is waited for longer than it can take."""
    if not terminal(job) or result(job) is Result.RUNNING:
        return False
    attributed = condition(job, "Attributed")
    if attributed:
        if attributed.get("status") == "Unknown":
            return False
    elif failure(job) is not None and terminal_for_s < ATTRIBUTION_APPEARS_WITHIN_S:
        return False
    complete = all(is_true(measurement, "Complete") for measurement in measurements)
    return complete or terminal_for_s >= RESULTS_APPEAR_WITHIN_S


def hangs_on(job: JsonObject, *, hardware_failed_for_s: float) -> bool:
    """A broken GPU was found and the workload does not end by itself: no use in waiting any longer."""
    return is_true(job, "HardwareFailed") and not terminal(job) and hardware_failed_for_s >= HANGS_ON_FOR_S
