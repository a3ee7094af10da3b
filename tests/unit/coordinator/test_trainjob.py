"""The TrainJob that is made of a Job, and how its status is read (case 12)."""

from typing import Any

import pytest
from nvcre_coordinator.api.job import Job
from nvcre_coordinator.api.meta import from_json
from nvcre_coordinator.workloads.trainjob import TrainJobAdapter, worker_replicated_job


def patched(name: str, manager: str = "me") -> dict[str, Any]:
    return {"manager": manager, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [{"name": name}]}}}}


def job(name: str = "my-job", **train_job: Any) -> Job:
    return from_json(
        {
            "metadata": {"name": name, "namespace": "team", "uid": "u", "labels": {"mine": "not-copied"}},
            "spec": {
                "workload": {"trainJob": {"runtimeRef": {"name": "nccl"}} | train_job},
                "workloadMetadata": {"labels": {"kueue.x-k8s.io/queue-name": "gpu-team-a", "empty": ""}},
            },
        },
        Job,
    )


def test_labels_owner_and_spec() -> None:
    built = TrainJobAdapter().build(job(suspend=False, unknownField={"kept": True}))
    assert (built["apiVersion"], built["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert built["metadata"]["name"] == "my-job-workload"
    assert built["metadata"]["labels"] == {
        "kueue.x-k8s.io/queue-name": "gpu-team-a",
        "empty": "",
        "app.kubernetes.io/managed-by": "nvcre",
        "nvcre.nvidia.com/job": "my-job",
    }
    (owner,) = built["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Job", "u", True)
    assert built["spec"]["runtimeRef"] == {"name": "nccl"}
    assert built["spec"]["unknownField"] == {"kept": True}


def test_the_pod_label_travels_in_a_patch_of_our_own() -> None:
    (patch,) = TrainJobAdapter().build(job())["spec"]["runtimePatches"]
    assert patch["manager"] == "nvcre.nvidia.com/controller"
    (target,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert target == {
        "name": "node",
        "template": {"spec": {"template": {"metadata": {"labels": {"nvcre.nvidia.com/job": "my-job"}}}}},
    }


def test_the_user_s_own_patches_stay_and_tell_where_the_workers_are() -> None:
    patches = TrainJobAdapter().build(job(runtimePatches=[patched("launcher"), patched("workers", "you")]))["spec"][
        "runtimePatches"
    ]
    assert [patch["manager"] for patch in patches] == ["me", "you", "nvcre.nvidia.com/controller"]
    assert worker_replicated_job(patches[:2]) == "workers"


def test_a_job_s_own_spec_is_not_changed_by_building() -> None:
    made = job(runtimePatches=[])
    TrainJobAdapter().build(made)
    assert made.spec.workload.train_job is not None
    assert made.spec.workload.train_job["runtimePatches"] == []


def test_a_long_name_is_a_valid_label_value() -> None:
    labels = TrainJobAdapter().build(job("j" * 100))["metadata"]["labels"]
    assert len(labels["nvcre.nvidia.com/job"]) <= 63


def condition(kind: str, message: str = "", status: str = "True") -> dict[str, str]:
    return {"type": kind, "status": status, "message": message}


@pytest.mark.parametrize(
    ("conditions", "suspend", "phase", "message"),
    [
        ([condition("Failed", "f"), condition("Complete", "c")], False, "Failed", "f"),
        ([condition("Complete", "c")], False, "Succeeded", "c"),
        ([condition("Complete", "c")], True, "Succeeded", "c"),
        ([condition("Failed", "f")], True, "Failed", "f"),
        ([condition("Failed", status="False")], False, "Running", ""),
        ([condition("Failed", "no such runtime", status="False")], False, "Running", "no such runtime"),
        ([], True, "Pending", "suspended; a queue such as Kueue has not admitted it"),
        ([], False, "Running", ""),
        ([condition("Suspended")], False, "Running", ""),
    ],
)
def test_the_phase_table(conditions: list[dict[str, str]], suspend: bool, phase: str, message: str) -> None:
    """Case 12."""
    obj = {"metadata": {"name": "w"}, "spec": {"suspend": suspend}, "status": {"conditions": conditions}}
    read = TrainJobAdapter().read(obj)
    assert (read.title, read.phase.value, read.message) == ("TrainJob/w", phase, message)


@pytest.mark.parametrize(("text", "number"), [("2", 2), ("-1", 0), ("two", 0), ("²", 0), ("9" * 4000, 0)])
def test_which_restart_it_is_stands_in_an_annotation_that_anybody_may_write(text: str, number: int) -> None:
    annotations = {"nvcre.nvidia.com/restart": text}
    assert TrainJobAdapter().read({"metadata": {"name": "w", "annotations": annotations}}).restart == number


@pytest.mark.parametrize(
    ("manager", "told"),
    [
        ("kueue.x-k8s.io/multikueue", " (managedBy kueue.x-k8s.io/multikueue)"),
        ("trainer.kubeflow.org/trainjob-controller", ""),
    ],
)
def test_who_manages_a_held_workload_is_told_unless_it_is_trainer_as_always(manager: str, told: str) -> None:
    held = TrainJobAdapter().read({"metadata": {"name": "w"}, "spec": {"suspend": True, "managedBy": manager}})
    assert held.message == f"suspended; a queue such as Kueue has not admitted it{told}"


def test_whose_it_is() -> None:
    adapter = TrainJobAdapter()
    assert adapter.owned(job(), adapter.build(job()))
    assert not adapter.owned(job(), {"metadata": {"name": "my-job-workload"}})


def test_a_spec_that_is_nested_deep_is_built_like_any_other() -> None:
    deep: list[Any] = []
    for _ in range(900):  # what the JSON decoder still takes
        deep = [deep]
    assert TrainJobAdapter().build(job(unknownField=deep))["spec"]["unknownField"] is deep
