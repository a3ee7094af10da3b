"""The rules of the tiny trainer: which Pods a TrainJob wants, and what follows from how they fare."""

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvcre_local.node.trainjob_pods import BadRuntime, Workload, merge, workload
from nvcre_local.node.trainjob_status import Decision, Observed, Obstacle, decide
from nvcre_local.trainer import is_ours, jobset_of

T = datetime(2026, 1, 1, 12, tzinfo=UTC)
STAMP = "2026-01-01T12:00:00Z"
ANCESTOR = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}


def trainjob(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "tj", "namespace": "ns", "uid": "uid-1", "creationTimestamp": STAMP},
        "spec": {"runtimeRef": {"name": "r", "kind": "TrainingRuntime"}, **spec},
    }


def job(name: str, *, ancestor: bool = True, **more: Any) -> dict[str, Any]:
    job_spec = {key: more.pop(key) for key in ("parallelism", "backoffLimit") if key in more}
    pod_spec = {"containers": [{"name": "node", "image": "img", "command": ["run"], **more.pop("container", {})}]}
    template = {"spec": {"template": {"spec": pod_spec}, **job_spec}}
    return {"name": name, "template": {**({"metadata": ANCESTOR} if ancestor else {}), **template}, **more}


def runtime(*jobs: dict[str, Any], policy: dict[str, Any] | None = None, **jobset: Any) -> dict[str, Any]:
    return {
        "kind": "TrainingRuntime",
        "metadata": {"name": "r"},
        "spec": {
            **({} if policy is None else {"mlPolicy": policy}),
            "template": {"spec": {"replicatedJobs": list(jobs), **jobset}},
        },
    }


def wanted(tj: dict[str, Any], rt: dict[str, Any]) -> list[dict[str, Any]]:
    return [slot.pod(0) for replicated in workload(tj, rt).replicated_jobs for slot in replicated.slots]


def env(pod: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in pod["spec"]["containers"][0].get("env", [])}


# -- which Pods ------------------------------------------------------------------------------------------------------


def test_a_pod_is_named_and_labelled_as_jobset_does() -> None:
    pod = wanted(trainjob(), runtime(job("node"), policy={"numNodes": 2}))[1]
    assert pod["metadata"]["name"].startswith("tj-node-0-1-")
    assert len(pod["metadata"]["name"]) == len("tj-node-0-1-") + 5
    assert pod["metadata"]["labels"] == {
        "jobset.sigs.k8s.io/jobset-name": "tj",
        "jobset.sigs.k8s.io/jobset-uid": "uid-1",
        "jobset.sigs.k8s.io/replicatedjob-name": "node",
        "jobset.sigs.k8s.io/replicatedjob-replicas": "1",
        "jobset.sigs.k8s.io/job-index": "0",
        "jobset.sigs.k8s.io/restart-attempt": "0",
        "batch.kubernetes.io/job-name": "tj-node-0",
        "job-name": "tj-node-0",
        "batch.kubernetes.io/job-completion-index": "1",
        "trainer.kubeflow.org/trainjob-ancestor-step": "trainer",
    }
    assert pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] == "1"
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    assert pod["spec"]["restartPolicy"] == "Never"
    assert env(pod)["JOB_COMPLETION_INDEX"] == "1"


def test_a_name_is_the_same_whenever_it_is_computed_and_another_for_another_attempt() -> None:
    slot = workload(trainjob(), runtime(job("node"))).replicated_jobs[0].slots[0]
    assert slot.pod(0) == slot.pod(0)
    assert slot.pod(0)["metadata"]["name"] != slot.pod(1)["metadata"]["name"]


MPI = {"mpi": {"numProcPerNode": 1}}
MPI_LAUNCHER_IS_NODE = {"mpi": {"numProcPerNode": 1, "runLauncherAsNode": True}}


