"""Jobs in Kueue's queues: while they wait no clock runs, and being preempted is no failure of anybody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from nvcre_kube.timestamps import rfc3339

from .jobs import Jobs, execution
from .queues import GPUS_OF_A_JOB, QUEUE, Queue, queue_of

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
async def queue(jobs: Jobs) -> AsyncIterator[Queue]:
    async with queue_of(jobs.api) as made:
        yield made


async def test_a_job_waits_without_a_clock_until_the_quota_is_raised(jobs: Jobs, queue: Queue) -> None:
    await queue.set_quota(GPUS_OF_A_JOB // 2)
    await jobs.create_runtime("true")
    await jobs.create("waits", labels=QUEUE)
    status = await jobs.until("waits", "InProgress", "WorkloadPending")
    assert "Kueue" in execution(status)[2]
    assert "workloadStartTime" not in status
    assert await jobs.pods("waits") == []
    assert (await jobs.train_job("waits"))["spec"]["suspend"] is True

    raised = rfc3339(datetime.now(UTC))
    await queue.set_quota(GPUS_OF_A_JOB)
    status = await jobs.until("waits", "Succeeded", "WorkloadCompleted")
    assert status["workloadStartTime"] >= raised
    assert "failedNodes" not in status


async def test_a_job_is_admitted_when_the_one_before_it_ends(jobs: Jobs, queue: Queue) -> None:
    await jobs.create_runtime(jobs.wait_for("end"))
    await jobs.create("first", labels=QUEUE)
    await jobs.until_running("first")
    await jobs.create("second", labels=QUEUE)
    await jobs.until("second", "InProgress", "WorkloadPending")

    jobs.say("end")
    await jobs.until("first", "Succeeded", "WorkloadCompleted")
    await jobs.until("second", "Succeeded", "WorkloadCompleted")


async def test_a_preempted_job_is_pending_again_and_nobody_is_blamed(jobs: Jobs, queue: Queue) -> None:
    await jobs.create_runtime(jobs.wait_for("end"))
    await jobs.create("patient", labels=QUEUE)
    await jobs.until_running("patient")
    train_job = (await jobs.train_job("patient"))["metadata"]["uid"]

    await jobs.create("urgent", labels=queue.urgent)
    await jobs.until_running("urgent")
    status = await jobs.until("patient", "InProgress", "WorkloadPending")
    assert "workloadStartTime" not in status
    assert "failedNodes" not in status
    assert "failureLog" not in status
    await jobs.until_without_pods("patient")

    jobs.say("end")
    await jobs.until("urgent", "Succeeded", "WorkloadCompleted")
    status = await jobs.until("patient", "Succeeded", "WorkloadCompleted")
    assert "workloadStartTime" in status
    assert "failedNodes" not in await jobs.until_attributed("patient")
    assert "restartCount" not in status
    assert (await jobs.train_job("patient"))["metadata"]["uid"] == train_job
    assert [reason for reason, _ in await jobs.events("patient") if reason == "WorkloadFailed"] == []


async def test_a_failure_after_a_preemption_is_not_laid_on_the_pods_that_were_preempted(
    jobs: Jobs, queue: Queue
) -> None:
    """Rank 0 goes wrong when the first attempt is told to end, as trainers do; in the second one rank 1 by itself."""
    await jobs.create_runtime(
        f"""
        {jobs.unless("preempted")} trap 'echo fatal: interrupted; exit 7' TERM
        [ $JOB_COMPLETION_INDEX = 0 ] || {{ {jobs.wait_for("crash")}; echo fatal: out of luck; exit 3; }}
        {jobs.wait_for("end")}
        """
    )
    await jobs.create("patient", labels=QUEUE)
    await jobs.until_running("patient")
    await jobs.create("urgent", labels=queue.urgent, trainer={"command": ["sh", "-c", jobs.wait_for("urgent")]})
    await jobs.until("patient", "InProgress", "WorkloadPending")
    await jobs.until_running("urgent")

    jobs.say("preempted")
    jobs.say("urgent")
    await jobs.until_running("patient")
    jobs.say("crash")
    await jobs.until("patient", "Failed", "WorkloadFailed")
    status = await jobs.until_attributed("patient")
    (failed,) = status["failedNodes"]
    (crashed,) = [pod for pod in await jobs.pods("patient") if "-node-0-1-" in pod["metadata"]["name"]]
    assert failed["name"] == crashed["spec"]["nodeName"]
    assert {one["code"] for one in failed["evidence"]} == {3}
    assert status["failureLog"]["exitCode"] == 3


async def test_a_restart_from_a_checkpoint_waits_in_the_queue_again(jobs: Jobs, queue: Queue) -> None:
    """The new workload has the old one's name, and a place of its own in the queue: behind one that was waiting."""
    await jobs.create_runtime(
        f"{jobs.unless('restarted')} {{ {jobs.wait_for('crash')}; exit 3; }}; {jobs.wait_for('end')}"
    )
    checkpoint = {"pvcName": "checkpoints", "maxRestarts": 1}
    measured = {"logProfileRef": "megatron-training", "sampleInterval": "1s"}
    await jobs.create("resumes", labels=QUEUE, spec={"checkpoint": checkpoint, "goodputMeasurement": measured})
    await jobs.until_running("resumes")
    first = (await jobs.train_job("resumes"))["metadata"]["uid"]
    await jobs.has_checkpoint("resumes", step=10)
    waits = {"command": ["sh", "-c", jobs.wait_for("second")]}
    await jobs.create("second", labels=QUEUE, trainer=waits)
    await jobs.until("second", "InProgress", "WorkloadPending")

    jobs.say("restarted")
    jobs.say("crash")
    await jobs.until_running("second")
    status = await jobs.until("resumes", "InProgress", "WorkloadPending")
    assert status["restartCount"] == 1
    assert not {"workloadStartTime", "failedNodes", "failureLog"} & status.keys()
    assert (await jobs.train_job("resumes"))["metadata"]["uid"] != first

    jobs.say("second")
    await jobs.until_running("resumes")
    jobs.say("end")
    await jobs.until("resumes", "Succeeded", "WorkloadCompleted")
    assert "failedNodes" not in await jobs.until_attributed("resumes")
