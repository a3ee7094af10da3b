"""Decides which Pods a TrainJob wants, from its runtime: the part of Kubeflow Trainer and JobSet that we need.

Pure. Names, labels and environment are those of Trainer v2.2.0 and JobSet v0.12 (spec 1.8), so that the coordinator
cannot tell the difference. Where a local cluster has to differ, the reason stands there.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nvcre_kube.resources import JsonObject

from nvcre_local.node.placement import COMPLETION_INDEX, GPU, JOBSET_NAME, REPLICATED_JOB

ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"
TRAINER = "trainer"
STEPS = frozenset({TRAINER, "dataset-initializer", "model-initializer"})
LAUNCHER, NODE = "launcher", "node"
HOSTFILE_VOLUME = "mpi-hostfile"
RENDEZVOUS_PORT = 29500
RENDEZVOUS_PORTS = 2000
MAX_PODS = 4096
_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"

_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
    "ports": "containerPort",
}
"""The lists of a Pod template that strategic merge joins by key (k8s.io/api/core/v1, patchMergeKey)."""


class BadRuntime(Exception):
    """The runtime or the TrainJob cannot be turned into Pods; the message names the field."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One Pod's place: a completion index of a job of a replicated job. `pod(attempt)` is the manifest."""

    replicated_job: str
    job_index: int
    completion_index: int
    manifest: JsonObject = field(repr=False)
    trainjob_uid: str

    @property
    def key(self) -> tuple[str, int, int]:
        return (self.replicated_job, self.job_index, self.completion_index)

    def pod(self, attempt: int) -> JsonObject:
        """The name is the same whenever it is computed: a second creation is refused instead of making a twin."""
        pod = copy.deepcopy(self.manifest)
        seed = f"{self.trainjob_uid}/{self.replicated_job}/{self.job_index}/{self.completion_index}/{attempt}"
        number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8])
        suffix = ""
        for _ in range(5):
            number, digit = divmod(number, len(_SUFFIX_ALPHABET))
            suffix += _SUFFIX_ALPHABET[digit]
        pod["metadata"]["name"] = f"{pod['spec']['hostname']}-{suffix}"
        return pod


@dataclass(frozen=True, slots=True)
class ReplicatedJob:
    name: str
    replicas: int
    backoff_limit: int
    slots: tuple[Slot, ...]
    depends_on: tuple[tuple[str, str], ...] = ()
    """(replicated job, Ready | Complete)"""


@dataclass(frozen=True, slots=True)
class Workload:
    """Everything a TrainJob wants."""

    replicated_jobs: tuple[ReplicatedJob, ...]
    success_operator: str
    success_targets: tuple[str, ...]
    hostfile: JsonObject | None = None
    """The ConfigMap of an MPI workload."""


@dataclass(frozen=True, slots=True)
class _Context:
    """What all Pods of a TrainJob have in common."""

    trainjob: JsonObject
    policy: JsonObject
    jobset_metadata: JsonObject
    counts: Mapping[str, int]
    """Pods of one job of each replicated job."""
    processes: int | None
    """Processes a node."""


def workload(trainjob: JsonObject, runtime: JsonObject) -> Workload:
    """Raises BadRuntime."""
    template = _patched_template(trainjob, runtime)
    jobset = template.get("spec") or {}
    jobs: Sequence[JsonObject] = jobset.get("replicatedJobs") or ()
    if not jobs:
        raise BadRuntime(f"{_named(runtime)}: spec.template.spec.replicatedJobs is empty")
    policy = (runtime.get("spec") or {}).get("mlPolicy")
    context = _Context(
        trainjob=trainjob,
        policy=policy or {},
        jobset_metadata=template.get("metadata") or {},
        counts={job["name"]: _pod_count(job, jobs, trainjob, policy) for job in jobs},
        processes=_processes_per_node(jobs, trainjob, policy or {}),
    )
    _check_size(jobs, context.counts)
    success = jobset.get("successPolicy") or {}
    targets = tuple(success.get("targetReplicatedJobs") or ())
    if not targets and LAUNCHER in context.counts:
        targets = (LAUNCHER,)  # the workers of an MPI job never end by themselves
    return Workload(
        replicated_jobs=tuple(_replicated_job(job, context) for job in jobs),
        success_operator=success.get("operator") or "All",
        success_targets=targets or tuple(context.counts),
        hostfile=_hostfile(context),
    )