@pytest.mark.parametrize(
    ("trainer", "policy", "jobs", "expected"),
    [
        ({}, {}, [job("node")], {"node": 1}),
        ({}, {"numNodes": 3}, [job("node")], {"node": 3}),
        ({"numNodes": 4}, {"numNodes": 3}, [job("node")], {"node": 4}),
        ({}, {"numNodes": 3}, [job("data", ancestor=False), job("node")], {"data": 1, "node": 3}),
        ({}, {}, [job("node", ancestor=False, parallelism=5)], {"node": 5}),
        ({}, {"torch": {}}, [job("node", parallelism=5)], {"node": 1}),
        ({}, None, [job("node", parallelism=5)], {"node": 5}),
        ({}, {}, [job("node", replicas=4)], {"node": 1}),
        ({}, {}, [job("data", ancestor=False, replicas=4), job("node")], {"data": 4, "node": 1}),
        ({"numNodes": 4}, MPI, [job("launcher"), job("node", ancestor=False)], {"launcher": 1, "node": 4}),
        ({"numNodes": 4}, MPI_LAUNCHER_IS_NODE, [job("launcher"), job("node", ancestor=False)],
         {"launcher": 1, "node": 3}),
        ({}, MPI, [job("launcher"), job("node", ancestor=False, parallelism=2)], {"launcher": 1, "node": 2}),
        ({}, {**MPI, "numNodes": 2}, [job("launcher"), job("node", ancestor=False)], {"launcher": 2, "node": 1}),
        ({"numNodes": 1}, MPI_LAUNCHER_IS_NODE, [job("launcher"), job("node", ancestor=False)],
         {"launcher": 1, "node": 1}),
        ({"numNodes": 3}, MPI, [job("launcher")], {"launcher": 1}),
    ],
)  # fmt: skip
def test_number_of_pods(
    trainer: dict[str, Any], policy: dict[str, Any] | None, jobs: list[Any], expected: dict[str, int]
) -> None:
    """As Kubeflow Trainer v2.2.0 does it; tests/cluster/test_trainer_agreement.py asks the real one."""
    result = workload(trainjob(trainer=trainer), runtime(*jobs, policy=policy))
    assert {replicated.name: len(replicated.slots) for replicated in result.replicated_jobs} == expected


GPUS = {"resources": {"limits": {"nvidia.com/gpu": "8"}}}


@pytest.mark.parametrize(
    ("trainer", "mpi", "worker", "slots"),
    [
        ({}, {"numProcPerNode": 4}, GPUS, "4"),
        ({}, {"numProcPerNode": 1}, GPUS, "8"),  # 1 is the default of the field and means "not said"
        ({}, {}, GPUS, "8"),
        ({}, {}, {}, "1"),
        ({"numProcPerNode": 1}, {"numProcPerNode": 4}, GPUS, "1"),
        ({"resourcesPerNode": {"requests": {"nvidia.com/gpu": 2}}}, {}, GPUS, "2"),
        ({"resourcesPerNode": {"limits": {"cpu": 2}}}, {}, GPUS, "1"),
    ],
)
def test_processes_a_node(trainer: dict[str, Any], mpi: dict[str, Any], worker: dict[str, Any], slots: str) -> None:
    jobs = job("node", ancestor=False, container=worker), job("launcher")
    launcher = wanted(trainjob(trainer=trainer), runtime(*jobs, policy={"mpi": mpi}))[1]
    assert env(launcher)["OMPI_MCA_orte_set_default_slots"] == slots


def test_of_launcher_and_node_the_first_says_how_many_gpus_a_node_has() -> None:
    jobs = job("launcher"), job("node", ancestor=False, container=GPUS)
    assert env(wanted(trainjob(), runtime(*jobs, policy=MPI))[0])["OMPI_MCA_orte_set_default_slots"] == "1"


@pytest.mark.parametrize(("as_node", "given"), [(False, [True, False]), (True, [True, True])])
def test_resources_and_environment_reach_workers_only_where_the_launcher_is_one_of_them(
    as_node: bool, given: list[bool]
) -> None:
    trainer = {"resourcesPerNode": {"limits": {"cpu": 1}}, "env": [{"name": "A", "value": "1"}]}
    rt = runtime(job("launcher"), job("node", ancestor=False), policy={"mpi": {"runLauncherAsNode": as_node}})
    pods = wanted(trainjob(trainer=trainer), rt)
    assert ["A" in env(pod) for pod in pods] == given
    assert ["resources" in pod["spec"]["containers"][0] for pod in pods] == given


