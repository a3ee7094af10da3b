"""The Job reconciler: observe, decide (core/job_lifecycle.py), write the status, act.

Level triggered and event driven: Jobs, TrainJobs, pods, NodeHealths, Nodes, measurements, confirmations and probes put
the Job's key into one queue; never two workers on one key.  A status write that meets a newer version is decided anew.
Events follow a status write that succeeded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from nvcre_kube.client import ApiError, KubeClient
from nvcre_kube.events import EventRecorder
from nvcre_kube.resources import JOBS
from nvcre_kube.workqueue import WorkQueue, run_workers

from nvcre_coordinator.api import names
from nvcre_coordinator.api.conditions import ConditionType, Reason, find, is_true
from nvcre_coordinator.api.job import FailedNodeReason, Job, JobStatus
from nvcre_coordinator.api.meta import to_json
from nvcre_coordinator.api.workload import Node
from nvcre_coordinator.controllers.caches import Cached, CachedPod, Caches, Key, cached
from nvcre_coordinator.controllers.job_actions import JobActions
from nvcre_coordinator.controllers.job_observation import JobObserver
from nvcre_coordinator.controllers.ports import Confirmations, ProbeOrders
from nvcre_coordinator.controllers.run_memory import RunMemory
from nvcre_coordinator.controllers.told import Told
from nvcre_coordinator.core import job_lifecycle, restart
from nvcre_coordinator.core.conditions import flips
from nvcre_coordinator.core.health_verdicts import application_errors, evidence, late_incidents, spared_incidents
from nvcre_coordinator.core.incidents import Incident
from nvcre_coordinator.core.job_conclusion import concluded, ended_at, pairing
from nvcre_coordinator.core.naming import workload_name
from nvcre_coordinator.core.node_health import NodeHealth
from nvcre_coordinator.core.observed import Action
from nvcre_coordinator.core.occupants import short_workload
from nvcre_coordinator.detectors import Blindness
from nvcre_coordinator.detectors.agent import AgentDetector
from nvcre_coordinator.detectors.cel import CelDetector
from nvcre_coordinator.metrics import JobMetrics
from nvcre_coordinator.workloads.trainjob import TrainJobAdapter

logger = logging.getLogger(__name__)

CONFLICT_ATTEMPTS = 5
STILL_INTERESTING = timedelta(minutes=10)
"""How long after its end a Job is told of late evidence on its nodes."""


class JobController:
    def __init__(
        self,
        client: KubeClient,
        caches: Caches,
        *,
        confirmations: Confirmations,
        probes: ProbeOrders,
        events: EventRecorder,
        metrics: JobMetrics,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        workers: int = 10,
    ) -> None:
        self._client = client
        self._caches = caches
        self._confirmations = confirmations
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._workers = workers
        self._queue: WorkQueue[Key] = WorkQueue()
        self._memory = RunMemory(client, self._run_changed, self._logs_wanted, clock=clock)
        adapter = TrainJobAdapter()
        self._observer = JobObserver(
            client,
            caches,
            self._memory,
            adapter=adapter,
            detectors=(AgentDetector(), CelDetector()),
            confirmations=confirmations,
            probes=probes,
            on_look=self._count_look,
        )
        self._actions = JobActions(client, adapter, events, metrics, clock)
        self._written: dict[Key, tuple[str, Cached[Job]]] = {}  # what we wrote, over which cached version
        self._nodes_of: dict[Key, frozenset[str]] = {}
        self._jobs_on: dict[str, set[Key]] = {}
        self._awaiting: set[Key] = set()
        self._told = Told()
        self._leading_since: datetime | None = None
        caches.jobs.add_handler(self._job_changed)
        caches.train_jobs.add_handler(self._child_changed)
        caches.pods.add_handler(self._pod_changed)
        caches.healths.add_handler(self._health_changed)
        caches.nodes.add_handler(self._node_changed)
        caches.bandwidths.add_handler(self._measurement_changed)
        caches.goodputs.add_handler(self._measurement_changed)
        confirmations.subscribe(self._confirmed)
        probes.subscribe(lambda namespace, name: self._enqueue((namespace, name)))

    async def run(self) -> None:
        """Leads until cancelled; the caches must be synced."""
        self._leading_since = self._clock()
        try:
            for pod in self._caches.pods.all():
                if self._caches.job_of_run(pod.run_key) is not None:
                    self._memory.note(pod)
            for job in self._caches.jobs.all():
                self._queue.add(job.key)
            await run_workers(
                self._queue, self.reconcile, workers=self._workers, name="job", on_result=self._count_result
            )
        finally:
            self._leading_since = None
            await self._memory.stop()
            self._written.clear()
            self._nodes_of.clear()
            self._jobs_on.clear()

    async def reconcile(self, key: Key) -> float | None:
        job = self._current(key)
        if job is None or job.view is None:
            self._forget(key)
            return None
        for _ in range(CONFLICT_ATTEMPTS):
            assert job.view is not None
            now = self._clock()
            seen, blind = await self._observer.observe(job.view, now, self._leading_since or now)
            decision = job_lifecycle.decide(seen, now)
            try:
                written = await self._write(job, decision.status)
            except ApiError as error:
                if error.not_found:
                    return None
                if not error.conflict:
                    raise
                fresh = await self._fresh(key)
                if fresh is None or fresh.view is None:
                    return None
                job = fresh
                continue
            self._announce(job, written, blind)
            self._watch_nodes(key, written, seen.group)
            for node in self._nodes_of.get(key, frozenset()) & seen.healths.keys():
                self._tell(key, seen.healths[node])
            if written.view is not None:
                self._end_attempt(written.view, decision.actions)
            if written.view is not None and concluded(written.view.status):
                self._memory.drop_tails(self._observer.run_key(written.view))
            else:
                await self._save_memory(written)
            again = await self._actions.carry_out(written, decision)
            if again.job is not None:
                self._announce(written, again.job, [])
                self._remember(written, again.job)
            if decision.unconfirmed:
                self._confirmations.request(decision.unconfirmed)
            delays = [d.total_seconds() for d in (decision.requeue_after, again.look_again) if d is not None]
            return min(delays, default=None)
        return 0.5  # somebody else writes this Job all the time

    # Reading and writing the Job

    def _current(self, key: Key) -> Cached[Job] | None:
        """The newest version we know: what we wrote last, until the cache has moved on."""
        held = self._caches.jobs.get(key[1], key[0])
        if held is None:
            return None
        written = self._written.get(key)
        if written is not None:
            if held.resource_version == written[0]:
                return written[1]
            del self._written[key]
        return held

    def _remember(self, before: Cached[Job], after: Cached[Job]) -> None:
        held = self._caches.jobs.get(before.key[1], before.key[0])
        if held is not None and held.resource_version != after.resource_version:
            self._written[before.key] = (held.resource_version, after)

    async def _fresh(self, key: Key) -> Cached[Job] | None:
        try:
            return cached(await self._client.get(JOBS, key[1], key[0]), Job)
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def _write(self, job: Cached[Job], status: JobStatus) -> Cached[Job]:
        assert job.view is not None
        if status == job.view.status:
            return job
        written = cached(await self._client.update_status(JOBS, {**job.raw, "status": to_json(status)}), Job)
        self._remember(job, written)
        return written

    async def _save_memory(self, job: Cached[Job]) -> None:
        assert job.view is not None
        if job.view.metadata.deletion_timestamp is not None:
            return
        try:
            await self._memory.save(self._observer.run_key(job.view), job.view)
        except ApiError as error:  # evidence for a restart only: the run itself goes on
            logger.warning("pods not remembered namespace=%s job=%s error=%r", *job.key, str(error))

    def _end_attempt(self, job: Job, actions: tuple[Action, ...]) -> None:
        if not {Action.END_ATTEMPT, Action.DROP_ENDED_PODS} & set(actions):
            return
        held = self._observer.held_pods(job)
        kept: set[str] = set()
        if Action.DROP_ENDED_PODS in actions:
            kept = {pod.record.uid for pod in held if not pod.deleting and not pod.record.finished}
        self._memory.end_attempt(
            self._observer.run_key(job), kept=kept, dropped={pod.record.uid for pod in held} - kept
        )

    # Telling

    def _announce(self, before: Cached[Job], after: Cached[Job], blind: list[Blindness]) -> None:
        assert before.view is not None
        if after.view is None:
            return
        for event in flips(before.view.status.conditions, after.view.status.conditions):
            self._events.record(after.raw, type=event.type, reason=event.reason, note=event.note)
            logger.info("job namespace=%s job=%s reason=%s message=%r", *after.key, event.reason, event.note)
        if restart.number(after.view.status) > restart.number(before.view.status):  # no condition flips at a restart
            said = find(after.view.status.conditions, ConditionType.IN_PROGRESS)
            note = said.message if said is not None else ""
            self._events.record(after.raw, type="Warning", reason=Reason.WORKLOAD_RESTARTING, note=note)
        if pairing(before.view.status) and concluded(after.view.status) and not _hardware_nodes(after.view):
            verdict = find(after.view.status.conditions, ConditionType.ATTRIBUTED)
            note = verdict.message if verdict is not None else ""
            self._events.record(after.raw, type="Warning", reason=Reason.PAIRS_TESTED, note=note)
        uid = after.view.metadata.uid
        for unknown in blind:
            if self._told.is_new(uid, unknown.node, unknown.message):
                note = f"node {unknown.node} cannot be judged and is not blamed: {unknown.message}"
                self._events.record(after.raw, type="Warning", reason=Reason.DETECTOR_ERROR, note=note)
                logger.warning("detector has no answer namespace=%s job=%s note=%r", *after.key, note)
        self._count(before.view, after.view)

    def _count(self, before: Job, after: Job) -> None:
        if after.searching_job is not None:
            return  # hundreds of them would be as many times forty series; the Job that searches has what comes of it
        labels = _labels(after)
        state = "in_progress"
        if is_true(after.status.conditions, ConditionType.SUCCEEDED):
            state = "succeeded"
        elif is_true(after.status.conditions, ConditionType.FAILED):
            state = "failed"
        if after.status.conditions:
            self._metrics.set_job(labels, state, len(after.status.failed_nodes))
        old, new = _hardware_nodes(before), _hardware_nodes(after)
        if new and not old:
            self._metrics.hardware_failed_jobs.labels(*labels).inc()
        for node in new - old:
            self._metrics.hardware_failures_detected.labels(*labels, node).inc()

    def _count_look(self, job: Job, nodes: int, seconds: float) -> None:
        if job.searching_job is not None:
            return
        labels = _labels(job)
        self._metrics.nodes_evaluated.labels(*labels).inc(nodes)
        self._metrics.node_health_check_duration.labels(*labels).observe(seconds)

    def _count_result(self, key: Key, result: str, seconds: float) -> None:
        job = self._caches.jobs.get(key[1], key[0])
        if job is None or job.view is None or job.view.searching_job is not None:
            return
        labels = _labels(job.view)
        self._metrics.reconciles.labels(*labels, result).inc()
        self._metrics.reconcile_duration.labels(*labels).observe(seconds)

    # Who must look again

    def _enqueue(self, key: Key) -> None:
        if self._leading_since is not None:
            self._queue.add(key)

    def _job_changed(self, old: Cached[Job] | None, new: Cached[Job] | None) -> None:
        item = new or old
        if item is None:
            return
        self._enqueue(item.key)
        if (
            item.view is not None
            and (owner := item.view.searching_job) is not None
            and _has_ended(old) != _has_ended(new)
        ):
            self._enqueue((item.key[0], owner.name))
        if new is not None and new.view is not None and concluded(new.view.status):
            for pair in self._caches.pairs_of(new.view):  # they need not go on
                if not pair.status.terminal:
                    self._enqueue(pair.key)

    def _child_changed(self, old: Cached[Any] | None, new: Cached[Any] | None) -> None:
        item = new or old
        if item is not None:
            self._run_changed(item.key)

    def _run_changed(self, run: Key) -> None:
        key = self._caches.job_of_run(run)
        if key is not None:
            self._enqueue(key)

    def _logs_wanted(self, run: Key) -> bool:
        key = self._caches.job_of_run(run)
        job = self._current(key) if key is not None else None
        return job is not None and job.view is not None and not concluded(job.view.status)

    def _pod_changed(self, old: CachedPod | None, new: CachedPod | None) -> None:
        item = new or old
        if item is None or self._leading_since is None:
            return
        if new is not None and self._caches.job_of_run(new.run_key) is not None:
            self._memory.note(new)
        self._run_changed(item.run_key)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        """Only Jobs with an expression ask about the Node object; heartbeats change nothing of what they see."""
        item = new or old
        if item is None:
            return
        for key in self._jobs_on.get(item.name, ()):
            job = self._caches.jobs.get(key[1], key[0])
            if (
                job is not None
                and job.view is not None
                and job.view.spec.node_expression
                and not job.view.status.terminal
            ):
                self._enqueue(key)

    def _health_changed(self, old: NodeHealth | None, new: NodeHealth | None) -> None:
        if new is None:
            return
        for key in self._jobs_on.get(new.node, ()):
            self._enqueue(key)

    def _tell(self, key: Key, health: NodeHealth) -> None:
        """What hit the Job's own processes, and evidence beyond the run's window or of a maintenance: never a blame."""
        job = self._current(key)
        window = self._observer.window(job.view) if job is not None and job.view is not None else None
        if job is None or window is None:
            return
        for incident in late_incidents(health, window):
            note = f"after the end of the run, node {health.node}: {evidence(incident).message}"
            self._tell_once(job.raw, health.node, incident, Reason.LATE_EVIDENCE, note)
        for incident in spared_incidents(health, window):
            note = f"node {health.node} was in maintenance and is not blamed: {evidence(incident).message}"
            self._tell_once(job.raw, health.node, incident, Reason.MAINTENANCE_EVIDENCE, note)
        for incident in application_errors(health, window, short_workload(*key)):
            process = f" (process {incident.pid}{f', {incident.process}' if incident.process else ''})"
            note = f"node {health.node}: {evidence(incident).message}{process if incident.pid else ''}; not its fault"
            self._tell_once(job.raw, health.node, incident, Reason.APPLICATION_ERROR, note)

    def _tell_once(self, job: dict[str, Any], node: str, incident: Incident, reason: Reason, note: str) -> None:
        if self._told.is_new(str(job["metadata"].get("uid")), node, incident.id):
            self._events.record(job, type="Warning", reason=reason, note=note)

    def _measurement_changed(self, old: Cached[Any] | None, new: Cached[Any] | None) -> None:
        item = new or old
        if item is not None and item.view is not None and item.view.spec.job_ref is not None:
            self._enqueue((item.key[0], item.view.spec.job_ref.name))

    def _confirmed(self, node: str) -> None:
        for key in self._jobs_on.get(node, ()):
            if key in self._awaiting:
                self._enqueue(key)

    def _watch_nodes(self, key: Key, job: Cached[Job], group: tuple[str, ...]) -> None:
        """Keeps the index node -> Jobs: while a Job runs, and a while after for late evidence."""
        assert job.view is not None
        end = ended_at(job.view.status)
        over = end is not None and self._clock() - end > STILL_INTERESTING
        wanted = frozenset() if over else frozenset(group)
        known = self._nodes_of.get(key, frozenset())
        for node in known - wanted:
            self._jobs_on[node].discard(key)
            if not self._jobs_on[node]:
                del self._jobs_on[node]
        for node in wanted - known:
            self._jobs_on.setdefault(node, set()).add(key)
        if wanted:
            self._nodes_of[key] = wanted
        else:
            self._nodes_of.pop(key, None)
        if end is not None and not concluded(job.view.status) and not pairing(job.view.status):
            self._awaiting.add(key)
        else:
            self._awaiting.discard(key)
        if end is not None and not over and concluded(job.view.status):
            self._queue.add_after(key, STILL_INTERESTING.total_seconds())

    def _forget(self, key: Key) -> None:
        for node in self._nodes_of.pop(key, frozenset()):
            self._jobs_on.get(node, set()).discard(key)
        self._awaiting.discard(key)
        self._written.pop(key, None)
        run = key[0], workload_name(key[1])
        if self._caches.job_of_run(run) is None:  # else it is another Job's, whose long name is cut to the same
            self._memory.forget(run)
        self._actions.forget(key)
        self._metrics.drop_job(*key)
        self._told.bound()


def _has_ended(pair: Cached[Job] | None) -> bool | None:
    """None where there is none."""
    return None if pair is None or pair.view is None else concluded(pair.view.status)


def _labels(job: Job) -> tuple[str, str, str]:
    return job.metadata.namespace, job.metadata.name, job.metadata.labels.get(names.LABEL_WORKFLOW, "")


def _hardware_nodes(job: Job) -> set[str]:
    return {
        entry.name for entry in job.status.failed_nodes if entry.reason is FailedNodeReason.HARDWARE_FAILURE_DETECTED
    }
