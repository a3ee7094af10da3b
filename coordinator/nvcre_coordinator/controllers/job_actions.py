"""Carries out what core/job_lifecycle.py decided about a Job: finalizer, workload, measurements, overflow ConfigMap.

A workload that the server refuses is never the end of the Job (a webhook may do so until its runtime exists): the
condition says so in the server's words, and there is another try with growing delay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
from nvcre_kube.client import ApiError, KubeClient
from nvcre_kube.events import EventRecorder
from nvcre_kube.resources import BANDWIDTH_MEASUREMENTS, CONFIG_MAPS, GOODPUT_MEASUREMENTS, JOBS, Resource

from nvcre_coordinator.api import names
from nvcre_coordinator.api.conditions import Reason
from nvcre_coordinator.api.job import FailedNode, Job, JobStatus
from nvcre_coordinator.api.measurement import BandwidthMeasurementSpec, GoodputMeasurementSpec, JobRef
from nvcre_coordinator.api.meta import to_json
from nvcre_coordinator.controllers.caches import Cached, Key, cached
from nvcre_coordinator.core import job_lifecycle
from nvcre_coordinator.core.job_conclusion import run_took
from nvcre_coordinator.core.naming import (
    bandwidth_measurement_name,
    blamed_config_map_name,
    goodput_measurement_name,
)
from nvcre_coordinator.core.observed import Action, Decision, ProgressReset
from nvcre_coordinator.core.pair_job import deadline
from nvcre_coordinator.core.pair_search import PlannedPair
from nvcre_coordinator.metrics import JobMetrics
from nvcre_coordinator.workloads import WorkloadAdapter
from nvcre_coordinator.workloads.pair_job import pair_job
from nvcre_coordinator.workloads.trainjob import child_labels, owner_reference

logger = logging.getLogger(__name__)

FIRST_DELAY = timedelta(seconds=1)
LONGEST_DELAY = timedelta(seconds=60)
RESET_AGAIN = timedelta(seconds=2)
CONFLICT_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """The Job as an action has written it, if one has, and when to look again because of the actions."""

    job: Cached[Job] | None = None
    look_again: timedelta | None = None


@dataclass(frozen=True, slots=True)
class _Refused:
    """A workload that was not created, and when it is tried again: in the event loop's time."""

    delay: timedelta
    next_try: float


