"""The informers of the job side and what each keeps: only the parts that rules read, plus raw JSON where we write.

An object that does not fit its view is kept as None and logged: one odd object must not stop the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from nvcre_kube.client import KubeClient
from nvcre_kube.informer import Informer
from nvcre_kube.resources import (
    BANDWIDTH_MEASUREMENTS,
    GOODPUT_MEASUREMENTS,
    JOBS,
    LOG_PROFILES,
    NODE_HEALTHS,
    NODES,
    PODS,
    TRAIN_JOBS,
)

from nvcre_coordinator.api import names
from nvcre_coordinator.api.job import Job
from nvcre_coordinator.api.log_profile import LogProfile
from nvcre_coordinator.api.measurement import BandwidthMeasurement, GoodputMeasurement
from nvcre_coordinator.api.meta import from_json
from nvcre_coordinator.api.workload import Node, Pod, node_from_json
from nvcre_coordinator.core.limits import clip
from nvcre_coordinator.core.naming import goodput_measurement_name, workload_name
from nvcre_coordinator.core.node_health import NodeHealth, node_health, version_of
from nvcre_coordinator.core.occupants import program_of
from nvcre_coordinator.core.pods import PodRecord, observe

logger = logging.getLogger(__name__)

T = TypeVar("T")
Key = tuple[str, str]
"""(namespace, name)"""

DIAGNOSIS_BYTES = 512


@dataclass(frozen=True, slots=True)
class Cached(Generic[T]):
    """A view together with the object it was read from."""

    raw: dict[str, Any]
    view: T | None

    @property
    def key(self) -> Key:
        metadata = self.raw["metadata"]
        return metadata.get("namespace") or "", metadata["name"]

    @property
    def resource_version(self) -> str:
        return str(self.raw["metadata"].get("resourceVersion", ""))


@dataclass(frozen=True, slots=True)
class CachedPod:
    namespace: str
    jobset: str  # empty for a pod that nothing controls: anybody may copy the label, and the attempt with it
    record: PodRecord
    containers: tuple[str, ...]
    waiting: str  # why the first container waits, such as CrashLoopBackOff
    restarts: int = 0  # of its containers
    deleting: bool = False
    unschedulable: str | None = None  # what the scheduler says when it cannot place the pod
    program: str = ""  # fingerprint of images and commands

    @property
    def run_key(self) -> Key:
        return self.namespace, self.jobset


def cached(obj: dict[str, Any], view: type[T]) -> Cached[T]:
    obj.get("metadata", {}).pop("managedFields", None)
    return Cached(obj, _tolerant(obj, lambda: from_json(obj, view)))


def cached_job(obj: dict[str, Any]) -> Cached[Job]:
    """A Job that nobody can read is left alone until a person mends it, but it can be deleted, with its workload."""
    job = cached(obj, Job)
    if job.view is not None or obj["metadata"].get("deletionTimestamp") is None:
        return job
    bare = {"metadata": obj["metadata"], "spec": {"workload": {"trainJob": {}}}}
    return Cached(obj, _tolerant(obj, lambda: from_json(bare, Job)))


def cached_pod(obj: dict[str, Any]) -> CachedPod:
    metadata = obj["metadata"]
    pod = _tolerant(obj, lambda: from_json(obj, Pod))
    if pod is None:
        return CachedPod(
            metadata.get("namespace", ""), "", PodRecord(metadata["name"], metadata.get("uid", "")), (), ""
        )
    refusal = pod.unschedulable
    waits = [container.state.waiting.reason or "" for container in pod.containers if container.state.waiting]
    return CachedPod(
        namespace=pod.metadata.namespace,
        jobset=pod.metadata.labels.get(names.LABEL_JOBSET, "") if pod.metadata.has_controller else "",
        record=observe(pod),
        containers=tuple(container.name for container in pod.containers),
        waiting=waits[0] if waits else "",
        restarts=sum(container.restart_count for container in pod.containers),
        deleting=pod.metadata.deletion_timestamp is not None,
        unschedulable=None if refusal is None else clip(refusal, DIAGNOSIS_BYTES),
        program=program_of(pod),
    )


def cached_health(obj: dict[str, Any]) -> NodeHealth:
    read = _tolerant(obj, lambda: node_health(obj))
    return read or NodeHealth(obj["metadata"]["name"], resource_version=version_of(obj))


def _tolerant(obj: dict[str, Any], read: Callable[[], T]) -> T | None:
    try:
        return read()
    except msgspec.ValidationError as error:
        metadata = obj.get("metadata", {})
        logger.warning(
            "object does not fit its view kind=%s namespace=%s name=%s error=%r",
            obj.get("kind"),
            metadata.get("namespace"),
            metadata.get("name"),
            str(error),
        )
        return None


_RESOURCES = (
    "jobs", "trainjobs", "pods", "nodes", "nodehealths", "bandwidthmeasurements", "goodputmeasurements", "logprofiles"
)  # fmt: skip


class Caches:
    """All informers of the job side; `run` feeds them for ever."""

    def __init__(self, client: KubeClient, *, node_selector: str) -> None:
        self.jobs: Informer[Cached[Job]] = Informer(
            client,
            JOBS,
            convert=cached_job,
            indexers={"run": lambda job: [f"{job.key[0]}/{workload_name(job.key[1])}"], "pair of": _searching_job},
        )
        self.train_jobs: Informer[Cached[Any]] = Informer(
            client, TRAIN_JOBS, convert=lambda obj: cached(obj, dict), label_selector=names.LABEL_JOB
        )
        self.pods: Informer[CachedPod] = Informer(
            client,
            PODS,
            convert=cached_pod,
            label_selector=names.LABEL_JOBSET,
            indexers={"run": lambda pod: [f"{pod.namespace}/{pod.jobset}"]},
        )
        self.nodes: Informer[Node] = Informer(client, NODES, convert=node_from_json, label_selector=node_selector)
        self.healths: Informer[NodeHealth] = Informer(client, NODE_HEALTHS, convert=cached_health)
        self.bandwidths: Informer[Cached[BandwidthMeasurement]] = Informer(
            client,
            BANDWIDTH_MEASUREMENTS,
            convert=lambda obj: cached(obj, BandwidthMeasurement),
            indexers={"job": _measured_job},
        )
        self.goodputs: Informer[Cached[GoodputMeasurement]] = Informer(
            client,
            GOODPUT_MEASUREMENTS,
            convert=lambda obj: cached(obj, GoodputMeasurement),
            indexers={"job": _measured_job},
        )
        self.profiles: Informer[Cached[LogProfile]] = Informer(
            client, LOG_PROFILES, convert=lambda obj: cached(obj, LogProfile)
        )

    @property
    def _all(self) -> tuple[Informer[Any], ...]:
        return (
            self.jobs,
            self.train_jobs,
            self.pods,
            self.nodes,
            self.healths,
            self.bandwidths,
            self.goodputs,
            self.profiles,
        )

    @property
    def unsynced(self) -> tuple[str, ...]:
        """Resources whose first list has not come yet (no CRD, no rights, no server)."""
        return tuple(name for name, informer in zip(_RESOURCES, self._all, strict=True) if not informer.synced)

    @property
    def synced(self) -> bool:
        return not self.unsynced

    async def wait_synced(self) -> None:
        for informer in self._all:
            await informer.wait_synced()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for informer in self._all:
                group.create_task(informer.run())

    def job_of_run(self, run: Key) -> Key | None:
        """The Job whose workload has this name; of several, as long names are cut to it, the one that has got it."""
        found = self.jobs.by_index("run", f"{run[0]}/{run[1]}")
        if len(found) > 1 and (held := self.train_jobs.get(run[1], run[0])) is not None:
            owners = held.raw["metadata"].get("ownerReferences") or []
            uids = {owner.get("uid") for owner in owners if owner.get("controller")}
            found = [job for job in found if job.raw["metadata"].get("uid") in uids] or found
        return found[0].key if found else None

    def pairs_of(self, job: Job) -> tuple[Job, ...]:
        """The Jobs that test pairs of nodes for this one."""
        found = self.jobs.by_index("pair of", f"{job.metadata.namespace}/{job.metadata.uid}")
        return tuple(item.view for item in found if item.view is not None)

    def holds(self, pod: CachedPod) -> bool:
        """It is there, and not another pod of its name."""
        held = self.pods.get(pod.record.name, pod.namespace)
        return held is not None and held.record.uid == pod.record.uid

    def bandwidth_of(self, job: Job) -> BandwidthMeasurement | None:
        return next(iter(_of_job(self.bandwidths, job)), None)

    def goodputs_of(self, job: Job) -> tuple[GoodputMeasurement, ...]:
        return _of_job(self.goodputs, job)

    def has_goodput(self, job: Job) -> bool:
        """Is the Job's own measurement there, readable or not?"""
        held = self.goodputs.get(goodput_measurement_name(job.metadata.name), job.metadata.namespace)
        if held is None:
            return False
        annotations = held.raw["metadata"].get("annotations") or {}
        return bool(annotations.get(names.ANNOTATION_JOB_UID, job.metadata.uid) == job.metadata.uid)


M = TypeVar("M", BandwidthMeasurement, GoodputMeasurement)


def _of_job(informer: Informer[Cached[M]], job: Job) -> tuple[M, ...]:
    """The Job's own measurement before those that a person made; never that of an earlier Job of the same name."""
    found = [
        item.view
        for item in informer.by_index("job", f"{job.metadata.namespace}/{job.metadata.name}")
        if item.view is not None
        and item.view.metadata.annotations.get(names.ANNOTATION_JOB_UID, job.metadata.uid) == job.metadata.uid
    ]
    return tuple(
        sorted(found, key=lambda item: (names.ANNOTATION_JOB_UID not in item.metadata.annotations, item.metadata.name))
    )


def _searching_job(item: Cached[Job]) -> list[str]:
    """An owner is in the namespace of what it owns: anybody may write somebody else's uid."""
    owner = item.view.searching_job if item.view is not None else None
    return [f"{item.key[0]}/{owner.uid}"] if owner is not None else []


def _measured_job(item: Cached[M]) -> list[str]:
    if item.view is None or item.view.spec.job_ref is None:
        return []
    return [f"{item.key[0]}/{item.view.spec.job_ref.name}"]
