"""Who is named on a real control plane: runs that hang, and JobSets that start all their Pods anew."""

from __future__ import annotations

import pytest
from nvcre_kube.resources import GOODPUT_MEASUREMENTS, JOBS, TRAINING_RUNTIMES, JsonObject

from .jobs import RUNTIME, RUNTIME_REF, Jobs

pytestmark = pytest.mark.timeout(600)

STEP = (
    "[2026-02-05 16:03:52] iteration $step/ 100 | consumed samples: 1 | elapsed time per iteration (ms): 1.0 | "
    "throughput per GPU (TFLOP/s/GPU): 1.5 | lm loss: 1.2E+01 |"
)
"""As Megatron-LM prints it, for the built-in LogProfile."""


async def test_a_stall_names_the_node_of_the_rank_that_stopped_first(jobs: Jobs) -> None:
    """Its pods run on, so their logs are read through the API server; nothing has terminated and nothing is deleted."""
    await jobs.create_runtime(
        f"""
        last=$((40 - $JOB_COMPLETION_INDEX))
        for step in $(seq 30 $last); do echo "{STEP}"; done
        {jobs.wait_for("never")}
        """
    )
    spec = {
        "workload": {"trainJob": {"runtimeRef": RUNTIME_REF}},
        "goodputMeasurement": {"logProfileRef": "megatron-training", "sampleInterval": "1s"},
        "stallMultiplier": 2,
    }
    metadata = {"name": "hangs", "namespace": jobs.api.namespace}
    await jobs.api.client.create(
        JOBS, {"apiVersion": JOBS.api_version, "kind": "Job", "metadata": metadata, "spec": spec}
    )
    await jobs.until_running("hangs")

    async def logged() -> bool:
        logs = [await jobs.api.log(pod["metadata"]["name"]) for pod in await jobs.pods("hangs")]
        return all(f"iteration {last}/" in log for last, log in zip((40, 39), logs, strict=True))

    await jobs.api.until(logged)
    await no_step_for_long(jobs)
    await jobs.until("hangs", "Failed", "WorkloadStalled")
    status = await jobs.until_attributed("hangs")
    late = (await jobs.pods("hangs"))[1]
    (entry,) = status["failedNodes"]
    assert (entry["name"], entry["reason"]) == (late["spec"]["nodeName"], "WorkloadFailed")
    assert entry["evidence"][0]["message"] == (
        f"rank 1 (pod {late['metadata']['name']}) stopped first: its last step is 39, others logged 40"
    )
    assert status["failureLog"]["reason"] == "NoTerminatedContainer"
    assert [pod["status"]["phase"] for pod in await jobs.pods("hangs")] == ["Running"] * 2


async def no_step_for_long(jobs: Jobs) -> None:
    async def measured() -> list[JsonObject]:
        return await jobs.api.client.list(GOODPUT_MEASUREMENTS, jobs.api.namespace)

    (measurement,) = await jobs.api.until(measured)
    status = {"lastStepTimestamp": "2026-01-01T00:00:00Z", "avgStepTimeSec": "1.0"}
    await jobs.api.client.update_status(GOODPUT_MEASUREMENTS, {**measurement, "status": status})


async def test_when_a_jobset_restarts_the_attempt_that_failed_last_decides(jobs: Jobs) -> None:
    """Rank 0 fails at first, rank 1 by a signal in the Pods that JobSet makes afterwards ($$ is $ to a kubelet)."""
    first, second = jobs.wait_for("rank-1-ran"), jobs.wait_for("crash")
    ran = first.split()[3]
    await jobs.create_runtime(
        f"""
        if [ $JOB_COMPLETION_INDEX = 0 ]; then
            if [ -e {ran}.failed ]; then {jobs.wait_for("never")}; fi
            {first}; touch {ran}.failed; exit 1
        fi
        if [ -e {ran} ]; then {second}; kill -SEGV $$$$; fi
        touch {ran}; {jobs.wait_for("never")}
        """
    )
    restarts = {"spec": {"template": {"spec": {"failurePolicy": {"maxRestarts": 1}}}}}
    await jobs.api.client.merge_patch(TRAINING_RUNTIMES, RUNTIME, restarts, jobs.api.namespace)
    await jobs.create("twice")

    async def restarted() -> list[JsonObject]:
        pods = await jobs.pods("twice")
        label = "jobset.sigs.k8s.io/restart-attempt"
        anew = [pod for pod in pods if pod["metadata"]["labels"][label] == "1" and pod["status"]["phase"] == "Running"]
        return anew if len(anew) == 2 else []

    anew = await jobs.api.until(restarted)
    jobs.say("crash")
    await jobs.until("twice", "Failed", "WorkloadFailed")
    status = await jobs.until_attributed("twice")
    (entry,) = status["failedNodes"]
    assert (entry["name"], entry["evidence"][0]["code"]) == (anew[1]["spec"]["nodeName"], 139)
    assert status["failureLog"]["podName"] == anew[1]["metadata"]["name"]
