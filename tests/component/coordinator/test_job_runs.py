"""A Job from creation to its verdict, through the API only: what a person sees with kubectl."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from nvcre_kube.resources import CONFIG_MAPS, EVENTS, JOBS, NODES, PODS, TRAIN_JOBS

CORPUS = Path(__file__).parents[2] / "corpus"


async def running(cluster: Any, name: str, spec: dict[str, Any] | None = None, nodes: int = 2) -> tuple[str, list[str]]:
    """A Job whose workload runs: a launcher on node-0 and one worker a node."""
    for index in range(nodes):
        await cluster.add_node(f"node-{index}")
    await cluster.create_job(name, spec)
    await cluster.until(name, "InProgress", "True", "WorkloadRunning")
    launcher = await cluster.add_pod(name, "launcher", "node-0")
    workers = [await cluster.add_pod(name, "node", f"node-{index}", index=index) for index in range(nodes)]
    return launcher, workers


async def test_the_seed_page_s_job_becomes_a_train_job_with_five_labels(cluster: Any) -> None:
    """Case 1."""
    await cluster.start()
    labels = {"kueue.x-k8s.io/queue-name": "gpu-team-a", "kai.scheduler/queue": "burn-in", "environment": "burn-in"}
    await cluster.create_job("my-job", {"workloadMetadata": {"labels": labels}})
    workload = await cluster.workload("my-job")
    assert workload["metadata"]["labels"] == labels | {
        "app.kubernetes.io/managed-by": "nvcre",
        "nvcre.nvidia.com/job": "my-job",
    }
    assert workload["metadata"]["ownerReferences"][0]["controller"] is True
    running_condition = await cluster.until("my-job", "InProgress", "True", "WorkloadRunning")
    assert running_condition["message"] == "Workload TrainJob/my-job-workload is running"
    assert running_condition["observedGeneration"] == 1
    job = await cluster.job("my-job")
    assert job["metadata"]["finalizers"] == ["nvcre.nvidia.com/finalizer"]
    assert job["status"]["workloadRef"] == {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "name": "my-job-workload",
        "namespace": "default",
    }
    assert {c["type"]: c["status"] for c in job["status"]["conditions"]} == {
        "InProgress": "True",
        "Succeeded": "False",
        "Failed": "False",
    }
    await cluster.event("my-job", "Normal", "WorkloadCreated")


async def test_a_fast_run_meets_its_threshold(cluster: Any) -> None:
    await cluster.start()
    spec = {
        "bandwidthMeasurement": {
            "logProfileRef": "nccl-bandwidth",
            "sampleInterval": "1s",
            "testType": "all_reduce",
        },
        "thresholds": {"busBandwidthGBps": "value >= 300", "algBandwidthGBps": "value > 100.0"},
    }
    launcher, workers = await running(cluster, "fast", spec)
    cluster.kubelet.logs[launcher] = (CORPUS / "ns01-allreduce-h100-clean.log").read_bytes()
    for pod in (launcher, *workers):
        await cluster.end_pod(pod, 0)
    await cluster.finish_workload("fast", "Complete", "done")
    succeeded = await cluster.until("fast", "Succeeded", "True", "WorkloadCompleted")
    assert succeeded["message"] == "Workload TrainJob/fast-workload completed: done"
    await cluster.until("fast", "ValidationFailed", "False", "ThresholdsMet")
    await cluster.until("fast", "Attributed", "True", "NothingToAttribute")
    measurement = await cluster.measurement("fast")
    assert measurement["spec"]["jobRef"] == {"apiGroup": "nvcre.nvidia.com", "kind": "Job", "name": "fast"}
    complete = next(c for c in measurement["status"]["conditions"] if c["type"] == "Complete")
    assert complete["reason"] == "JobSucceeded"
    assert measurement["status"]["results"][0] == {
        "sizeBytes": 1048576, "algBW": "24.56", "busBW": "42.97", "samples": 1,
    }  # fmt: skip
    assert (await cluster.job("fast"))["status"].get("failedNodes") is None


async def test_an_xid_names_the_gpu_at_once_and_explains_the_failure(cluster: Any) -> None:
    await cluster.start()
    launcher, workers = await running(cluster, "broken", nodes=4)
    await cluster.report_incident("node-3")
    await cluster.until("broken", "HardwareFailed", "True", "HardwareFailureDetected")
    assert (await cluster.condition("broken", "InProgress"))["status"] == "True"
    for pod in (launcher, *workers):
        await cluster.end_pod(pod, 1)
    await cluster.finish_workload("broken", "Failed", "Worker crashed")
    failed = await cluster.until("broken", "Failed", "True", "WorkloadFailed")
    assert failed["message"] == "Workload TrainJob/broken-workload failed: Worker crashed"
    await cluster.until("broken", "Attributed", "True", "NodesNamed")
    (entry,) = (await cluster.job("broken"))["status"]["failedNodes"]
    assert (entry["name"], entry["reason"]) == ("node-3", "HardwareFailureDetected")
    assert entry["component"] == {"kind": "GPU", "index": 5, "uuid": "GPU-5", "pciBusId": "00000000:C8:00.0"}
    assert (entry["evidence"][0]["source"], entry["evidence"][0]["code"]) == ("kernel-log", 79)
    await cluster.event("broken", "Warning", "HardwareFailureDetected")


async def test_a_crashing_rank_names_its_node_without_blaming_hardware(cluster: Any) -> None:
    await cluster.start()
    launcher, workers = await running(cluster, "crash", nodes=4)
    cluster.kubelet.logs[workers[2]] = b"step 10\nRuntimeError: CUDA error: an illegal memory access was encountered\n"
    cluster.kubelet.logs[launcher] = b"NCCL WARN remote process exited or there was a network error\n"
    await cluster.end_pod(workers[2], 1)
    await cluster.end_pod(launcher, 3)
    for pod in (workers[0], workers[1], workers[3]):
        await cluster.end_pod(pod, 143)
    await cluster.finish_workload("crash", "Failed", "jobset failed")
    await cluster.until("crash", "Attributed", "True", "NodesNamed")
    status = (await cluster.job("crash"))["status"]
    (entry,) = status["failedNodes"]
    assert (entry["name"], entry["reason"], "component" in entry) == ("node-2", "WorkloadFailed", False)
    assert entry["message"].startswith("application error; no hardware evidence")
    assert entry["evidence"][0]["source"] == "workload"
    assert status["failureLog"]["podName"] == workers[2]
    assert "illegal memory access" in status["failureLog"]["tail"]


async def test_a_coordinator_killed_in_the_middle_comes_to_the_same_result(cluster: Any) -> None:
    await cluster.start()
    launcher, workers = await running(cluster, "restart", nodes=4)
    await cluster.end_pod(workers[1], 1)

    async def remembered() -> bool:
        config_map = await cluster.client.list(CONFIG_MAPS, "default")
        return any(c["metadata"]["name"] == "restart-pods" and '"code":1' in c["data"]["pods.json"] for c in config_map)

    deadline = asyncio.get_running_loop().time() + 20
    while not await remembered():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)
    await cluster.kill()
    for pod in (launcher, *workers):  # a failed JobSet takes its pods away
        await cluster.client.delete(PODS, pod, "default", grace_period_s=0)
    await cluster.finish_workload("restart", "Failed", "jobset failed")
    await cluster.start()
    await cluster.until("restart", "Attributed", "True", "NodesNamed")
    (entry,) = (await cluster.job("restart"))["status"]["failedNodes"]
    assert entry["name"] == "node-1"


async def test_a_vanished_workload_fails_the_job(cluster: Any) -> None:
    """Case 6."""
    await cluster.start()
    await running(cluster, "gone", nodes=1)
    await cluster.client.delete(TRAIN_JOBS, "gone-workload", "default")
    failed = await cluster.until("gone", "Failed", "True", "WorkloadFailed")
    assert failed["message"] == "Workload TrainJob/gone-workload was deleted"
    await cluster.until("gone", "Attributed", "True")


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"nodeHealthMonitor": {"cel": {"expression": "node.spec.unschedulable =="}}}, "nodeHealthMonitor.cel"),
        ({"nodeHealthMonitor": {"cel": {"expression": "node.spec.unschedulable"}}}, "must give a bool"),
        ({"thresholds": {"busBandwidthGBps": "value >="}}, "busBandwidthGBps"),
        ({"thresholds": {"speed": "value > 1"}}, "speed"),
    ],
)
async def test_a_mistake_is_told_before_anything_runs(cluster: Any, spec: dict[str, Any], field: str) -> None:
    """Case 19 as DESIGN 1 has it."""
    await cluster.start()
    await cluster.create_job("typo", spec)
    failed = await cluster.until("typo", "Failed", "True", "WorkloadCreationError")
    assert field in failed["message"]
    await cluster.until("typo", "Attributed", "True", "NothingToAttribute")
    assert await cluster.client.list(TRAIN_JOBS, "default") == []


async def test_a_workload_whose_reference_was_lost_is_taken_back(cluster: Any) -> None:
    job = await cluster.create_job("lost")
    owner = {"apiVersion": "nvcre.nvidia.com/v1alpha1", "kind": "Job", "name": "lost", "uid": job["metadata"]["uid"]}
    body = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {
            "name": "lost-workload",
            "namespace": "default",
            "labels": {"nvcre.nvidia.com/job": "lost"},
            "ownerReferences": [owner | {"controller": True}],
        },
        "spec": {"runtimeRef": {"kind": "TrainingRuntime", "name": "any"}},
    }
    await cluster.client.create(TRAIN_JOBS, body, "default")
    await cluster.start()
    await cluster.until("lost", "InProgress", "True", "WorkloadRunning")
    await cluster.event("lost", "Normal", "WorkloadAdopted")


async def test_case_22_a_refused_creation_is_told_once_in_the_server_s_words_and_tried_until_it_works(
    cluster: Any,
) -> None:
    """Refused because somebody else's workload has the name; that one is not touched."""
    body = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "taken-workload", "namespace": "default"},
        "spec": {"runtimeRef": {"kind": "TrainingRuntime", "name": "any"}},
    }
    await cluster.client.create(TRAIN_JOBS, body, "default")
    await cluster.start()
    await cluster.create_job("taken")
    refused = await cluster.until("taken", "InProgress", "True", "WorkloadCreationError")
    assert "already exists" in refused["message"]
    version = (await cluster.job("taken"))["metadata"]["resourceVersion"]
    await asyncio.sleep(3.5)  # tried after 1 s and after 2 s more
    job = await cluster.job("taken")
    assert job["metadata"]["resourceVersion"] == version
    assert "workloadRef" not in job["status"]
    assert (await cluster.events("taken")) == [("Warning", "WorkloadCreationError")]

    await cluster.client.delete(TRAIN_JOBS, "taken-workload", "default")
    await cluster.until("taken", "InProgress", "True", "WorkloadRunning")
    await cluster.event("taken", "Normal", "WorkloadCreated")
    told = await cluster.client.list(EVENTS, "default")
    assert {item["reason"]: item["count"] for item in told if item["involvedObject"]["name"] == "taken"} == {
        "WorkloadCreationError": 1,
        "WorkloadCreated": 1,
    }


