"""Runs that do not go straight on: stalled, started again from a checkpoint, without room, preempted.

What fills a GoodputMeasurement is played by hand.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from nvcre_kube.resources import CONFIG_MAPS, GOODPUT_MEASUREMENTS, PODS, TRAIN_JOBS
from support.eventually import eventually
from support.owners import batch_job

NAMESPACE = "default"
EVERY_SECOND = {"logProfileRef": "megatron-training", "sampleInterval": "1s"}


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


async def started(cluster: Any, name: str, spec: dict[str, Any]) -> list[str]:
    """A running Job with one worker on node-0 and one on node-1."""
    for index in range(2):
        await cluster.add_node(f"node-{index}")
    await cluster.create_job(name, spec)
    await cluster.until(name, "InProgress", "True", "WorkloadRunning")
    return [await cluster.add_pod(name, "node", f"node-{index}", index=index) for index in range(2)]


async def remove_pods(cluster: Any, pods: list[str]) -> None:
    for pod in pods:
        await cluster.client.delete(PODS, pod, NAMESPACE, grace_period_s=0)


async def no_workload(cluster: Any) -> bool:
    return not await cluster.client.list(TRAIN_JOBS, NAMESPACE)


async def named(cluster: Any, job: str) -> list[str]:
    await cluster.until(job, "Attributed", "True", "NodesNamed")
    return [entry["name"] for entry in (await cluster.job(job))["status"]["failedNodes"]]


async def test_a_run_without_steps_is_stalled(cluster: Any) -> None:
    """Case 8, told by a measurement that a person made."""
    await cluster.start()
    await started(cluster, "stuck", {"stallMultiplier": 2})
    reference = {"apiGroup": "nvcre.nvidia.com", "kind": "Job", "name": "stuck"}
    body = {
        "apiVersion": "nvcre.nvidia.com/v1alpha1",
        "kind": "GoodputMeasurement",
        "metadata": {"name": "by-hand", "namespace": NAMESPACE},
        "spec": {**EVERY_SECOND, "jobRef": reference},
    }
    await cluster.client.create(GOODPUT_MEASUREMENTS, body, NAMESPACE)
    await cluster.measured("by-hand", lastStepTimestamp=ago(3600), avgStepTimeSec="1.0")
    failed = await cluster.until("stuck", "Failed", "True", "WorkloadStalled")
    assert "since the last step; the limit is 4 s" in failed["message"]
    await cluster.event("stuck", "Warning", "WorkloadStalled")
    assert await cluster.workload("stuck")  # left for a look into it


async def test_a_failed_run_starts_again_from_its_checkpoint_even_when_the_coordinator_dies_meanwhile(
    cluster: Any,
) -> None:
    """Case 4, then case 7: the budget of one restart is used up, and only the second attempt is blamed."""
    await cluster.start()
    spec = {"checkpoint": {"pvcName": "data", "maxRestarts": 1}, "goodputMeasurement": EVERY_SECOND}
    pods = await started(cluster, "again", spec)
    first = (await cluster.workload("again"))["metadata"]["uid"]
    await cluster.measured("again-goodput", lastCheckpointStep=10, lastStepTimestamp=ago(1), avgStepTimeSec="1.0")
    await cluster.end_pod(pods[0], 1)
    await cluster.finish_workload("again", "Failed", "Worker crashed")
    restarting = await cluster.until("again", "InProgress", "True", "WorkloadRestarting")
    assert restarting["message"].startswith("Restarting workload from checkpoint (restart 1/1): ")
    await eventually(lambda: no_workload(cluster))
    await cluster.kill()
    await cluster.start()
    status = (await cluster.job("again"))["status"]
    assert status["restartCount"] == 1
    assert not {"workloadRef", "workloadStartTime", "failedNodes", "failureLog"} & set(status)

    await remove_pods(cluster, pods)
    await cluster.until("again", "InProgress", "True", "WorkloadRunning")
    second = (await cluster.workload("again"))["metadata"]
    assert second["uid"] != first
    assert second["annotations"] == {"nvcre.nvidia.com/restart": "1"}
    measured = (await cluster.client.get(GOODPUT_MEASUREMENTS, "again-goodput", NAMESPACE))["status"]
    measured.pop("conditions", None)  # its LogProfile is not there
    assert measured == {"lastCheckpointStep": 10, "startTime": status["lastRestartTime"]}

    pods = [await cluster.add_pod("again", "node", f"node-{index}", index=index) for index in range(2)]
    await cluster.end_pod(pods[1], 1)
    await cluster.finish_workload("again", "Failed", "Worker crashed")
    await cluster.until("again", "Failed", "True", "WorkloadFailed")
    assert await named(cluster, "again") == ["node-1"]
    assert (await cluster.job("again"))["status"]["restartCount"] == 1


async def test_the_next_workload_waits_for_the_pods_of_the_last_one(cluster: Any) -> None:
    await cluster.start()
    often = {**EVERY_SECOND, "sampleInterval": "10ms"}  # so that the grace is over at once
    spec = {"checkpoint": {"pvcName": "data", "maxRestarts": 1}, "goodputMeasurement": often}
    pods = await started(cluster, "one", spec)
    await cluster.measured("one-goodput", lastCheckpointStep=10)
    await cluster.client.delete(TRAIN_JOBS, "one-workload", NAMESPACE)  # case 5: somebody deleted it
    await cluster.until("one", "InProgress", "True", "WorkloadRestarting")
    await cluster.end_pod(pods[0], 143)
    assert await no_workload(cluster)
    await cluster.end_pod(pods[1], 143)
    await cluster.until("one", "InProgress", "True", "WorkloadRunning")
    await cluster.event("one", "Warning", "WorkloadRestarting")


async def test_a_run_without_room_says_so_in_the_scheduler_s_words_and_goes_on(cluster: Any) -> None:
    """Cases 13 and 14."""
    await cluster.start()
    await started(cluster, "blocked", {"schedulingStallGraceSeconds": 1})
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "homeless",
            "namespace": NAMESPACE,
            "labels": {"jobset.sigs.k8s.io/jobset-name": "blocked-workload"},
            "ownerReferences": [batch_job("blocked-workload-node-0")],
        },
        "spec": {"containers": [{"name": "node", "image": "any"}]},
    }
    pod = await cluster.client.create(PODS, body, NAMESPACE)
    refusal = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes have room"}
    pod["status"] = {"phase": "Pending", "conditions": [refusal]}
    await cluster.client.update_status(PODS, pod)
    said = await cluster.until("blocked", "InProgress", "True", "WorkloadSchedulingBlocked")
    assert said["message"] == "0/2 nodes have room"
    before = (await cluster.job("blocked"))["status"]
    await cluster.client.delete(PODS, "homeless", NAMESPACE, grace_period_s=0)
    await cluster.until("blocked", "InProgress", "True", "WorkloadRunning")
    after = (await cluster.job("blocked"))["status"]
    assert after["workloadStartTime"] > before["workloadStartTime"]
    assert after["schedulingResumedTime"] >= before["schedulingBlockedSince"]
    assert "schedulingBlockedSince" not in after


async def test_a_preempted_run_is_pending_again_and_its_killed_pods_are_never_blamed(cluster: Any) -> None:
    await cluster.start()
    pods = await started(cluster, "yields", {"stallMultiplier": 2, "goodputMeasurement": EVERY_SECOND})
    await cluster.measured("yields-goodput", applicationStartTime=ago(60), startTime=ago(60))
    await cluster.client.merge_patch(TRAIN_JOBS, "yields-workload", {"spec": {"suspend": True}}, NAMESPACE)
    await cluster.until("yields", "InProgress", "True", "WorkloadPending")
    for pod in pods:
        await cluster.end_pod(pod, 1)

    async def set_aside() -> bool:
        records = (await cluster.client.get(CONFIG_MAPS, "yields-pods", NAMESPACE))["data"]["pods.json"]
        return records.count('"over":true') == 2

    await eventually(set_aside)
    status = (await cluster.job("yields"))["status"]
    assert not {"workloadStartTime", "failedNodes", "failureLog", "restartCount"} & set(status)
    measured = (await cluster.client.get(GOODPUT_MEASUREMENTS, "yields-goodput", NAMESPACE)).get("status", {})
    assert not {"applicationStartTime", "startTime"} & set(measured)

    await remove_pods(cluster, pods)
    await cluster.client.merge_patch(TRAIN_JOBS, "yields-workload", {"spec": {"suspend": False}}, NAMESPACE)
    await cluster.until("yields", "InProgress", "True", "WorkloadRunning")
    pods = [await cluster.add_pod("yields", "node", f"node-{index}", index=index) for index in range(2)]
    await cluster.end_pod(pods[1], 1)
    await cluster.finish_workload("yields", "Failed", "Worker crashed")
    assert await named(cluster, "yields") == ["node-1"]
