"""A FleetService in this loop against the embedded API server in a process of its own, and agents over real TLS."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from nvcre_agent.stream_status import FirstStatus
from nvcre_coordinator.fleet.service import FleetService, FleetSettings
from nvcre_kube.client import ApiError, KubeClient
from nvcre_kube.resources import (
    CONFIG_MAPS,
    NAMESPACES,
    NODE_HEALTHS,
    NODES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
)
from nvcre_protos import nvcre_agent_v1_pb2 as pb
from nvcre_protos import nvcre_agent_v1_pb2_grpc as pb_grpc
from support.api_server import api_server
from support.eventually import eventually

NAMESPACE = "nvcre-system"
ROOT = Path(__file__).parents[3]
WITHIN_S = 20.0


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One embedded API server for all tests of this folder; `client` empties it before each."""
    with api_server(tmp_path_factory.mktemp("apiserver")) as server:
        yield server.kubeconfig


@pytest.fixture
async def client(kubeconfig: Path) -> AsyncIterator[KubeClient]:
    async with await KubeClient.from_kubeconfig(kubeconfig) as client:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        for resource, obj, where in (
            (NAMESPACES, namespace, None),
            (SERVICE_ACCOUNTS, service_account("nvcre-agent"), NAMESPACE),
            (SERVICE_ACCOUNTS, service_account("somebody"), NAMESPACE),
        ):
            try:
                await client.create(resource, obj, where)
            except ApiError as error:
                if not error.already_exists:
                    raise
        yield client
        for resource, where in (
            (PODS, NAMESPACE),
            (NODES, None),
            (NODE_HEALTHS, None),
            (SECRETS, NAMESPACE),
            (CONFIG_MAPS, NAMESPACE),
        ):
            for left in await client.list(resource, where):
                try:
                    await client.delete(resource, left["metadata"]["name"], where, grace_period_s=0)
                except ApiError as error:
                    if not error.not_found:
                        raise


def service_account(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": NAMESPACE}}


async def add_node(client: KubeClient, name: str, *, gpus: int = 8, **labels: str) -> None:
    labels = {"nvidia.com/gpu.present": "true", "kubernetes.io/hostname": name, **labels}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    created = await client.create(NODES, node)
    created["status"] = {"allocatable": {"nvidia.com/gpu": str(gpus)}}
    await client.update_status(NODES, created)


async def agent_token(client: KubeClient, node: str, *, account: str = "nvcre-agent", **spec: Any) -> str:
    """A token bound to an agent Pod on this node, as the kubelet projects it."""
    name = f"{account}-{node}"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app.kubernetes.io/name": "nvcre-agent"}},
        "spec": {
            "nodeName": node,
            "serviceAccountName": account,
            "containers": [{"name": "agent", "image": "nvcre-agent", "command": ["nvcre-agent"]}],
        },
    }
    try:
        created = await client.create(PODS, pod, NAMESPACE)
    except ApiError as error:
        if not error.already_exists:
            raise
        created = await client.get(PODS, name, NAMESPACE)
    bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": created["metadata"]["uid"]}
    request = {"audiences": ["nvcre-coordinator"], "expirationSeconds": 3600, "boundObjectRef": bound, **spec}
    return str((await client.create_token(account, NAMESPACE, request))["status"]["token"])


def stamp(at: datetime | None = None) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(at or datetime.now(UTC))
    return stamp


def incident(name: str, *, code: int = 79, count: int = 1, **fields: Any) -> pb.Incident:
    return pb.Incident(
        **{
            "id": name,
            "kind": pb.INCIDENT_KIND_XID,
            "code": code,
            "fault_class": pb.FAULT_CLASS_NEEDS_REBOOT,
            "blame": pb.BLAME_YES,
            "component": pb.Component(kind=pb.COMPONENT_KIND_GPU, index=5, uuid="GPU-5"),
            "mnemonic": "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS",
            "message": "GPU has fallen off the bus",
            "sources": [pb.SOURCE_KERNEL_LOG],
            "count": count,
            "first_seen": stamp(),
            "last_seen": stamp(),
            **fields,
        }
    )


def event(seq: int, told: pb.Incident, kind: pb.EventKind.ValueType = pb.EVENT_KIND_OPENED) -> pb.Event:
    return pb.Event(seq=seq, kind=kind, incident=told, boot_id="boot-1", time=stamp())


