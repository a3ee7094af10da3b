"""The GoodputMeasurement reconciler: follows the logs of a Job's first and last worker and keeps the figures.

The figures are a fold (core/goodput.py).  Its state, with the position behind the lines that are in it, is kept in an
annotation and written before the status, so that a coordinator that begins anew goes on where the last one was.  What
the status says is core/goodput_status.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import msgspec
from nvcre_kube.client import ApiError, KubeClient
from nvcre_kube.events import EventRecorder
from nvcre_kube.resources import GOODPUT_MEASUREMENTS
from nvcre_kube.workqueue import WorkQueue, run_workers
from nvcre_logs.profile import WorkerStrategyType
from nvcre_logs.training import Kind, TrainingEvent, TrainingProfile, compile_training

from nvcre_coordinator.api import names
from nvcre_coordinator.api.conditions import ConditionType, Reason, is_true
from nvcre_coordinator.api.job import Job
from nvcre_coordinator.api.log_profile import LogProfile
from nvcre_coordinator.api.measurement import GoodputMeasurement, GoodputMeasurementStatus
from nvcre_coordinator.api.meta import to_json
from nvcre_coordinator.controllers.caches import Cached, CachedPod, Caches, Key, cached
from nvcre_coordinator.controllers.goodput_follower import Drained, GoodputFollower
from nvcre_coordinator.controllers.kept_state import kept_in, log_unkept
from nvcre_coordinator.controllers.log_profiles import LogProfiles, UnusableProfileError
from nvcre_coordinator.core import goodput_status
from nvcre_coordinator.core.conditions import Stamp
from nvcre_coordinator.core.durations import sample_interval
from nvcre_coordinator.core.goodput import Event, GoodputState, Interrupted, Rules, Sampled, fold, rules_of
from nvcre_coordinator.core.goodput_history import History, remember
from nvcre_coordinator.core.job_conclusion import ended_at
from nvcre_coordinator.core.log_cursor import Position
from nvcre_coordinator.core.log_gaps import merged
from nvcre_coordinator.core.naming import workload_name
from nvcre_coordinator.core.pods import last_attempt
from nvcre_coordinator.metrics import JobMetrics

logger = logging.getLogger(__name__)

SAFETY_NET_S = 15.0
LOOK_AGAIN_S = 1.0
LAST_LINES = timedelta(seconds=30)
"""How long the end of the logs is waited for when the Job has been seen to have ended."""
FOLDED_AT_ONCE = 500
"""Events, some milliseconds, before others may use the event loop."""
WORKLOAD_RESTARTED = "WorkloadRestarted"


class Kept(msgspec.Struct, frozen=True):
    """What the annotation holds: the state and, by pod uid, the position behind the lines that are in it."""

    measurement: str  # its uid: who copies an object copies its annotations
    state: GoodputState = GoodputState()
    history: History = History()
    positions: dict[str, Position] = {}

    def folded(self, event: Event, rules: Rules) -> Kept:
        state = fold(self.state, event, rules)
        return msgspec.structs.replace(self, state=state, history=remember(self.history, self.state, event, state))


class GoodputMeasurementController:
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
        self._metrics = metrics
        self._clock = clock
        self._workers = workers
        self._queue: WorkQueue[Key] = WorkQueue()
        self._kept: dict[Key, tuple[str, Kept]] = {}  # with the uid of the measurement
        self._followers: dict[Key, dict[str, GoodputFollower]] = {}  # by pod uid, worker 0 first
        self._seen_ended: dict[Key, datetime] = {}
        self._profiles = LogProfiles(client, caches, events, _compile)
        self._leading = False
        caches.goodputs.add_handler(self._changed)
        caches.jobs.add_handler(self._job_changed)

    async def run(self) -> None:
        """Leads until cancelled; the caches must be synced."""
        self._leading = True
        try:
            for item in self._caches.goodputs.all():
                self._queue.add(item.key)
            await run_workers(self._queue, self.reconcile, workers=self._workers, name="goodput-measurement")
        finally:
            self._leading = False
            self._kept.clear()
            self._seen_ended.clear()
            for key in tuple(self._followers):
                await self._unfollow(key)

    async def reconcile(self, key: Key) -> float | None:
        item = self._caches.goodputs.get(key[1], key[0])
        measurement = item.view if item is not None else None
        if item is None or measurement is None or _is_over(measurement):
            await self._unfollow(key)
            self._kept.pop(key, None)
            self._seen_ended.pop(key, None)
            if measurement is not None and measurement.status.complete and measurement.spec.job_ref is not None:
                self._gauges(measurement, measurement.status)
            else:
                self._metrics.drop_goodput(*key)
            return None
        job = self._job(measurement)
        if job is None:
            return SAFETY_NET_S  # its owner: where it is gone, this will be
        try:
            profile = await self._profiles.get(measurement.spec.log_profile_ref)
        except UnusableProfileError as error:
            self._profiles.warn(item, error)
            status = goodput_status.unmeasurable(measurement.status, error.reason, str(error), self._stamp(item))
            await self._write_status(item, status)
            return sample_interval(measurement.spec.sample_interval).total_seconds()
        return await self._measure(item, measurement, job, profile)

    async def _measure(
        self, item: Cached[GoodputMeasurement], measurement: GoodputMeasurement, job: Job, profile: TrainingProfile
    ) -> float:
        key, rules, end = item.key, rules_of(profile.spec), ended_at(job.status)
        kept = await self._interruption(item, job, self._remembered(item, measurement), rules)
        if end is not None or job.status.workload_ref is not None:
            before = await self._follow(key, job, profile, kept)
            kept = await self._sampled(key, kept, rules, before, end)
        if end is None and kept.state.start_time is None and (problem := self._problem(key)):
            status = goodput_status.unmeasurable(
                measurement.status, Reason.LOGS_UNAVAILABLE, problem, self._stamp(item)
            )
        elif end is None:
            status = goodput_status.running(
                measurement.status, kept.state, rules, self._stamp(item), history=kept.history
            )
        elif (
            self._read_to_the_end(key) or self._clock() >= self._seen_ended.setdefault(key, self._clock()) + LAST_LINES
        ):
            kept = self._with_the_unread(key, kept)
            status = self._final(item, measurement, job, kept, rules)
        else:
            self._kept[key] = (measurement.metadata.uid, kept)
            return LOOK_AGAIN_S
        await self._write(item, kept, status)
        return sample_interval(measurement.spec.sample_interval).total_seconds()

    # What is measured

    def _job(self, measurement: GoodputMeasurement) -> Job | None:
        assert measurement.spec.job_ref is not None
        held = self._caches.jobs.get(measurement.spec.job_ref.name, measurement.metadata.namespace)
        job = held.view if held is not None else None
        uid = measurement.metadata.annotations.get(names.ANNOTATION_JOB_UID)
        return job if job is not None and uid in (None, job.metadata.uid) else None

    def _workers_of(self, job: Job) -> list[CachedPod]:
        """Of the last attempt, by rank; a launcher trains nothing."""
        run = f"{job.metadata.namespace}/{workload_name(job.metadata.name)}"
        by_uid = {pod.record.uid: pod for pod in self._caches.pods.by_index("run", run)}
        records = last_attempt(pod.record for pod in by_uid.values() if not pod.record.launcher)
        return [by_uid[record.uid] for record in sorted(records, key=lambda record: (record.rank or 0, record.name))]

    async def _follow(self, key: Key, job: Job, profile: TrainingProfile, kept: Kept) -> list[Drained]:
        """The first worker, and the last one where that logs the steps.  Returns what is left of earlier pods' logs."""
        workers = self._workers_of(job)
        strategy = profile.spec.worker_strategy
        several = strategy is not None and strategy.type is WorkerStrategyType.MULTI
        wanted = {pod.record.uid: pod for pod in (workers[:1] + workers[-1:] if several else workers[:1])}
        held = self._followers.setdefault(key, {})
        over = [held.pop(uid) for uid in tuple(held) if wanted and uid not in wanted]
        for follower in over:
            await follower.log.stop()
        left = [follower.drain() for follower in over]
        for uid, pod in wanted.items():
            position = kept.positions.get(uid)
            if uid in held and held[uid].profile is not profile:  # corrected: it reads the lines that are still to come
                corrected = held.pop(uid)
                await corrected.log.stop()
                left.append(corrected.drain())
                position = left[-1].position
            if uid not in held and pod.record.phase in ("Running", "Succeeded", "Failed"):
                held[uid] = self._follower(key, profile, pod, position)
            elif uid in held and pod.record.phase == "Running":
                held[uid].log.go_on(pod)
        self._followers[key] = {uid: held[uid] for uid in wanted if uid in held} or held
        return left

    def _follower(
        self, key: Key, profile: TrainingProfile, pod: CachedPod, position: Position | None
    ) -> GoodputFollower:
        full, exists = partial(self._queue.add, key), partial(self._caches.holds, pod)
        return GoodputFollower(self._client, profile, pod, position, full=full, exists=exists)

    async def _sampled(self, key: Key, kept: Kept, rules: Rules, before: list[Drained], end: datetime | None) -> Kept:
        """Everything that the followers have read is in the state, and their positions are beside it."""
        drained = {uid: follower.drain() for uid, follower in self._followers.get(key, {}).items()}
        events = _merged(before) + _merged(list(drained.values()))
        if end is not None:
            events = goodput_status.not_after(events, end)
        for number, event in enumerate(events, 1):
            kept = kept.folded(event, rules)
            if not number % FOLDED_AT_ONCE:
                await asyncio.sleep(0)
        activity = [one.last_activity for one in drained.values() if one.last_activity is not None]
        if end is None and (events or kept.state.start_time is not None):
            kept = kept.folded(Sampled(self._clock(), max(activity, default=None)), rules)
        positions = {uid: one.position for uid, one in drained.items() if one.position is not None}
        gaps = tuple(gap for one in (*before, *drained.values()) for gap in one.gaps)
        history = msgspec.structs.replace(kept.history, gaps=merged(kept.history.gaps, gaps))
        return msgspec.structs.replace(kept, positions=kept.positions | positions, history=history)

    def _read_to_the_end(self, key: Key) -> bool:
        followers = self._followers.get(key, {})
        return all(follower.log.complete or follower.log.gone for follower in followers.values())

    def _with_the_unread(self, key: Key, kept: Kept) -> Kept:
        gaps = tuple(gap for follower in self._followers.get(key, {}).values() for gap in follower.log.unread)
        history = msgspec.structs.replace(kept.history, gaps=merged(kept.history.gaps, gaps))
        return msgspec.structs.replace(kept, history=history)

    def _problem(self, key: Key) -> str:
        """Why nothing can be read."""
        logs = [follower.log for follower in self._followers.get(key, {}).values()]
        return next((f"the log of pod {log.pod} cannot be read: {log.problem}" for log in logs if log.problem), "")

    async def _interruption(self, item: Cached[GoodputMeasurement], job: Job, kept: Kept, rules: Rules) -> Kept:
        state = kept.state
        begun = state.start_time is not None or state.current_step is not None
        if not begun or (job.status.restart_count or 0) <= state.interruptions:
            return kept
        await self._unfollow(item.key)
        at = state.last_activity or job.status.last_restart_time or self._clock()
        kept = kept.folded(Interrupted(at, WORKLOAD_RESTARTED), rules)
        # As the Job's own reset of our status: time before the restart leaves the ratio.
        state = msgspec.structs.replace(kept.state, start_time=job.status.last_restart_time or self._clock())
        return msgspec.structs.replace(kept, state=state, positions={})

    def _final(
        self,
        item: Cached[GoodputMeasurement],
        measurement: GoodputMeasurement,
        job: Job,
        kept: Kept,
        rules: Rules,
    ) -> GoodputMeasurementStatus:
        state, stamp, end = kept.state, self._stamp(item), ended_at(job.status)
        assert end is not None
        if is_true(job.status.conditions, ConditionType.SUCCEEDED):
            return goodput_status.succeeded(
                measurement.status,
                state,
                rules,
                stamp,
                ended_at=end,
                profile=measurement.spec.log_profile_ref,
                history=kept.history,
            )
        exits = [pod.record.exit for pod in self._workers_of(job)]
        finished = [exit_.finished_at for exit_ in exits if exit_ is not None and exit_.finished_at is not None]
        return goodput_status.failed(
            measurement.status,
            state,
            rules,
            stamp,
            ended_at=end,
            container_finished_at=min(finished, default=None),
            history=kept.history,
        )

    # Keeping and writing

    def _remembered(self, item: Cached[GoodputMeasurement], measurement: GoodputMeasurement) -> Kept:
        """Ours, else what the last coordinator wrote down, else what the status tells."""
        held = self._kept.get(item.key)
        if held is not None and held[0] == measurement.metadata.uid:
            return held[1]
        return written_down(item, measurement)

    async def _write(self, item: Cached[GoodputMeasurement], kept: Kept, status: GoodputMeasurementStatus) -> None:
        """The state first: a status that is older than it is written again, the other way round lines would be lost."""
        assert item.view is not None
        text = msgspec.json.encode(kept).decode()
        self._kept[item.key] = (item.view.metadata.uid, kept)
        if text != item.view.metadata.annotations.get(names.ANNOTATION_GOODPUT):
            item = await self._keep(item, text)
        await self._write_status(item, status)
        assert item.view is not None
        self._gauges(item.view, status)

    async def _keep(self, item: Cached[GoodputMeasurement], text: str) -> Cached[GoodputMeasurement]:
        patch = {"metadata": {"annotations": {names.ANNOTATION_GOODPUT: text}}}
        try:
            return await self._patch(item, patch, None)
        except ApiError as error:
            if not error.invalid:
                raise
            log_unkept(item, error)  # the figures stand in the status none the less
            return item

    async def _write_status(self, item: Cached[GoodputMeasurement], status: GoodputMeasurementStatus) -> None:
        """Of this version of the object: one that is complete by now is not written again."""
        assert item.view is not None
        if status == item.view.status:
            return
        old, new = to_json(item.view.status), to_json(status)
        cleared = {name: None for name in old if name not in new}
        patch = {"metadata": {"resourceVersion": item.resource_version}, "status": {**cleared, **new}}
        try:
            await self._patch(item, patch, "status")
        except ApiError as error:
            if error.invalid:  # what was kept was edited to something no status may say: begun again from the status
                self._kept.pop(item.key, None)
                await self._patch(item, {"metadata": {"annotations": {names.ANNOTATION_GOODPUT: None}}}, None)
            raise

    async def _patch(
        self, item: Cached[GoodputMeasurement], patch: dict[str, Any], subresource: str | None
    ) -> Cached[GoodputMeasurement]:
        """The object as it is then."""
        try:
            raw = await self._client.merge_patch(
                GOODPUT_MEASUREMENTS, item.key[1], patch, item.key[0], subresource=subresource
            )
        except ApiError as error:
            if not (error.conflict or error.not_found):
                raise
            self._queue.add_after(item.key, 0.2)
            return item
        return cached(raw, GoodputMeasurement)

    def _gauges(self, measurement: GoodputMeasurement, status: GoodputMeasurementStatus) -> None:
        namespace, ref = measurement.metadata.namespace, measurement.spec.job_ref
        assert ref is not None
        job = self._job(measurement)
        workflow = job.metadata.labels.get(names.LABEL_WORKFLOW, "") if job is not None else ""
        self._metrics.set_goodput((namespace, measurement.metadata.name, ref.name, workflow), status)

    def _stamp(self, item: Cached[GoodputMeasurement]) -> Stamp:
        assert item.view is not None
        return Stamp(self._clock(), item.view.metadata.generation)

    async def _unfollow(self, key: Key) -> None:
        for follower in self._followers.pop(key, {}).values():
            await follower.log.stop()

    # Who must look again

    def _changed(self, old: Cached[Any] | None, new: Cached[Any] | None) -> None:
        """Our own writes of it are no reason to look: it is looked at once an interval."""
        item = new or old
        if item is not None and self._leading and (old is None or new is None):
            self._queue.add(item.key)

    def _job_changed(self, old: Cached[Job] | None, new: Cached[Job] | None) -> None:
        item = new or old
        if item is None or not self._leading:
            return
        for measurement in self._caches.goodputs.by_index("job", f"{item.key[0]}/{item.key[1]}"):
            self._queue.add(measurement.key)


def written_down(item: Cached[GoodputMeasurement], measurement: GoodputMeasurement) -> Kept:
    """What the annotation holds, else what the status tells."""
    uid = measurement.metadata.uid
    kept = kept_in(item, names.ANNOTATION_GOODPUT, Kept)
    return (
        kept if kept is not None and kept.measurement == uid else Kept(uid, goodput_status.restore(measurement.status))
    )


def _is_over(measurement: GoodputMeasurement) -> bool:
    deleting = measurement.metadata.deletion_timestamp is not None
    return deleting or measurement.status.complete or measurement.spec.job_ref is None


def _compile(profile: LogProfile) -> TrainingProfile:
    return compile_training(profile.metadata.name, profile.spec)


def _merged(logs: list[Drained]) -> list[TrainingEvent]:
    """Of two workers the first tells of the application and its checkpoints, the last of steps; of one, everything."""
    if len(logs) < 2:
        return [event for log in logs for event in log.events]
    first, last = logs[0].events, logs[-1].events
    events = [event for event in first if event.kind is not Kind.STEP] + [
        event for event in last if event.kind is Kind.STEP
    ]
    beginning = datetime.min.replace(tzinfo=UTC)
    return sorted(events, key=lambda event: event.time or beginning)
