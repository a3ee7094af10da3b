"""The tiny trainer of a local cluster and the real Kubeflow Trainer make the same Pods of the same TrainJob."""

from __future__ import annotations

from typing import Any

import pytest
from nvcre_kube.resources import CONFIG_MAPS, TRAINING_RUNTIMES, JsonObject
from nvcre_local import cluster_objects as objects
from nvcre_local.node.trainjob_pods import ReplicatedJob, workload
from nvcre_local.scenario_file import read_scenario

from .conftest import Api
from .jobs import JOB_SETS
from .processes import REPOSITORY

pytestmark = pytest.mark.timeout(600)

STEP = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
SLOTS = "OMPI_MCA_orte_set_default_slots"


def job(name: str, *, step: bool = False, pods: int = 1, gpus: int = 0, replicas: int = 1) -> JsonObject:
    container: JsonObject = {"name": "node", "image": "none", "command": ["true"]}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    spec = {"parallelism": pods, "completions": pods, "template": {"spec": {"containers": [container]}}}
    return {"name": name, "replicas": replicas, "template": {**({"metadata": STEP} if step else {}), "spec": spec}}


def runtime(policy: JsonObject | None, *jobs: JsonObject) -> JsonObject:
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {},
        "spec": {**({"mlPolicy": policy} if policy else {}), "template": {"spec": {"replicatedJobs": list(jobs)}}},
    }


MPI: JsonObject = {"mpi": {"numProcPerNode": 1, "mpiImplementation": "OpenMPI"}}
AS_NODE: JsonObject = {"mpi": {**MPI["mpi"], "runLauncherAsNode": True}}
LAUNCHER = job("launcher", step=True)
SIMULATED = objects.simulated_runtime(read_scenario(REPOSITORY / "examples/scenarios/healthy.yaml"), "default")
CASES: dict[str, tuple[JsonObject, JsonObject]] = {
    "local": (SIMULATED, {}),
    "local-asked": (SIMULATED, {"numNodes": 2, "numProcPerNode": 4}),
    "torch": (runtime({"torch": {}, "numNodes": 3}, job("node", step=True, pods=5)), {}),
    "torch-asked": (runtime({"torch": {}, "numNodes": 3}, job("node", step=True)), {"numNodes": 4}),
    "plain-beside": (runtime({"numNodes": 2}, job("data", pods=2, replicas=2), job("node", step=True)), {}),
    "no-policy": (runtime(None, job("node", step=True, pods=2)), {}),
    "mpi-nodes-of-policy": (runtime({**MPI, "numNodes": 2}, LAUNCHER, job("node", pods=3)), {}),
    "mpi-asked": (runtime(MPI, LAUNCHER, job("node", gpus=8)), {"numNodes": 4}),
    "mpi-as-node": (runtime(AS_NODE, LAUNCHER, job("node")), {"numNodes": 4}),
    "mpi-as-node-one": (runtime(AS_NODE, LAUNCHER, job("node")), {"numNodes": 1}),
    "mpi-resources": (
        runtime(MPI, LAUNCHER, job("node", gpus=8)),
        {"resourcesPerNode": {"requests": {"nvidia.com/gpu": 2}, "limits": {"nvidia.com/gpu": 2}}},
    ),
}


async def test_the_same_pods_of_the_same_trainjob(api: Api) -> None:
    asked = {case: await ask(api, case, *CASES[case]) for case in CASES}

    async def made() -> dict[str, JsonObject] | None:
        found = {one["metadata"]["name"]: one for one in await api.client.list(JOB_SETS, api.namespace)}
        return found if found.keys() == CASES.keys() else None

    made_sets = await api.until(made)
    for case, train_job in asked.items():
        theirs = {one["name"]: of_job_set(one) for one in made_sets[case]["spec"]["replicatedJobs"]}
        ours = workload(train_job, await api.client.get(TRAINING_RUNTIMES, case, api.namespace))
        assert {one.name: of_replicated_job(one) for one in ours.replicated_jobs} == theirs, case
        if ours.hostfile is not None:
            hosts = await api.client.get(CONFIG_MAPS, ours.hostfile["metadata"]["name"], api.namespace)
            assert ours.hostfile["data"] == hosts["data"], case


async def ask(api: Api, case: str, template: JsonObject, trainer: JsonObject) -> JsonObject:
    metadata = {"name": case, "namespace": api.namespace}
    await api.client.create(TRAINING_RUNTIMES, {**template, "metadata": {**template["metadata"], **metadata}})
    train_job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata,
        "spec": {
            "runtimeRef": {"name": case, "kind": "TrainingRuntime", "apiGroup": "trainer.kubeflow.org"},
            "suspend": True,  # nothing has to run for it
            **({"trainer": trainer} if trainer else {}),
        },
    }
    return await api.create_train_job(train_job)


def of_replicated_job(ours: ReplicatedJob) -> tuple[int, int, Any]:
    return ours.replicas, len(ours.slots) // ours.replicas, told(ours.slots[0].manifest)


def of_job_set(replicated: JsonObject) -> tuple[int, int, Any]:
    spec = replicated["template"]["spec"]
    return replicated["replicas"], spec["parallelism"], told(spec["template"])


def told(pod: JsonObject) -> tuple[Any, Any]:
    """What the node container is given: GPUs, and the slots of MPI."""
    (container,) = pod["spec"]["containers"]
    gpus = container.get("resources", {}).get("limits", {}).get("nvidia.com/gpu")
    slots = {one["name"]: one.get("value") for one in container.get("env", ())}.get(SLOTS)
    return None if gpus is None else str(gpus), slots
