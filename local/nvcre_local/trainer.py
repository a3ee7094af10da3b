"""The tiny trainer: turns TrainJobs into Pods and reports how they ended. Used only where no Kubeflow Trainer runs.

What Pods a TrainJob wants is decided in `nvcre_local.node.trainjob_pods`, what it needs next in
`nvcre_local.node.trainjob_status`; this module watches and carries out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Literal

from nvcre_kube.client import ApiError, KubeClient
from nvcre_kube.events import EventRecorder
from nvcre_kube.informer import Informer
from nvcre_kube.resources import (
    CLUSTER_TRAINING_RUNTIMES,
    CONFIG_MAPS,
    PODS,
    TRAIN_JOBS,
    TRAINING_RUNTIMES,
    JsonObject,
)
from nvcre_kube.workqueue import WorkQueue, run_workers

from nvcre_local.node.placement import JOBSET_NAME
from nvcre_local.node.trainjob_pods import BadRuntime, Workload, workload
from nvcre_local.node.trainjob_status import Announcement, Decision, Observed, Obstacle, decide, is_over

logger = logging.getLogger(__name__)

CONTROLLER = "trainer.kubeflow.org/trainjob-controller"
GROUP = "trainer.kubeflow.org"
JOBSET_INDEX = "jobset"
WORKERS = 4

Key = tuple[str, str]
"""(namespace, name) of a TrainJob."""


def jobset_of(pod: JsonObject) -> Iterable[str]:
    """Indexer of Pods by namespace and JobSet; the Pod informer is made with it under `JOBSET_INDEX`."""
    name = (pod["metadata"].get("labels") or {}).get(JOBSET_NAME)
    return (f"{pod['metadata']['namespace']}/{name}",) if name else ()


def is_ours(trainjob: JsonObject) -> bool:
    return str(trainjob["spec"].get("managedBy", CONTROLLER)) == CONTROLLER


class Trainer:
    def __init__(self, client: KubeClient, events: EventRecorder, pods: Informer[JsonObject]) -> None:
        self._client = client
        self._events = events
        self._pods = pods
        self._trainjobs = Informer(client, TRAIN_JOBS, convert=_as_is)
        self._runtimes = {
            "TrainingRuntime": Informer(client, TRAINING_RUNTIMES, convert=_as_is),
            "ClusterTrainingRuntime": Informer(client, CLUSTER_TRAINING_RUNTIMES, convert=_as_is),
        }
        self._queue: WorkQueue[Key] = WorkQueue()
        self._workloads: dict[str, Workload] = {}
        """By uid, from the moment it starts: a runtime that is changed or deleted later does not change it."""
        self._announced: dict[str, Announcement] = {}
        self._trainjobs.add_handler(self._on_trainjob)
        pods.add_handler(self._on_pod)
        for runtimes in self._runtimes.values():
            runtimes.add_handler(self._on_runtime)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for informer in (self._trainjobs, *self._runtimes.values()):
                tasks.create_task(informer.run())
            for informer in (self._pods, self._trainjobs, *self._runtimes.values()):
                await informer.wait_synced()
            tasks.create_task(run_workers(self._queue, self._reconcile, workers=WORKERS, name="trainer"))

    def _on_trainjob(self, old: JsonObject | None, new: JsonObject | None) -> None:
        if new is not None:
            self._queue.add((new["metadata"]["namespace"], new["metadata"]["name"]))
        if old is not None and (new is None or new["metadata"]["uid"] != old["metadata"]["uid"]):
            self._workloads.pop(old["metadata"]["uid"], None)
            self._announced.pop(old["metadata"]["uid"], None)

    def _on_pod(self, old: JsonObject | None, new: JsonObject | None) -> None:
        pod = new or old
        assert pod is not None
        for owner in pod["metadata"].get("ownerReferences") or ():
            if owner.get("kind") == "TrainJob" and owner.get("controller"):
                self._queue.add((pod["metadata"]["namespace"], owner["name"]))

    def _on_runtime(self, _old: JsonObject | None, _new: JsonObject | None) -> None:
        for trainjob in self._trainjobs.all():
            if not is_over(trainjob) and trainjob["metadata"]["uid"] not in self._workloads:
                self._queue.add((trainjob["metadata"]["namespace"], trainjob["metadata"]["name"]))

    async def _reconcile(self, key: Key) -> float | None:
        namespace, name = key
        trainjob = self._trainjobs.get(name, namespace)
        if trainjob is None or not is_ours(trainjob):
            return None
        uid = trainjob["metadata"]["uid"]
        pods = [
            pod
            for pod in self._pods.by_index(JOBSET_INDEX, f"{namespace}/{name}")
            if any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences") or ())
        ]
        decision = decide(Observed(trainjob, pods, self._workload(trainjob)), datetime.now(UTC))
        if decision.create:
            await self._start(trainjob, decision)
        await self._write_status(trainjob, decision)
        for pod in decision.delete:
            await self._delete(pod)
        return decision.look_again_s

    def _workload(self, trainjob: JsonObject) -> Workload | Obstacle:
        uid = trainjob["metadata"]["uid"]
        if trainjob["spec"].get("suspend"):
            self._workloads.pop(uid, None)  # while it is suspended it may be changed
        elif uid in self._workloads:
            return self._workloads[uid]
        reference = trainjob["spec"]["runtimeRef"]
        kind = reference.get("kind", "ClusterTrainingRuntime")
        runtimes = self._runtimes.get(kind)
        if runtimes is None or reference.get("apiGroup", GROUP) != GROUP:
            message = f"unsupported runtime: {kind}.{reference.get('apiGroup', GROUP)}"
            return Obstacle("TrainingRuntimeNotSupported", message, final=True)
        namespace = trainjob["metadata"]["namespace"] if kind == "TrainingRuntime" else None
        runtime = runtimes.get(reference["name"], namespace)
        if runtime is None:
            where = f" in namespace {namespace!r}" if namespace else ""
            message = (
                f"{kind} {reference['name']!r} does not exist{where}: nothing was started; "
                "the TrainJob starts by itself once it is created"
            )
            return Obstacle("TrainingRuntimeNotFound", message, final=False)
        try:
            wanted = workload(trainjob, runtime)
        except BadRuntime as error:
            return Obstacle("InvalidTrainingRuntime", str(error), final=True)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            # A runtime keeps unknown fields unchecked, so its template may have any shape.
            message = f"{kind} {reference['name']!r}: spec.template is malformed: {error!r}"
            return Obstacle("InvalidTrainingRuntime", message, final=True)
        if not trainjob["spec"].get("suspend"):
            self._workloads[uid] = wanted
        return wanted

    async def _start(self, trainjob: JsonObject, decision: Decision) -> None:
        """One after the other, so that the scheduler sees the Pods in completion-index order."""
        if decision.config_map is not None:
            await self._create(CONFIG_MAPS, decision.config_map)
        for pod in decision.create:
            try:
                await self._create(PODS, pod)
            except ApiError as error:
                if error.status in (400, 422):  # asking again would not help
                    note = f"pod {pod['metadata']['name']} was refused: {error.message}"
                    self._record(trainjob, Announcement("Warning", "TrainJobResourcesCreationFailed", note))
                raise

    async def _create(self, resource: Any, obj: JsonObject) -> None:
        try:
            await self._client.create(resource, obj)
        except ApiError as error:
            if not error.already_exists:  # ours from before; the watch lags
                raise

    async def _write_status(self, trainjob: JsonObject, decision: Decision) -> None:
        if decision.announce is not None:
            self._record(trainjob, decision.announce)
        if decision.status == (trainjob.get("status") or {"conditions": []}):
            return
        metadata = trainjob["metadata"]
        patch = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": decision.status}
        try:
            await self._client.merge_patch(
                TRAIN_JOBS, metadata["name"], patch, metadata["namespace"], subresource="status"
            )
        except ApiError as error:
            if error.not_found:
                return
            if error.conflict:
                # The watch brings the newer object, and with it the next decision.
                logger.debug("trainjob changed meanwhile trainjob=%s/%s", metadata["namespace"], metadata["name"])
                return
            raise

    async def _delete(self, pod: JsonObject) -> None:
        metadata = pod["metadata"]
        try:
            await self._client.delete(PODS, metadata["name"], metadata["namespace"], uid=metadata["uid"])
        except ApiError as error:
            if not (error.not_found or error.conflict):
                raise

    def _record(self, trainjob: JsonObject, note: Announcement) -> None:
        """Once for each reason and text: decisions repeat, announcements do not."""
        uid = trainjob["metadata"]["uid"]
        if self._announced.get(uid) == note:
            return
        self._announced[uid] = note
        kind: Literal["Normal", "Warning"] = "Normal" if note.type == "Normal" else "Warning"
        self._events.record(trainjob, type=kind, reason=note.reason, note=note.note)
        logger.info(
            "trainjob %s trainjob=%s/%s note=%r",
            note.reason,
            trainjob["metadata"]["namespace"],
            trainjob["metadata"]["name"],
            note.note,
        )


def _as_is(obj: JsonObject) -> JsonObject:
    return obj
