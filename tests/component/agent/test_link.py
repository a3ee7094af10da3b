"""The stream's agent half in this loop, against a coordinator that is slow, silent, hostile or gone."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from nvcre_agent import link, reconnect
from nvcre_agent.outbox_queue import DropReason, Limits
from nvcre_agent.reconnect import Ending
from nvcre_protos import nvcre_agent_v1_pb2 as pb
from nvcre_protos.vocabulary import Blame
from support.link_agents import LinkAgent

from .conftest import PATIENCE_S, Coordinator, Pki, Server, Stream


@pytest.fixture
def files(tmp_path: Path, pki: Pki) -> Path:
    (tmp_path / "ca.crt").write_bytes(pki.ca)
    (tmp_path / "token").write_text("token-1")
    return tmp_path


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(0.005)


class Ends(Coordinator):
    """Welcomes each stream and ends it with a status."""

    def __init__(self, code: grpc.StatusCode) -> None:
        super().__init__()
        self.code = code
        self.welcomed = 0

    async def Connect(self, request_iterator: Any, context: Any) -> None:
        await context.read()
        await context.write(pb.CoordinatorMessage(welcome=pb.Welcome(protocol=1)))
        self.welcomed += 1
        await context.abort(self.code, "as it likes")


class Particular(Coordinator):
    """Cannot use an event of this incident, as one of another version may; nor any snapshot, if told so."""

    def __init__(self, name: str = "", *, snapshots: bool = True) -> None:
        super().__init__()
        self.name = name
        self.snapshots = snapshots
        self.heartbeat_s = 0.05

    async def received(self, stream: Stream, message: pb.AgentMessage) -> None:
        events = [event.incident.id for event in message.event_batch.events]
        if self.name in events or (message.HasField("snapshot") and not self.snapshots):
            await stream.context.abort(grpc.StatusCode.INVALID_ARGUMENT, "incident.id: not to my taste")
        await super().received(stream, message)


async def test_an_event_that_the_coordinator_cannot_use_is_found_given_up_and_counted(
    pki: Pki, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link.random, "uniform", lambda *_: 0.0)
    coordinator = Particular("bad")
    server = await pki.serve(coordinator)
    agent = LinkAgent(files, server.address)
    for key in ("a", "b", "bad", "c", "d"):
        agent.tell(key)
    try:
        async with agent.running():
            await until(lambda: agent.outbox.depth == 0)
            agent.tell("after")
            await until(lambda: agent.outbox.depth == 0)
    finally:
        await server.server.stop(None)
    assert list(coordinator.incidents()) == ["a", "b", "c", "d", "after"]
    assert agent.outbox.events_dropped[DropReason.REFUSED] == 1
    assert agent.outbox.gaps == 1, "a snapshot tells that there is such an incident"


async def test_a_coordinator_that_cannot_use_the_snapshot_costs_no_event(
    pki: Pki, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link.random, "uniform", lambda *_: 0.0)
    coordinator = Particular(snapshots=False)
    server = await pki.serve(coordinator)
    agent = LinkAgent(files, server.address)
    agent.tell("a")
    agent.tell("b")
    try:
        async with agent.running():
            await until(lambda: agent.link.reconnects[Ending.REFUSED] > 10)
            coordinator.snapshots = True
            await until(lambda: agent.outbox.depth == 0)
    finally:
        await server.server.stop(None)
    assert list(coordinator.incidents()) == ["a", "b"]


async def test_32_a_coordinator_that_does_not_read_costs_state_first_then_what_accuses_nobody_and_each_is_counted(
    server: Server, files: Path
) -> None:
    coordinator = server.coordinator
    coordinator.reading.clear()
    coordinator.heartbeat_s = 0.05
    agent = LinkAgent(files, server.address, limits=Limits(max_events=50))
    async with agent.running():
        await until(lambda: agent.link.connected)
        agent.tell("fault")
        # Flow control stops the writer once HTTP/2's window is full; snapshots of this size fill it.
        agent.open |= {f"wide-{number}": agent.open["fault"] for number in range(200)}
        for number in range(400):
            agent.link.notify_state()
            agent.tell(f"note-{number}", blame=Blame.NO)
            del agent.open[f"note-{number}"]
            await asyncio.sleep(0)
        await until(lambda: agent.link.state_dropped > 100)
        assert len(agent.link._state) <= link.MAX_STATE
        assert agent.outbox.depth == 50
        assert agent.outbox.events_dropped == {**dict.fromkeys(DropReason, 0), DropReason.FULL: 351}
        coordinator.reading.set()
        await coordinator.until(lambda: "note-399" in coordinator.incidents())
        assert "fault" in coordinator.incidents(), "what accuses hardware was not pushed out"
        await coordinator.until(lambda: coordinator.stream.of("heartbeat"))
        assert coordinator.deliveries == sorted(coordinator.deliveries)


async def test_a_stream_without_acknowledgements_is_opened_anew_because_the_welcome_tells_what_is_stored(
    server: Server, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "ACK_PATIENCE_S", 0.2)
    coordinator = server.coordinator
    coordinator.acks, coordinator.heartbeat_s = False, 0.05
    agent = LinkAgent(files, server.address)
    async with agent.running():
        agent.tell("a")
        await coordinator.until(lambda: coordinator.deliveries)
        coordinator.cursor[agent.outbox.outbox_id] = coordinator.deliveries[-1]  # stored, and nobody says so
        await until(lambda: agent.outbox.depth == 0)
        assert agent.link.reconnects[Ending.NOT_ACKNOWLEDGED] == 1
        assert coordinator.deliveries == [coordinator.deliveries[0]]


async def test_a_cursor_beyond_everything_that_was_given_loses_no_event(server: Server, files: Path) -> None:
    coordinator = server.coordinator
    agent = LinkAgent(files, server.address)
    coordinator.cursor[agent.outbox.outbox_id] = 10_000_000  # the file was restored from a backup
    agent.tell("new")
    async with agent.running():
        await coordinator.until(lambda: "new" in coordinator.incidents())
        await until(lambda: agent.outbox.depth == 0)
        assert coordinator.deliveries[0] > 10_000_000


async def test_the_end_of_a_token_is_followed_by_the_file_s_newest_one_without_a_penalty(
    pki: Pki, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ceilings: list[float] = []
    uniform = link.random.uniform
    monkeypatch.setattr(link.random, "uniform", lambda low, high: ceilings.append(high) or uniform(low, 0.01))
    coordinator = Ends(grpc.StatusCode.UNAUTHENTICATED)
    server = await pki.serve(coordinator)
    agent = LinkAgent(files, server.address)
    try:
        async with agent.running():
            await until(lambda: agent.link.reconnects[Ending.TOKEN_EXPIRED] >= 5)
    finally:
        await server.server.stop(None)
    # gRPC may see the end of a stream that is being written to as INTERNAL: that one is a failure, the others are none.
    expired = agent.link.reconnects[Ending.TOKEN_EXPIRED]
    assert ceilings.count(reconnect.FIRST_CEILING_S) == expired, "jitter, and no backoff"


async def test_a_coordinator_that_ends_every_stream_at_once_is_asked_ever_more_rarely(
    pki: Pki, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ceilings: list[float] = []
    monkeypatch.setattr(link.random, "uniform", lambda _, high: ceilings.append(high) or 0.0)
    coordinator = Ends(grpc.StatusCode.INTERNAL)
    server = await pki.serve(coordinator)
    agent = LinkAgent(files, server.address)
    try:
        async with agent.running():
            await until(lambda: len(ceilings) >= 5)
    finally:
        await server.server.stop(None)
    assert ceilings[:5] == [1, 2, 4, 8, 16]
    assert agent.link.reconnects[Ending.BROKEN] >= 5


async def test_durations_that_no_clock_can_count_end_neither_agent_nor_stream(server: Server, files: Path) -> None:
    coordinator = server.coordinator
    agent = LinkAgent(files, server.address)
    async with agent.running():
        await coordinator.until(lambda: coordinator.streams)
        for seconds in (1 << 62, -(1 << 62)):
            settings = pb.Settings(heartbeat_interval=Duration(seconds=seconds))
            await coordinator.stream.send(settings=settings)
        beats = len(coordinator.stream.of("heartbeat"))
        await coordinator.until(lambda: len(coordinator.stream.of("heartbeat")) > beats + 3)  # the least interval
        assert len(coordinator.streams) == 1
        await coordinator.stream.send(drain=pb.Drain(reconnect_after=Duration(seconds=-(1 << 62))))
        await coordinator.until(lambda: len(coordinator.streams) == 2)
        await coordinator.stream.send(drain=pb.Drain(reconnect_after=Duration(seconds=1 << 62)))
        await until(lambda: agent.link.reconnects[Ending.DRAINED] == 2)
