"""TrainJobs from creation to their end, with the tiny trainer and scheduler."""

from typing import Any

from nvcre_kube.resources import PODS, TRAIN_JOBS, TRAINING_RUNTIMES

from .conftest import Api

ANCESTOR = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}


def replicated(name: str, script: str, *, gpus: int = 0, ancestor: bool = True, pods: int = 1) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "node", "image": "none", "command": ["sh", "-c", script]}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    pod = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    job = {"parallelism": pods, "completions": pods, "template": pod}
    return {"name": name, "template": {**({"metadata": ANCESTOR} if ancestor else {}), "spec": job}}


async def create_runtime(api: Api, *jobs: dict[str, Any], policy: dict[str, Any] | None = None) -> None:
    spec = {"mlPolicy": policy or {}, "template": {"spec": {"replicatedJobs": list(jobs)}}}
    metadata = {"name": "runtime", "namespace": api.namespace}
    kind = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainingRuntime"}
    await api.client.create(TRAINING_RUNTIMES, {**kind, "metadata": metadata, "spec": spec})


async def create_trainjob(api: Api, name: str = "tj", **spec: Any) -> None:
    kind = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob"}
    reference = {"name": "runtime", "kind": "TrainingRuntime"}
    metadata = {"name": name, "namespace": api.namespace}
    await api.client.create(TRAIN_JOBS, {**kind, "metadata": metadata, "spec": {"runtimeRef": reference, **spec}})


async def condition(api: Api, kind: str, status: str, name: str = "tj") -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        trainjob = await api.client.get(TRAIN_JOBS, name, api.namespace)
        conditions = trainjob.get("status", {}).get("conditions") or []
        return next((c for c in conditions if c["type"] == kind and c["status"] == status), None)

    return dict(await api.until(look))


async def pods(api: Api) -> list[dict[str, Any]]:
    found = await api.client.list(PODS, api.namespace, label_selector="jobset.sigs.k8s.io/jobset-name")
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


async def left(api: Api, count: int) -> list[dict[str, Any]]:
    async def look() -> tuple[list[dict[str, Any]]] | None:
        found = await pods(api)
        return (found,) if len(found) == count else None

    return list((await api.until(look))[0])


async def test_ranks_run_on_nodes_in_order_and_the_job_completes(api: Api) -> None:
    script = "echo rank $JOB_COMPLETION_INDEX of $PET_NNODES"
    await create_runtime(api, replicated("node", script, gpus=8), policy={"numNodes": 2, "torch": {}})
    await create_trainjob(api)
    complete = await condition(api, "Complete", "True")
    assert complete["reason"] == "AllJobsCompleted"
    first, second = await pods(api)
    assert (first["spec"]["nodeName"], second["spec"]["nodeName"]) == ("node-0", "node-1")
    assert await api.log(second["metadata"]["name"]) == b"rank 1 of 2\n"
    trainjob = await api.client.get(TRAIN_JOBS, "tj", api.namespace)
    assert trainjob["status"]["jobsStatus"][0]["succeeded"] == 1


async def test_one_failed_rank_fails_the_job_and_ends_the_others(api: Api) -> None:
    script = 'if [ "$JOB_COMPLETION_INDEX" = 1 ]; then echo broken; exit 134; fi; sleep 1000'
    await create_runtime(api, replicated("node", script), policy={"numNodes": 2})
    await create_trainjob(api)
    failed = await condition(api, "Failed", "True")
    (pod,) = await left(api, 1)
    assert failed["reason"] == "FailedJobs"
    assert f"pod {pod['metadata']['name']} on node node-1: container node exited with code 134" in failed["message"]
    assert await api.log(pod["metadata"]["name"]) == b"broken\n"


async def test_an_mpi_launcher_finds_its_workers_and_its_end_ends_them(api: Api) -> None:
    launcher = replicated("launcher", "cat $OMPI_MCA_orte_default_hostfile")
    worker = replicated("node", "sleep 1000", gpus=4, ancestor=False, pods=2)
    await create_runtime(api, worker, launcher, policy={"mpi": {"numProcPerNode": 1}})
    await create_trainjob(api)
    await condition(api, "Complete", "True")
    (pod,) = await left(api, 1)
    assert await api.log(pod["metadata"]["name"]) == b"tj-node-0-0.tj slots=4\ntj-node-0-1.tj slots=4\n"


async def test_a_suspended_job_starts_nothing_until_resumed_and_can_be_stopped_again(api: Api) -> None:
    await create_runtime(api, replicated("node", "sleep 1000"), policy={"numNodes": 2})
    await create_trainjob(api, suspend=True)
    await condition(api, "Suspended", "True")
    assert await pods(api) == []
    await api.client.merge_patch(TRAIN_JOBS, "tj", {"spec": {"suspend": False}}, api.namespace)
    await condition(api, "Suspended", "False")
    await left(api, 2)
    await api.client.merge_patch(TRAIN_JOBS, "tj", {"spec": {"suspend": True}}, api.namespace)
    await condition(api, "Suspended", "True")
    await left(api, 0)
    await api.client.merge_patch(TRAIN_JOBS, "tj", {"spec": {"suspend": False}}, api.namespace)
    await left(api, 2)


async def test_a_missing_runtime_is_named_and_waited_for(api: Api) -> None:
    await create_trainjob(api)
    message = (await condition(api, "Failed", "False"))["message"]
    assert message.startswith(f"TrainingRuntime 'runtime' does not exist in namespace '{api.namespace}'")
    assert await api.event("tj", "TrainingRuntimeNotFound") == message
    await create_runtime(api, replicated("node", "true"))
    await condition(api, "Complete", "True")


async def test_a_container_without_a_command_fails_the_job_with_the_remedy(api: Api) -> None:
    job = replicated("node", "")
    del job["template"]["spec"]["template"]["spec"]["containers"][0]["command"]
    await create_runtime(api, job)
    await create_trainjob(api)
    assert "name the program in the container's command" in (await condition(api, "Failed", "True"))["message"]


async def test_more_gpus_than_there_are_is_unschedulable_in_the_schedulers_words(api: Api) -> None:
    await create_runtime(api, replicated("node", "true", gpus=9))
    await create_trainjob(api)

    async def unschedulable() -> str:
        conditions = [c for pod in await pods(api) for c in pod.get("status", {}).get("conditions", [])]
        return next((c["message"] for c in conditions if c.get("reason") == "Unschedulable"), "")

    assert await api.until(unschedulable) == "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."


async def test_deleting_a_trainjob_ends_its_pods(api: Api) -> None:
    await create_runtime(api, replicated("node", "sleep 1000"), policy={"numNodes": 2})
    await create_trainjob(api)
    await left(api, 2)
    await api.client.delete(TRAIN_JOBS, "tj", api.namespace)
    await left(api, 0)


async def test_a_trainjob_of_another_controller_is_left_alone(api: Api) -> None:
    await create_runtime(api, replicated("node", "true"))
    await create_trainjob(api, "theirs", managedBy="kueue.x-k8s.io/multikueue")
    await create_trainjob(api, "ours")
    await condition(api, "Complete", "True", "ours")
    assert {pod["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"] for pod in await pods(api)} == {"ours"}