class JobActions:
    def __init__(
        self,
        client: KubeClient,
        adapter: WorkloadAdapter,
        events: EventRecorder,
        metrics: JobMetrics,
        clock: Callable[[], datetime],
    ) -> None:
        self._client = client
        self._adapter = adapter
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._refused: dict[Key, _Refused] = {}

    async def carry_out(self, job: Cached[Job], decision: Decision) -> Outcome:
        outcome = Outcome()
        if decision.progress_reset is not None and not await self._reset_progress(job, decision.progress_reset):
            outcome = Outcome(look_again=RESET_AGAIN)
        for action in decision.actions:
            match action:
                case Action.ADD_FINALIZER:
                    await self._set_finalizers(job, lambda held: [*held, names.JOB_FINALIZER])
                case Action.REMOVE_FINALIZER:
                    await self._set_finalizers(job, lambda held: [name for name in held if name != names.JOB_FINALIZER])
                case Action.CREATE_WORKLOAD:
                    outcome = await self._create_workload(job)
                case Action.DELETE_WORKLOAD:
                    await self._delete_workload(job, decision.doomed)
                case Action.CREATE_BANDWIDTH_MEASUREMENT:
                    await self._create_bandwidth(job)
                case Action.CREATE_GOODPUT_MEASUREMENT:
                    await self._create_goodput(job)
                case Action.REQUEST_CONFIRMATIONS | Action.END_ATTEMPT:
                    pass  # the controller's: it holds the interface and the memory of the run
        if decision.overflow:
            await self._write_overflow(job, decision.overflow)
        for planned in decision.start_pairs:
            await self._start_pair(job, planned, decision.pair_gpu_jobs)
        return outcome

    async def _set_finalizers(self, job: Cached[Job], change: Callable[[list[str]], list[str]]) -> None:
        held = list(job.raw["metadata"].get("finalizers") or [])
        patch = {"metadata": {"finalizers": change(held), "resourceVersion": job.resource_version}}
        try:
            await self._client.merge_patch(JOBS, job.key[1], patch, job.key[0])
        except ApiError as error:
            if not (error.conflict or error.not_found):  # a newer version is on its way and is looked at again
                raise

    def forget(self, key: Key) -> None:
        self._refused.pop(key, None)

    async def _create_workload(self, job: Cached[Job]) -> Outcome:
        assert job.view is not None
        now = asyncio.get_running_loop().time()
        refused = self._refused.get(job.key)
        if refused is not None and refused.next_try > now:
            return Outcome(look_again=timedelta(seconds=refused.next_try - now))
        adopted = False
        try:
            await self._client.create(self._adapter.resource, self._adapter.build(job.view), job.key[0])
        except ApiError as error:
            if not (error.already_exists and await self._is_ours(job.view)):
                return await self._creation_failed(job, error)
            adopted = True
        self._refused.pop(job.key, None)
        if not adopted and job.view.searching_job is None:
            self._metrics.workloads_created.labels(*_labels(job.view)).inc()

        def created(current: Job) -> JobStatus:
            return job_lifecycle.created(current, self._adapter.reference(current), self._clock(), adopted=adopted)

        return Outcome(await self._record(job, created))

    async def _is_ours(self, job: Job) -> bool:
        """The workload of this Job and of this restart."""
        reference = self._adapter.reference(job)
        try:
            obj = await self._client.get(self._adapter.resource, reference.name, job.metadata.namespace)
        except ApiError as error:
            if error.not_found:
                return False
            raise
        return self._adapter.owned(job, obj) and self._adapter.read(obj).restart == (job.status.restart_count or 0)

    async def _creation_failed(self, job: Cached[Job], error: ApiError) -> Outcome:
        assert job.view is not None
        title = self._adapter.title(job.view)
        before = self._refused.get(job.key)
        delay = FIRST_DELAY if before is None else min(LONGEST_DELAY, before.delay * 2)
        self._refused[job.key] = _Refused(delay, asyncio.get_running_loop().time() + delay.total_seconds())

        def not_created(current: Job) -> JobStatus:
            return job_lifecycle.not_created(current, title, error.message, self._clock())

        return Outcome(await self._record(job, not_created), look_again=delay)

    async def _record(self, job: Cached[Job], change: Callable[[Job], JobStatus]) -> Cached[Job] | None:
        """What became of a creation; where the write is lost, the next reconcile finds the workload and adopts it."""
        restarts = job.view.status.restart_count if job.view is not None else None
        for _ in range(CONFLICT_ATTEMPTS):
            assert job.view is not None
            known = job.view.status
            if known.workload_ref is not None or known.terminal or known.restart_count != restarts:
                return None
            status = change(job.view)
            if status == known:
                return None
            try:
                body = {**job.raw, "status": to_json(status)}
                return cached(await self._client.update_status(JOBS, body), Job)
            except ApiError as error:
                if error.not_found:
                    return None
                if not error.conflict:
                    raise
            try:
                job = cached(await self._client.get(JOBS, job.key[1], job.key[0]), Job)
            except ApiError as error:
                if error.not_found:
                    return None
                raise
        return None

    async def _delete_workload(self, job: Cached[Job], uid: str) -> None:
        """This one only: one of the same name that was created meanwhile stays."""
        assert job.view is not None
        name = self._adapter.reference(job.view).name
        try:
            await self._client.delete(
                self._adapter.resource, name, job.key[0], uid=uid or None, propagation="Background"
            )
        except ApiError as error:
            if not (error.not_found or error.conflict):
                raise

    async def _reset_progress(self, job: Cached[Job], reset: ProgressReset) -> bool:
        """Best effort, and done again for as long as a measurement tells of an attempt that is over."""
        start = to_json(reset.start) if reset.start is not None else None
        cleared = {"lastStepTimestamp": None, "avgStepTimeSec": None, "applicationStartTime": None, "startTime": start}
        done = True
        for name in reset.measurements:
            try:
                await self._client.merge_patch(
                    GOODPUT_MEASUREMENTS, name, {"status": cleared}, job.key[0], subresource="status"
                )
            except ApiError as error:
                if not error.not_found:
                    done = False
                    logger.warning(
                        "progress not reset namespace=%s measurement=%s error=%r", job.key[0], name, str(error)
                    )
        return done

    async def _create_bandwidth(self, job: Cached[Job]) -> None:
        assert job.view is not None
        template = job.view.spec.bandwidth_measurement
        if template is None:
            return
        spec = BandwidthMeasurementSpec(
            log_profile_ref=template.log_profile_ref,
            job_ref=JobRef(kind="Job", name=job.key[1], api_group=names.GROUP),
            sample_interval=template.sample_interval or "60s",
            test_type=template.test_type,
        )
        await self._create_measurement(
            job,
            BANDWIDTH_MEASUREMENTS,
            bandwidth_measurement_name(job.key[1]),
            to_json(spec),
            names.BANDWIDTH_FINALIZER,
        )

    async def _create_goodput(self, job: Cached[Job]) -> None:
        """Without a finalizer: when it goes, nothing of it is left anywhere else."""
        assert job.view is not None
        template = job.view.spec.goodput_measurement
        if template is None:
            return
        spec = GoodputMeasurementSpec(
            log_profile_ref=template.log_profile_ref,
            job_ref=JobRef(kind="Job", name=job.key[1], api_group=names.GROUP),
            sample_interval=template.sample_interval or "60s",
        )
        name = goodput_measurement_name(job.key[1])
        await self._create_measurement(job, GOODPUT_MEASUREMENTS, name, to_json(spec), None)

    async def _create_measurement(
        self, job: Cached[Job], resource: Resource, name: str, spec: dict[str, Any], finalizer: str | None
    ) -> None:
        """Non-fatal: the run goes on without a measurement, and the next reconcile tries again."""
        assert job.view is not None
        metadata: dict[str, Any] = {
            "name": name,
            "namespace": job.key[0],
            "labels": child_labels(job.view),
            "annotations": {names.ANNOTATION_JOB_UID: job.view.metadata.uid},
            "ownerReferences": [_measurement_owner(job)],
        }
        if finalizer is not None:
            metadata["finalizers"] = [finalizer]
        body = {"apiVersion": names.API_VERSION, "kind": resource.kind, "metadata": metadata, "spec": spec}
        try:
            await self._client.create(resource, body, job.key[0])
        except ApiError as error:
            if error.already_exists:  # not in our cache yet, or of an earlier Job and about to be collected
                return
            note = f"{resource.kind} {name} could not be created: {error.message}"
            self._events.record(job.raw, type="Warning", reason=Reason.MEASUREMENT_CREATION_ERROR, note=note)
            logger.warning("measurement not created namespace=%s job=%s error=%r", *job.key, str(error))

    async def _start_pair(self, job: Cached[Job], planned: PlannedPair, gpu_jobs: tuple[str, ...]) -> None:
        assert job.view is not None
        body = pair_job(job.view, planned, gpu_jobs, deadline(run_took(job.view.status)))
        try:
            await self._client.create(JOBS, body, job.key[0])
        except ApiError as error:
            if error.already_exists:  # not in our cache yet
                return
            note = f"Job {body['metadata']['name']} could not be created, trying again: {error.message}"
            self._events.record(job.raw, type="Warning", reason=Reason.PAIR_CREATION_ERROR, note=note)
            raise
        note = f"Job {body['metadata']['name']} tests {' and '.join(planned.pair)}"
        self._events.record(job.raw, type="Normal", reason=Reason.PAIR_CREATED, note=note)

    async def _write_overflow(self, job: Cached[Job], entries: tuple[FailedNode, ...]) -> None:
        assert job.view is not None
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": blamed_config_map_name(job.key[1]),
                "namespace": job.key[0],
                "labels": child_labels(job.view),
                "ownerReferences": [owner_reference(job.view)],
            },
            "data": {names.BLAMED_CONFIG_MAP_KEY: msgspec.json.encode(entries).decode()},
        }
        try:
            await self._client.create(CONFIG_MAPS, body, job.key[0])
        except ApiError as error:
            if not error.already_exists:
                raise


def _measurement_owner(job: Cached[Job]) -> dict[str, Any]:
    """A Workflow keeps the measurements of its Jobs; a stand-alone Job owns its own."""
    assert job.view is not None
    for owner in job.raw["metadata"].get("ownerReferences") or []:
        if owner.get("controller") and owner.get("kind") == "Workflow":
            return dict(owner)
    return owner_reference(job.view)


def _labels(job: Job) -> tuple[str, str, str]:
    return job.metadata.namespace, job.metadata.name, job.metadata.labels.get(names.LABEL_WORKFLOW, "")
