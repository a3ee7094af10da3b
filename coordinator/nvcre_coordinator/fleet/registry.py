"""The agents that are connected now, what their heartbeats say, and up to which moment they have told everything.

One live stream per node; a newer one replaces the older. `confirmed_through` answers the job side's question "can more
evidence about this moment still come?": a heartbeat says that both sources were read up to a time, and it counts once
every event the agent had by then is stored in NodeHealth. Its time is put on our clock, towards the past by the
uncertainty of the agent's clock. Nothing here is stored; it is rebuilt by the streams of a new leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import grpc
from nvcre_protos import nvcre_agent_v1_pb2 as pb

from nvcre_coordinator.core.clock_offset import ASSUMED_DELAY, ClockOffset, ClockSamples
from nvcre_coordinator.core.incidents import Cursor

logger = logging.getLogger(__name__)

OUTBOUND_LIMIT = 64
PENDING_HEARTBEATS = 8
OUTSTANDING_SYNCS = 8
SYNC_GAP = timedelta(seconds=1)
MAX_ASKS = 10


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a stream ends; None as the code means a normal end."""

    code: grpc.StatusCode | None
    message: str
    outcome: str


@dataclass(eq=False, slots=True)
class ConnectedAgent:
    """One live stream. Written to by everybody who has something to say to the agent; read by the stream's sender."""

    node: str
    outbox_id: str
    version: str
    outbound: asyncio.Queue[pb.CoordinatorMessage] = field(default_factory=lambda: asyncio.Queue(OUTBOUND_LIMIT))
    ended: asyncio.Future[Ending] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    samples: ClockSamples = field(default_factory=ClockSamples)
    welcomed_at: datetime | None = None
    acked: int = 0
    heard_at: datetime | None = None
    foreign_processes: int | None = None
    pending: deque[tuple[int, datetime]] = field(default_factory=lambda: deque(maxlen=PENDING_HEARTBEATS))
    confirmed: datetime | None = None
    confirmed_seq: int = 0  # events up to here belong to it
    asked: dict[str, datetime] = field(default_factory=dict)  # Sync id -> when
    wanted_through: datetime | None = None  # somebody waits for a confirmation of this moment
    asks_left: int = 0
    asked_at: datetime | None = None  # the last time
    ask_scheduled: bool = False
    node_gone: bool = False  # the Node was deleted, its agent lives on for a while
    sending: asyncio.Future[None] | None = None  # the last message that was given to gRPC

    def send(self, message: pb.CoordinatorMessage) -> None:
        """Never waits: an agent that does not read is not worth memory, it comes back with a new stream."""
        try:
            self.outbound.put_nowait(message)
        except asyncio.QueueFull:
            self.end(Ending(grpc.StatusCode.RESOURCE_EXHAUSTED, "the agent does not read its stream", "not_reading"))

    def end(self, ending: Ending) -> None:
        if not self.ended.done():
            self.ended.set_result(ending)

    @property
    def live(self) -> bool:
        return not self.ended.done()

    @property
    def clock(self) -> ClockOffset:
        return self.samples.estimate() or ClockOffset(timedelta(0), ASSUMED_DELAY)