def _check_size(jobs: Sequence[JsonObject], counts: Mapping[str, int]) -> None:
    total = 0
    for job in jobs:
        pods, replicas = counts[job["name"]], _replicas(job)
        if pods < 1 or replicas < 1:
            raise BadRuntime(f"replicated job {job['name']!r}: {pods} pods and {replicas} replicas must be at least 1")
        total += pods * replicas
    if total > MAX_PODS:
        raise BadRuntime(f"{total} pods wanted, at most {MAX_PODS} fit on a local cluster: lower spec.trainer.numNodes")


def owner_reference(trainjob: JsonObject) -> JsonObject:
    metadata = trainjob["metadata"]
    return {
        "apiVersion": trainjob["apiVersion"],
        "kind": "TrainJob",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def merge(base: Any, patch: Any, key: str = "") -> Any:
    """Strategic merge as far as Pod templates need it: objects deep, lists of `_MERGE_KEYS` by key, else replaced."""
    if isinstance(base, dict) and isinstance(patch, dict):
        merged = dict(base)
        for name, value in patch.items():
            merged[name] = merge(base.get(name), value, name)
        return merged
    merge_key = _MERGE_KEYS.get(key)
    if isinstance(base, list) and isinstance(patch, list) and merge_key:
        result = {item.get(merge_key): item for item in base}
        for item in patch:
            result[item.get(merge_key)] = merge(result.get(item.get(merge_key)), item)
        return list(result.values())
    return copy.deepcopy(patch)


def _named(runtime: JsonObject) -> str:
    return f"{runtime.get('kind', 'runtime')} {runtime['metadata']['name']!r}"


def _patched_template(trainjob: JsonObject, runtime: JsonObject) -> JsonObject:
    """The runtime's JobSet template with `spec.runtimePatches` of the TrainJob, in order."""
    template: JsonObject = copy.deepcopy((runtime.get("spec") or {}).get("template") or {})
    for patch in trainjob["spec"].get("runtimePatches") or ():
        change = (patch.get("trainingRuntimeSpec") or {}).get("template") or {}
        if "metadata" in change:
            template["metadata"] = merge(template.get("metadata") or {}, change["metadata"])
        jobs = {job["name"]: job for job in (template.get("spec") or {}).get("replicatedJobs") or ()}
        for job_patch in (change.get("spec") or {}).get("replicatedJobs") or ():
            job = jobs.get(job_patch["name"])
            if job is None:
                raise BadRuntime(
                    f"spec.runtimePatches: {_named(runtime)} has no replicated job {job_patch['name']!r}; "
                    f"it has {', '.join(jobs)}"
                )
            job["template"] = merge(job.get("template") or {}, job_patch.get("template") or {})
    return template


def _ancestor(job: JsonObject) -> str:
    labels = ((job.get("template") or {}).get("metadata") or {}).get("labels") or {}
    return str(labels.get(ANCESTOR, ""))


def _launcher_is_node(policy: JsonObject) -> bool:
    return bool((policy.get("mpi") or {}).get("runLauncherAsNode"))


def _pod_count(job: JsonObject, jobs: Sequence[JsonObject], trainjob: JsonObject, policy: JsonObject | None) -> int:
    """As Kubeflow Trainer v2.2.0 counts (pkg/runtime/core/trainingruntime.go, framework/plugins/{mpi,torch,plainml}).

    `mlPolicy.numNodes` is for the step of the trainer, which with MPI is the launcher; the TrainJob's own number is for
    the same step, but with MPI for the job that is called node.
    """
    count = int(((job.get("template") or {}).get("spec") or {}).get("parallelism", 1))
    if policy is not None and _ancestor(job) == TRAINER:
        count = int(policy.get("numNodes", 1))
    count = max(count, 1)
    asked = (trainjob["spec"].get("trainer") or {}).get("numNodes")
    if asked is None or not _is_counted(job, jobs, policy or {}):
        return count
    return max(int(asked) - 1, 1) if _launcher_is_node(policy or {}) else int(asked)


def _replicas(job: JsonObject) -> int:
    """Kubeflow Trainer supports one of each of its steps and writes that over what the runtime says."""
    return 1 if _ancestor(job) in STEPS else int(job.get("replicas", 1))


def _is_counted(job: JsonObject, jobs: Sequence[JsonObject], policy: JsonObject) -> bool:
    """Is this the job that the TrainJob's `numNodes` means?"""
    if "mpi" in policy:
        return bool(job["name"] == NODE)
    return job is next((other for other in jobs if _ancestor(other) == TRAINER), None)


def _processes_per_node(jobs: Sequence[JsonObject], trainjob: JsonObject, policy: JsonObject) -> int | None:
    """GPUs or processes a node; None where nothing says so (torch then takes `auto`).

    Torch: Trainer says `auto` where there are GPUs; here their number, because nobody can count simulated ones.
    """
    trainer = trainjob["spec"].get("trainer") or {}
    if (asked := trainer.get("numProcPerNode")) is not None:
        return int(asked)
    gpus = _gpus(trainer["resourcesPerNode"] if trainer.get("resourcesPerNode") else _runtime_resources(jobs))
    if "mpi" not in policy:
        return gpus or None
    said = int(policy["mpi"].get("numProcPerNode", 1))
    return gpus if said == 1 and gpus > 1 else said  # 1 means "not said"


def _runtime_resources(jobs: Sequence[JsonObject]) -> JsonObject:
    """Of the first container `node` in a job that is called node or is the step of the trainer, be they none."""
    return next(
        (
            container.get("resources") or {}
            for job in jobs
            if job["name"] == NODE or _ancestor(job) == TRAINER
            for container in _pod_spec(job).get("containers") or ()
            if container.get("name") == NODE
        ),
        {},
    )


def _gpus(resources: JsonObject) -> int:
    amount = (resources.get("requests") or {}).get(GPU) or (resources.get("limits") or {}).get(GPU, 0)
    return int(amount) if str(amount).isdigit() else 0


def _pod_spec(job: JsonObject) -> JsonObject:
    template = ((job.get("template") or {}).get("spec") or {}).get("template") or {}
    return template.get("spec") or {}


def _replicated_job(job: JsonObject, context: _Context) -> ReplicatedJob:
    name = job["name"]
    replicas = _replicas(job)
    job_spec = (job.get("template") or {}).get("spec") or {}
    slots: list[Slot] = []
    for job_index in range(replicas):
        for index in range(context.counts[name]):
            pod = _pod(job, context, job_index, index)
            _apply_trainer(pod, job, context)
            slots.append(Slot(name, job_index, index, pod, context.trainjob["metadata"]["uid"]))
    return ReplicatedJob(
        name=name,
        replicas=replicas,
        # Kubernetes would say 6; a burn-in wants the first failure, not the seventh. Who sets the field gets it.
        backoff_limit=int(job_spec.get("backoffLimit", 0)),
        slots=tuple(slots),
        depends_on=tuple((one["name"], one.get("status", "Ready")) for one in job.get("dependsOn") or ()),
    )


def _pod(job: JsonObject, context: _Context, job_index: int, index: int) -> JsonObject:
    trainjob, jobset_metadata = context.trainjob, context.jobset_metadata
    jobset, uid = trainjob["metadata"]["name"], trainjob["metadata"]["uid"]
    name = job["name"]
    template = copy.deepcopy(((job.get("template") or {}).get("spec") or {}).get("template") or {})
    metadata = template.get("metadata") or {}
    job_name = f"{jobset}-{name}-{job_index}"
    labels = {
        **(jobset_metadata.get("labels") or {}),
        **(metadata.get("labels") or {}),
        JOBSET_NAME: jobset,
        "jobset.sigs.k8s.io/jobset-uid": uid,
        REPLICATED_JOB: name,
        "jobset.sigs.k8s.io/replicatedjob-replicas": str(_replicas(job)),
        "jobset.sigs.k8s.io/job-index": str(job_index),
        "jobset.sigs.k8s.io/restart-attempt": "0",
        "batch.kubernetes.io/job-name": job_name,
        "job-name": job_name,
        COMPLETION_INDEX: str(index),
    }
    if ancestor := _ancestor(job):
        labels[ANCESTOR] = ancestor
    spec = template.get("spec") or {}
    if not spec.get("containers"):
        raise BadRuntime(f"replicated job {name!r}: template.spec.template.spec.containers is empty")
    # JobSet would say OnFailure, which hides the first exit of a rank behind a restart on the same node.
    spec.setdefault("restartPolicy", "Never")
    spec["hostname"] = f"{job_name}-{index}"
    spec["subdomain"] = jobset
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        set_env(container, {"JOB_COMPLETION_INDEX": str(index)})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": trainjob["metadata"]["namespace"],
            "labels": labels,
            "annotations": {
                **(jobset_metadata.get("annotations") or {}),
                **(metadata.get("annotations") or {}),
                COMPLETION_INDEX: str(index),
                JOBSET_NAME: jobset,
                REPLICATED_JOB: name,
            },
            "ownerReferences": [owner_reference(trainjob)],
        },
        "spec": spec,
    }