@dataclass
class FakeAgent:
    """The agent's half of the stream, over the generated client; what it receives is kept in order."""

    stub: pb_grpc.FleetAsyncStub
    channel: grpc.aio.Channel
    token: str
    outbox_id: str = "outbox-1"
    node: str = "node-1"
    received: list[pb.CoordinatorMessage] = field(default_factory=list)
    call: Any = None
    status: FirstStatus | None = None
    _reader: asyncio.Task[None] | None = None
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def connect(self, **hello: Any) -> pb.Welcome:
        self.call = self.stub.Connect(metadata=(("authorization", f"Bearer {self.token}"),))
        self.status = FirstStatus(self.call)
        fields = {"min_protocol": 1, "max_protocol": 1, "agent_version": "0.1.0", "outbox_id": self.outbox_id}
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):  # refused already: read() tells how
            await self.call.write(pb.AgentMessage(hello=pb.Hello(**{**fields, "boot_id": "boot-1", **hello})))
        self._reader = asyncio.create_task(self._read())
        return (await self.next("welcome")).welcome

    async def _read(self) -> None:
        assert self.status is not None
        try:
            async for message in self.call:
                self.received.append(message)
                self._arrived.set()
                self._arrived = asyncio.Event()  # a new one for the next: two that wait must not clear each other's
        except grpc.aio.AioRpcError as error:
            raise self.status.told(error) from None

    async def next(self, body: str, match: Callable[[Any], bool] = lambda _: True) -> pb.CoordinatorMessage:
        """The first message of this kind that has not been taken; raises the stream's error when it ends."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                arrived = self._arrived
                for message in self.received:
                    if message.WhichOneof("body") == body and match(getattr(message, body)):
                        self.received.remove(message)
                        return message
                assert self._reader is not None
                waiting = asyncio.create_task(arrived.wait())
                await asyncio.wait({self._reader, waiting}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if self._reader.done() and not arrived.is_set():
                    self._reader.result()
                    raise AssertionError(f"the stream ended without a {body}")

    async def ended(self) -> grpc.aio.AioRpcError | None:
        """How the stream ended; None: normally."""
        assert self._reader is not None
        async with asyncio.timeout(WITHIN_S):
            try:
                await self._reader
            except grpc.aio.AioRpcError as error:
                return error
            return None

    async def snapshot(self, *told: pb.Incident, seq: int = 0, infiniband: bool = False, **fields: Any) -> None:
        gpus = [pb.Gpu(index=index, uuid=f"GPU-{index}", product="NVIDIA H100 80GB HBM3") for index in range(8)]
        body = {
            "outbox_id": self.outbox_id,
            "seq": seq,
            "boot_id": "boot-1",
            "inventory": pb.Inventory(gpus=gpus, driver_version="570.133.20", infiniband=infiniband),
            "open_incidents": told,
            "monitors": [pb.Monitor(name="nvml", state=pb.MONITOR_STATE_WATCHING)],
            "time": stamp(),
        }
        await self.call.write(pb.AgentMessage(snapshot=pb.Snapshot(**{**body, **fields})))

    async def events(self, *events: pb.Event) -> None:
        batch = pb.EventBatch(outbox_id=self.outbox_id, events=events)
        await self.call.write(pb.AgentMessage(event_batch=batch))

    async def heartbeat(self, *, last_seq: int = 0, sync_id: str = "", foreign: int = 0) -> None:
        now = stamp()
        beat = pb.Heartbeat(
            sent_at=now, observed_through=now, last_seq=last_seq, sync_id=sync_id, foreign_processes=foreign
        )
        await self.call.write(pb.AgentMessage(heartbeat=beat))

    async def acked(self, seq: int) -> None:
        await self.next("ack", lambda ack: ack.seq >= seq)

    async def close(self) -> None:
        if self.call is not None:
            self.call.cancel()
        if self._reader is not None:
            await asyncio.gather(self._reader, return_exceptions=True)
        await self.channel.close()


class Fleet:
    """A coordinator's fleet side that can be killed and started again."""

    def __init__(self, client: KubeClient, **settings: Any) -> None:
        self.client = client
        self.settings = FleetSettings(**settings)
        self.leader_address: str | None = None
        self.offset = timedelta(0)  # of the coordinator's clock
        self.agents: list[FakeAgent] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, *, lead: bool = True, port: int = 0) -> FleetService:
        self.settings = dataclasses.replace(self.settings, grpc_address=f"127.0.0.1:{port}")
        self.service = FleetService(
            self.client,
            self.settings,
            leader_address=lambda: self.leader_address,
            clock=lambda: datetime.now(UTC) + self.offset,
        )
        self._tasks = [asyncio.create_task(self.service.run())]
        if lead:
            self._tasks.append(asyncio.create_task(self.service.lead()))
        waiting = asyncio.create_task(self.service.wait_serving())
        await asyncio.wait({waiting, *self._tasks}, return_when=asyncio.FIRST_COMPLETED, timeout=WITHIN_S)
        for task in self._tasks:
            if task.done():
                task.result()
        assert waiting.done()
        return self.service

    async def stop(self) -> None:
        for task in reversed(self._tasks):
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled() and task.exception() is not None:
                raise task.exception()  # type: ignore[misc]
        self._tasks = []

    async def agent(self, token: str, **fields: Any) -> FakeAgent:
        ca = (await self.client.get(CONFIG_MAPS, "nvcre-coordinator-ca", NAMESPACE))["data"]["ca.crt"]
        channel = grpc.aio.secure_channel(
            self.service.grpc_address,
            grpc.ssl_channel_credentials(ca.encode()),
            options=[
                ("grpc.default_authority", "nvcre-coordinator.nvcre-system.svc"),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        agent = FakeAgent(pb_grpc.FleetStub(channel), channel, token, **fields)
        self.agents.append(agent)
        return agent

    async def flush(self, agent: FakeAgent, *, last_seq: int) -> None:
        """Somebody asks whether everything is stored, and the agent answers."""
        self.service.confirmations.request([agent.node])
        sync = await agent.next("sync")
        await agent.heartbeat(last_seq=last_seq, sync_id=sync.sync.id)
        await agent.acked(last_seq)

    async def status(self, node: str) -> dict[str, Any]:
        try:
            return dict((await self.client.get(NODE_HEALTHS, node)).get("status") or {})
        except ApiError as error:
            if not error.not_found:
                raise
            return {}

    async def until(self, node: str, condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        async def holds() -> dict[str, Any]:
            status = await self.status(node)
            return status if condition(status) else {}

        try:
            return dict(await eventually(holds))
        except AssertionError:
            raise AssertionError(f"NodeHealth {node} stayed {await self.status(node)}") from None


@pytest.fixture
async def fleet(client: KubeClient) -> AsyncIterator[Fleet]:
    fleet = Fleet(client)
    yield fleet
    for agent in fleet.agents:
        await agent.close()
    await fleet.stop()
