"""Who is named on a real control plane: runs that hang, and JobSets that start all their Pods anew."""

from __future__ import annotations

import pytest
from nvcre_kube.resources import TRAINING_RUNTIMES, JsonObject

from .jobs import RUNTIME, Jobs

pytestmark = pytest.mark.timeout(600)

STEP = (
    "iteration $step/ 100 | consumed samples: 1 | elapsed time per iteration (ms): 400.0 | "
    "throughput per GPU (TFLOP/s/GPU): 1.5 | lm loss: 1.2E+01 |"
)
"""As Megatron-LM before 2024-03 prints it, without a time, for the built-in LogProfile."""


async def test_a_stall_names_the_node_of_the_rank_that_stopped_first(jobs: Jobs) -> None:
    """Its pods run on, so their logs are read through the API server; nothing has terminated and nothing is deleted."""
    await jobs.create_runtime(
        f"""
        {jobs.wait_for("go")}
        last=$((400 - 10 * $JOB_COMPLETION_INDEX))
        for step in $(seq 10 10 $last); do echo "{STEP}"; done
        {jobs.wait_for("never")}
        """
    )
    measured = {"logProfileRef": "megatron-training", "sampleInterval": "1s"}
    await jobs.create("hangs", spec={"goodputMeasurement": measured, "stallMultiplier": 2})
    await jobs.until_running("hangs")
    jobs.say("go")
    await jobs.until("hangs", "Failed", "WorkloadStalled")
    status = await jobs.until_attributed("hangs")
    late = (await jobs.pods("hangs"))[1]
    (entry,) = status["failedNodes"]
    assert (entry["name"], entry["reason"]) == (late["spec"]["nodeName"], "WorkloadFailed")
    assert entry["evidence"][0]["message"] == (
        f"rank 1 (pod {late['metadata']['name']}) stopped first: its last step is 390, others logged 400"
    )
    assert status["failureLog"]["reason"] == "NoTerminatedContainer"
    assert [pod["status"]["phase"] for pod in await jobs.pods("hangs")] == ["Running"] * 2


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
