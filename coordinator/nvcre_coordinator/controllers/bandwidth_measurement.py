"""The BandwidthMeasurement reconciler: follows the launcher's log while the Job runs, reads it whole when it has ended.

What the status becomes is core/measurement_lifecycle.py; this is observing, reading and writing.  A log that was
followed from its first line to its end and has more rows than the pod still offers (rotation, a pod deleted early) is
used instead of the re-read one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
from nvcre_kube.client import ApiError, KubeClient
from nvcre_kube.events import EventRecorder
from nvcre_kube.resources import BANDWIDTH_MEASUREMENTS, JOBS, PODS
from nvcre_kube.workqueue import WorkQueue, run_workers

from nvcre_coordinator.api import names
from nvcre_coordinator.api.conditions import ConditionType, Reason, is_true
from nvcre_coordinator.api.job import Job
from nvcre_coordinator.api.measurement import BandwidthMeasurement, BandwidthMeasurementStatus
from nvcre_coordinator.api.meta import to_json
from nvcre_coordinator.controllers.caches import Cached, CachedPod, Caches, Key, cached, cached_pod
from nvcre_coordinator.controllers.kept_state import kept_in, log_unkept
from nvcre_coordinator.controllers.log_follower import READ_DEADLINE_S, Kept, LogFollower, read_whole
from nvcre_coordinator.controllers.log_profiles import LogProfiles, UnusableProfileError
from nvcre_coordinator.core import measurement_lifecycle as lifecycle
from nvcre_coordinator.core.conditions import Stamp
from nvcre_coordinator.core.durations import sample_interval
from nvcre_coordinator.core.job_conclusion import ended_at, measurement_timeout
from nvcre_coordinator.core.log_profile import CompiledProfile, compile_bandwidth_profile
from nvcre_coordinator.core.measurement_lifecycle import Ended, LogRead, RunEnd
from nvcre_coordinator.core.naming import workload_name
from nvcre_coordinator.metrics import JobMetrics

logger = logging.getLogger(__name__)

SAFETY_NET_S = 15.0
CRASH_LOOP = "CrashLoopBackOff"


class BandwidthMeasurementController:
    def __init__(
        self,
        client: KubeClient,
        caches: Caches,
        *,
        events: EventRecorder,
        metrics: JobMetrics,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        workers: int = 5,
    ) -> None:
        self._client = client
        self._caches = caches
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._workers = workers
        self._queue: WorkQueue[Key] = WorkQueue()
        self._followers: dict[Key, LogFollower] = {}
        self._profiles = LogProfiles(client, caches, events, compile_bandwidth_profile)
        self._leading = False
        caches.bandwidths.add_handler(self._changed)
        caches.jobs.add_handler(self._job_changed)
        caches.pods.add_handler(self._pod_changed)

    async def run(self) -> None:
        """Leads until cancelled; the caches must be synced."""
        self._leading = True
        try:
            for item in self._caches.bandwidths.all():
                self._queue.add(item.key)
            await run_workers(self._queue, self.reconcile, workers=self._workers, name="bandwidth-measurement")
        finally:
            self._leading = False
            for key in tuple(self._followers):
                await self._unfollow(key)

    async def reconcile(self, key: Key) -> float | None:
        item = self._caches.bandwidths.get(key[1], key[0])
        if item is None or item.view is None or await self._retired(item, item.view):
            if item is None:
                await self._unfollow(key)
                self._metrics.drop_bandwidth(*key)
            return None
        job = await self._job(item.view)
        if job is None and not _has_seen_its_job(item.view):
            return SAFETY_NET_S
        end = self._end(job)
        try:
            profile = await self._profiles.get(item.view.spec.log_profile_ref)
        except UnusableProfileError as error:
            return await self._without_profile(item, job, end, error)
        if end is None and job is not None:
            return await self._while_running(item, job, profile)
        return await self._after_the_end(item, job, profile, end or RunEnd(Ended.GONE, self._clock()))

    async def _retired(self, item: Cached[BandwidthMeasurement], measurement: BandwidthMeasurement) -> bool:
        """Nothing to measure (any more): being deleted, complete, without a Job; or only the finalizer was due."""
        deleting = measurement.metadata.deletion_timestamp is not None
        if deleting or measurement.status.complete or measurement.spec.job_ref is None:
            await self._unfollow(item.key)
            self._metrics.drop_bandwidth(*item.key)
            if deleting:
                await self._finalizers(item, remove=True)
            return True
        if names.BANDWIDTH_FINALIZER not in measurement.metadata.finalizers:
            await self._finalizers(item, remove=False)
            return True
        return False

    async def _while_running(self, item: Cached[BandwidthMeasurement], job: Job, profile: CompiledProfile) -> float:
        assert item.view is not None
        key = item.key
        pod = self._pod(job, profile.replicated_job)
        follower = self._followers.get(key)
        corrected = follower is not None and follower.profile is not profile  # it reads the log from its beginning
        if corrected:
            await self._unfollow(key)
            follower = None
        if follower is not None and pod is not None and follower.uid != pod.record.uid:
            await self._unfollow(key)
            follower = None
        startable = pod is not None and pod.record.phase in ("Running", "Succeeded", "Failed")
        if follower is None and pod is not None and startable and pod.waiting != CRASH_LOOP:
            kept = kept_in(item, names.ANNOTATION_BANDWIDTH, Kept) if not corrected else None
            self._followers[key] = self._follower(profile, pod, kept)
            return min(1.0, _interval_s(item.view))
        if follower is not None and pod is not None and pod.record.phase == "Running":
            follower.log.go_on(pod)
        sample = follower.sample() if follower is not None else None
        status = lifecycle.running(item.view, sample, self._stamp(item.view))
        if follower is not None and follower.log.problem and not status.results:
            message = f"the log of pod {follower.log.pod} cannot be read: {follower.log.problem}"
            status = lifecycle.unmeasurable(item.view, Reason.LOGS_UNAVAILABLE, message, self._stamp(item.view))
        if follower is not None:
            item = await self._keep(item, follower)
        await self._write(item, status)
        assert item.view is not None
        self._gauges(item.view, job, status)
        return _interval_s(item.view) if follower is not None else SAFETY_NET_S

    async def _after_the_end(
        self, item: Cached[BandwidthMeasurement], job: Job | None, profile: CompiledProfile, end: RunEnd
    ) -> float | None:
        assert item.view is not None
        read = await self._final_read(item, job, profile)
        patience = measurement_timeout(job) if job is not None else lifecycle.LEAST_PATIENCE
        decision = lifecycle.finish(item.view, end, read, patience, self._stamp(item.view))
        await self._write(item, decision.status)
        if decision.warning is not None:
            self._events.record(item.raw, type="Warning", reason=Reason.FINAL_READ_PENDING, note=decision.warning)
            logger.warning("final log not read namespace=%s measurement=%s error=%r", *item.key, decision.warning)
        return decision.retry_after.total_seconds() if decision.retry_after is not None else None

    async def _final_read(
        self, item: Cached[BandwidthMeasurement], job: Job | None, profile: CompiledProfile
    ) -> LogRead:
        """The whole log of the finished pod, or what was followed of it where that is more (rotation, an early end)."""
        key, follower = item.key, self._followers.get(item.key)
        if job is None:
            return _followed(follower) or LogRead(error="the Job is gone")
        run = workload_name(job.metadata.name)
        listed = await self._client.list(PODS, key[0], label_selector=f"{names.LABEL_JOBSET}={run}")
        pods = {pod.record.uid: pod for pod in map(cached_pod, listed) if pod.jobset}
        chosen = lifecycle.choose_pod([pod.record for pod in pods.values()], profile.replicated_job)
        if chosen is None:
            missing = f"no pod of the replicated job {profile.replicated_job!r} exists (LogProfile {profile.name})"
            return _followed(follower) or LogRead(error=missing)
        if not lifecycle.readable(chosen):
            return LogRead(error=f"pod {chosen.name} has not finished")
        kept = kept_in(item, names.ANNOTATION_BANDWIDTH, Kept)
        if follower is None and kept is not None and kept.pod_uid == chosen.uid:
            follower = self._followers[key] = self._follower(profile, pods[chosen.uid], kept)
        if follower is not None and follower.uid == chosen.uid:
            await follower.log.end(READ_DEADLINE_S)
        read = await read_whole(self._client, profile, key[0], chosen.name)
        followed = _followed(follower) if follower is not None and follower.uid == chosen.uid else None
        if followed is not None and (read.error is not None or followed.samples > read.samples):
            return followed
        return read

    async def _without_profile(
        self, item: Cached[BandwidthMeasurement], job: Job | None, end: RunEnd | None, error: UnusableProfileError
    ) -> float | None:
        assert item.view is not None
        self._profiles.warn(item, error)
        stamp = self._stamp(item.view)
        if end is None:
            await self._write(item, lifecycle.unmeasurable(item.view, error.reason, str(error), stamp))
            return SAFETY_NET_S
        patience = measurement_timeout(job) if job is not None else lifecycle.LEAST_PATIENCE
        decision = lifecycle.finish(item.view, end, LogRead(error=str(error)), patience, stamp)
        await self._write(item, decision.status)
        return decision.retry_after.total_seconds() if decision.retry_after is not None else None

    # What is measured

    def _follower(self, profile: CompiledProfile, pod: CachedPod, kept: Kept | None) -> LogFollower:
        return LogFollower(self._client, profile, pod, kept, exists=partial(self._caches.holds, pod))

    async def _job(self, measurement: BandwidthMeasurement) -> Job | None:
        """None only when the server says so, or another Job has taken the name."""
        assert measurement.spec.job_ref is not None
        name, namespace = measurement.spec.job_ref.name, measurement.metadata.namespace
        held = self._caches.jobs.get(name, namespace)
        job = held.view if held is not None else None
        if job is None or not _same_job(measurement, job):
            try:
                job = cached(await self._client.get(JOBS, name, namespace), Job).view
            except ApiError as error:
                if not error.not_found:
                    raise
                return None
        return job if job is not None and _same_job(measurement, job) else None

    def _end(self, job: Job | None) -> RunEnd | None:
        if job is None:
            return RunEnd(Ended.GONE, self._clock())
        at = ended_at(job.status)
        if at is None:
            return None
        succeeded = is_true(job.status.conditions, ConditionType.SUCCEEDED)
        return RunEnd(Ended.SUCCEEDED if succeeded else Ended.FAILED, at)

    def _pod(self, job: Job, replicated_job: str) -> CachedPod | None:
        run = f"{job.metadata.namespace}/{workload_name(job.metadata.name)}"
        by_uid = {pod.record.uid: pod for pod in self._caches.pods.by_index("run", run)}
        chosen = lifecycle.choose_pod([pod.record for pod in by_uid.values()], replicated_job)
        return by_uid[chosen.uid] if chosen is not None else None

    # Keeping and writing

    async def _keep(self, item: Cached[BandwidthMeasurement], follower: LogFollower) -> Cached[BandwidthMeasurement]:
        """Before the status: that is written again from what was kept, and not the other way round."""
        assert item.view is not None
        kept = follower.kept()
        text = msgspec.json.encode(kept).decode() if kept is not None else None
        if text is None or text == item.view.metadata.annotations.get(names.ANNOTATION_BANDWIDTH):
            return item
        patch = {"metadata": {"annotations": {names.ANNOTATION_BANDWIDTH: text}}}
        try:
            raw = await self._client.merge_patch(BANDWIDTH_MEASUREMENTS, item.key[1], patch, item.key[0])
        except ApiError as error:
            if error.invalid:
                log_unkept(item, error)
            elif not (error.conflict or error.not_found):
                raise
            return item
        return cached(raw, BandwidthMeasurement)

    def _stamp(self, measurement: BandwidthMeasurement) -> Stamp:
        return Stamp(self._clock(), measurement.metadata.generation)

    async def _write(self, item: Cached[BandwidthMeasurement], status: BandwidthMeasurementStatus) -> None:
        """A conflict is not tried again here: the newer version comes through the cache and is looked at anew."""
        assert item.view is not None
        if status == item.view.status:
            return
        body: dict[str, Any] = {**item.raw, "status": to_json(status)}
        try:
            await self._client.update_status(BANDWIDTH_MEASUREMENTS, body)
        except ApiError as error:
            if not (error.conflict or error.not_found):
                raise
            self._queue.add_after(item.key, 0.2)

    async def _finalizers(self, item: Cached[BandwidthMeasurement], *, remove: bool) -> None:
        held = list(item.raw["metadata"].get("finalizers") or [])
        wanted = [name for name in held if name != names.BANDWIDTH_FINALIZER]
        if not remove:
            wanted.append(names.BANDWIDTH_FINALIZER)
        if wanted == held:
            return
        patch = {"metadata": {"finalizers": wanted, "resourceVersion": item.resource_version}}
        try:
            await self._client.merge_patch(BANDWIDTH_MEASUREMENTS, item.key[1], patch, item.key[0])
        except ApiError as error:
            if not (error.conflict or error.not_found):
                raise
            self._queue.add_after(item.key, 0.2)

    def _gauges(self, measurement: BandwidthMeasurement, job: Job, status: BandwidthMeasurementStatus) -> None:
        if job.searching_job is not None:
            return
        labels = (
            measurement.metadata.namespace,
            measurement.metadata.name,
            job.metadata.name,
            job.metadata.labels.get(names.LABEL_WORKFLOW, ""),
            measurement.spec.test_type or "",
        )
        rows = [(row.size_bytes, float(row.alg_bw), float(row.bus_bw)) for row in status.results]
        self._metrics.set_bandwidth(labels, rows)

    async def _unfollow(self, key: Key) -> None:
        follower = self._followers.pop(key, None)
        if follower is not None:
            await follower.log.stop()

    # Who must look again

    def _changed(self, old: Cached[Any] | None, new: Cached[Any] | None) -> None:
        """What we write ourselves is no reason to look."""
        item = new or old
        if item is not None and self._leading and _asks(old) != _asks(new):
            self._queue.add(item.key)

    def _job_changed(self, old: Cached[Job] | None, new: Cached[Job] | None) -> None:
        item = new or old
        if item is not None:
            self._enqueue_for(item.key)

    def _pod_changed(self, old: CachedPod | None, new: CachedPod | None) -> None:
        item = new or old
        job = self._caches.job_of_run(item.run_key) if item is not None else None
        if job is not None:
            self._enqueue_for(job)

    def _enqueue_for(self, job: Key) -> None:
        if not self._leading:
            return
        for item in self._caches.bandwidths.by_index("job", f"{job[0]}/{job[1]}"):
            self._queue.add(item.key)


def _followed(follower: LogFollower | None) -> LogRead | None:
    """Of a log that was followed to its end."""
    return follower.sample() if follower is not None and follower.log.complete else None


def _asks(item: Cached[Any] | None) -> tuple[Any, ...] | None:
    """The part of a measurement that others write."""
    if item is None:
        return None
    metadata = item.raw["metadata"]
    return metadata.get("generation"), metadata.get("deletionTimestamp"), metadata.get("finalizers")


def _same_job(measurement: BandwidthMeasurement, job: Job) -> bool:
    return measurement.metadata.annotations.get(names.ANNOTATION_JOB_UID, job.metadata.uid) == job.metadata.uid


def _has_seen_its_job(measurement: BandwidthMeasurement) -> bool:
    """Made by a Job, or already measuring; a measurement that a person made may wait for its Job."""
    return names.ANNOTATION_JOB_UID in measurement.metadata.annotations or bool(measurement.status.conditions)


def _interval_s(measurement: BandwidthMeasurement) -> float:
    return max(1.0, sample_interval(measurement.spec.sample_interval).total_seconds())
