"""One coordinator process: wires caches, reconcilers and fleet, and leads when elected.

Every replica keeps warm caches and serves gRPC (a follower sends agents to the leader); only the leader reconciles,
accepts agents and writes.  A background task that dies takes the process with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from nvcre_kube.client import KubeClient
from nvcre_kube.events import EventRecorder
from nvcre_kube.fencing import FencedClient
from nvcre_kube.leader_election import LeaderElector
from nvcre_protos.addresses import format_address
from nvcre_protos.ready_file import write_ready_file
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from nvcre_coordinator.api import names
from nvcre_coordinator.api.job import Job
from nvcre_coordinator.api.workload import Node
from nvcre_coordinator.config import Config
from nvcre_coordinator.controllers.bandwidth_measurement import BandwidthMeasurementController
from nvcre_coordinator.controllers.caches import CachedPod, Caches
from nvcre_coordinator.controllers.goodput_measurement import GoodputMeasurementController
from nvcre_coordinator.controllers.job import JobController
from nvcre_coordinator.controllers.log_profile_status import LogProfileController
from nvcre_coordinator.core.incidents import Incident
from nvcre_coordinator.core.node_health import NodeHealth
from nvcre_coordinator.core.observed import ProbeProgress
from nvcre_coordinator.core.occupants import Occupant, Occupants, workload_of
from nvcre_coordinator.endpoints import Endpoints
from nvcre_coordinator.fleet.interface import ProbeRequest, Probes
from nvcre_coordinator.fleet.probe_progress import ProbeSettings
from nvcre_coordinator.fleet.service import FleetService, FleetSettings
from nvcre_coordinator.metrics import JobMetrics

logger = logging.getLogger(__name__)

LEASE = "nvcre-coordinator"
GRPC_ANNOTATION = "nvcre.nvidia.com/grpc-address"
EVENTS_DRAIN_S = 1.0


class FleetProbes:
    """The fleet's probes in the words of the job side (controllers/ports.py)."""

    def __init__(self, probes: Probes) -> None:
        self._probes = probes

    def ensure(self, job: Job, nodes: tuple[str, ...]) -> ProbeProgress:
        meta = job.metadata
        made = self._probes.ensure(ProbeRequest(meta.namespace, meta.name, meta.uid, nodes))
        return ProbeProgress(made.done, made.results)

    def subscribe(self, callback: Callable[[str, str], None]) -> None:
        self._probes.subscribe(callback)


class Coordinator:
    def __init__(self, client: KubeClient, config: Config) -> None:
        self._config = config
        registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=registry)
        self._elector = LeaderElector(
            client,
            namespace=config.namespace,
            name=LEASE,
            identity=config.identity,
            annotations=self._own_address,
        )
        leading = FencedClient(client, self._elector.write_until) if config.leader_elect else client
        self._events = EventRecorder(leading, names.EVENT_SOURCE)
        self._caches = Caches(client, node_selector=config.node_selector)
        self._occupants = Occupants()
        self._caches.pods.add_handler(self._pod_changed)
        self._caches.nodes.add_handler(self._node_changed)
        metrics = JobMetrics(registry)
        self._fleet = FleetService(
            client,
            FleetSettings(
                namespace=config.namespace,
                grpc_address=config.grpc_address,
                node_selector=config.node_selector,
                heartbeat_interval_s=config.agent_heartbeat_s,
                probes=ProbeSettings(
                    min_bytes=config.probe_min_bytes, max_bytes=config.probe_max_bytes, runs=config.probe_runs
                ),
            ),
            leading=leading,
            leader_address=self._leader_address,
            events=self._events,
            registry=registry,
            workload_of=self._workload_of,
        )
        self._jobs = JobController(
            leading,
            self._caches,
            confirmations=self._fleet.confirmations,
            probes=FleetProbes(self._fleet.probes),
            events=self._events,
            metrics=metrics,
        )
        self._bandwidths = BandwidthMeasurementController(leading, self._caches, events=self._events, metrics=metrics)
        self._goodputs = GoodputMeasurementController(leading, self._caches, events=self._events, metrics=metrics)
        self._profiles = LogProfileController(leading, self._caches)
        self._caches.healths.add_handler(self._health_changed)
        self._endpoints = Endpoints(registry, self._not_ready)

    async def run(self) -> None:
        """Until cancelled.  Raises ListenError, CertificateError."""
        metrics, health = await self._endpoints.start(self._config.metrics_address, self._config.health_address)
        logger.info("listening metrics=%s health=%s", metrics, health)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._caches.run())
                group.create_task(self._fleet.run())
                group.create_task(self._announce_ready(metrics, health))
                group.create_task(self._elector.run(self._lead) if self._config.leader_elect else self._lead())
        finally:
            await self._endpoints.stop()

    async def _lead(self) -> None:
        await self._caches.wait_synced()
        await self._fleet.wait_serving()
        logger.info("reconciling identity=%s", self._config.identity)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._events.run())
                group.create_task(self._fleet.lead())
                group.create_task(self._jobs.run())
                group.create_task(self._bandwidths.run())
                group.create_task(self._goodputs.run())
                group.create_task(self._profiles.run())
        finally:
            with contextlib.suppress(TimeoutError):  # an API server that is away takes the last words with it
                async with asyncio.timeout(EVENTS_DRAIN_S):
                    await self._events.drain()

    def _health_changed(self, old: NodeHealth | None, new: NodeHealth | None) -> None:
        if new is not None:
            self._fleet.node_health_changed(new.node, new.resource_version)
        elif old is not None:
            self._fleet.node_health_changed(old.node, None)

    def _pod_changed(self, old: CachedPod | None, new: CachedPod | None) -> None:
        pod = new or old
        if pod is None or not pod.record.gpus or not pod.record.node or pod.record.created_at is None:
            return
        job = self._caches.job_of_run(pod.run_key) or pod.run_key
        ended = pod.record.exit.finished_at if pod.record.exit is not None else None
        if new is None:
            ended = ended or datetime.now(UTC)
        workload = workload_of(*job, pod.program)
        self._occupants.note(pod.record.node, Occupant(pod.record.uid, workload, pod.record.created_at, ended))

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None and old is not None:
            self._occupants.forget_node(old.name)

    def _workload_of(self, node: str, incident: Incident) -> str:
        return self._occupants.workload(node, pod_uid=incident.pod_uid, at=incident.first_seen)

    async def _announce_ready(self, metrics: str, health: str) -> None:
        await self._fleet.wait_serving()
        await self._caches.wait_synced()
        logger.info("ready grpc=%s metrics=%s health=%s", self._fleet.grpc_address, metrics, health)
        if self._config.ready_file is not None:
            write_ready_file(
                self._config.ready_file, {"grpc": self._fleet.grpc_address, "metrics": metrics, "health": health}
            )

    def _not_ready(self) -> str:
        if not self._caches.synced:
            return f"waiting for the first list of: {', '.join(self._caches.unsynced)}"
        return "" if self._fleet.grpc_address else "the gRPC service does not listen yet"

    def _own_address(self) -> Mapping[str, str]:
        port = self._fleet.grpc_address.rpartition(":")[2]
        return {GRPC_ANNOTATION: format_address(self._config.advertised_host, int(port))} if port else {}

    def _leader_address(self) -> str | None:
        return self._elector.leader_annotations.get(GRPC_ANNOTATION)
