"""The stream to the coordinator: connects, says what the outbox holds, and answers what it is asked.

    Hello -> Welcome(cursor) -> Snapshot, events above the cursor, then whatever happens

One writer keeps the order: control messages first, then events, at most WINDOW of them not acknowledged. The
coordinator's certificate is checked against its Service name whatever address is dialled. CA and token are read again
on every connect and only then: a certificate that changes ends no stream. When it comes back is reconnect.py's
decision; a follower's UNAVAILABLE that names the leader redirects the next try. What is state and not yet sent is
replaced by its newest, so a coordinator that does not read costs no memory; events wait in the outbox. All times here
are monotonic. Nothing here touches the disk or waits for NVML except through `AgentState`.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration
from nvcre_protos import nvcre_agent_v1_pb2 as pb
from nvcre_protos.nvcre_agent_v1_pb2_grpc import FleetStub

from nvcre_agent import reconnect
from nvcre_agent.outbox import Outbox
from nvcre_agent.outbox_rows import MAX_SEQ
from nvcre_agent.reconnect import Ending
from nvcre_agent.stream_status import FirstStatus

log = logging.getLogger(__name__)

PROTOCOL = 1
WINDOW = 512  # events sent and not acknowledged
BATCH = 64
MAX_SYNCS = 16
WELCOME_TIMEOUT_S = 20.0
SYNC_DEADLINE_S = 10.0
HEARTBEAT_DEADLINE_S = 5.0
HEARTBEAT_S = (0.05, 3600.0)  # what a coordinator may set
MAX_STATE = 64  # messages of state that wait to be sent
ACK_PATIENCE_S = 120.0  # a Welcome tells what is stored when acknowledgements do not
REDIRECTS = 3  # in a row that are followed at once

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


class NotAcknowledgedError(Exception):
    """What was sent is not acknowledged for ACK_PATIENCE_S, on a stream that lives."""


Stream = grpc.aio.StreamStreamCall[pb.AgentMessage, pb.CoordinatorMessage]


class Link:
    """Run `run()` for ever; `notify_state` and `send_probe_update` may be called at any time."""

    def __init__(self, settings: LinkSettings, outbox: Outbox, agent: AgentState) -> None:
        self._settings = settings
        self._outbox = outbox
        self._agent = agent
        self._interval_s = settings.heartbeat_interval_s
        self._interval_changed = asyncio.Event()
        self._state: OrderedDict[tuple[str, str], pb.AgentMessage] = OrderedDict()
        self._awake = asyncio.Event()
        self._sent_more = asyncio.Event()
        self._sent = 0  # on this stream
        self._ever_sent = 0
        self._unacknowledged_since_s: float | None = None
        self._suspects_through = 0  # one of the events up to here made the coordinator end a stream
        self._beats = 0  # on this stream
        self._told_gaps = 0  # how many of the outbox's gaps a snapshot has made good
        self._pause_s: float | None = None
        self._welcomed_s: float | None = None
        self._coordinator_set_interval = False
        self._turns = 0
        self.connected = False
        self.connects = 0
        self.reconnects: dict[Ending, int] = dict.fromkeys(Ending, 0)
        self.state_dropped = 0  # messages of state that a newer one replaced before they were sent
        outbox.on_change = self._awake.set

    def notify_state(self) -> None:
        """A monitor or the inventory changed: tell it, if there is a stream; a new stream begins with it anyway."""
        if self.connected:
            self._say(pb.AgentMessage(snapshot=self._agent.snapshot()))

    def send_probe_update(self, update: pb.ProbeUpdate) -> None:
        if self.connected:
            self._say(pb.AgentMessage(probe_update=update))

    def use_heartbeat_interval(self, interval_s: float) -> None:
        """The agent's own setting has changed; the coordinator's, once it has one, wins."""
        if not self._coordinator_set_interval:
            self._use_interval(interval_s)

    @property
    def progress(self) -> tuple[int, float]:
        """How often it tried to connect or sent a heartbeat, and within how many seconds the next one is due."""
        return self._turns, max(self._interval_s, self._pause_s or 0.0, reconnect.LONGEST_CEILING_S)

    async def run(self) -> None:
        failures = redirects = 0
        leader: str | None = None
        while True:
            self._turns += 1
            address, leader = leader or self._settings.address, None
            self._pause_s = self._welcomed_s = None
            said: object = ""
            try:
                await self._session(address)
                how = Ending.CLOSED if self._pause_s is None else Ending.DRAINED
            except grpc.aio.AioRpcError as error:
                leader = reconnect.leader(error)
                how = reconnect.ending(error, welcomed=self._welcomed_s is not None)
                if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                    self._suspect()
                said = f"{error.code().name} {error.details()}"
            except NotAcknowledgedError as error:
                how, said = Ending.NOT_ACKNOWLEDGED, error
            except StreamRefusedError as error:
                how, said = Ending.REFUSED, error
            except (OSError, TimeoutError, ValueError) as error:  # our files, or no Welcome in time
                how, said = Ending.UNREACHABLE, str(error) or type(error).__name__
            self.reconnects[how] += 1
            served_s = 0.0 if self._welcomed_s is None else time.monotonic() - self._welcomed_s
            failures = reconnect.failures_in_a_row(failures, how, served_s)
            redirects = redirects + 1 if how is Ending.REDIRECTED else 0
            if reconnect.worth_a_line(failures):
                calm = how in (Ending.DRAINED, Ending.TOKEN_EXPIRED, Ending.REDIRECTED)
                log.log(
                    logging.INFO if calm else logging.WARNING,
                    "stream ended address=%s reason=%s details=%r leader=%s failures=%d",
                    address,
                    how,
                    str(said),
                    leader or "-",
                    failures,
                )
            if leader is not None and leader != address and redirects <= REDIRECTS:
                continue
            ceiling_s = self._pause_s if self._pause_s is not None else reconnect.ceiling_s(failures)
            await asyncio.sleep(random.uniform(0, ceiling_s))  # noqa: S311 - jitter

    # --- one stream

    async def _session(self, address: str) -> None:
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
            status = FirstStatus(call)
            try:
                await self._converse(call, address)
            except grpc.aio.AioRpcError as error:
                raise status.told(error) from error
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
        self._welcomed_s = time.monotonic()
        self._outbox.resume(welcome.cursor, sent=self._ever_sent)
        self._sent = welcome.cursor
        self._beats = 0
        self._unacknowledged_since_s = None
        self._apply(welcome.settings if welcome.HasField("settings") else None)
        self.connected = True
        self.connects += 1
        self._state.clear()
        self._told_gaps = self._outbox.gaps
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
        """State: what it says anew replaces what was not sent yet."""
        key = _identity(message)
        self.state_dropped += self._state.pop(key, None) is not None
        self._state[key] = message
        if len(self._state) > MAX_STATE:  # the snapshot says what is broken, the others can be asked for again
            del self._state[next(key for key in self._state if key[0] != "snapshot")]
            self.state_dropped += 1
        self._awake.set()

    async def _write(self, call: Stream) -> None:
        try:
            while True:
                while self._state:
                    await call.write(self._state.popitem(last=False)[1])
                batch = self._next_batch()
                if batch is not None:
                    await call.write(pb.AgentMessage(event_batch=batch))
                    continue
                await self._awake.wait()
                self._awake.clear()
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
            # The stream is over; the reader learns how it ended (status, trailing metadata with the leader).
            await asyncio.Event().wait()

    def _suspect(self) -> None:
        """The coordinator cannot use a message: was it one of the events on their way, or the only one there was?"""
        sent = [one.seq for one in self._outbox.pending(after=0, limit=WINDOW) if one.seq <= self._sent]
        if len(sent) == 1 and sent[0] <= self._suspects_through:
            self._outbox.refuse(sent[0])
        elif sent:
            self._suspects_through = sent[-1]

    def _next_batch(self) -> pb.EventBatch | None:
        unacknowledged = self._outbox.sent_unacknowledged(self._sent)
        if self._sent < self._suspects_through:  # one at a time, and once the snapshot was not what is wrong
            limit = 1 if not unacknowledged and self._beats > 1 else 0
        else:
            limit = min(BATCH, WINDOW - unacknowledged)
        pending = self._outbox.pending(after=self._sent, limit=limit)
        if not pending:
            return None
        batch = pb.EventBatch(outbox_id=self._outbox.outbox_id)
        for one in pending:
            one.event.seq = one.seq
            batch.events.append(one.event)
        self._sent = pending[-1].seq
        self._ever_sent = max(self._ever_sent, self._sent)
        if self._unacknowledged_since_s is None:
            self._unacknowledged_since_s = time.monotonic()
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
                            self._acknowledged(message.ack.seq)
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
                        self._pause_s = _seconds(message.drain.reconnect_after, 0.0, reconnect.MAX_PAUSE_S)
                        return
                    case other:
                        log.warning("message ignored body=%s", other)
        finally:
            for task in syncs:
                task.cancel()

    def _acknowledged(self, seq: int) -> None:
        """Acknowledgements may be lost, repeated and overtake each other: the highest one says all."""
        before = self._outbox.depth
        self._outbox.acknowledge(seq)
        if not self._outbox.sent_unacknowledged(self._sent):
            self._unacknowledged_since_s = None
        elif self._outbox.depth < before:
            self._unacknowledged_since_s = time.monotonic()

    async def _answer_sync(self, sync_id: str) -> None:
        """Everything read, everything sent, then a heartbeat with the id."""
        heartbeat = await self._agent.settle(SYNC_DEADLINE_S)
        heartbeat.sync_id = sync_id
        while self._outbox.unsent(self._sent, heartbeat.last_seq):  # not what happens meanwhile: that may never end
            self._sent_more.clear()
            await self._sent_more.wait()
        self._tell_of_gaps()
        self._say(pb.AgentMessage(heartbeat=heartbeat))

    def _tell_of_gaps(self) -> None:
        """What was pushed out of the outbox is told by a snapshot: what is open must never stay unknown."""
        if self._outbox.gaps != self._told_gaps:
            self._told_gaps = self._outbox.gaps
            self._say(pb.AgentMessage(snapshot=self._agent.snapshot()))

    async def _beat(self) -> None:
        while True:
            self._turns += 1
            heartbeat = await self._agent.heartbeat(HEARTBEAT_DEADLINE_S)
            self._insist_on_acknowledgement()
            self._beats += 1
            self._tell_of_gaps()
            self._say(pb.AgentMessage(heartbeat=heartbeat))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._interval_changed.wait()
            self._interval_changed.clear()

    def _insist_on_acknowledgement(self) -> None:
        since_s = self._unacknowledged_since_s
        if since_s is not None and time.monotonic() - since_s > ACK_PATIENCE_S:
            raise NotAcknowledgedError(f"nothing was acknowledged for {ACK_PATIENCE_S:.0f} s")

    def _apply(self, settings: pb.Settings | None) -> None:
        if settings is None or not settings.HasField("heartbeat_interval"):
            return
        self._coordinator_set_interval = True
        self._use_interval(_seconds(settings.heartbeat_interval, *HEARTBEAT_S))

    def _use_interval(self, interval_s: float) -> None:
        if interval_s != self._interval_s:
            self._interval_s = interval_s
            self._interval_changed.set()


def _seconds(duration: Duration, least: float, most: float) -> float:
    return min(max(duration.seconds + duration.nanos / 1e9, least), most)


def _identity(message: pb.AgentMessage) -> tuple[str, str]:
    """Of two messages of state with the same one the newer is enough."""
    match body := str(message.WhichOneof("body")):
        case "heartbeat":
            return body, message.heartbeat.sync_id
        case "probe_update":
            return body, message.probe_update.probe_id
        case _:
            return body, ""
