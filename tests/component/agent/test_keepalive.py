"""The agent's pings against what the coordinator permits: both sides' real options, with all times scaled down."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import grpc
import grpc.aio
import pytest
from nvcre_agent.link import CHANNEL_OPTIONS
from nvcre_coordinator.fleet.server import OPTIONS
from nvcre_protos import nvcre_agent_v1_pb2 as pb
from nvcre_protos.nvcre_agent_v1_pb2_grpc import FleetStub
from support.chaos_proxy import TcpProxy

from .conftest import PATIENCE_S, SERVER_NAME, Coordinator, Pki, Server

PING = "grpc.keepalive_time_ms"
ANSWER = "grpc.http2.ping_timeout_ms"
PERMITTED = "grpc.http2.min_ping_interval_without_data_ms"
STRIKES = "grpc.http2.max_ping_strikes"
FASTER = 60  # a ping each second: gRPC sends no more


def scaled(options: Sequence[tuple[str, int]], *names: str) -> list[tuple[str, int]]:
    return [(name, value // FASTER if name in names else value) for name, value in options]


@pytest.fixture
async def coordinator(pki: Pki) -> AsyncIterator[Server]:
    # Without the server's own pings, which keep a stream from being idle.
    options = [(name, value) for name, value in scaled(OPTIONS, PERMITTED) if name not in (PING, STRIKES)]
    options.append((STRIKES, 1))  # the second ping too many ends the connection, not the sixth
    one = await pki.serve(Coordinator(), options)
    yield one
    await one.server.stop(None)


@contextlib.asynccontextmanager
async def idle_stream(
    pki: Pki, address: str
) -> AsyncIterator[grpc.aio.StreamStreamCall[pb.AgentMessage, pb.CoordinatorMessage]]:
    options = [*scaled(CHANNEL_OPTIONS, PING), ("grpc.ssl_target_name_override", SERVER_NAME)]
    options = [(name, 1000 if name == ANSWER else value) for name, value in options]
    async with grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(pki.ca), options=options) as channel:
        call = FleetStub(channel).Connect()
        await call.write(pb.AgentMessage(hello=pb.Hello(outbox_id="o")))
        assert isinstance(await call.read(), pb.CoordinatorMessage)
        yield call


async def test_the_coordinator_permits_the_pings_of_an_idle_stream(pki: Pki, coordinator: Server) -> None:
    async with idle_stream(pki, coordinator.address) as call:
        with pytest.raises(TimeoutError):  # nothing comes, neither a message nor the stream's end
            await asyncio.wait_for(call.read(), 6 * dict(CHANNEL_OPTIONS)[PING] / FASTER / 1000)
        assert not coordinator.coordinator.stream.closed


async def test_a_coordinator_that_is_frozen_is_left(pki: Pki, coordinator: Server) -> None:
    way = TcpProxy()
    async with way.to(coordinator.address) as address, idle_stream(pki, address) as call:
        way.freeze()
        with pytest.raises(grpc.aio.AioRpcError) as left:
            await asyncio.wait_for(call.read(), PATIENCE_S)
    assert left.value.code() is grpc.StatusCode.UNAVAILABLE
