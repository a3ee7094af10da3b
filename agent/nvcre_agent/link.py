"""The stream to the coordinator: connects, says what the outbox holds, and answers what it is asked.

    Hello -> Welcome(cursor) -> Snapshot, events above the cursor, then whatever happens

One writer keeps the order: control messages first, then events, at most WINDOW of them not acknowledged. The
coordinator's certificate is checked against its Service name whatever address is dialled; CA and token are read again
on every connect. After a break it comes back with full jitter; a follower's UNAVAILABLE that names the leader
redirects the next try. Nothing here touches the disk or waits for NVML except through `AgentState`.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import grpc
import grpc.aio
from nvcre_protos import nvcre_agent_v1_pb2 as pb
from nvcre_protos.nvcre_agent_v1_pb2_grpc import FleetStub

from nvcre_agent.outbox import Outbox

log = logging.getLogger(__name__)

PROTOCOL = 1
MAX_SEQ = 2**62  # what SQLite can hold, with room above
WINDOW = 512  # events sent and not acknowledged
BATCH = 64
MAX_SYNCS = 16
WELCOME_TIMEOUT_S = 20.0
SYNC_DEADLINE_S = 10.0
HEARTBEAT_DEADLINE_S = 5.0
FIRST_DELAYS_S = (0.1, 0.3, 1.0)  # before the backoff of 1 s to 60 s: a restarted coordinator is back soon
LONGEST_DELAY_S = 60.0
LEADER_METADATA = "nvcre-leader"

CHANNEL_OPTIONS = (
    # A coordinator that is frozen still acknowledges TCP; only a ping that stays without answer (60 s + 20 s) tells.
    # The server ends the connection of who pings more often than it permits, which is every 5 minutes unless it is
    # configured: change this number only with grpc.http2.min_ping_interval_without_data_ms in fleet/server.py of the
    # coordinator. The timeout becomes TCP_USER_TIMEOUT, so a peer that is gone is noticed on the next heartbeat; what
    # ends the wait for a ping's answer is ping_timeout (60 s unless set; https://github.com/grpc/grpc/pull/39239).
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),  # else gRPC holds back the third ping of an idle stream
    ("grpc.max_receive_message_length", 1 << 20),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a new connection each time: CA and certificate may have changed
)


@dataclass(frozen=True, slots=True)
class LinkSettings:
    address: str
    ca_file: Path
    token_file: Path
    server_name: str
    heartbeat_interval_s: float


class AgentState(Protocol):
    """What the link says about the agent, and whom it hands orders to."""

    def hello(self) -> pb.Hello: ...
    def snapshot(self) -> pb.Snapshot: ...
    def probe_updates(self) -> list[pb.ProbeUpdate]: ...
    async def heartbeat(self, deadline_s: float) -> pb.Heartbeat: ...
    async def settle(self, deadline_s: float) -> pb.Heartbeat: ...
    def probe_ordered(self, order: pb.ProbeOrder) -> None: ...
    def probe_cancelled(self, cancel: pb.ProbeCancel) -> None: ...


class StreamRefusedError(Exception):
    """The other side does not speak our protocol."""


Stream = grpc.aio.StreamStreamCall[pb.AgentMessage, pb.CoordinatorMessage]


class Link:
    """Run `run()` for ever; `notify_state` and `send_probe_update` may be called at any time."""

    def __init__(self, settings: LinkSettings, outbox: Outbox, agent: AgentState) -> None:
        self._settings = settings
        self._outbox = outbox
        self._agent = agent
        self._interval_s = settings.heartbeat_interval_s
        self._interval_changed = asyncio.Event()
        self._control: deque[pb.AgentMessage] = deque()
        self._awake = asyncio.Event()
        self._sent_more = asyncio.Event()
        self._sent = 0
        self._told_dropped = 0  # how many dropped events a snapshot has made good
        self._pause_s: float | None = None
        self._was_welcomed = False
        self.connected = False
        self.connects = 0
        outbox.on_change = self._awake.set

    def notify_state(self) -> None:
        """A monitor or the inventory changed: tell it, if there is a stream; a new stream begins with it anyway."""
        if self.connected:
            self._say(pb.AgentMessage(snapshot=self._agent.snapshot()))

    def send_probe_update(self, update: pb.ProbeUpdate) -> None:
        if self.connected:
            self._say(pb.AgentMessage(probe_update=update))

    async def run(self) -> None:
        attempt = 0
        leader: str | None = None
        while True:
            address, leader = leader or self._settings.address, None
            started_s = time.monotonic()
            self._pause_s = None
            try:
                await self._session(address)
                log.info("stream ended address=%s", address)
            except grpc.aio.AioRpcError as error:
                leader = _leader(error)
                log.warning(
                    "stream broken address=%s code=%s details=%r leader=%s",
                    address,
                    error.code().name,
                    error.details(),
                    leader or "-",
                )
            except (OSError, TimeoutError, ValueError, StreamRefusedError) as error:
                log.warning("stream not possible address=%s error=%r", address, str(error) or type(error).__name__)
            attempt = 0 if time.monotonic() - started_s > LONGEST_DELAY_S or self._was_welcomed else attempt + 1
            if leader is not None and leader != address and attempt <= len(FIRST_DELAYS_S):
                continue
            await asyncio.sleep(self._delay_s(attempt))

    def _delay_s(self, attempt: int) -> float:
        if self._pause_s is not None:
            return random.uniform(0, self._pause_s)  # noqa: S311
        if attempt < len(FIRST_DELAYS_S):
            ceiling_s = FIRST_DELAYS_S[attempt]
        else:
            ceiling_s = min(2.0 ** (attempt - len(FIRST_DELAYS_S) + 1), LONGEST_DELAY_S)
        return random.uniform(0, ceiling_s)  # noqa: S311

    # --- one stream

    async def _session(self, address: str) -> None:
        self._was_welcomed = False
        ca = await asyncio.to_thread(self._settings.ca_file.read_bytes)
        token = (await asyncio.to_thread(self._settings.token_file.read_text, "ascii")).strip()
        options = (
            *CHANNEL_OPTIONS,
            ("grpc.ssl_target_name_override", self._settings.server_name),
            ("grpc.default_authority", self._settings.server_name),
        )
        credentials = grpc.ssl_channel_credentials(ca)
        async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
            call: Stream = FleetStub(channel).Connect(metadata=(("authorization", f"Bearer {token}"),))
            try:
                await self._converse(call, address)
            finally:
                self.connected = False
                call.cancel()

    async def _converse(self, call: Stream, address: str) -> None:
        async with asyncio.timeout(WELCOME_TIMEOUT_S):
            with contextlib.suppress(asyncio.InvalidStateError):  # refused already: read() raises its status
                await call.write(pb.AgentMessage(hello=self._agent.hello()))
            first = await call.read()
        if not isinstance(first, pb.CoordinatorMessage) or first.WhichOneof("body") != "welcome":
            raise StreamRefusedError(f"the first answer was not Welcome but {first!r}")
        welcome = first.welcome
        if welcome.protocol != PROTOCOL or welcome.cursor > MAX_SEQ:
            raise StreamRefusedError(f"Welcome has protocol {welcome.protocol} and cursor {welcome.cursor}")
        self._was_welcomed = True
        self._outbox.acknowledge(welcome.cursor)
        self._sent = welcome.cursor
        self._apply(welcome.settings if welcome.HasField("settings") else None)
        self.connected = True
        self.connects += 1
        self._control.clear()
        self._told_dropped = self._outbox.dropped
        self._say(pb.AgentMessage(snapshot=self._agent.snapshot()))
        for update in self._agent.probe_updates():
            self._say(pb.AgentMessage(probe_update=update))
        log.info(
            "stream open address=%s coordinator_version=%s cursor=%d to_send=%d",
            address,
            welcome.coordinator_version,
            welcome.cursor,
            self._outbox.depth,
        )
        tasks = [
            asyncio.create_task(self._write(call), name="link-write"),
            asyncio.create_task(self._read(call), name="link-read"),
            asyncio.create_task(self._beat(), name="link-heartbeat"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _say(self, message: pb.AgentMessage) -> None:
        self._control.append(message)
        self._awake.set()

    async def _write(self, call: Stream) -> None:
        try:
            while True:
                while self._control:
                    await call.write(self._control.popleft())
                batch = self._next_batch()
                if batch is not None:
                    await call.write(pb.AgentMessage(event_batch=batch))
                    continue
                await self._awake.wait()
                self._awake.clear()
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
            # The stream is over; the reader learns how it ended (status, trailing metadata with the leader).
            await asyncio.Event().wait()

    def _next_batch(self) -> pb.EventBatch | None:
        unacknowledged = self._outbox.sent_unacknowledged(self._sent)
        pending = self._outbox.pending(after=self._sent, limit=min(BATCH, WINDOW - unacknowledged))
        if not pending:
            return None
        batch = pb.EventBatch(outbox_id=self._outbox.outbox_id)
        for one in pending:
            one.event.seq = one.seq
            batch.events.append(one.event)
        self._sent = pending[-1].seq
        self._sent_more.set()
        return batch

    async def _read(self, call: Stream) -> None:
        """Until the stream ends; raises its status when that is not OK."""
        syncs: set[asyncio.Task[None]] = set()
        try:
            while isinstance(message := await call.read(), pb.CoordinatorMessage):
                match message.WhichOneof("body"):
                    case "ack":
                        if message.ack.outbox_id == self._outbox.outbox_id and message.ack.seq <= self._sent:
                            self._outbox.acknowledge(message.ack.seq)
                            self._awake.set()
                            self._sent_more.set()
                    case "sync":
                        syncs = {task for task in syncs if not task.done()}
                        if len(syncs) < MAX_SYNCS:
                            syncs.add(asyncio.create_task(self._answer_sync(message.sync.id), name="link-sync"))
                    case "settings":
                        self._apply(message.settings)
                    case "probe_order":
                        self._agent.probe_ordered(message.probe_order)
                    case "probe_cancel":
                        self._agent.probe_cancelled(message.probe_cancel)
                    case "drain":
                        self._pause_s = message.drain.reconnect_after.ToTimedelta().total_seconds()
                        log.info("stream drained reconnect_after_s=%.1f", self._pause_s)
                        return
                    case other:
                        log.warning("message ignored body=%s", other)
        finally:
            for task in syncs:
                task.cancel()

    async def _answer_sync(self, sync_id: str) -> None:
        """Everything read, everything sent, then a heartbeat with the id."""
        heartbeat = await self._agent.settle(SYNC_DEADLINE_S)
        heartbeat.sync_id = sync_id
        while self._outbox.unsent(self._sent, heartbeat.last_seq):  # not what happens meanwhile: that may never end
            self._sent_more.clear()
            await self._sent_more.wait()
        self._tell_what_was_dropped()
        self._say(pb.AgentMessage(heartbeat=heartbeat))

    def _tell_what_was_dropped(self) -> None:
        """What a flood pushed out of the outbox is told by a snapshot: what is open must never stay unknown."""
        if self._outbox.dropped != self._told_dropped:
            self._told_dropped = self._outbox.dropped
            self._say(pb.AgentMessage(snapshot=self._agent.snapshot()))

    async def _beat(self) -> None:
        while True:
            heartbeat = await self._agent.heartbeat(HEARTBEAT_DEADLINE_S)
            self._tell_what_was_dropped()
            self._say(pb.AgentMessage(heartbeat=heartbeat))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._interval_changed.wait()
            self._interval_changed.clear()

    def _apply(self, settings: pb.Settings | None) -> None:
        if settings is None or not settings.HasField("heartbeat_interval"):
            return
        interval_s = settings.heartbeat_interval.ToTimedelta().total_seconds()
        if interval_s > 0 and interval_s != self._interval_s:
            self._interval_s = max(interval_s, 0.05)
            self._interval_changed.set()


def _leader(error: grpc.aio.AioRpcError) -> str | None:
    """The address that a follower names: UNAVAILABLE with trailing metadata `nvcre-leader: host:port`."""
    if error.code() is not grpc.StatusCode.UNAVAILABLE:
        return None
    for key, value in error.trailing_metadata() or ():
        if key == LEADER_METADATA:
            address = value if isinstance(value, str) else value.decode("ascii", "replace")
            host, colon, port = address.rpartition(":")
            return address if colon and host and port.isdigit() and len(address) <= 256 else None
    return None
