"""The gRPC service Fleet: one bidirectional stream per agent, from its credential to its end.

A stream is accepted on the leader only; a follower answers UNAVAILABLE and names the leader in the trailing metadata
`nvcre-leader`. Accepting means: token reviewed, Hello read, the node's NodeHealth read from the API server, older
stream of the node replaced, Welcome sent. From then on one task reads and one writes; messages are handled one after
the other, and an agent that sends more than its share (fair_share.py) is slowed by HTTP/2 flow control. A stream ends
with the agent, when it is replaced, at the token's expiry, or when this replica stops leading.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NoReturn, Protocol

import grpc
from google.protobuf.duration_pb2 import Duration
from nvcre_protos import nvcre_agent_v1_pb2 as pb
from nvcre_protos import nvcre_agent_v1_pb2_grpc as pb_grpc

from nvcre_coordinator.core.incidents import Event, Snapshot
from nvcre_coordinator.core.node_verdict import Monitor
from nvcre_coordinator.fleet import wire
from nvcre_coordinator.fleet.authentication import Authenticator, Identity, Refused
from nvcre_coordinator.fleet.fair_share import BYTE_S, MESSAGE_S, STREAM_S, FairShare
from nvcre_coordinator.fleet.metrics import FleetMetrics
from nvcre_coordinator.fleet.registry import AgentRegistry, ConnectedAgent, Ending
from nvcre_coordinator.fleet.status import Inventory

logger = logging.getLogger(__name__)

PROTOCOL = 1
LEADER_METADATA = "nvcre-leader"
HELLO_TIMEOUT_S = 10.0
NEW_STREAMS = 4  # of one node at a time that have not been welcomed yet
LAST_WORDS_S = 1.0  # for Drain to leave before the stream does
MAX_RECEIVE = 4 * 1024 * 1024
MAX_SEND = 256 * 1024
MAX_METADATA = 64 * 1024
MAX_STREAMS = 20_000
EXPIRY_JITTER = timedelta(seconds=60)
OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MAX_RECEIVE),
    ("grpc.max_send_message_length", MAX_SEND),
    ("grpc.max_metadata_size", MAX_METADATA),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),  # becomes TCP_USER_TIMEOUT; the wait for a ping's answer is the next one
    ("grpc.http2.ping_timeout_ms", 20_000),  # 60 s unless set (https://github.com/grpc/grpc/pull/39239)
    ("grpc.keepalive_permit_without_calls", 1),
    # Agents ping an idle stream each 60 s (CHANNEL_OPTIONS in the agent's link.py). Who pings more often than is
    # permitted here loses its connection, so this stays well below. C core's name of it has no "recv".
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 5),
    ("grpc.max_concurrent_streams", 4),  # on one connection: an agent needs one, two while it reconnects
    ("grpc.so_reuseport", 0),  # an occupied port is an error, not a second server
]


class Reports(Protocol):
    """Where the agents' words go (fleet/node_health.py)."""

    async def load(self, node: str) -> None: ...
    def stored_cursor(self, node: str, outbox_id: str) -> int: ...
    def hello(self, node: str, *, boot_id: str, agent_version: str, simulated: bool) -> None: ...
    def events(self, node: str, outbox_id: str, events: list[Event]) -> None: ...
    def snapshot(
        self, node: str, snapshot: Snapshot, *, boot_id: str, inventory: Inventory, monitors: tuple[Monitor, ...]
    ) -> None: ...
    def monitors(self, node: str, monitors: tuple[Monitor, ...]) -> None: ...
    def take_cost(self, node: str) -> float: ...


