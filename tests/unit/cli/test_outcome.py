"""When has a Job ended, and how?"""

import pytest
from nvcre_cli.outcome import Result, finished, hangs_on, result


def job(thresholds=None, **conditions):
    entries = [{"type": kind, "status": status, "reason": "R", "message": "m"} for kind, status in conditions.items()]
    return {"spec": {"thresholds": thresholds or {}}, "status": {"conditions": entries}}


LIMIT = {"busBandwidthGBps": "value >= 300.0"}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (job(), Result.RUNNING),
        (job(InProgress="True"), Result.RUNNING),
        (job(Succeeded="True"), Result.PASSED),
        (job(LIMIT, Succeeded="True"), Result.RUNNING),
        (job(LIMIT, Succeeded="True", ValidationFailed="False"), Result.PASSED),
        (job(LIMIT, Succeeded="True", ValidationFailed="True"), Result.FAILED),
        (job(Failed="True"), Result.FAILED),
        (job(InProgress="True", HardwareFailed="True"), Result.FAILED),
        (job(Succeeded="True", HardwareFailed="True"), Result.FAILED),
    ],
)
def test_anything_against_a_job_is_a_failure_and_thresholds_are_waited_for(seen, expected):
    assert result(seen) is expected


COMPLETE = {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
MEASURING = {"status": {"conditions": [{"type": "Complete", "status": "False"}]}}


@pytest.mark.parametrize(
    ("seen", "measurements", "terminal_for_s", "expected"),
    [
        (job(InProgress="True"), [], 0, False),
        (job(InProgress="True", HardwareFailed="True", Attributed="True"), [], 0, False),
        (job(Succeeded="True"), [], 0, True),
        (job(LIMIT, Succeeded="True"), [COMPLETE], 1000, False),
        (job(Succeeded="True"), [MEASURING], 0, False),
        (job(Succeeded="True"), [MEASURING], 30, True),
        (job(Succeeded="True", Attributed="Unknown"), [COMPLETE], 1000, False),
        (job(Failed="True", Attributed="Unknown"), [], 1000, False),
        (job(Failed="True", Attributed="True"), [], 0, True),
        (job(Failed="True", Attributed="False"), [], 0, True),
        (job(Failed="True"), [], 0, False),
        (job(Failed="True"), [], 10, True),
    ],
)
def test_a_run_is_over_when_it_is_terminal_judged_and_attributed(seen, measurements, terminal_for_s, expected):
    assert finished(seen, measurements, terminal_for_s=terminal_for_s) is expected


@pytest.mark.parametrize(
    ("seen", "for_s", "expected"),
    [
        (job(InProgress="True", HardwareFailed="True"), 59, False),
        (job(InProgress="True", HardwareFailed="True"), 60, True),
        (job(InProgress="True"), 60, False),
        (job(Failed="True", HardwareFailed="True"), 60, False),
    ],
)
def test_a_workload_that_hangs_on_after_broken_hardware_gets_a_minute(seen, for_s, expected):
    assert hangs_on(seen, hardware_failed_for_s=for_s) is expected
