"""A pod that the scheduler cannot place stops the clocks (cases 13 and 14)."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from nvcre_coordinator.api.meta import from_json
from nvcre_coordinator.api.workload import Pod
from nvcre_coordinator.core import scheduling_block
from nvcre_coordinator.core.job_lifecycle import decide
from nvcre_coordinator.core.observed import Observed, WorkloadPhase

NO_ROOM = "0/5 nodes are available: 5 Insufficient nvidia.com/gpu."


def pod(node: str | None = None, **condition: str) -> Pod:
    conditions = [{"type": "PodScheduled", **condition}] if condition else []
    return from_json({"metadata": {"name": "p"}, "spec": {"nodeName": node}, "status": {"conditions": conditions}}, Pod)


@pytest.mark.parametrize(
    ("seen", "refusal"),
    [
        (pod(), None),
        (pod("n1", status="True"), None),
        (pod(status="False", reason="SchedulingGated", message="gated"), None),
        (pod(status="False", reason="SchedulerError", message="oops"), None),
        (pod(status="False", reason="Unschedulable", message=NO_ROOM), NO_ROOM),
        (pod("n1", status="False", reason="Unschedulable", message=NO_ROOM), None),
        (pod(status="Unknown", reason="Unschedulable", message=NO_ROOM), None),
    ],
)
def test_case_13_only_a_pod_that_cannot_be_placed_blocks(seen: Pod, refusal: str | None) -> None:
    assert seen.unschedulable == refusal


def blocked(build: Any, job: Any, at: float, text: str | None = NO_ROOM, **seen: Any) -> Any:
    decision = decide(Observed(job, workload=build.workload(), unschedulable=text, **seen), build.at(at))
    return build.then(job, decision), decision


def test_case_13_the_clock_pauses_at_once_and_the_reason_changes_after_the_grace(build: Any, conditions: Any) -> None:
    job, decision = blocked(build, build.started(), 60)
    assert job.status.scheduling_blocked_since == build.at(60)
    assert conditions(job.status)["InProgress"] == ("True", "WorkloadRunning")
    job, decision = blocked(build, job, 350)
    assert conditions(job.status)["InProgress"] == ("True", "WorkloadRunning")
    assert job.status.conditions[0].message.endswith("is admitted; not every pod has a node yet")
    assert decision.requeue_after == timedelta(seconds=10, milliseconds=10)
    job, decision = blocked(build, job, 360)
    assert conditions(job.status)["InProgress"] == ("True", "WorkloadSchedulingBlocked")
    assert job.status.conditions[0].message == NO_ROOM
    assert job.status.scheduling_blocked_since == build.at(60)
    job, decision = blocked(build, job, 400, None)
    assert conditions(job.status)["InProgress"] == ("True", "WorkloadRunning")


@pytest.mark.parametrize(
    ("start", "since", "now", "expected"),
    [
        (0, 49 * 60, 59 * 60, 10 * 60),  # 49 minutes were used
        (None, 49 * 60, 59 * 60, None),  # a clock that never started stays blank
        (1000, 400, 1600, 1600),  # it started while blocked: none of it was used
        (0, 600, 300, 0),  # our clock was set back meanwhile
    ],
)
def test_case_14_resuming_gives_the_blocked_time_back(
    build: Any, start: float | None, since: float, now: float, expected: float | None
) -> None:
    job = build.started()
    status = msgspec.structs.replace(
        job.status,
        workload_start_time=None if start is None else build.at(start),
        scheduling_blocked_since=build.at(since),
    )
    resumed = scheduling_block.resumed(status, build.at(now))
    assert resumed.workload_start_time == (None if expected is None else build.at(expected))
    assert (resumed.scheduling_blocked_since, resumed.scheduling_resumed_time) == (None, build.at(now))


def test_case_14_the_credit_is_one_write(build: Any) -> None:
    job, _ = blocked(build, build.started(), 60)
    job, _ = blocked(build, job, 160, None)
    assert job.status.workload_start_time == build.at(100)
    assert job.status.scheduling_resumed_time == build.at(160)
    assert job.status.scheduling_blocked_since is None


def test_a_clock_does_not_start_while_blocked(build: Any) -> None:
    job = build.started()
    job = build.then(job, decide(Observed(job, workload=build.workload(WorkloadPhase.PENDING, "held")), build.at(1)))
    job, _ = blocked(build, job, 10)
    assert job.status.workload_start_time is None
    assert job.status.conditions[0].reason == "WorkloadRunning"  # admitted, so no longer pending
    job, _ = blocked(build, job, 20, None)
    assert job.status.workload_start_time == build.at(20)


def test_nothing_is_a_stall_while_blocked(build: Any, conditions: Any) -> None:
    measured = (build.goodput("1s", lastStepTimestamp=0, avgStepTimeSec="1.0"),)
    job, _ = blocked(build, build.started(stallMultiplier=2), 1000, goodputs=measured)
    assert conditions(job.status)["InProgress"][0] == "True"
    job, _ = blocked(build, job, 1003, None, goodputs=measured)
    assert conditions(job.status)["InProgress"][0] == "True"
    job, _ = blocked(build, job, 1008, None, goodputs=measured)
    assert conditions(job.status)["Failed"] == ("True", "WorkloadStalled")