async def test_deleting_a_job_waits_for_its_pods(cluster: Any) -> None:
    """Case 21."""
    await cluster.start()
    launcher, workers = await running(cluster, "bye", nodes=1)
    await cluster.client.delete(JOBS, "bye", "default")

    async def workload_gone() -> bool:
        return not await cluster.client.list(TRAIN_JOBS, "default")

    deadline = asyncio.get_running_loop().time() + 20
    while not await workload_gone():
        assert asyncio.get_running_loop().time() < deadline, cluster.log()
        await asyncio.sleep(0.05)
    assert (await cluster.job("bye"))["metadata"]["finalizers"] == ["nvcre.nvidia.com/finalizer"]
    for pod in (launcher, *workers):
        await cluster.end_pod(pod, 143)
    deadline = asyncio.get_running_loop().time() + 20
    while await cluster.client.list(JOBS, "default"):
        assert asyncio.get_running_loop().time() < deadline, cluster.log()
        await asyncio.sleep(0.05)


async def test_a_cordoned_node_fails_the_expression_and_only_it(cluster: Any) -> None:
    await cluster.start()
    spec = {"nodeHealthMonitor": {"cel": {"expression": "node.spec.unschedulable == true"}}}
    await running(cluster, "cordon", spec, nodes=2)
    node = await cluster.client.get(NODES, "node-1")
    await cluster.client.update(NODES, {**node, "spec": {"unschedulable": True}})
    await cluster.until("cordon", "HardwareFailed", "True")
    (entry,) = (await cluster.job("cordon"))["status"]["failedNodes"]
    assert (entry["name"], entry["evidence"][0]["source"]) == ("node-1", "cel")


async def test_the_process_answers_on_its_endpoints_and_ends_cleanly(cluster: Any, fetch: Any) -> None:
    addresses = await cluster.start()
    await running(cluster, "seen", nodes=1)
    assert await fetch(f"http://{addresses['health']}/readyz") == (200, "ok\n")
    assert (await fetch(f"http://{addresses['health']}/healthz"))[0] == 200
    _, metrics = await fetch(f"http://{addresses['metrics']}/metrics")
    assert 'nvcre_job_status{job="seen",namespace="default",status="in_progress",workflow=""} 1.0' in metrics
    assert 'nvcre_workload_created_total{job="seen",namespace="default",workflow=""} 1.0' in metrics
    assert await cluster.stop() == 0


async def test_a_second_replica_takes_over(cluster: Any, start_replica: Any) -> None:
    first = await start_replica("a")
    second = await start_replica("b")
    await cluster.create_job("before")
    await cluster.until("before", "InProgress", "True", "WorkloadRunning")
    assert await first() == 0
    await cluster.create_job("after")
    await cluster.until("after", "InProgress", "True", "WorkloadRunning")
    assert await second() == 0