def _apply_trainer(pod: JsonObject, job: JsonObject, context: _Context) -> None:
    """What `spec.trainer` and the ML policy change in a Pod of the training step."""
    trainjob, policy = context.trainjob, context.policy
    trainer = trainjob["spec"].get("trainer") or {}
    is_trainer = _ancestor(job) == TRAINER
    for container in pod["spec"]["containers"]:
        if container["name"] == NODE and is_trainer:
            container.update({key: trainer[key] for key in ("image", "command", "args") if key in trainer})
        if container["name"] == NODE and (is_trainer or (job["name"] == NODE and _launcher_is_node(policy))):
            if resources := trainer.get("resourcesPerNode"):
                container["resources"] = copy.deepcopy(resources)
            container["env"] = merge(container.get("env") or [], trainer.get("env") or [], "env")
        if "torch" in policy and is_trainer and container["name"] == NODE:
            set_env(container, torch_env(pod, trainjob, context.counts[job["name"]], context.processes))
        if "mpi" in policy and job["name"] == LAUNCHER and container["name"] in (NODE, LAUNCHER):
            set_env(container, _mpi_env(context.processes))
    if "mpi" in policy and job["name"] == LAUNCHER:
        volume = {"name": HOSTFILE_VOLUME, "configMap": {"name": hostfile_name(trainjob)}}
        pod["spec"]["volumes"] = merge(pod["spec"].get("volumes") or [], [volume], "volumes")


