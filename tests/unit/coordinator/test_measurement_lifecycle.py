"""The life of a BandwidthMeasurement (cases 45-53)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from nvcre_coordinator.api.conditions import Reason, find
from nvcre_coordinator.api.measurement import BandwidthMeasurement, BandwidthResult
from nvcre_coordinator.api.meta import from_json
from nvcre_coordinator.core.conditions import Stamp
from nvcre_coordinator.core.measurement_lifecycle import (
    Ended,
    FinalDecision,
    LogRead,
    RunEnd,
    choose_pod,
    finish,
    measured_bandwidth,
    running,
    unmeasurable,
)
from nvcre_coordinator.core.pods import PodRecord

END = datetime(2026, 12, 1, 12, tzinfo=UTC)
PATIENCE = timedelta(minutes=5)
ROWS = LogRead(
    (BandwidthResult(8, "0.00", "0.00", 1), BandwidthResult(1 << 34, "476.36", "922.94", 1)), ("IB",), rows=2
)
FEWER = LogRead((BandwidthResult(8, "1.00", "1.00", 3),), rows=3)


def measurement() -> BandwidthMeasurement:
    return from_json(
        {"metadata": {"name": "m", "generation": 1}, "spec": {"logProfileRef": "nccl-bandwidth"}}, BandwidthMeasurement
    )


def with_status(status: Any) -> BandwidthMeasurement:
    return msgspec.structs.replace(measurement(), status=status)


def stamp(seconds: float = 1) -> Stamp:
    return Stamp(END + timedelta(seconds=seconds), 1)


def ended(how: Ended, read: LogRead, held: BandwidthMeasurement | None = None, at: float = 1) -> FinalDecision:
    return finish(held or measurement(), RunEnd(how, END), read, PATIENCE, stamp(at))


def reason(status: Any, kind: str) -> tuple[str, str] | None:
    condition = find(status.conditions, kind)
    return None if condition is None else (condition.status.value, condition.reason)


def test_results_are_provisional_while_the_job_runs() -> None:
    status = running(measurement(), ROWS, stamp())
    assert reason(status, "Measuring") == ("True", "JobRunning")
    assert reason(status, "Complete") is None
    assert status.start_time == END + timedelta(seconds=1)
    assert measured_bandwidth(with_status(status)).values == {}
    assert running(measurement(), LogRead(), stamp()) == measurement().status


def test_a_job_that_succeeded_gets_the_whole_log_and_nothing_else() -> None:
    provisional = with_status(running(measurement(), FEWER, stamp()))
    decision = ended(Ended.SUCCEEDED, ROWS, provisional)
    assert decision.status.results == ROWS.results
    assert decision.status.transport == ("IB",)
    assert reason(decision.status, "Complete") == ("True", "JobSucceeded")
    assert reason(decision.status, "Measuring") == ("False", "JobSucceeded")
    assert decision.status.completion_time == END
    assert measured_bandwidth(with_status(decision.status)).values == {
        "busBandwidthGBps": 922.94,
        "algBandwidthGBps": 476.36,
    }


def test_a_job_that_failed_gets_what_its_log_has_and_is_never_judged() -> None:
    decision = ended(Ended.FAILED, ROWS)
    assert reason(decision.status, "Complete") == ("True", "JobFailed")
    assert decision.status.results == ROWS.results
    lost = measured_bandwidth(with_status(decision.status))
    assert lost.values == {}
    assert "JobFailed" in lost.lost["busBandwidthGBps"]


def test_a_log_without_rows_points_at_the_profile() -> None:
    decision = ended(Ended.SUCCEEDED, LogRead())
    assert reason(decision.status, "Complete") == ("True", "NoDataCollected")
    complete = find(decision.status.conditions, "Complete")
    assert complete is not None
    assert "spec.logProfileRef 'nccl-bandwidth'" in complete.message


def test_skipped_lines_are_told() -> None:
    complete = find(
        ended(Ended.SUCCEEDED, LogRead(ROWS.results, rows=2, skipped_lines=1)).status.conditions, "Complete"
    )
    assert complete is not None
    assert "1 line(s) longer than 1 MiB skipped" in complete.message


def test_a_read_that_fails_is_tried_again_for_the_measurement_s_patience() -> None:
    failed = LogRead(error="kubelet does not answer")
    first = ended(Ended.SUCCEEDED, failed)
    assert reason(first.status, "Measuring") == ("False", "FinalReadPending")
    assert first.retry_after == timedelta(seconds=1)
    assert first.warning is not None
    why = measured_bandwidth(with_status(first.status)).pending["busBandwidthGBps"]
    assert "kubelet does not answer" in why
    held = with_status(first.status)
    again = ended(Ended.SUCCEEDED, failed, held, at=100)
    assert (again.retry_after, again.warning) == (timedelta(seconds=15), None)
    assert again.status == first.status
    given_up = ended(Ended.SUCCEEDED, failed, held, at=301)
    assert reason(given_up.status, "Complete") == ("True", "LogsUnavailable")
    recovered = ended(Ended.SUCCEEDED, ROWS, held, at=200)
    assert reason(recovered.status, "Complete") == ("True", "JobSucceeded")


def test_provisional_rows_stay_when_the_log_is_lost_and_are_not_judged() -> None:
    provisional = with_status(running(measurement(), ROWS, stamp()))
    decision = ended(Ended.FAILED, LogRead(error="gone"), provisional)
    assert reason(decision.status, "Complete") == ("True", "LogsUnavailable")
    assert decision.status.results == ROWS.results
    assert measured_bandwidth(with_status(decision.status)).values == {}


def test_a_deleted_job_completes_now() -> None:
    decision = ended(Ended.GONE, LogRead(error="the Job is gone"), at=77)
    assert reason(decision.status, "Complete") == ("True", "LogsUnavailable")
    assert decision.status.completion_time == END + timedelta(seconds=77)


def pod(name: str, **fields: Any) -> PodRecord:
    return PodRecord(
        **{"name": name, "uid": name, "replicated_job": "launcher", "rank": 0, "phase": "Running"} | fields
    )


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (pod("z", rank=0, phase="Failed"), pod("a", rank=1, phase="Succeeded")),
        (pod("z", phase="Succeeded"), pod("a", phase="Running")),
        (pod("z", phase="Running"), pod("a", phase="Failed")),
        (pod("z", restart_attempt=2), pod("a", restart_attempt=1)),
        (pod("z", created_at=END), pod("a", created_at=END - timedelta(minutes=1))),
        (pod("a"), pod("z")),
        (pod("z", phase="Failed"), pod("a", replicated_job="node", phase="Succeeded")),
    ],
)
def test_which_pod_is_read(better: PodRecord, worse: PodRecord) -> None:
    assert choose_pod([worse, better], "launcher") is better
    assert choose_pod([better, worse], "launcher") is better


def test_no_pod_of_that_role() -> None:
    assert choose_pod([pod("a", replicated_job="node")], "launcher") is None


def test_a_log_that_cannot_be_read_is_told_until_it_can() -> None:
    refused = unmeasurable(measurement(), Reason.LOGS_UNAVAILABLE, "the log of pod p: 400", stamp())
    assert reason(refused, "Measuring") == ("False", "LogsUnavailable")
    assert running(with_status(refused), LogRead(), stamp()) == measurement().status
    assert reason(running(with_status(refused), ROWS, stamp()), "Measuring") == ("True", "JobRunning")
