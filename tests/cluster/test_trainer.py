"""Jobs with the real Kubeflow Trainer, JobSet and kube-scheduler: what is created, what is said, what is left."""

from __future__ import annotations

import re

import pytest
from nvcre_kube.resources import JOBS, TRAIN_JOBS, TRAINING_RUNTIMES, JsonObject
from nvcre_local import cluster_objects as objects
from nvcre_local.scenario_file import read_scenario

from .jobs import BATCH_JOBS, JOB_SETS, Jobs, condition, execution
from .processes import NODES, REPOSITORY, Plane
from .queues import QUEUE, queue_of

pytestmark = pytest.mark.timeout(600)

JOB_LABEL = "nvcre.nvidia.com/job"
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"


async def test_the_seed_page_s_job_runs_and_its_labels_stay_on_the_train_job(jobs: Jobs, plane: Plane) -> None:
    """As it stands on the page, on the runtime of `nvcre local`, admitted by the queue that it names."""
    api = jobs.api
    scenario = read_scenario(REPOSITORY / "examples/scenarios/healthy.yaml").with_nodes(len(NODES))
    await api.client.create(TRAINING_RUNTIMES, objects.simulated_runtime(scenario, api.namespace))
    async with queue_of(api):
        plane.kubectl("apply", "-n", api.namespace, "-f", str(REPOSITORY / "examples/seed-page.yaml"))
        await jobs.until_running("my-job", pods=len(NODES) + 1)
        ours = (await jobs.get("my-job"))["spec"]["workloadMetadata"]["labels"]
        assert set(ours) == {*QUEUE, "kai.scheduler/queue", "environment"}
        train_job = await jobs.train_job("my-job")
        own = {"app.kubernetes.io/managed-by": "nvcre", JOB_LABEL: "my-job"}
        assert train_job["metadata"]["labels"] == {**ours, **own}

        (job_set,) = await api.client.list(JOB_SETS, api.namespace)
        # Kueue's webhook puts the queue there by a patch of its own; nothing else arrives.
        kueue = next(one for one in train_job["spec"]["runtimePatches"] if one["manager"] == "kueue.x-k8s.io/manager")
        stamped = kueue["trainingRuntimeSpec"]["template"]["metadata"]["labels"]
        assert job_set["metadata"].get("labels", {}) == stamped == QUEUE
        pods = await jobs.pods("my-job")
        workers = [pod["metadata"]["labels"].get(JOB_LABEL) for pod in pods if "-node-" in pod["metadata"]["name"]]
        assert workers == ["my-job"] * len(NODES)
        below = [*await api.client.list(BATCH_JOBS, api.namespace), *pods]
        assert {one["metadata"]["labels"][REPLICATED_JOB] for one in below} == {"node", "launcher"}
        (launcher,) = [pod for pod in pods if "-launcher-" in pod["metadata"]["name"]]
        assert JOB_LABEL not in launcher["metadata"]["labels"]
        for one in below:
            assert not ours.keys() & one["metadata"]["labels"].keys(), one["metadata"]["name"]
        await jobs.until("my-job", "Succeeded", "WorkloadCompleted")


async def test_without_a_queue_no_label_reaches_the_job_set(jobs: Jobs) -> None:
    await jobs.create_runtime(jobs.wait_for("end"))
    await jobs.create("labelled", labels={"environment": "burn-in"})
    await jobs.until_running("labelled")
    (job_set,) = await jobs.api.client.list(JOB_SETS, jobs.api.namespace)
    assert not job_set["metadata"].get("labels")


async def test_a_job_runs_and_completes(jobs: Jobs) -> None:
    await jobs.create_runtime(jobs.wait_for("end"))
    await jobs.create("good")
    await jobs.until_running("good")

    async def says_so() -> JsonObject | None:  # not as long as the GPUs of an earlier test are still taken
        status = await jobs.status("good")
        return status if execution(status)[2] == "Workload TrainJob/good-workload is running" else None

    status = await jobs.api.until(says_so)
    assert {kind: condition(status, kind)["reason"] for kind in ("Succeeded", "Failed")} == {
        "Succeeded": "NotApplicable",
        "Failed": "NotApplicable",
    }
    assert status["workloadRef"] == {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "name": "good-workload",
        "namespace": jobs.api.namespace,
    }
    assert not {"restartCount", "failedNodes"} & status.keys()

    jobs.say("end")
    status = await jobs.until("good", "Succeeded", "WorkloadCompleted")
    complete = condition((await jobs.train_job("good"))["status"], "Complete")
    assert execution(status)[2] == f"Workload TrainJob/good-workload completed: {complete['message']}"
    status = await jobs.until_attributed("good")
    assert not {"restartCount", "failedNodes", "failureLog"} & status.keys()
    assert [pod["status"]["phase"] for pod in await jobs.pods("good")] == ["Succeeded"] * 2

    async def told() -> list[str] | None:  # Events are written after the status
        reasons = [reason for reason, _ in await jobs.events("good")]
        return reasons if "WorkloadCompleted" in reasons else None

    reasons = await jobs.api.until(told)
    assert (reasons.count("WorkloadCreated"), reasons.count("WorkloadCompleted")) == (1, 1)


