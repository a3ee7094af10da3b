"""Who may connect to us, and what both ends of the stream may say: any bytes, any message."""

import asyncio
import functools
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import yaml
from google.protobuf.message import DecodeError
from nvcre_agent import wire as agent_wire
from nvcre_agent.exposition import MAX_REQUEST, Exposition
from nvcre_agent.link import Link, LinkSettings, StreamRefusedError
from nvcre_agent.metrics import Metrics
from nvcre_agent.nvml.monitor import NvmlMonitor
from nvcre_agent.outbox import open_outbox
from nvcre_agent.probing import Probing
from nvcre_coordinator.core.clock_offset import ASSUMED_DELAY, ClockOffset
from nvcre_coordinator.core.incidents import Ledger, fold_events, fold_snapshot
from nvcre_coordinator.fleet import wire
from nvcre_coordinator.fleet.status import NodeHealthStatus
from nvcre_local.apiserver.schema.node import Node, compile_node
from nvcre_local.apiserver.schema.values import check
from nvcre_protos import nvcre_agent_v1_pb2 as pb

from fuzz.choices import Choices
from fuzz.loop import in_loop
from fuzz.messages import fill

NOW = datetime(2026, 1, 1, tzinfo=UTC)
UNSURE = ClockOffset(2 * ASSUMED_DELAY, 2 * ASSUMED_DELAY)
LONGEST_PAUSE_S = 3600.0
ETCD_BYTES = 1 << 20
PATIENCE_S = 60.0


# --- the agent's HTTP


def http(data: bytes) -> None:
    """One connection to /metrics, /healthz and the like; the next one must be answered as ever."""
    in_loop(_http(data))