def torch_env(pod: JsonObject, trainjob: JsonObject, nodes: int, processes: int | None) -> dict[str, str]:
    """torchrun's environment. All Pods are on this machine, so the rendezvous is at loopback; a port of its own keeps
    two TrainJobs apart."""
    offset = int.from_bytes(hashlib.sha256(trainjob["metadata"]["uid"].encode()).digest()[:4]) % RENDEZVOUS_PORTS
    return {
        "PET_NNODES": str(nodes),
        "PET_NPROC_PER_NODE": str(processes or "auto"),
        "PET_NODE_RANK": pod["metadata"]["labels"][COMPLETION_INDEX],
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(RENDEZVOUS_PORT + offset),
    }


def _mpi_env(processes: int | None) -> dict[str, str]:
    return {
        "OMPI_MCA_orte_default_hostfile": f"$(NVCRE_POD_DIR)/volumes/{HOSTFILE_VOLUME}/hostfile",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_set_default_slots": str(processes or 1),
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    }


def hostfile_name(trainjob: JsonObject) -> str:
    return f"{trainjob['metadata']['name']}-mpi-hostfile"


def _hostfile(context: _Context) -> JsonObject | None:
    trainjob, policy, counts = context.trainjob, context.policy, context.counts
    if "mpi" not in policy:
        return None
    jobset = trainjob["metadata"]["name"]
    names = [name for name in (LAUNCHER, NODE) if name in counts and (name == NODE or _launcher_is_node(policy))]
    hosts = [f"{jobset}-{name}-0-{index}.{jobset}" for name in names for index in range(counts[name])]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": hostfile_name(trainjob),
            "namespace": trainjob["metadata"]["namespace"],
            "ownerReferences": [owner_reference(trainjob)],
        },
        "data": {"hostfile": "".join(f"{host} slots={context.processes or 1}\n" for host in hosts)},
    }


def set_env(container: JsonObject, variables: Mapping[str, str]) -> None:
    entries = [{"name": name, "value": value} for name, value in variables.items()]
    container["env"] = merge(container.get("env") or [], entries, "env")