def test_the_trainer_section_overrides_the_training_container() -> None:
    trainer = {
        "image": "mine",
        "command": ["torchrun"],
        "args": ["train.py"],
        "env": [{"name": "A", "value": "new"}, {"name": "B", "value": "2"}],
        "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}},
    }
    before = {"env": [{"name": "A", "value": "old"}], "args": ["x"]}
    pod = wanted(trainjob(trainer=trainer), runtime(job("node", container=before)))[0]
    container = pod["spec"]["containers"][0]
    assert (container["image"], container["command"], container["args"]) == ("mine", ["torchrun"], ["train.py"])
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert (env(pod)["A"], env(pod)["B"]) == ("new", "2")


def test_torch_gets_its_rendezvous_at_loopback_on_a_port_of_the_trainjob() -> None:
    resources = {"resources": {"limits": {"nvidia.com/gpu": 8}}}
    policy = {"numNodes": 2, "torch": {}}
    first, second = (env(pod) for pod in wanted(trainjob(), runtime(job("node", container=resources), policy=policy)))
    assert (first["PET_NNODES"], first["PET_NPROC_PER_NODE"], first["PET_MASTER_ADDR"]) == ("2", "8", "127.0.0.1")
    assert (first["PET_NODE_RANK"], second["PET_NODE_RANK"]) == ("0", "1")
    assert first["PET_MASTER_PORT"] == second["PET_MASTER_PORT"]


def test_mpi_gets_a_hostfile_with_a_slot_for_each_gpu_mounted_in_the_launcher() -> None:
    worker = job("node", ancestor=False, container={"resources": {"limits": {"nvidia.com/gpu": "8"}}})
    result = workload(trainjob(trainer={"numNodes": 2}), runtime(worker, job("launcher"), policy=MPI))
    assert result.hostfile is not None
    assert result.hostfile["metadata"]["name"] == "tj-mpi-hostfile"
    assert result.hostfile["data"]["hostfile"] == "tj-node-0-0.tj slots=8\ntj-node-0-1.tj slots=8\n"
    launcher = result.replicated_jobs[1].slots[0].pod(0)
    assert launcher["spec"]["volumes"] == [{"name": "mpi-hostfile", "configMap": {"name": "tj-mpi-hostfile"}}]
    assert env(launcher)["OMPI_MCA_orte_default_hostfile"] == "$(NVCRE_POD_DIR)/volumes/mpi-hostfile/hostfile"
    assert result.success_targets == ("launcher",)


def patches(job_name: str, pod: dict[str, Any], **template: Any) -> list[dict[str, Any]]:
    change = {"replicatedJobs": [{"name": job_name, "template": {"spec": {"template": pod}}}]}
    return [{"manager": "x", "trainingRuntimeSpec": {"template": {"spec": change, **template}}}]