class LoadFailed(Exception):
    """NodeHealth cannot be read now; the agent should try again."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    version: str
    heartbeat_interval_s: float


Context = grpc.aio.ServicerContext[pb.AgentMessage, pb.CoordinatorMessage]


class FleetServicer(pb_grpc.FleetServicer):
    def __init__(
        self,
        settings: ServerSettings,
        *,
        authenticator: Authenticator,
        registry: AgentRegistry,
        reports: Reports,
        metrics: FleetMetrics,
        leading: Callable[[], bool],
        leader_address: Callable[[], str | None],
        on_probe_update: Callable[[ConnectedAgent, pb.ProbeUpdate], None],
        clock: Callable[[], datetime],
    ) -> None:
        self._settings = settings
        self._authenticator = authenticator
        self._registry = registry
        self._reports = reports
        self._metrics = metrics
        self._leading = leading
        self._leader_address = leader_address
        self._on_probe_update = on_probe_update
        self._clock = clock
        self._new_streams: Counter[str] = Counter()
        self._shares: dict[str, FairShare] = {}

    async def Connect(  # type: ignore[override]
        self, request_iterator: AsyncIterator[pb.AgentMessage], context: Context
    ) -> None:
        if not self._leading():
            await self._refuse_as_follower(context)
        try:
            identity = await self._authenticator.authenticate(tuple(context.invocation_metadata() or ()))
        except Refused as refused:
            logger.info("stream refused peer=%s reason=%r", context.peer(), refused.message)
            self._metrics.streams.labels(outcome="refused").inc()
            await _abort(context, refused.code, refused.message)
        if self._new_streams[identity.node] >= NEW_STREAMS:  # or one node takes all the streams that we can hold
            self._metrics.streams.labels(outcome="refused").inc()
            await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, f"node {identity.node} opens too many streams")
        self._new_streams[identity.node] += 1
        try:
            await asyncio.sleep(self._share(identity.node).spend(STREAM_S, time.monotonic()))
            agent = await self._welcome(identity, request_iterator, context)
        except (wire.BadMessage, LoadFailed, TimeoutError) as error:
            code = {
                wire.BadMessage: grpc.StatusCode.INVALID_ARGUMENT,
                LoadFailed: grpc.StatusCode.UNAVAILABLE,
            }.get(type(error), grpc.StatusCode.DEADLINE_EXCEEDED)
            text = str(error) or f"no Hello within {HELLO_TIMEOUT_S:g} s"
            logger.info("stream refused node=%s reason=%r", identity.node, text)
            self._metrics.streams.labels(outcome="refused").inc()
            await _abort(context, code, text)
        finally:
            self._new_streams[identity.node] -= 1
            if not self._new_streams[identity.node]:
                del self._new_streams[identity.node]
        ending = Ending(None, "", "disconnected")
        try:
            ending = await self._serve(agent, identity, request_iterator, context)
        finally:
            self._registry.disconnect(agent)
            self._metrics.agents_connected.set(len(self._registry))
            self._metrics.streams.labels(outcome=ending.outcome).inc()
            logger.info("agent gone node=%s outcome=%s message=%r", agent.node, ending.outcome, ending.message)
        if ending.code is not None:
            await _abort(context, ending.code, ending.message)

    async def _refuse_as_follower(self, context: Context) -> NoReturn:
        address = self._leader_address()
        trailing = ((LEADER_METADATA, address),) if address else ()
        self._metrics.streams.labels(outcome="follower").inc()
        await context.abort(
            grpc.StatusCode.UNAVAILABLE, f"not the leader; it is {address or 'not elected yet'}", trailing
        )
        raise AssertionError("abort always raises")

    async def _welcome(
        self, identity: Identity, requests: AsyncIterator[pb.AgentMessage], context: Context
    ) -> ConnectedAgent:
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            first = await anext(aiter(requests), None)
        if first is None or first.WhichOneof("body") != "hello":
            raise wire.BadMessage("hello: must be the first message of a stream")
        hello = first.hello
        if not hello.min_protocol <= PROTOCOL <= hello.max_protocol:
            raise wire.BadMessage(
                f"hello: the agent speaks protocol {hello.min_protocol} to {hello.max_protocol}, this coordinator"
                f" {PROTOCOL}; update the older of the two"
            )
        outbox_id = wire.identifier(hello.outbox_id, "hello.outbox_id")
        agent = ConnectedAgent(identity.node, outbox_id, wire.cut(hello.agent_version, 64))
        await self._reports.load(agent.node)
        if not self._leading():
            raise LoadFailed("leadership was lost")
        self._reports.hello(
            agent.node,
            boot_id=wire.cut(hello.boot_id, 64),
            agent_version=agent.version,
            simulated=hello.simulated,
        )
        agent.acked = self._reports.stored_cursor(agent.node, outbox_id)
        settings = pb.Settings(heartbeat_interval=_duration(self._settings.heartbeat_interval_s))
        welcome = pb.Welcome(
            protocol=PROTOCOL,
            coordinator_version=self._settings.version,
            cursor=agent.acked,
            settings=settings,
        )
        agent.send(pb.CoordinatorMessage(welcome=welcome))
        self._registry.connect(agent)
        self._registry.request([agent.node])  # the first answered question tells how far its clock is off
        self._metrics.agents_connected.set(len(self._registry))
        logger.info(
            "agent connected node=%s pod=%s version=%s outbox=%s cursor=%d peer=%s",
            agent.node, identity.pod, agent.version, outbox_id, agent.acked, context.peer(),
        )  # fmt: skip
        return agent

    async def _serve(
        self, agent: ConnectedAgent, identity: Identity, requests: AsyncIterator[pb.AgentMessage], context: Context
    ) -> Ending:
        reading = asyncio.create_task(self._read(agent, requests))
        writing = asyncio.create_task(_write(agent, context))
        left = identity.expires_at - self._clock() - EXPIRY_JITTER * random.random()  # noqa: S311 - jitter
        try:
            await asyncio.wait(
                {reading, writing, agent.ended},
                timeout=max(1.0, left.total_seconds()),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if agent.ended.done():
                await _last_words(agent)
                return agent.ended.result()
            for task in (reading, writing):
                if task.done():
                    return task.result()
            return Ending(
                grpc.StatusCode.UNAUTHENTICATED,
                "the token expires; come back with the projected file's newest",
                "expired",
            )
        finally:
            agent.end(Ending(None, "", "disconnected"))
            reading.cancel()
            await _stop_writing(agent, writing)
            await asyncio.wait({reading})

    def _share(self, node: str) -> FairShare:
        """Kept: a few bytes a node, and only the API server can name one."""
        return self._shares.setdefault(node, FairShare())

    async def _read(self, agent: ConnectedAgent, requests: AsyncIterator[pb.AgentMessage]) -> Ending:
        share = self._share(agent.node)
        try:
            async for message in requests:
                if not agent.live:
                    break
                began_s = time.thread_time()
                size = message.ByteSize()
                self._handle(agent, message)
                cost_s = time.thread_time() - began_s + self._reports.take_cost(agent.node) + MESSAGE_S + size * BYTE_S
                if (pause_s := share.spend(cost_s, time.monotonic())) > 0:
                    await asyncio.sleep(pause_s)
        except wire.BadMessage as error:
            self._metrics.bad_messages.inc()
            return Ending(grpc.StatusCode.INVALID_ARGUMENT, str(error), "bad_message")
        except LoadFailed as error:
            return Ending(grpc.StatusCode.UNAVAILABLE, str(error), "not_loaded")
        return Ending(None, "", "disconnected")

    def _handle(self, agent: ConnectedAgent, message: pb.AgentMessage) -> None:
        match message.WhichOneof("body"):
            case "event_batch":
                self._event_batch(agent, message.event_batch)
            case "snapshot":
                self._snapshot(agent, message.snapshot)
            case "heartbeat":
                self._heartbeat(agent, message.heartbeat)
            case "probe_update":
                self._on_probe_update(agent, message.probe_update)
            case "hello":
                raise wire.BadMessage("hello: only the first message of a stream")
            case _:  # a newer agent's message; it agreed to our protocol, so it can live without an answer
                logger.debug("unknown message ignored node=%s", agent.node)

    def _event_batch(self, agent: ConnectedAgent, batch: pb.EventBatch) -> None:
        if batch.outbox_id != agent.outbox_id:
            raise wire.BadMessage("event_batch.outbox_id: is not the one of this stream's Hello")
        self._metrics.events_received.inc(len(batch.events))
        self._reports.events(agent.node, agent.outbox_id, wire.events(batch, agent.clock))

    def _snapshot(self, agent: ConnectedAgent, snapshot: pb.Snapshot) -> None:
        if snapshot.outbox_id != agent.outbox_id:
            raise wire.BadMessage("snapshot.outbox_id: is not the one of this stream's Hello")
        self._metrics.snapshots_received.inc()
        self._registry.introduced(agent, wire.moment(snapshot.time, "snapshot.time"))
        self._reports.snapshot(
            agent.node,
            wire.snapshot(snapshot, agent.clock),
            boot_id=wire.cut(snapshot.boot_id, 64),
            inventory=wire.inventory(snapshot.inventory),
            monitors=wire.monitors(snapshot.monitors),
        )

    def _heartbeat(self, agent: ConnectedAgent, heartbeat: pb.Heartbeat) -> None:
        sent_at = wire.moment(heartbeat.sent_at, "heartbeat.sent_at")
        observed = None
        if heartbeat.observed_through.seconds or heartbeat.observed_through.nanos:
            observed = wire.moment(heartbeat.observed_through, "heartbeat.observed_through")
        wire.sequence(heartbeat.last_seq, "heartbeat.last_seq")
        self._metrics.heartbeats_received.inc()
        self._registry.heard(agent, heartbeat, sent_at, observed)
        self._metrics.clock_offset_seconds.observe(abs(agent.clock.offset.total_seconds()))
        if heartbeat.monitors:
            self._reports.monitors(agent.node, wire.monitors(heartbeat.monitors))


async def _write(agent: ConnectedAgent, context: Context) -> Ending:
    while True:
        message = await agent.outbound.get()
        agent.sending = asyncio.ensure_future(context.write(message))
        try:
            await asyncio.shield(agent.sending)
        except (grpc.aio.UsageError, grpc.aio.InternalError):  # the other side has gone meanwhile
            return Ending(None, "", "disconnected")
        finally:
            agent.outbound.task_done()


async def _stop_writing(agent: ConnectedAgent, writing: asyncio.Task[Ending]) -> None:
    """A write that gRPC has begun cannot be taken back, and beside it the stream's status cannot be sent."""
    writing.cancel()
    await asyncio.wait({writing})
    if agent.sending is not None and not agent.sending.done():
        done, _ = await asyncio.wait({agent.sending}, timeout=LAST_WORDS_S)
        if not done:
            logger.warning("stream does not end, the agent does not read it node=%s", agent.node)
        for sent in done:
            if not sent.cancelled():
                sent.exception()  # looked at: the other side may have gone


async def _last_words(agent: ConnectedAgent) -> None:
    try:
        async with asyncio.timeout(LAST_WORDS_S):
            await agent.outbound.join()
    except TimeoutError:
        logger.debug("last words not delivered node=%s", agent.node)


async def _abort(context: Context, code: grpc.StatusCode, message: str) -> NoReturn:
    await context.abort(code, message[:1024])
    raise AssertionError("abort always raises")


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromTimedelta(timedelta(seconds=seconds))
    return duration