async def test_the_user_s_own_patches_of_the_runtime_stay_beside_ours(jobs: Jobs) -> None:
    await jobs.create_runtime(jobs.wait_for("end"))
    template = {"metadata": {"labels": {"team": "a"}}}
    theirs = {
        "manager": "example.com/team-a",
        "trainingRuntimeSpec": {
            "template": {"spec": {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": template}}}]}}
        },
    }
    await jobs.create("patched", trainer={"numNodes": 1}, runtimePatches=[theirs])
    await jobs.until_running("patched", pods=1)
    (pod,) = await jobs.pods("patched")
    assert pod["metadata"]["labels"].items() >= {"team": "a", JOB_LABEL: "patched"}.items()


async def test_a_worker_that_exits_1_names_its_node(jobs: Jobs) -> None:
    """Rank 1 fails; rank 0 would go on, and is ended by JobSet because of it."""
    await jobs.create_runtime(
        f"""
        [ $JOB_COMPLETION_INDEX = 0 ] && {jobs.wait_for("never")}
        {jobs.wait_for("crash")}; echo RuntimeError: out of luck; exit 1
        """
    )
    await jobs.create("bad", spec={"checkpoint": {"pvcName": "checkpoints", "maxRestarts": 3}})
    await jobs.until_running("bad")
    jobs.say("crash")
    status = await jobs.until("bad", "Failed", "WorkloadFailed")
    failed = condition((await jobs.train_job("bad"))["status"], "Failed")
    assert execution(status)[2] == f"Workload TrainJob/bad-workload failed: {failed['message']}"

    status = await jobs.until_attributed("bad")
    (culprit,) = [pod for pod in await jobs.pods("bad") if "-node-0-1-" in pod["metadata"]["name"]]
    (entry,) = status["failedNodes"]
    assert (entry["name"], entry["reason"]) == (culprit["spec"]["nodeName"], "WorkloadFailed")
    assert "RuntimeError: out of luck" in str(entry["evidence"])
    log = status["failureLog"]
    assert (log["podName"], log["nodeName"]) == (culprit["metadata"]["name"], entry["name"])
    assert log["exitCode"] == 1
    assert log["tail"].endswith("RuntimeError: out of luck")
    assert status["workloadRef"]["name"] == "bad-workload"
    assert "restartCount" not in status


async def test_a_train_job_that_somebody_deletes_fails_the_job(jobs: Jobs) -> None:
    await jobs.create_runtime(jobs.wait_for("never"))
    await jobs.create("robbed")
    await jobs.until_running("robbed")
    await jobs.api.client.delete(TRAIN_JOBS, "robbed-workload", jobs.api.namespace)
    status = await jobs.until("robbed", "Failed", "WorkloadFailed")
    assert "was deleted" in execution(status)[2]


async def test_a_deleted_job_goes_only_when_its_pods_have_ended(jobs: Jobs) -> None:
    """The workload first; the finalizer stays while the programs take their time to end."""
    await jobs.create_runtime(f"trap '{jobs.wait_for('end')}; exit 0' TERM; {jobs.wait_for('never')}", grace_s=120)
    await jobs.create("leaving")
    await jobs.until_running("leaving")
    await jobs.api.client.delete(JOBS, "leaving", jobs.api.namespace)
    await jobs.until_gone(lambda: jobs.train_job("leaving"))
    assert [pod["status"]["phase"] for pod in await jobs.pods("leaving")] == ["Running"] * 2
    assert (await jobs.get("leaving"))["metadata"]["finalizers"] == ["nvcre.nvidia.com/finalizer"]

    jobs.say("end")
    await jobs.until_gone(lambda: jobs.get("leaving"))
    left = [pod for pod in await jobs.pods("leaving") if pod["status"]["phase"] in ("Pending", "Running")]
    assert left == []


async def test_what_a_webhook_refuses_is_said_in_its_words_and_tried_again(jobs: Jobs) -> None:
    """Its runtime does not exist. Trainer and Kueue both look for it, and either may be the first to say so."""
    await jobs.create("early")
    status = await jobs.until("early", "InProgress", "WorkloadCreationError")
    assert re.search('admission webhook ".+" denied the request: .*shell', execution(status)[2])
    assert "workloadRef" not in status
    assert "workloadStartTime" not in status

    await jobs.create_runtime("true")
    await jobs.until("early", "Succeeded", "WorkloadCompleted")
    notes = [note for reason, note in await jobs.events("early") if reason == "WorkloadCreationError"]
    assert len(notes) == 1
