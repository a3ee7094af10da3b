"""Gathers what core/job_lifecycle.py decides on: caches, remembered pods, detectors, agents, Leases, probes.

An absence is never taken from a cache: a workload that is missing there is asked for at the server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from nvcre_kube.client import ApiError, KubeClient
from nvcre_kube.resources import LEASES

from nvcre_coordinator.api import names
from nvcre_coordinator.api.job import FailedNode, Job
from nvcre_coordinator.controllers.caches import CachedPod, Caches, Key
from nvcre_coordinator.controllers.pair_observation import PairObserver
from nvcre_coordinator.controllers.ports import Confirmations, ProbeOrders
from nvcre_coordinator.controllers.run_memory import RunMemory
from nvcre_coordinator.core import clock_offset
from nvcre_coordinator.core.attribution import AgentState, NodeFacts
from nvcre_coordinator.core.goodput_status import measured_goodput
from nvcre_coordinator.core.job_conclusion import concluded, ended_at, failed, stalled, wants_pairs, wants_probes
from nvcre_coordinator.core.last_steps import LogEnd
from nvcre_coordinator.core.measurement_lifecycle import measured_bandwidth
from nvcre_coordinator.core.node_bandwidth import measured_nodes
from nvcre_coordinator.core.node_health import NodeHealth
from nvcre_coordinator.core.observed import Gone, Observed, Workload
from nvcre_coordinator.core.pair_job import given_up
from nvcre_coordinator.core.pods import without_gpus
from nvcre_coordinator.core.run_window import RunWindow
from nvcre_coordinator.detectors import Blindness, DetectorSpecError, NodeFailureDetector, NodeView
from nvcre_coordinator.workloads import WorkloadAdapter

logger = logging.getLogger(__name__)

NODE_LEASES = "kube-node-lease"


class JobObserver:
    def __init__(
        self,
        client: KubeClient,
        caches: Caches,
        memory: RunMemory,
        *,
        adapter: WorkloadAdapter,
        detectors: Sequence[NodeFailureDetector],
        confirmations: Confirmations,
        probes: ProbeOrders,
        on_look: Callable[[Job, int, float], None],
    ) -> None:
        """`on_look` hears of every look of the detectors: how many nodes, how many seconds."""
        self._client = client
        self._caches = caches
        self._memory = memory
        self._adapter = adapter
        self._detectors = detectors
        self._confirmations = confirmations
        self._probes = probes
        self._on_look = on_look
        self._pairs = PairObserver(caches, confirmations)

    async def observe(self, job: Job, now: datetime, observing_since: datetime) -> tuple[Observed, list[Blindness]]:
        run = self.run_key(job)
        if not concluded(job.status):
            await self._memory.load(run, job)
        created = self._workload_created(job)
        pods = self._memory.pods(run, job, created)
        if failed(job.status) and not concluded(job.status) and not any(pod.failed and pod.node for pod in pods):
            await self._memory.look(run)
            pods = self._memory.pods(run, job, created)
        group = group_nodes(job, tuple(sorted({pod.node for pod in pods if pod.node})))
        healths = {node: health for node in group if (health := self._caches.healths.get(node)) is not None}
        # With the NodeHealths, before anything is waited for: a confirmation may not be newer than what it confirms.
        confirmed = {node: self._confirmed(node, healths.get(node)) for node in group}
        self._memory.note_boot_ids(run, {node: health.boot_id for node, health in healths.items()})
        hardware, blind = self._detect(job, group, healths, without_gpus(pods), now)
        bandwidth = self._caches.bandwidth_of(job)
        workload = await self._workload(job)
        goodputs = self._caches.goodputs_of(job)
        watched = group if job.status.terminal and not concluded(job.status) else ()
        nodes = await self._node_facts(run, confirmed, healths, now, leases_of=watched)
        held = self.held_pods(job)
        probes = self._probes.ensure(job, group) if wants_probes(job) and group else None
        measured = measured_bandwidth(bandwidth) | measured_goodput(goodputs) | measured_nodes(job, group, probes)
        pairs = self._pairs.search(job, pods, measured) if wants_pairs(job, measured) else None
        seen = Observed(
            job=job,
            workload=workload,
            node_expression_error=self._expression_error(job),
            pods=pods,
            live_pods=sum(1 for pod in held if not pod.record.finished),
            unschedulable=_unschedulable(held),
            group=group,
            nodes=nodes,
            healths=healths,
            hardware=hardware,
            measured=measured,
            probes=probes,
            pairs=pairs,
            search_over=self._pairs.is_over(job),
            tails=self._memory.tails(run),
            log_ends=self._log_ends(run, job),
            observing_since=observing_since,
            bandwidth_exists=bandwidth is not None,
            goodput_exists=self._caches.has_goodput(job),
            goodputs=goodputs,
        )
        return seen, blind

    def _log_ends(self, run: Key, job: Job) -> Mapping[str, LogEnd] | None:
        """What the workers of a stalled run logged last; begun here, where it is first seen to have stalled."""
        if not stalled(job.status) or concluded(job.status):
            self._memory.stalls.forget(run)
            return None
        workers = [pod for pod in self._caches.pods.by_index("run", f"{run[0]}/{run[1]}") if not pod.record.launcher]
        template = job.spec.goodput_measurement
        profile = self._caches.profiles.get(template.log_profile_ref) if template is not None else None
        return self._memory.stalls.ends(run, workers, profile.view if profile is not None else None)

    def run_key(self, job: Job) -> Key:
        return job.metadata.namespace, self._adapter.reference(job).name

    def window(self, job: Job) -> RunWindow | None:
        """None before the workload was seen running: nothing has run on any node yet."""
        start = job.status.workload_start_time
        return None if start is None else RunWindow(start, ended_at(job.status))

    def _detect(
        self,
        job: Job,
        group: tuple[str, ...],
        healths: dict[str, NodeHealth],
        without: frozenset[str],
        now: datetime,
    ) -> tuple[tuple[FailedNode, ...], list[Blindness]]:
        window = self.window(job)
        if window is None or not group:
            return (), []
        views = [
            NodeView(node, self._caches.nodes.get(node), healths.get(node), uses_gpus=node not in without)
            for node in group
        ]
        found: dict[tuple[str, str], FailedNode] = {}
        blind: list[Blindness] = []
        started = time.perf_counter()
        for detector in self._detectors:
            entries, unknown = detector.detect(job, views, window, now)
            blind += unknown
            for entry in entries:
                found.setdefault((entry.name, entry.reason), entry)
        self._on_look(job, len(group), time.perf_counter() - started)
        return tuple(found[key] for key in sorted(found)), blind

    def _expression_error(self, job: Job) -> str | None:
        for detector in self._detectors:
            try:
                detector.validate(job)
            except DetectorSpecError as error:
                return str(error)
        return None

    def held_pods(self, job: Job) -> list[CachedPod]:
        """The pods of the Job's workload that the API server has."""
        namespace, name = self.run_key(job)
        return self._caches.pods.by_index("run", f"{namespace}/{name}")

    async def _workload(self, job: Job) -> Workload | Gone | None:
        """None while there is nothing to follow.

        Deletion and restart look for the workload even when no reference is stored, and a pair that was given up is
        looked at until its workload is gone.  Our copy may be the one that a restart has deleted, which has the same
        name: then the server is asked.
        """
        deleting = job.metadata.deletion_timestamp is not None
        over = job.status.terminal and not given_up(job.status)
        if not self._adapter.matches(job) or (over and not deleting):
            return None
        restarts = job.status.restart_count or 0
        if job.status.workload_ref is None and not deleting and not restarts:
            return None
        namespace, name = self.run_key(job)
        held = self._caches.train_jobs.get(name, namespace)
        if job.status.workload_ref is not None and held is not None and self._adapter.owned(job, held.raw):
            workload = self._adapter.read(held.raw)
            if workload.restart == restarts:
                return workload
        obj = await self._uncached(name, namespace)
        if obj is None or not self._adapter.owned(job, obj):
            return Gone(self._adapter.title(job))
        return self._adapter.read(obj)

    def _workload_created(self, job: Job) -> datetime | None:
        """None where our copy of it is not the Job's own."""
        held = self._caches.train_jobs.get(self._adapter.reference(job).name, job.metadata.namespace)
        if held is None or not self._adapter.owned(job, held.raw):
            return None
        return self._adapter.read(held.raw).created_at

    async def _uncached(self, name: str, namespace: str) -> dict[str, Any] | None:
        try:
            return await self._client.get(self._adapter.resource, name, namespace)
        except ApiError as error:
            if error.not_found:
                return None
            raise

    def _confirmed(self, node: str, health: NodeHealth | None) -> tuple[AgentState, datetime | None]:
        """Up to when the agent has told everything; nothing yet where our copy of the NodeHealth lags behind."""
        cursor = self._confirmations.confirmed_cursor(node)
        if cursor is None:
            return (AgentState.ABSENT if health is None else AgentState.SILENT), None
        through = self._confirmations.confirmed_through(node)
        return AgentState.CONNECTED, through if health is not None and health.holds(cursor) else None

    async def _node_facts(
        self,
        run: Key,
        confirmed: dict[str, tuple[AgentState, datetime | None]],
        healths: dict[str, NodeHealth],
        now: datetime,
        *,
        leases_of: tuple[str, ...],
    ) -> dict[str, NodeFacts]:
        at_start = self._memory.boot_ids(run)
        facts: dict[str, NodeFacts] = {}
        for node, (state, through) in confirmed.items():
            health = healths.get(node)
            lease = None
            if node in leases_of and state is AgentState.SILENT:
                renewed = await self._lease_renewed(node)
                lease = self._memory.note_lease(run, node, renewed, now) if renewed is not None else None
            facts[node] = NodeFacts(
                agent=state,
                confirmed_through=through,
                boot_id_at_start=at_start.get(node, ""),
                boot_id=health.boot_id if health is not None else "",
                lease=lease,
                blind=health.blind if health is not None else "",
                clock=self._confirmations.clock_offset(node) or clock_offset.ASSUMED,
            )
        return facts

    async def _lease_renewed(self, node: str) -> datetime | None:
        try:
            lease = await self._client.get(LEASES, node, NODE_LEASES)
        except ApiError as error:
            if not error.not_found:
                logger.warning("node lease not read node=%s error=%r", node, str(error))
            return None
        text = (lease.get("spec") or {}).get("renewTime")
        try:
            return datetime.fromisoformat(text) if text else None
        except ValueError:
            return None


def _unschedulable(pods: list[CachedPod]) -> str | None:
    """One pod that cannot be placed is enough; the first by name speaks."""
    refused = {pod.record.name: pod.unschedulable for pod in pods if pod.unschedulable is not None and not pod.deleting}
    return refused[min(refused)] if refused else None


def group_nodes(job: Job, ran_on: tuple[str, ...]) -> tuple[str, ...]:
    """The group of the annotation (a Workflow writes it) together with the nodes that ran pods, sorted."""
    annotated = job.metadata.annotations.get(names.ANNOTATION_GROUP_NODES, "")
    named = {name.strip() for name in annotated.split(",")} - {""}
    return tuple(sorted(named | set(ran_on)))