def test_runtime_patches_reach_labels_selectors_tolerations_affinity_and_env() -> None:
    change = {
        "metadata": {"labels": {"nvcre.nvidia.com/job": "j"}},
        "spec": {
            "nodeSelector": {"a": "b"},
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "containers": [{"name": "node", "env": [{"name": "X", "value": "1"}]}],
        },
    }
    pod = wanted(trainjob(runtimePatches=patches("node", change)), runtime(job("node")))[0]
    assert pod["metadata"]["labels"]["nvcre.nvidia.com/job"] == "j"
    assert pod["spec"]["nodeSelector"] == {"a": "b"}
    assert pod["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert pod["spec"]["containers"][0]["command"] == ["run"]
    assert env(pod)["X"] == "1"


def test_labels_of_the_trainjob_itself_stay_off_the_pods() -> None:
    tj = trainjob()
    tj["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    assert "kueue.x-k8s.io/queue-name" not in wanted(tj, runtime(job("node")))[0]["metadata"]["labels"]


def test_the_runtime_is_not_changed_by_what_is_made_from_it() -> None:
    rt = runtime(job("node"), policy={"torch": {}})
    before = copy.deepcopy(rt)
    wanted(trainjob(trainer={"env": [{"name": "A", "value": "1"}]}, runtimePatches=patches("node", {"spec": {}})), rt)
    assert rt == before


@pytest.mark.parametrize(
    ("tj", "rt", "message"),
    [
        (trainjob(), runtime(), "replicatedJobs is empty"),
        (
            trainjob(runtimePatches=patches("worker", {})),
            runtime(job("node")),
            "no replicated job 'worker'; it has node",
        ),
        (trainjob(trainer={"numNodes": 10**9}), runtime(job("node")), "lower spec.trainer.numNodes"),
        (trainjob(trainer={"numNodes": -1}), runtime(job("node")), "at least 1"),
        (trainjob(), runtime({"name": "node"}), "containers is empty"),
    ],
)
def test_a_bad_runtime_is_refused_with_the_field(tj: dict[str, Any], rt: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRuntime, match=message):
        workload(tj, rt)


@pytest.mark.parametrize(
    ("base", "patch", "expected"),
    [
        ({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}),
        ({"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "B"}]},
         {"env": [{"name": "A", "value": "1"}, {"name": "B"}]}),
        ({"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "A", "value": "2"}]},
         {"env": [{"name": "A", "value": "2"}]}),
        ({"args": ["a"]}, {"args": ["b"]}, {"args": ["b"]}),
        ({"tolerations": [1]}, {"tolerations": [2]}, {"tolerations": [2]}),
    ],
)  # fmt: skip
def test_strategic_merge(base: Any, patch: Any, expected: Any) -> None:
    assert merge(base, patch) == expected


# -- what follows ----------------------------------------------------------------------------------------------------


def in_phase(
    pod: dict[str, Any], phase: str, *, code: int = 1, at: str = STAMP, deleting: bool = False
) -> dict[str, Any]:
    status: dict[str, Any] = {"phase": phase}
    if phase in ("Succeeded", "Failed"):
        end = {"exitCode": 0 if phase == "Succeeded" else code, "reason": "Error", "finishedAt": at}
        status["containerStatuses"] = [{"name": "node", "state": {"terminated": end}}]
    if phase == "Running":
        status["conditions"] = [{"type": "Ready", "status": "True"}]
    metadata = {**pod["metadata"], **({"deletionTimestamp": STAMP} if deleting else {})}
    spec = {**pod["spec"], "nodeName": f"node-{pod['metadata']['labels']['batch.kubernetes.io/job-completion-index']}"}
    return {**pod, "metadata": metadata, "spec": spec, "status": status}


TWO = runtime(job("node"), policy={"numNodes": 2})
MPI_TWO = runtime(job("launcher"), job("node", ancestor=False, parallelism=2), policy=MPI)


def look(tj: dict[str, Any], rt: dict[str, Any], *phases: str | None, now: datetime = T, **how: Any) -> Decision:
    pods = [in_phase(pod, phase, **how) for pod, phase in zip(wanted(tj, rt), phases, strict=False) if phase]
    return decide(Observed(tj, pods, workload(tj, rt)), now)


def conditions(decision: Decision) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in decision.status["conditions"]}


def names(pods: tuple[dict[str, Any], ...]) -> list[str]:
    return [pod["spec"]["hostname"] for pod in pods]


@pytest.mark.parametrize(
    ("rt", "phases", "created", "deleted", "expected"),
    [
        (TWO, [], ["tj-node-0-0", "tj-node-0-1"], [], {}),
        (TWO, ["Running"], ["tj-node-0-1"], [], {}),
        (TWO, ["Running", "Running"], [], [], {}),
        (TWO, ["Succeeded", "Running"], [], [], {}),
        (TWO, ["Succeeded", None], ["tj-node-0-1"], [], {}),
        (TWO, ["Succeeded", "Succeeded"], [], [], {"Complete": ("True", "AllJobsCompleted")}),
        (TWO, ["Running", "Failed"], [], ["tj-node-0-0"], {"Failed": ("True", "FailedJobs")}),
        (TWO, ["Succeeded", "Failed"], [], [], {"Failed": ("True", "FailedJobs")}),
        (MPI_TWO, ["Running", "Running", "Running"], [], [], {}),
        (MPI_TWO, ["Succeeded", "Running", "Running"], [], ["tj-node-0-0", "tj-node-0-1"],
         {"Complete": ("True", "AllJobsCompleted")}),
        (MPI_TWO, ["Running", "Failed", "Running"], [], ["tj-launcher-0-0", "tj-node-0-1"],
         {"Failed": ("True", "FailedJobs")}),
    ],
)  # fmt: skip
def test_life(
    rt: dict[str, Any], phases: list[str | None], created: list[str], deleted: list[str], expected: dict[str, Any]
) -> None:
    decision = look(trainjob(), rt, *phases)
    assert (names(decision.create), names(decision.delete), conditions(decision)) == (created, deleted, expected)


def test_the_message_names_the_first_pod_that_failed_its_node_and_its_exit_code() -> None:
    tj = trainjob()
    first, second = wanted(tj, TWO)
    pods = [
        in_phase(first, "Failed", code=143, at="2026-01-01T12:00:09Z"),
        in_phase(second, "Failed", code=139, at="2026-01-01T12:00:05Z"),
    ]
    decision = decide(Observed(tj, pods, workload(tj, TWO)), T)
    assert decision.status["conditions"][0]["message"] == (
        "jobset failed due to one or more job failures (first failed job: tj-node-0): "
        f"pod {second['metadata']['name']} on node node-1: container node exited with code 139"
    )


def test_a_backoff_limit_of_the_runtime_is_honoured() -> None:
    rt = runtime(job("node", backoffLimit=1))
    tj = trainjob()
    once = look(tj, rt, "Failed")
    assert names(once.create) == ["tj-node-0-0"]
    second = workload(tj, rt).replicated_jobs[0].slots[0].pod(1)
    assert once.create[0]["metadata"]["name"] == second["metadata"]["name"]
    pods = [in_phase(wanted(tj, rt)[0], "Failed"), in_phase(second, "Failed")]
    assert conditions(decide(Observed(tj, pods, workload(tj, rt)), T)) == {"Failed": ("True", "FailedJobs")}


def test_a_container_that_can_never_start_fails_the_trainjob_with_its_reason() -> None:
    tj = trainjob()
    pod = in_phase(wanted(tj, TWO)[0], "Pending")
    waiting = {"reason": "CreateContainerConfigError", "message": "container 'node' has no command"}
    pod["status"]["containerStatuses"] = [{"name": "node", "state": {"waiting": waiting}}]
    decision = decide(Observed(tj, [pod], workload(tj, TWO)), T)
    assert conditions(decision) == {"Failed": ("True", "FailedJobs")}
    assert "container 'node' has no command" in decision.status["conditions"][0]["message"]


def test_a_pod_that_is_being_deleted_neither_fails_nor_is_replaced_before_it_is_gone() -> None:
    decision = look(trainjob(), runtime(job("node")), "Failed", deleting=True)
    assert (decision.create, conditions(decision)) == ((), {})


def test_suspended_starts_nothing_and_stops_what_runs() -> None:
    decision = look(trainjob(suspend=True), TWO, "Running", "Succeeded")
    assert (decision.create, names(decision.delete)) == ((), ["tj-node-0-0"])
    assert conditions(decision) == {"Suspended": ("True", "Suspended")}
    assert decision.status["jobsStatus"][0]["suspended"] == 1


def test_resumed_starts_again_and_says_so() -> None:
    tj = trainjob(suspend=False)
    tj["status"] = {"conditions": [{"type": "Suspended", "status": "True", "lastTransitionTime": STAMP}]}
    decision = look(tj, TWO)
    assert len(decision.create) == 2
    assert conditions(decision) == {"Suspended": ("False", "Resumed")}


def test_a_missing_runtime_is_waited_for_visibly_and_forgotten_once_it_is_there() -> None:
    tj = trainjob()
    missing = Obstacle("TrainingRuntimeNotFound", "TrainingRuntime 'r' does not exist", final=False)
    decision = decide(Observed(tj, [], missing), T)
    assert (decision.create, conditions(decision)) == ((), {"Failed": ("False", "TrainingRuntimeNotFound")})
    assert decision.announce is not None
    tj["status"] = decision.status
    assert conditions(look(tj, TWO)) == {}


def test_an_unusable_runtime_fails_the_trainjob() -> None:
    decision = decide(Observed(trainjob(), [], Obstacle("InvalidTrainingRuntime", "why", final=True)), T)
    assert conditions(decision) == {"Failed": ("True", "InvalidTrainingRuntime")}


@pytest.mark.parametrize("kind", ["Complete", "Failed"])
def test_what_is_over_stays_over_and_leftovers_are_deleted(kind: str) -> None:
    tj = trainjob()
    tj["status"] = {"conditions": [{"type": kind, "status": "True", "reason": "x", "lastTransitionTime": STAMP}]}
    decision = look(tj, TWO, "Running", None)
    assert decision.status == tj["status"]
    assert (decision.create, names(decision.delete)) == ((), ["tj-node-0-0"])


def test_deadline_counts_from_creation_or_resumption() -> None:
    tj = trainjob(activeDeadlineSeconds=60)
    assert look(tj, TWO, "Running", "Running", now=T + timedelta(seconds=20)).look_again_s == 40
    late = look(tj, TWO, "Running", "Running", now=T + timedelta(seconds=60))
    assert conditions(late) == {"Failed": ("True", "DeadlineExceeded")}
    assert len(late.delete) == 2
    resumed = {"type": "Suspended", "status": "False", "lastTransitionTime": "2026-01-01T12:00:30Z"}
    tj["status"] = {"conditions": [resumed]}
    assert look(tj, TWO, "Running", "Running", now=T + timedelta(seconds=60)).look_again_s == 30


@pytest.mark.parametrize(
    ("wants", "phase", "started"),
    [("Complete", "Running", 0), ("Complete", "Succeeded", 1), ("Ready", "Pending", 0), ("Ready", "Running", 1)],
)
def test_a_replicated_job_waits_for_those_it_depends_on(wants: str, phase: str, started: int) -> None:
    rt = runtime(job("data", ancestor=False), job("node", dependsOn=[{"name": "data", "status": wants}]))
    assert len(look(trainjob(), rt, phase).create) == started


def test_jobs_status_counts_jobs() -> None:
    running = look(trainjob(), MPI_TWO, "Running", "Running", "Pending").status["jobsStatus"]
    assert running == [
        {"name": "launcher", "ready": 1, "succeeded": 0, "failed": 0, "active": 1, "suspended": 0},
        {"name": "node", "ready": 0, "succeeded": 0, "failed": 0, "active": 1, "suspended": 0},
    ]
    done = look(trainjob(), MPI_TWO, "Succeeded", "Running", "Running").status["jobsStatus"]
    assert [(one["name"], one["succeeded"], one["active"]) for one in done] == [("launcher", 1, 0), ("node", 0, 0)]


def test_success_policy_any() -> None:
    rt = runtime(job("a", ancestor=False), job("b", ancestor=False), successPolicy={"operator": "Any"})
    assert conditions(look(trainjob(), rt, "Running", "Succeeded")) == {"Complete": ("True", "AllJobsCompleted")}


PHASES = st.sampled_from([None, "Pending", "Running", "Succeeded", "Failed"])


@settings(max_examples=100)
@given(st.lists(PHASES, min_size=3, max_size=3), st.booleans())
def test_whatever_the_pods_do_a_decision_is_stable(phases: list[str | None], suspend: bool) -> None:
    """Deciding again on the status just written changes nothing, and an end is never taken back."""
    tj = trainjob(suspend=suspend)
    first = look(tj, MPI_TWO, *phases)
    again = look({**tj, "status": first.status}, MPI_TWO, *phases, now=T + timedelta(hours=1))
    assert again.status == first.status
    assert not (suspend and first.create)
    assert not (first.create and first.announce)


def test_others_trainjobs_are_left_alone() -> None:
    assert is_ours(trainjob())
    assert not is_ours(trainjob(managedBy="kueue.x-k8s.io/multikueue"))


def test_pods_are_indexed_by_their_jobset() -> None:
    assert list(jobset_of(wanted(trainjob(), TWO)[0])) == ["ns/tj"]
    assert list(jobset_of({"metadata": {"namespace": "ns", "name": "x"}})) == []


def test_the_workload_is_a_value() -> None:
    assert isinstance(workload(trainjob(), TWO), Workload)
    assert workload(trainjob(), TWO) == workload(trainjob(), TWO)
