"""Remembers the pods of each run as they come by, in memory and in the ConfigMap `<job>-pods`, and reads their logs.

Pod events are folded at once; a container that ends badly has the end of its log read then, because the pod may be gone
when the Job fails.  The ConfigMap is written by the Job's reconcile (`save`) and read once by a new leader (`load`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from nvcre_kube.client import ApiError, KubeClient
from nvcre_kube.resources import CONFIG_MAPS, PODS

from nvcre_coordinator.api import names
from nvcre_coordinator.api.job import Job
from nvcre_coordinator.controllers.caches import CachedPod, Key, cached_pod
from nvcre_coordinator.controllers.pod_logs import LogUnavailableError, read_tail
from nvcre_coordinator.controllers.stall_logs import StallLogs
from nvcre_coordinator.core import failure_lines
from nvcre_coordinator.core.attribution import LeaseWatch
from nvcre_coordinator.core.failure_lines import LogFinding
from nvcre_coordinator.core.limits import tail
from nvcre_coordinator.core.naming import pods_config_map_name
from nvcre_coordinator.core.pods import (
    PodRecord,
    RunRecord,
    decode,
    encode,
    end_attempt,
    lasting,
    remember,
    seen_at,
    with_log,
)
from nvcre_coordinator.workloads.trainjob import child_labels, owner_reference

logger = logging.getLogger(__name__)

CONCURRENT_LOG_READS = 8
KEPT_TAILS = 64
CLOCK_SLACK = timedelta(seconds=2)


@dataclass(slots=True)
class _Run:
    record: RunRecord = field(default_factory=RunRecord)
    tails: dict[str, str] = field(default_factory=dict)
    saved: str = ""
    name_taken: bool = False  # by somebody else's ConfigMap
    listed: bool = False  # the server was asked for its pods
    loaded_for: str = ""  # uid of the Job
    asked: set[str] = field(default_factory=set)  # pods whose log was read or is being read
    leases: dict[str, LeaseWatch] = field(default_factory=dict)  # of nodes whose agent is silent


class RunMemory:
    """Keyed by the workload's (namespace, name).

    `changed` hears the run key when a log was read; `wanted` says whether anybody still needs the logs of a run.
    """

    def __init__(
        self,
        client: KubeClient,
        changed: Callable[[Key], None],
        wanted: Callable[[Key], bool] = lambda run: True,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._clock = clock
        self.stalls = StallLogs(client, changed)
        self._wanted = wanted
        self._changed = changed
        self._runs: dict[Key, _Run] = {}
        self._reads = asyncio.Semaphore(CONCURRENT_LOG_READS)
        self._tasks: set[asyncio.Task[None]] = set()

    def note(self, pod: CachedPod) -> None:
        """A pod was added or changed."""
        if not pod.jobset:
            return
        run = self._runs.setdefault(pod.run_key, _Run())
        run.record = remember(run.record, [seen_at(pod.record, self._clock())], {})
        record = run.record.pods[pod.record.uid]
        ended = record.failed and record.exit is not None
        if ended and record.uid not in run.asked and self._wanted(pod.run_key):
            run.asked.add(record.uid)
            task = asyncio.create_task(self._read_log(pod.run_key, record))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def look(self, run_key: Key) -> None:
        """Asks the server for the run's pods, once: what a cache has not seen may be there all the same."""
        if self._runs.setdefault(run_key, _Run()).listed:
            return
        namespace, jobset = run_key
        for obj in await self._client.list(PODS, namespace, label_selector=f"{names.LABEL_JOBSET}={jobset}"):
            self.note(cached_pod(obj))
        self._runs.setdefault(run_key, _Run()).listed = True

    async def stop(self) -> None:
        """Ends the log reads and forgets everything: another process may lead from here."""
        await self.stalls.stop()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._runs.clear()

    def pods(self, run_key: Key, job: Job, workload_created: datetime | None = None) -> tuple[PodRecord, ...]:
        """The run's pods: not of an attempt given up, and of this Job.

        An earlier one of its name has older pods; so has one whose long name is cut to the same workload's, which this
        Job's had to wait for.
        """
        created = max(
            (at for at in (job.metadata.creation_timestamp, workload_created) if at is not None), default=None
        )
        return tuple(
            pod
            for pod in self._runs.get(run_key, _Run()).record.pods.values()
            if not pod.over and (created is None or pod.created_at is None or pod.created_at >= created - CLOCK_SLACK)
        )

    def boot_ids(self, run_key: Key) -> dict[str, str]:
        return self._runs.get(run_key, _Run()).record.boot_ids

    def tails(self, run_key: Key) -> dict[str, str]:
        return self._runs.get(run_key, _Run()).tails

    def note_boot_ids(self, run_key: Key, boot_ids: dict[str, str]) -> None:
        """The first boot id seen of a node stays; a later one is a reboot."""
        run = self._runs.setdefault(run_key, _Run())
        run.record = remember(run.record, [], boot_ids)

    def note_lease(self, run_key: Key, node: str, renewed_at: datetime, now: datetime) -> LeaseWatch:
        leases = self._runs.setdefault(run_key, _Run()).leases
        known = leases.get(node)
        leases[node] = LeaseWatch(renewed_at, now, now) if known is None else known.seen(renewed_at, now)
        return leases[node]

    def end_attempt(self, run_key: Key, *, kept: Set[str], dropped: Set[str]) -> None:
        """Pods belong to an attempt that is given up; uids of those that the API server still has."""
        run = self._runs.get(run_key)
        if run is None:
            return
        run.record = end_attempt(run.record, kept=kept, dropped=dropped)
        run.tails = {uid: text for uid, text in run.tails.items() if uid in kept}

    def drop_tails(self, run_key: Key) -> None:
        """The Job has its verdict: its failureLog has what was needed of them."""
        run = self._runs.get(run_key)
        if run is not None:
            run.tails.clear()

    def forget(self, run_key: Key) -> None:
        self._runs.pop(run_key, None)
        self.stalls.forget(run_key)

    async def load(self, run_key: Key, job: Job) -> None:
        """What an earlier coordinator remembered; once for each Job."""
        run = self._runs.setdefault(run_key, _Run())
        if run.loaded_for == job.metadata.uid:
            return
        if job.status.workload_ref is None and names.JOB_FINALIZER not in job.metadata.finalizers:
            run.loaded_for = job.metadata.uid  # nobody has worked on this Job yet
            return
        try:
            obj = await self._client.get(CONFIG_MAPS, pods_config_map_name(job.metadata.name), job.metadata.namespace)
        except ApiError as error:
            if not error.not_found:
                raise
            obj = {}
        text = _own_data(obj, job)
        if text:
            known = _decoded(text, job)
            run.record = remember(known, run.record.pods.values(), run.record.boot_ids)
            run.saved = text
        run.loaded_for = job.metadata.uid

    async def save(self, run_key: Key, job: Job) -> None:
        """Writes the ConfigMap when something is new.  The only writer is the leader: last write wins."""
        run = self._runs.get(run_key)
        if run is None:
            return
        record = lasting(run.record)
        if not (record.pods or run.saved):
            return
        text = encode(record)
        if text == run.saved:
            return
        name, namespace = pods_config_map_name(job.metadata.name), job.metadata.namespace
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": child_labels(job),
                "ownerReferences": [owner_reference(job)],
            },
            "data": {names.PODS_CONFIG_MAP_KEY: text},
        }
        try:
            if run.saved and not run.name_taken:
                await self._client.merge_patch(CONFIG_MAPS, name, {"data": body["data"]}, namespace)
            else:
                await self._client.create(CONFIG_MAPS, body, namespace)
        except ApiError as error:
            if not (error.already_exists or error.not_found):
                raise
            taken = not await self._replace(name, namespace, body)
            if taken and not run.name_taken:
                logger.warning("pods not remembered: ConfigMap %s/%s is not ours: delete or rename it", namespace, name)
            run.name_taken = taken
        else:
            run.name_taken = False
        run.saved = text

    async def _replace(self, name: str, namespace: str, body: dict[str, Any]) -> bool:
        """The ConfigMap of an earlier Job of this name is still there, or ours was deleted.

        One that a person made is not written over: then nothing outlives this process but what the cluster still has.
        """
        try:
            current = await self._client.get(CONFIG_MAPS, name, namespace)
        except ApiError as error:
            if not error.not_found:
                raise
            await self._client.create(CONFIG_MAPS, body, namespace)
            return True
        labels = current["metadata"].get("labels") or {}
        if labels.get(names.LABEL_MANAGED_BY) != names.MANAGED_BY:
            return False
        body["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
        await self._client.update(CONFIG_MAPS, body)
        return True

    async def _read_log(self, run_key: Key, record: PodRecord) -> None:
        container = record.exit.container if record.exit is not None else ""
        async with self._reads:
            try:
                text = await read_tail(self._client, run_key[0], record.name, container)
            except LogUnavailableError as error:
                logger.warning("log not read namespace=%s pod=%s error=%r", run_key[0], record.name, str(error))
                text, finding = "", LogFinding()
            else:
                finding = await asyncio.to_thread(failure_lines.read, text.splitlines())
        run = self._runs.get(run_key)
        if run is None:
            return
        run.record = with_log(run.record, record.uid, finding)
        if text and len(run.tails) < KEPT_TAILS and self._wanted(run_key):
            run.tails[record.uid] = tail(text)
        self._changed(run_key)


def _own_data(obj: dict[str, Any], job: Job) -> str:
    owners = obj.get("metadata", {}).get("ownerReferences") or []
    own = any(owner.get("uid") == job.metadata.uid for owner in owners)
    return str((obj.get("data") or {}).get(names.PODS_CONFIG_MAP_KEY, "")) if own else ""


def _decoded(text: str, job: Job) -> RunRecord:
    try:
        return decode(text)
    except msgspec.MsgspecError as error:
        logger.warning(
            "remembered pods are unreadable and start anew namespace=%s job=%s error=%r",
            job.metadata.namespace,
            job.metadata.name,
            str(error),
        )
        return RunRecord()
