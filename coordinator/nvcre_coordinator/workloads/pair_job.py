"""Builds the Job that tests a pair of nodes: the slow Job's own workload on these two, judged by its own threshold.

The Pods with GPUs are pinned by a runtimePatch of a manager of its own, one on each node; it comes after those of the
user, so that its affinity counts. Nothing is restarted, measured or searched for besides the bus bandwidth.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from nvcre_kube.resources import JOBS

from nvcre_coordinator.api import names
from nvcre_coordinator.api.job import Job, JobSpec, SlowNodeSearch, WorkloadSpec
from nvcre_coordinator.api.meta import to_json
from nvcre_coordinator.core.naming import label_value, pair_job_name, workload_name
from nvcre_coordinator.core.pair_rounds import Pair
from nvcre_coordinator.core.pair_search import PlannedPair
from nvcre_coordinator.core.thresholds import BUS_BANDWIDTH
from nvcre_coordinator.workloads.trainjob import owner_reference

HOSTNAME = "kubernetes.io/hostname"


def pair_job(job: Job, planned: PlannedPair, gpu_jobs: tuple[str, ...], deadline: timedelta) -> dict[str, Any]:
    """`gpu_jobs`: the replicated jobs whose Pods have the GPUs."""
    name = pair_job_name(job.metadata.name, job.metadata.uid, planned.round, planned.pair)
    spec = JobSpec(
        workload=WorkloadSpec(_train_job(job.spec.workload.train_job or {}, name, planned.pair, gpu_jobs, deadline)),
        workload_metadata=job.spec.workload_metadata,
        node_health_monitor=job.spec.node_health_monitor,
        bandwidth_measurement=job.spec.bandwidth_measurement,
        thresholds={BUS_BANDWIDTH: job.spec.thresholds[BUS_BANDWIDTH]},
        measurement_timeout=job.spec.measurement_timeout,
        slow_node_search=SlowNodeSearch.OFF,
    )
    return {
        "apiVersion": names.API_VERSION,
        "kind": JOBS.kind,
        "metadata": {
            "name": name,
            "namespace": job.metadata.namespace,
            "labels": {
                names.LABEL_MANAGED_BY: names.MANAGED_BY,
                names.LABEL_PAIR_OF: label_value(job.metadata.name),
                names.LABEL_PAIR_ROUND: planned.round.value,
            },
            "annotations": {names.ANNOTATION_GROUP_NODES: ",".join(planned.pair)},
            "ownerReferences": [owner_reference(job)],
        },
        "spec": to_json(spec),
    }


def _train_job(
    train_job: dict[str, Any], name: str, pair: Pair, gpu_jobs: tuple[str, ...], deadline: timedelta
) -> dict[str, Any]:
    own_deadline_s = train_job.get("activeDeadlineSeconds")
    deadline_s = int(deadline.total_seconds())
    return {
        **train_job,
        "trainer": {**(train_job.get("trainer") or {}), "numNodes": len(pair)},
        "activeDeadlineSeconds": deadline_s if own_deadline_s is None else min(own_deadline_s, deadline_s),
        "runtimePatches": [*(train_job.get("runtimePatches") or []), _pins(name, pair, gpu_jobs)],
    }


def _pins(name: str, pair: Pair, gpu_jobs: tuple[str, ...]) -> dict[str, Any]:
    """A term has room for one node name only (field selectors); terms are alternatives."""
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in pair]
    with_gpus = [
        {"key": names.LABEL_JOBSET, "operator": "In", "values": [workload_name(name)]},
        {"key": names.LABEL_REPLICATED_JOB, "operator": "In", "values": list(gpu_jobs)},
    ]
    apart = {"labelSelector": {"matchExpressions": with_gpus}, "topologyKey": HOSTNAME}
    affinity = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}},
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]},
    }
    pinned = [{"name": job, "template": {"spec": {"template": {"spec": {"affinity": affinity}}}}} for job in gpu_jobs]
    return {
        "manager": names.PAIR_PATCH_MANAGER,
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": pinned}}},
    }
