"""Who is named through the API: stalls, recreated pods, and a coordinator that was away when things happened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from nvcre_kube.resources import CONFIG_MAPS, LOG_PROFILES, PODS
from support.eventually import eventually

from .test_job_runs import running

PROFILE = Path(__file__).parents[3] / "daemonset" / "log-profiles" / "megatron-training.yaml"
STEP = (
    " [2026-02-05 16:03:52] iteration {step:8}/  158945 | consumed samples: 7680 | elapsed time per iteration (ms): "
    "13256.1 | throughput per GPU (TFLOP/s/GPU): 138.5 | learning rate: 1.5E-05 | lm loss: 1.2E+01 |\n"
)
STALLING = {
    "goodputMeasurement": {"logProfileRef": "megatron-training", "sampleInterval": "1s"},
    "stallMultiplier": 2,
}


async def stalled(cluster: Any, name: str) -> None:
    """What is measured of the run says that its last step was long ago."""
    await cluster.measured(f"{name}-goodput", lastStepTimestamp="2026-01-01T00:00:00Z", avgStepTimeSec="1.0")
    await cluster.until(name, "Failed", "True", "WorkloadStalled")


async def remembered(cluster: Any, job: str) -> dict[str, Any]:
    found = await cluster.client.list(CONFIG_MAPS, "default")
    texts = [item["data"]["pods.json"] for item in found if item["metadata"]["name"] == f"{job}-pods"]
    pods: dict[str, Any] = {one["name"]: one for text in texts for one in json.loads(text)["pods"].values()}
    return pods


async def test_a_stall_names_the_rank_that_stopped_first(cluster: Any) -> None:
    await cluster.client.create(LOG_PROFILES, yaml.safe_load(PROFILE.read_text()))
    await cluster.start()
    _, workers = await running(cluster, "stall", STALLING, nodes=3)
    for pod, last in zip(workers, (41, 40, 41), strict=True):
        cluster.kubelet.logs[pod] = "".join(STEP.format(step=step) for step in range(30, last + 1)).encode()
    await stalled(cluster, "stall")
    await cluster.until("stall", "Attributed", "True", "NodesNamed")
    status = (await cluster.job("stall"))["status"]
    (entry,) = status["failedNodes"]
    assert (entry["name"], entry["reason"], "component" in entry) == ("node-1", "WorkloadFailed", False)
    assert entry["message"].startswith("application error; no hardware evidence: rank 1")
    assert "its last step is 40, others logged 41" in entry["evidence"][0]["message"]
    assert status["failureLog"]["reason"] == "NoTerminatedContainer"
    assert len(await cluster.client.list(PODS, "default")) == 4


async def test_a_stall_where_one_rank_logs_names_the_group_and_says_why(cluster: Any) -> None:
    await cluster.client.create(LOG_PROFILES, yaml.safe_load(PROFILE.read_text()))
    await cluster.start()
    _, workers = await running(cluster, "stall", STALLING, nodes=3)
    cluster.kubelet.logs[workers[2]] = STEP.format(step=40).encode()
    await stalled(cluster, "stall")
    attributed = await cluster.until("stall", "Attributed", "False", "NotNarrowed")
    assert "1 of 3 ranks log steps" in attributed["message"]
    entries = (await cluster.job("stall"))["status"]["failedNodes"]
    assert [entry["name"] for entry in entries] == ["node-0", "node-1", "node-2"]


async def test_nodes_of_finished_pods_and_launchers_are_kept_over_a_restart(cluster: Any) -> None:
    """No group-nodes annotation: the pods that ran are all that is known, and they are gone when the Job fails."""
    await cluster.start()
    for index in range(3):
        await cluster.add_node(f"node-{index}")
    await cluster.create_job("away")
    await cluster.until("away", "InProgress", "True", "WorkloadRunning")
    pods = [await cluster.add_pod("away", "launcher", "node-0"), await cluster.add_pod("away", "node", "node-1")]
    pods.append(await cluster.add_pod("away", "node", "node-2", index=1))
    await cluster.end_pod(pods[1], 0)

    async def all_kept() -> bool:
        known = await remembered(cluster, "away")
        return known.keys() == set(pods)

    await eventually(all_kept)
    await cluster.kill()
    for pod in pods:
        await cluster.client.delete(PODS, pod, "default", grace_period_s=0)
    await cluster.finish_workload("away", "Failed", "jobset failed")
    await cluster.start()
    await cluster.until("away", "Attributed", "False", "NotNarrowed")
    entries = (await cluster.job("away"))["status"]["failedNodes"]
    assert [(entry["name"], entry["reason"]) for entry in entries] == [
        (f"node-{index}", "WorkloadFailed") for index in range(3)
    ]


async def test_the_attempt_of_the_jobset_that_failed_last_decides(cluster: Any) -> None:
    await cluster.start()
    _, first = await running(cluster, "again", nodes=2)
    await cluster.end_pod(first[0], 1)
    await cluster.end_pod(first[1], 143)

    async def kept() -> bool:
        known = await remembered(cluster, "again")
        return all("log" in known.get(pod, {}) for pod in first)

    await eventually(kept)
    for pod in first:
        await cluster.client.delete(PODS, pod, "default", grace_period_s=0)
    second = [await cluster.add_pod("again", "node", f"node-{index}", index=index, attempt=1) for index in range(2)]
    await cluster.end_pod(second[1], 139)
    await cluster.end_pod(second[0], 143)
    await cluster.finish_workload("again", "Failed", "jobset failed")
    await cluster.until("again", "Attributed", "True", "NodesNamed")
    (entry,) = (await cluster.job("again"))["status"]["failedNodes"]
    assert (entry["name"], entry["evidence"][0]["code"]) == ("node-1", 139)


async def test_hardware_evidence_and_a_failure_of_one_node_are_two_entries(cluster: Any) -> None:
    """Entries are keyed by name and reason: evidence that comes after a crash was named adds one and takes none."""
    await cluster.start()
    _, workers = await running(cluster, "both", nodes=2)
    await cluster.end_pod(workers[0], 139)
    await cluster.finish_workload("both", "Failed", "jobset failed")
    await cluster.until("both", "Attributed", "True", "NodesNamed")
    before = (await cluster.job("both"))["status"]["failedNodes"]
    assert [(entry["name"], entry["reason"]) for entry in before] == [("node-0", "WorkloadFailed")]
    start = (await cluster.job("both"))["status"]["workloadStartTime"]
    await cluster.report_incident("node-0", firstSeen=start)
    await cluster.until("both", "HardwareFailed", "True")
    after = (await cluster.job("both"))["status"]["failedNodes"]
    keys = [(entry["name"], entry["reason"]) for entry in after]
    assert keys == [("node-0", "HardwareFailureDetected"), ("node-0", "WorkloadFailed")]
    assert before[0] in after
