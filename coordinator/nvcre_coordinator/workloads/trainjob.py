"""Kubeflow Trainer's TrainJob (v2.2.0): built from spec.workload.trainJob, and its conditions read as a phase.

The pod label `nvcre.nvidia.com/job` travels in a runtimePatch of our own manager, aimed at the worker replicated job;
Trainer refuses a patch for a replicated job that the runtime does not have, and forbids changes of patches on a
TrainJob that is not suspended, so the patch is part of the creation.  The rest of the spec is passed through.
"""

from __future__ import annotations

from typing import Any

from nvcre_kube.resources import TRAIN_JOBS

from nvcre_coordinator.api import names
from nvcre_coordinator.api.job import Job, WorkloadRef
from nvcre_coordinator.api.meta import from_json
from nvcre_coordinator.api.workload import TrainJob
from nvcre_coordinator.core.naming import label_value, workload_name
from nvcre_coordinator.core.observed import Workload, WorkloadPhase

TRAINER_CONTROLLER = "trainer.kubeflow.org/trainjob-controller"
"""The default of spec.managedBy: Trainer itself, nothing to tell."""


class TrainJobAdapter:
    resource = TRAIN_JOBS

    def matches(self, job: Job) -> bool:
        return job.spec.workload.train_job is not None

    def build(self, job: Job) -> dict[str, Any]:
        if job.spec.workload.train_job is None:
            raise ValueError("spec.workload.trainJob is absent")
        metadata = job.spec.workload_metadata
        restart = {"annotations": {names.ANNOTATION_RESTART: str(count)}} if (count := job.status.restart_count) else {}
        return {
            "apiVersion": names.TRAINER_API_VERSION,
            "kind": TRAIN_JOBS.kind,
            "metadata": {
                "name": workload_name(job.metadata.name),
                "namespace": job.metadata.namespace,
                "labels": {**(metadata.labels if metadata is not None else {}), **child_labels(job)},
                "ownerReferences": [owner_reference(job)],
                **restart,
            },
            "spec": _with_pod_label(job.spec.workload.train_job, job.metadata.name),
        }

    def reference(self, job: Job) -> WorkloadRef:
        return WorkloadRef(
            api_version=names.TRAINER_API_VERSION,
            kind=TRAIN_JOBS.kind,
            name=workload_name(job.metadata.name),
            namespace=job.metadata.namespace,
        )

    def title(self, job: Job) -> str:
        return f"{TRAIN_JOBS.kind}/{workload_name(job.metadata.name)}"

    def owned(self, job: Job, obj: dict[str, Any]) -> bool:
        return from_json(obj, TrainJob).metadata.controlled_by(job.metadata.uid)

    def read(self, obj: dict[str, Any]) -> Workload:
        return read_train_job(from_json(obj, TrainJob))


def read_train_job(train_job: TrainJob) -> Workload:
    """Failed wins over Complete, both win over suspended; everything else is Running (case 12).

    A Failed that is False tells why nothing was started yet, such as a runtime that does not exist.
    """
    phase, message = _phase(train_job)
    restart = train_job.metadata.annotations.get(names.ANNOTATION_RESTART, "0")
    return Workload(
        title=f"{TRAIN_JOBS.kind}/{train_job.metadata.name}",
        phase=phase,
        message=message,
        uid=train_job.metadata.uid,
        created_at=train_job.metadata.creation_timestamp,
        restart=int(restart) if restart.isascii() and restart.isdecimal() and len(restart) <= 9 else 0,
    )


def _phase(train_job: TrainJob) -> tuple[WorkloadPhase, str]:
    conditions = {condition.type: condition for condition in train_job.status.conditions}
    for kind, phase in (("Failed", WorkloadPhase.FAILED), ("Complete", WorkloadPhase.SUCCEEDED)):
        condition = conditions.get(kind)
        if condition is not None and condition.status == "True":
            return phase, condition.message
    if train_job.spec.suspend:
        other = train_job.spec.managed_by not in (None, "", TRAINER_CONTROLLER)
        manager = f" (managedBy {train_job.spec.managed_by})" if other else ""
        return WorkloadPhase.PENDING, f"suspended; a queue such as Kueue has not admitted it{manager}"
    failed = conditions.get("Failed")
    return WorkloadPhase.RUNNING, failed.message if failed is not None else ""


def child_labels(job: Job) -> dict[str, str]:
    return {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_JOB: label_value(job.metadata.name)}


def owner_reference(job: Job) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": "Job",
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _with_pod_label(spec: dict[str, Any], job_name: str) -> dict[str, Any]:
    patches = [
        patch for patch in spec.get("runtimePatches") or [] if patch.get("manager") != names.RUNTIME_PATCH_MANAGER
    ]
    labels = {names.LABEL_JOB: label_value(job_name)}
    target = {
        "name": worker_replicated_job(patches),
        "template": {"spec": {"template": {"metadata": {"labels": labels}}}},
    }
    patch = {
        "manager": names.RUNTIME_PATCH_MANAGER,
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [target]}}},
    }
    return {**spec, "runtimePatches": [*patches, patch]}


def worker_replicated_job(patches: list[dict[str, Any]]) -> str:
    """The first replicated job other than the launcher that the user's own patches name, else `node`."""
    for patch in patches:
        template = (patch.get("trainingRuntimeSpec") or {}).get("template") or {}
        for replicated_job in (template.get("spec") or {}).get("replicatedJobs") or []:
            if replicated_job.get("name") not in (None, names.LAUNCHER):
                return str(replicated_job["name"])
    return names.DEFAULT_WORKER