class AgentRegistry:
    """Implements fleet/interface.py: Confirmations."""

    def __init__(
        self,
        *,
        clock: Callable[[], datetime],
        stored_cursor: Callable[[str, str], int],
        flush: Callable[[str], None],
        on_ack: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock = clock
        self._stored_cursor = stored_cursor
        self._flush = flush
        self._on_ack = on_ack
        self._agents: dict[str, ConnectedAgent] = {}
        self._lost_since: dict[str, datetime] = {}
        self._clocks: dict[str, ClockOffset] = {}  # kept when a stream ends: the clock goes on as it was
        self._subscribers: list[Callable[[str], None]] = []
        self._next_sync = 0
        self._empty = asyncio.Event()
        self._empty.set()

    # Confirmations

    def confirmed_through(self, node: str) -> datetime | None:
        agent = self._agents.get(node)
        return agent.confirmed if agent is not None else None

    def confirmed_cursor(self, node: str) -> Cursor | None:
        agent = self._agents.get(node)
        return Cursor(outbox_id=agent.outbox_id, seq=agent.confirmed_seq) if agent is not None else None

    def clock_offset(self, node: str) -> ClockOffset | None:
        return self._clocks.get(node)

    def request(self, nodes: Iterable[str]) -> None:
        now = self._clock()
        for node in nodes:
            agent = self._agents.get(node)
            if agent is None:
                continue
            agent.wanted_through, agent.asks_left = now, MAX_ASKS
            self._ask(agent, now)

    def subscribe(self, callback: Callable[[str], None]) -> None:
        self._subscribers.append(callback)

    # Streams

    def get(self, node: str) -> ConnectedAgent | None:
        return self._agents.get(node)

    def __len__(self) -> int:
        return len(self._agents)

    def lost_since(self) -> Mapping[str, datetime]:
        """Nodes whose agent was connected to this leader (or was expected) and is not, and since when."""
        return self._lost_since

    def expect(self, node: str) -> None:
        """A GPU node exists: without a stream its silence counts from now."""
        agent = self._agents.get(node)
        if agent is None:
            self._lost_since.setdefault(node, self._clock())
        else:
            agent.node_gone = False

    def forget(self, node: str) -> None:
        """The Node is gone: nobody misses its agent, else what was scaled down would count as silent for ever."""
        agent = self._agents.get(node)
        if agent is not None:
            agent.node_gone = True
        self._lost_since.pop(node, None)
        self._clocks.pop(node, None)

    def connect(self, agent: ConnectedAgent) -> None:
        older = self._agents.get(agent.node)
        if older is not None:
            agent.node_gone = older.node_gone
            older.end(Ending(grpc.StatusCode.ABORTED, "replaced by a newer stream of this node", "replaced"))
        self._agents[agent.node] = agent
        agent.welcomed_at = self._clock()
        self._empty.clear()
        self._lost_since.pop(agent.node, None)
        self._tell(agent.node)

    def disconnect(self, agent: ConnectedAgent) -> None:
        if self._agents.get(agent.node) is agent:
            del self._agents[agent.node]
            if not self._agents:
                self._empty.set()
            if not agent.node_gone:
                self._lost_since[agent.node] = self._clock()
            self._tell(agent.node)

    def end_all(self, drain: pb.Drain, message: str) -> None:
        for agent in list(self._agents.values()):
            agent.send(pb.CoordinatorMessage(drain=drain))
            agent.end(Ending(grpc.StatusCode.UNAVAILABLE, message, "drained"))

    async def wait_empty(self) -> None:
        await self._empty.wait()

    def reset(self) -> None:
        """Leadership is lost: what is known here is known by the next leader's streams."""
        self._lost_since.clear()
        self._clocks.clear()

    # What agents say

    def introduced(self, agent: ConnectedAgent, taken_at: datetime) -> None:
        """A snapshot, taken at `taken_at` on the agent's clock. The first one comes before any heartbeat.

        It answers the Welcome, so its time tells how far the clock is off before its incidents are put on ours: their
        first times are kept for good.
        """
        if not agent.samples.lower:
            agent.samples = agent.samples.heard(sent_at=taken_at, received_at=self._clock(), asked_at=agent.welcomed_at)
            self._clocks[agent.node] = agent.clock

    def heard(
        self, agent: ConnectedAgent, heartbeat: pb.Heartbeat, sent_at: datetime, observed: datetime | None
    ) -> None:
        """A heartbeat; `sent_at` and `observed` (observed_through) are on the agent's clock.

        Without `observed` the agent has not read its sources yet, or is blind for one: it lives, and confirms nothing.
        """
        now = self._clock()
        asked_at = agent.asked.pop(heartbeat.sync_id, None) if heartbeat.sync_id else None
        agent.samples = agent.samples.heard(sent_at=sent_at, received_at=now, asked_at=asked_at)
        self._clocks[agent.node] = agent.clock
        agent.heard_at = now
        agent.foreign_processes = heartbeat.foreign_processes
        if observed is not None:
            clock = agent.clock
            agent.pending.append((heartbeat.last_seq, min(observed - clock.offset - clock.uncertainty, now)))
        if asked_at is not None:
            self._flush(agent.node)
        self.stored(agent.node)
        if asked_at is None and agent.samples.doubtful:
            self._ask(agent, now)
        if agent.wanted_through is not None and agent.asks_left > 0:
            self._ask(agent, now)  # the answer was older than the question of somebody else
        # also what did not change the confirmation may matter: foreign processes, a first heartbeat
        self._tell(agent.node)

    def stored(self, node: str) -> None:
        """NodeHealth of the node is as new as what we know: ack, and confirm what waited for it."""
        agent = self._agents.get(node)
        if agent is None:
            return
        cursor = self._stored_cursor(node, agent.outbox_id)
        if cursor > agent.acked:
            agent.acked = cursor
            agent.send(pb.CoordinatorMessage(ack=pb.Ack(outbox_id=agent.outbox_id, seq=cursor)))
            self._on_ack()
        confirmed = [(through, last_seq) for last_seq, through in agent.pending if last_seq <= cursor]
        if not confirmed:
            return
        agent.pending = deque(
            ((seq, through) for seq, through in agent.pending if seq > cursor), maxlen=PENDING_HEARTBEATS
        )
        newest, last_seq = max(confirmed)
        if agent.confirmed is None or newest > agent.confirmed:
            agent.confirmed, agent.confirmed_seq = newest, max(agent.confirmed_seq, last_seq)
            if agent.wanted_through is not None and newest >= agent.wanted_through:
                agent.wanted_through = None
            self._tell(node)

    def _ask(self, agent: ConnectedAgent, now: datetime) -> None:
        """Sends a Sync now, or when the last one is a second old: however often somebody asks."""
        if agent.asked_at is not None and timedelta(0) <= now - agent.asked_at < SYNC_GAP:
            if not agent.ask_scheduled:
                agent.ask_scheduled = True
                left = (agent.asked_at + SYNC_GAP - now).total_seconds()
                asyncio.get_running_loop().call_later(left, self._ask_scheduled, agent)
            return
        self._next_sync += 1
        agent.asked_at = now
        agent.asks_left = max(0, agent.asks_left - 1)
        agent.asked[str(self._next_sync)] = now
        while len(agent.asked) > OUTSTANDING_SYNCS:
            del agent.asked[next(iter(agent.asked))]
        agent.send(pb.CoordinatorMessage(sync=pb.Sync(id=str(self._next_sync))))

    def _ask_scheduled(self, agent: ConnectedAgent) -> None:
        agent.ask_scheduled = False
        if agent.live:
            self._ask(agent, self._clock())

    def _tell(self, node: str) -> None:
        for callback in self._subscribers:
            callback(node)
