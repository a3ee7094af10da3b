"""Real links of agents against the real coordinator side: two replicas, and certificates that change under streams."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from datetime import UTC, datetime
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography import x509
from nvcre_agent.reconnect import Ending
from nvcre_coordinator.fleet import certificates
from nvcre_kube.client import KubeClient
from nvcre_kube.resources import CONFIG_MAPS, SECRETS
from nvcre_protos.nvcre_agent_v1_pb2_grpc import add_FleetServicer_to_server
from support.chaos_proxy import AckChaos, Odds, TcpProxy
from support.link_agents import SERVER_NAME, LinkAgent

from .conftest import NAMESPACE, Fleet, add_node, agent_token, eventually

AGENTS = 50


async def authority(client: KubeClient) -> bytes:
    return str((await client.get(CONFIG_MAPS, "nvcre-coordinator-ca", NAMESPACE))["data"]["ca.crt"]).encode()


def files_of(directory: Path, token: str, ca: bytes) -> Path:
    directory.mkdir()
    (directory / "token").write_text(token)
    (directory / "ca.crt").write_bytes(ca)
    return directory


def nothing_left(*agents: LinkAgent) -> object:
    async def condition() -> bool:
        return all(agent.outbox.depth == 0 for agent in agents)

    return eventually(condition, what="everything is acknowledged")


async def test_33_a_batch_whose_ack_was_lost_is_sent_to_another_replica_and_stored_once(
    client: KubeClient, fleet: Fleet, tmp_path: Path
) -> None:
    await add_node(client, "node-1")
    await fleet.start()
    fleet_ca, now = await authority(client), datetime.now(UTC)
    ca_key, ca = certificates.new_authority(now)
    serving = certificates.new_serving(ca_key, ca, certificates.names(NAMESPACE), now)
    chaos = AckChaos(fleet.service.grpc_address, fleet_ca, SERVER_NAME, seed=33)
    chaos.odds = Odds(lost=1.0, forgotten=True)
    relay = grpc.aio.server()
    add_FleetServicer_to_server(chaos, relay)  # type: ignore[no-untyped-call]
    port = relay.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([serving]))
    await relay.start()
    token = await agent_token(client, "node-1")
    agent = LinkAgent(files_of(tmp_path / "agent", token, ca), f"127.0.0.1:{port}")
    other = Fleet(client)
    try:
        async with agent.running():
            for key in ("a", "b", "c"):
                agent.tell(key)
            await fleet.until("node-1", lambda status: len(status.get("incidents", ())) == 3)
            before = await fleet.status("node-1")
            assert agent.outbox.depth == 3
            await fleet.stop()
            await other.start()
            chaos.address = other.service.grpc_address

            async def sent_again() -> bool:
                return bool(other.service.metrics.events_received._value.get() == 3)

            await eventually(sent_again, what="the other replica was sent the batch")
            chaos.odds = Odds()
            agent.tell("d")
            await nothing_left(agent)
            after = await other.status("node-1")
            assert [told["id"] for told in after["incidents"]] == ["a", "b", "c", "d"]
            assert after["incidents"][:3] == before["incidents"]
            assert [cursor["seq"] for cursor in after["cursors"]] == [agent.outbox.newest_seq]
    finally:
        await relay.stop(None)
        await other.stop()


async def served(address: str, ca: bytes) -> int:
    """Serial number of the certificate that a new handshake gets; raises when `ca` did not sign it."""
    context = ssl.create_default_context(cadata=ca.decode())
    context.set_alpn_protocols(["h2"])
    host, port = address.rsplit(":", 1)
    _, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname=SERVER_NAME)
    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return x509.load_der_x509_certificate(der).serial_number
    finally:
        writer.close()


async def test_a_new_authority_and_serving_certificate_end_no_stream_and_cause_no_storm(
    client: KubeClient, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "LOOK_AGAIN_S", 0.2)
    service = await fleet.start()
    old_ca, proxy = await authority(client), TcpProxy()
    nodes = [f"node-{index}" for index in range(AGENTS)]
    await asyncio.gather(*(add_node(client, node) for node in nodes))
    tokens = await asyncio.gather(*(agent_token(client, node) for node in nodes))
    async with proxy.to(service.grpc_address) as address, contextlib.AsyncExitStack() as stack:
        agents = [
            LinkAgent(files_of(tmp_path / node, token, old_ca), address)
            for node, token in zip(nodes, tokens, strict=True)
        ]
        for agent in agents:
            await stack.enter_async_context(agent.running())

        async def connected(times: int = 1) -> bool:
            return all(agent.link.connected and agent.link.connects == times for agent in agents)

        await eventually(connected, what="all agents are connected")

        # Another replica, or cert-manager, made both anew.
        now = datetime.now(UTC)
        key, newest = certificates.new_authority(now)
        bundle = newest + old_ca
        serving_key, serving = certificates.new_serving(key, bundle, certificates.names(NAMESPACE), now)
        secret = await client.get(SECRETS, "nvcre-coordinator-tls", NAMESPACE)
        parts = {"ca.key": key, "ca.crt": bundle, "tls.key": serving_key, "tls.crt": serving}
        secret["data"] = {name: base64.b64encode(value).decode() for name, value in parts.items()}
        await client.update(SECRETS, secret)

        async def published() -> bool:
            return await authority(client) == bundle

        await eventually(published, what="the bundle is published")
        serial = x509.load_pem_x509_certificate(serving).serial_number
        assert await served(service.grpc_address, newest) == serial, "a new handshake gets the new certificate"

        late, *informed = agents
        for node in nodes[1:]:
            (tmp_path / node / "ca.crt").write_bytes(bundle)
        for agent in agents:
            agent.tell("still-here")
        await nothing_left(*agents)
        assert await connected(), "neither side's change ended a stream"

        proxy.break_connections()

        async def back() -> bool:
            return all(agent.link.connected and agent.link.connects == 2 for agent in informed)

        await eventually(back, what="the others are back, by the new bundle")

        async def cannot() -> bool:
            return late.link.reconnects[Ending.UNREACHABLE] > 0

        await eventually(cannot, what="who has the old bundle only does not trust the new certificate")
        assert not late.link.connected
        assert proxy.connections <= 2 * AGENTS + sum(late.link.reconnects.values()), "one connection each, no storm"
        (tmp_path / nodes[0] / "ca.crt").write_bytes(bundle)
        await eventually(lambda: connected(2), what="it reads the file at its next try")
