"""The fleet side as one object: certificates, gRPC server, registry, NodeHealth writer, probes. Wires; decides nothing.

How the rest of the coordinator starts and uses it is described in fleet/interface.py. Every replica serves; only the
elected one leads, that is: accepts agents, writes NodeHealth and probes.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import grpc
from google.protobuf.duration_pb2 import Duration
from nvcre_kube.client import KubeClient
from nvcre_kube.events import EventRecorder, ObjectReference
from nvcre_kube.informer import Informer
from nvcre_kube.resources import NODES, JsonObject
from nvcre_protos import nvcre_agent_v1_pb2 as pb
from nvcre_protos import nvcre_agent_v1_pb2_grpc as pb_grpc
from nvcre_protos.addresses import ListenError
from prometheus_client import CollectorRegistry

from nvcre_coordinator.core.breaker import silent_nodes
from nvcre_coordinator.core.incidents import Incident
from nvcre_coordinator.core.node_verdict import Rules, Verdict
from nvcre_coordinator.fleet.authentication import Authenticator
from nvcre_coordinator.fleet.certificates import TlsKeeper
from nvcre_coordinator.fleet.interface import Confirmations, Probes
from nvcre_coordinator.fleet.metrics import FleetMetrics
from nvcre_coordinator.fleet.node_health import NodeHealthStore
from nvcre_coordinator.fleet.nodes import NodeFacts, node_facts
from nvcre_coordinator.fleet.probe_progress import ProbeSettings
from nvcre_coordinator.fleet.probes import ProbeScheduler
from nvcre_coordinator.fleet.registry import AgentRegistry, Ending
from nvcre_coordinator.fleet.server import MAX_STREAMS, OPTIONS, FleetServicer, ServerSettings

logger = logging.getLogger(__name__)

SILENCE_LOOK_S = 5.0
STOP_GRACE_S = 1.0
STREAMS_GONE_S = 3.0
RECONNECT_WITHIN_S = 5


@dataclass(frozen=True, slots=True)
class FleetSettings:
    namespace: str = "nvcre-system"
    grpc_address: str = "0.0.0.0:9443"
    node_selector: str = "nvidia.com/gpu.present=true"
    heartbeat_interval_s: float = 30.0
    probes: ProbeSettings = field(default_factory=ProbeSettings)
    manage_certificates: bool = True
    rules: Rules = field(default_factory=Rules)


class FleetService:
    """See fleet/interface.py for how it is used. `leading` is the client for what only the leader writes; `client` when
    there is no election. `workload_of(node, incident)` says whose program an incident hit."""

    def __init__(
        self,
        client: KubeClient,
        settings: FleetSettings,
        *,
        leading: KubeClient | None = None,
        leader_address: Callable[[], str | None] = lambda: None,
        workload_of: Callable[[str, Incident], str] = lambda node, incident: "",
        events: EventRecorder | None = None,
        registry: CollectorRegistry | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._settings = settings
        self._events = events
        self._clock = clock
        self._leading = False
        self._serving = asyncio.Event()
        self._nodes = self._node_informer()
        self.grpc_address = ""
        self.metrics = FleetMetrics(registry if registry is not None else CollectorRegistry())
        self._tls = TlsKeeper(
            client,
            settings.namespace,
            manage=settings.manage_certificates,
            clock=clock,
            on_renewal=lambda at: self.metrics.certificate_expiry_timestamp.set(at.timestamp()),
        )
        self._store = NodeHealthStore(
            leading or client,
            metrics=self.metrics,
            clock=clock,
            facts=self._facts,
            fleet_size=lambda: max(len(self._nodes), len(self._agents)),
            on_rival=self._end_stream,
            on_node_gone=self._forget_node,
            on_alarm=self._announce_alarm,
            on_verdict=self._announce_verdict,
            workload_of=workload_of,
            rules=settings.rules,
        )
        self._agents = AgentRegistry(
            clock=clock,
            stored_cursor=self._store.stored_cursor,
            flush=self._store.flush,
            on_ack=self.metrics.acks_sent.inc,
        )
        self._store.subscribe(self._agents.stored)
        self._probes = ProbeScheduler(
            leading or client,
            settings.probes,
            namespace=settings.namespace,
            store=self._store,
            registry=self._agents,
            facts=self._facts,
            metrics=self.metrics,
            clock=clock,
        )
        self._servicer = FleetServicer(
            ServerSettings(importlib.metadata.version("nvcre"), settings.heartbeat_interval_s),
            authenticator=Authenticator(
                client,
                settings.namespace,
                clock=clock,
                on_review=lambda result: self.metrics.token_reviews.labels(result=result).inc(),
            ),
            registry=self._agents,
            reports=self._store,
            metrics=self.metrics,
            leading=lambda: self._leading,
            leader_address=leader_address,
            on_probe_update=self._probes.answered,
            clock=clock,
        )

    @property
    def confirmations(self) -> Confirmations:
        return self._agents

    @property
    def probes(self) -> Probes:
        return self._probes

    def node_health_changed(self, node: str, resource_version: str | None) -> None:
        """A watch saw this version of a NodeHealth, or (None) its deletion; whatever is not ours is put right."""
        self._store.seen(node, resource_version)

    async def wait_serving(self) -> None:
        """Until `grpc_address` is bound and answers."""
        await self._serving.wait()

    async def run(self) -> None:
        """Serves until cancelled. Raises ListenError, CertificateError."""
        await self._tls.load()
        server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=MAX_STREAMS)
        pb_grpc.add_FleetServicer_to_server(self._servicer, server)  # type: ignore[no-untyped-call, unused-ignore]
        address = self._settings.grpc_address
        try:
            port = server.add_secure_port(address, self._tls.server_credentials())
        except RuntimeError as error:
            raise ListenError(f"--grpc-address {address}: cannot listen there; is the port taken?") from error
        await server.start()
        self.grpc_address = f"{address.rpartition(':')[0]}:{port}"
        self._serving.set()
        logger.info("fleet service listening address=%s", self.grpc_address)
        try:
            await self._tls.run()
        finally:
            self._serving.clear()
            await server.stop(STOP_GRACE_S)

    async def lead(self) -> None:
        """Leads until cancelled; returns when agents are told to come back later and nothing is written any more."""
        self._nodes = self._node_informer()
        self._nodes.add_handler(self._node_changed)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._nodes.run())
                group.create_task(self._store.run())
                group.create_task(self._probe())
                group.create_task(self._watch_silence())
                self._leading = True
                self.metrics.leading.set(1)
                logger.info("fleet service leading")
        finally:
            self._leading = False
            self.metrics.leading.set(0)
            await self._send_agents_away()
            self._agents.reset()
            self._store.reset()

    async def _probe(self) -> None:
        """A node that is not known yet must not look like one without GPUs."""
        await self._nodes.wait_synced()
        await self._probes.run()

    async def _send_agents_away(self) -> None:
        later = Duration(seconds=RECONNECT_WITHIN_S)
        self._agents.end_all(pb.Drain(reconnect_after=later), "this coordinator stops leading")
        with contextlib.suppress(TimeoutError):  # who does not leave is cut off by the server's own end
            async with asyncio.timeout(STREAMS_GONE_S):
                await self._agents.wait_empty()

    def _node_informer(self) -> Informer[NodeFacts]:
        return Informer(self._client, NODES, convert=node_facts, label_selector=self._settings.node_selector)

    def _facts(self, node: str) -> NodeFacts | None:
        return self._nodes.get(node)

    def _node_changed(self, old: NodeFacts | None, new: NodeFacts | None) -> None:
        if new is not None:
            self._agents.expect(new.name)
            self._store.look_again(new.name)
        elif old is not None:
            self._forget_node(old.name)

    def _forget_node(self, node: str) -> None:
        self._agents.forget(node)
        if self._agents.get(node) is None:
            self._store.forget(node)

    async def _watch_silence(self) -> None:
        await self._nodes.wait_synced()
        while True:
            lost = self._agents.lost_since()
            silent = silent_nodes(lost, self._clock(), fleet_size=len(self._nodes), rules=self._settings.rules)
            self._store.lost({node: lost[node] for node in silent})
            self.metrics.breaker_open.set(1 if self._store.breaker_open() else 0)
            await asyncio.sleep(SILENCE_LOOK_S)

    def _end_stream(self, node: str) -> None:
        agent = self._agents.get(node)
        if agent is not None:
            agent.end(Ending(grpc.StatusCode.ABORTED, "NodeHealth changed under this stream; come back", "rival"))

    def _announce_alarm(self, reason: str, sentence: str) -> None:
        self.metrics.alarms.labels(reason=reason).inc()
        self.metrics.breaker_open.set(1 if self._store.breaker_open() else 0)
        if self._events is not None:
            namespace = ObjectReference("v1", "Namespace", self._settings.namespace, self._settings.namespace)
            self._events.record(namespace, type="Warning", reason=reason, note=sentence)

    def _announce_verdict(self, node_health: JsonObject, verdict: Verdict, message: str) -> None:
        if self._events is None:
            return
        bad = verdict in {Verdict.FAULTY, Verdict.SUSPECT, Verdict.BLIND}
        self._events.record(
            ObjectReference.of(node_health), type="Warning" if bad else "Normal", reason=f"Node{verdict}", note=message
        )