async def _http(data: bytes) -> None:
    host, port = (await _serving()).split(":")
    said = await _ask(host, int(port), data)
    assert not said or said.startswith(b"HTTP/1.1 "), said[:100]
    assert len(said) < (1 << 20)
    assert (await _ask(host, int(port), b"GET /healthz HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


async def _ask(host: str, port: int, data: bytes) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(data[: 4 * MAX_REQUEST])
            writer.write_eof()
            return await reader.read()
        except (ConnectionError, OSError):
            return b""  # it hung up on us, as it may
        finally:
            writer.close()


_addresses: list[str] = []


async def _serving() -> str:
    if not _addresses:
        metrics = Metrics("node", "1.0")
        exposition = Exposition(metrics.scrape, lambda: (True, {}), dict)
        _addresses.append(await exposition.start("127.0.0.1", 0))
    return _addresses[0]


# --- what a coordinator says to the agent


def coordinator_messages(data: bytes) -> None:
    """After a proper Welcome, or instead of it: the agent refuses the stream, or lives on and comes back in time."""
    in_loop(_converse(Choices(data)))


async def _converse(choices: Choices) -> None:
    outbox = open_outbox(Path(":memory:"))
    agent = _Agent(outbox.outbox_id)
    link = Link(LinkSettings("127.0.0.1:1", Path(), Path(), "name", 30.0), outbox, agent)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await link._converse(_Stream(choices), "127.0.0.1:1")  # type: ignore[arg-type]
    except StreamRefusedError:
        pass
    await agent.probing.stop()
    assert link._pause_s is None or 0 <= link._pause_s <= LONGEST_PAUSE_S, link._pause_s
    assert 0.05 <= link._interval_s <= LONGEST_PAUSE_S, link._interval_s
    assert outbox.last_seq < 2**63


class _Stream:
    """The other end of the wire."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self._messages = self._said()

    def _said(self) -> Iterator[pb.CoordinatorMessage]:
        if self._choices.number() % 8:
            yield pb.CoordinatorMessage(welcome=pb.Welcome(protocol=1))
        while self._choices.left:
            raw = self._choices.take(min(self._choices.number(2), self._choices.left))
            try:
                yield pb.CoordinatorMessage.FromString(raw)
            except DecodeError:
                yield fill(pb.CoordinatorMessage(), Choices(raw))

    async def read(self) -> pb.CoordinatorMessage | None:
        await asyncio.sleep(0)
        return next(self._messages, None)

    async def write(self, message: pb.AgentMessage) -> None:
        message.SerializeToString()


class _Agent:
    """The agent as its link sees it, with its real probes on a node without nccl-tests."""

    def __init__(self, outbox_id: str) -> None:
        self._outbox_id = outbox_id
        self.probing = Probing(
            nvml=NvmlMonitor(),
            nccl_tests_dir=Path("/nonexistent"),
            simulated=False,
            node_name="node",
            infiniband=lambda: False,
            metrics=Metrics("node", "1.0"),
            publish=lambda update: update.SerializeToString() and None,
        )

    def hello(self) -> pb.Hello:
        return pb.Hello(outbox_id=self._outbox_id)

    def snapshot(self) -> pb.Snapshot:
        return pb.Snapshot(outbox_id=self._outbox_id)

    def probe_updates(self) -> list[pb.ProbeUpdate]:
        return self.probing.updates()

    async def heartbeat(self, _deadline_s: float) -> pb.Heartbeat:
        return pb.Heartbeat(sent_at=agent_wire.timestamp(NOW.timestamp()))

    async def settle(self, deadline_s: float) -> pb.Heartbeat:
        return await self.heartbeat(deadline_s)

    def probe_ordered(self, order: pb.ProbeOrder) -> None:
        self.probing.order(order)

    def probe_cancelled(self, cancel: pb.ProbeCancel) -> None:
        self.probing.cancel(cancel)


# --- what an agent says to the coordinator


def agent_messages(data: bytes) -> None:
    """One message of an agent: refused with a sentence, or a NodeHealth that any API server stores."""
    try:
        message = pb.AgentMessage.FromString(data)
    except DecodeError:
        message = fill(pb.AgentMessage(), Choices(data))
    try:
        status = _stored(message)
    except wire.BadMessage:
        return
    said = json.dumps(status.to_json())
    assert len(said) < ETCD_BYTES
    assert NodeHealthStatus.from_json(json.loads(said)) == status
    complaints = check(json.loads(said), _status_schema(), "status")
    assert not complaints, complaints[:3]


def _stored(message: pb.AgentMessage) -> NodeHealthStatus:
    """What of it would stand in the NodeHealth."""
    match message.WhichOneof("body"):
        case "hello":
            wire.identifier(message.hello.outbox_id, "hello.outbox_id")
            boot, version = wire.cut(message.hello.boot_id, 64), wire.cut(message.hello.agent_version, 64)
            return NodeHealthStatus(boot_id=boot, agent_version=version)
        case "event_batch":
            batch = message.event_batch
            outbox_id = wire.identifier(batch.outbox_id, "event_batch.outbox_id")
            return _incidents(fold_events(Ledger(), outbox_id, wire.events(batch, UNSURE)))
        case "snapshot":
            status = _incidents(fold_snapshot(Ledger(), wire.snapshot(message.snapshot, UNSURE)))
            monitors = wire.monitors(message.snapshot.monitors)
            return msgspec.structs.replace(
                status, inventory=wire.inventory(message.snapshot.inventory), monitors=monitors
            )
        case "heartbeat":
            wire.moment(message.heartbeat.sent_at, "heartbeat.sent_at", timedelta(seconds=1))
            wire.sequence(message.heartbeat.last_seq, "heartbeat.last_seq")
            return NodeHealthStatus(monitors=wire.monitors(message.heartbeat.monitors))
        case "probe_update":
            wire.identifier(message.probe_update.probe_id, "probe_update.probe_id")
            results = [wire.probe_result(message.probe_update, kind, UNSURE) for kind in wire.PROBE_KINDS]
            return NodeHealthStatus(probes=tuple(result for result in results if result is not None))
    return NodeHealthStatus()


def _incidents(ledger: Ledger) -> NodeHealthStatus:
    return NodeHealthStatus(incidents=ledger.open, closed_incidents=ledger.closed, cursors=ledger.cursors)


@functools.cache
def _status_schema() -> Node:
    crd = Path(__file__).parents[2] / "daemonset/crds/nodehealths.yaml"
    [version] = yaml.safe_load(crd.read_text())["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    return compile_node(schema)
