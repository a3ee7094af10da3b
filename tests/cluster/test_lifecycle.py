"""A Job that cannot be placed, and one that starts again from its checkpoint, by the real Trainer."""

from __future__ import annotations

import pytest

from .jobs import Jobs, condition, execution

pytestmark = pytest.mark.timeout(600)


async def test_pods_without_room_hold_a_job_up_in_the_scheduler_s_own_words(jobs: Jobs) -> None:
    """Every GPU is taken by another Job; when that ends, the wait is given back to the clock."""
    await jobs.create_runtime(jobs.wait_for("end"))
    await jobs.create("first")
    await jobs.until_running("first")
    await jobs.create("second", spec={"schedulingStallGraceSeconds": 1})
    blocked = await jobs.until("second", "InProgress", "WorkloadSchedulingBlocked")
    assert "Insufficient nvidia.com/gpu" in execution(blocked)[2]
    assert blocked["schedulingBlockedSince"]

    jobs.say("end")
    await jobs.until("first", "Succeeded", "WorkloadCompleted")
    status = await jobs.until("second", "Succeeded", "WorkloadCompleted")
    assert "schedulingBlockedSince" not in status
    assert status["schedulingResumedTime"] > blocked["schedulingBlockedSince"]
    assert status["workloadStartTime"] > blocked["workloadStartTime"]
    assert not status.get("failedNodes")


async def test_a_failed_workload_starts_again_from_its_checkpoint(jobs: Jobs) -> None:
    """A new workload of the same name; nobody is blamed for the end of the first."""
    await jobs.create_runtime(f"{jobs.wait_for('go')}; {jobs.unless('again')} exit 1; {jobs.wait_for('end')}")
    measured = {"logProfileRef": "megatron-training", "sampleInterval": "500ms"}
    await jobs.create("twice", spec={"checkpoint": {"pvcName": "d", "maxRestarts": 1}, "goodputMeasurement": measured})
    await jobs.until_running("twice")
    await jobs.has_checkpoint("twice", step=5)
    first = (await jobs.train_job("twice"))["metadata"]["uid"]
    jobs.say("go")
    await jobs.until("twice", "InProgress", "WorkloadRestarting")
    jobs.say("again")
    status = await jobs.until_running("twice")
    assert (await jobs.train_job("twice"))["metadata"]["uid"] != first
    assert status["restartCount"] == 1

    jobs.say("end")
    status = await jobs.until("twice", "Succeeded", "WorkloadCompleted")
    assert not {"failedNodes", "failureLog"} & status.keys()
    assert condition(status, "Failed")["reason"] == "NotApplicable"
