"""Agents over TLS with pod-bound tokens, NodeHealth on the embedded API server."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
import pytest
from nvcre_agent.stream_status import FirstStatus
from nvcre_kube.client import KubeClient
from nvcre_kube.resources import NODE_HEALTHS, PODS
from nvcre_protos import nvcre_agent_v1_pb2 as pb

from .conftest import NAMESPACE, Fleet, add_node, agent_token, event, eventually, incident, stamp


async def test_an_event_is_acked_only_when_it_stands_in_node_health(client: KubeClient, fleet: Fleet) -> None:
    await add_node(client, "node-3")
    await fleet.start()
    agent = await fleet.agent(await agent_token(client, "node-3"))
    welcome = await agent.connect()
    assert welcome.cursor == 0
    await agent.snapshot()
    await fleet.until("node-3", lambda status: status.get("verdict") == "Healthy")
    await agent.events(event(1, incident("a")))
    await agent.acked(1)
    status = await fleet.status("node-3")
    assert status["verdict"] == "Faulty"
    assert status["message"] == "Xid 79 on GPU 5 (GPU-5): GPU has fallen off the bus"
    assert status["cursors"] == [{"outboxID": "outbox-1", "seq": 1}]
    assert status["gpuCount"] == 8
    (told,) = status["incidents"]
    assert (told["kind"], told["code"], told["sources"]) == ("Xid", 79, ["kernel-log"])
    node_health = await client.get(NODE_HEALTHS, "node-3")
    assert node_health["metadata"]["ownerReferences"][0]["kind"] == "Node"


async def test_42_the_node_comes_from_the_token_and_not_from_the_payload(client: KubeClient, fleet: Fleet) -> None:
    await add_node(client, "node-1")
    await add_node(client, "node-2")
    await fleet.start()
    agent = await fleet.agent(await agent_token(client, "node-2"))
    await agent.connect()
    await agent.snapshot(incident("a"), seq=1)
    await fleet.until("node-2", lambda status: status.get("verdict") == "Faulty")
    assert await fleet.status("node-1") == {}


async def refusal(fleet: Fleet, token: str) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await (await fleet.agent(token)).connect()
    return refused.value


@pytest.mark.parametrize(
    ("account", "audience", "code", "text"),
    [
        ("nvcre-agent", "somebody-else", grpc.StatusCode.UNAUTHENTICATED, "audience"),
        ("somebody", "nvcre-coordinator", grpc.StatusCode.PERMISSION_DENIED, "nvcre-agent"),
    ],
)
async def test_a_token_of_another_kind_is_refused(
    client: KubeClient, fleet: Fleet, account: str, audience: str, code: grpc.StatusCode, text: str
) -> None:
    await add_node(client, "node-1")
    await fleet.start()
    token = await agent_token(client, "node-1", account=account, audiences=[audience])
    refused = await refusal(fleet, token)
    assert refused.code() is code
    assert text in (refused.details() or "")


async def test_a_forged_token_is_refused(client: KubeClient, fleet: Fleet) -> None:
    await fleet.start()
    refused = await refusal(fleet, "not-a-token")
    assert refused.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_the_token_of_a_deleted_pod_is_refused(client: KubeClient, fleet: Fleet) -> None:
    await add_node(client, "node-1")
    await fleet.start()
    token = await agent_token(client, "node-1")
    await client.delete(PODS, "nvcre-agent-node-1", NAMESPACE, grace_period_s=0)
    refused = await refusal(fleet, token)
    assert refused.code() in {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}


async def test_a_client_that_does_not_trust_our_authority_gets_no_stream(client: KubeClient, fleet: Fleet) -> None:
    service = await fleet.start()
    async with grpc.aio.insecure_channel(service.grpc_address) as channel:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(channel.channel_ready(), 0.5)


async def test_a_follower_names_the_leader(client: KubeClient, fleet: Fleet) -> None:
    await add_node(client, "node-1")
    await fleet.start(lead=False)
    fleet.leader_address = "10.0.0.7:9443"
    refused = await refusal(fleet, await agent_token(client, "node-1"))
    assert refused.code() is grpc.StatusCode.UNAVAILABLE
    assert ("nvcre-leader", "10.0.0.7:9443") in tuple(refused.trailing_metadata())


async def test_a_newer_stream_replaces_the_older_one_of_the_node(client: KubeClient, fleet: Fleet) -> None:
    await add_node(client, "node-1")
    await fleet.start()
    token = await agent_token(client, "node-1")
    older, newer = await fleet.agent(token), await fleet.agent(token)
    await older.connect()
    await newer.connect()
    error = await older.ended()
    assert error is not None
    assert error.code() is grpc.StatusCode.ABORTED
    await newer.snapshot(incident("a"), seq=1)
    await fleet.until("node-1", lambda status: status.get("verdict") == "Faulty")


async def test_33_events_sent_again_are_stored_once(client: KubeClient, fleet: Fleet) -> None:
    await add_node(client, "node-1")
    await fleet.start()
    token = await agent_token(client, "node-1")
    agent = await fleet.agent(token)
    await agent.connect()
    await agent.snapshot()
    batch = [
        event(1, incident("a")),
        event(2, incident("b", code=48)),
        event(3, incident("a"), pb.EVENT_KIND_RECOVERED),
    ]
    await agent.events(*batch)
    await agent.acked(3)
    before = await client.get(NODE_HEALTHS, "node-1")
    again = await fleet.agent(token)
    assert (await again.connect()).cursor == 3
    await again.events(*batch)
    await again.snapshot(batch[1].incident, seq=3)
    await again.events(event(4, incident("c", code=31, blame=pb.BLAME_NO)))
    await again.acked(4)
    after = await client.get(NODE_HEALTHS, "node-1")
    assert [told["id"] for told in after["status"]["incidents"]] == ["b", "c"]
    assert after["status"]["closedIncidents"] == before["status"]["closedIncidents"]
    assert after["status"]["incidents"][0] == before["status"]["incidents"][0]


async def test_32_a_killed_coordinator_loses_and_doubles_nothing(client: KubeClient, fleet: Fleet) -> None:
    await add_node(client, "node-1")
    await fleet.start()
    token = await agent_token(client, "node-1")
    agent = await fleet.agent(token)
    await agent.connect()
    await agent.snapshot()
    events = [event(1, incident("a")), event(2, incident("b", code=48))]
    await agent.events(events[0])
    await agent.acked(1)
    await fleet.stop()
    await fleet.start()
    agent = await fleet.agent(token)
    assert (await agent.connect()).cursor == 1
    await agent.snapshot(*(each.incident for each in events), seq=2)
    await agent.events(*events)
    await fleet.flush(agent, last_seq=2)
    status = await fleet.status("node-1")
    assert [told["id"] for told in status["incidents"]] == ["a", "b"]


async def test_a_leader_that_stops_sends_its_agents_away(client: KubeClient, fleet: Fleet) -> None:
    await add_node(client, "node-1")
    await fleet.start()
    agent = await fleet.agent(await agent_token(client, "node-1"))
    await agent.connect()
    await fleet.stop()
    drain = await agent.next("drain")
    assert drain.drain.reconnect_after.seconds > 0
    error = await agent.ended()
    assert error is not None
    assert error.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.AgentMessage(hello=pb.Hello()), "hello"),
        (pb.AgentMessage(event_batch=pb.EventBatch(outbox_id="another")), "event_batch.outbox_id"),
        (
            pb.AgentMessage(event_batch=pb.EventBatch(outbox_id="outbox-1", events=[pb.Event(seq=1 << 63)])),
            "event.seq",
        ),
        (
            pb.AgentMessage(event_batch=pb.EventBatch(outbox_id="outbox-1", events=[pb.Event(seq=1)])),
            "incident.id",
        ),
        (pb.AgentMessage(heartbeat=pb.Heartbeat()), "heartbeat.sent_at"),
    ],
)
async def test_a_message_that_cannot_be_used_ends_the_stream_and_names_the_field(
    client: KubeClient, fleet: Fleet, message: pb.AgentMessage, field: str
) -> None:
    await add_node(client, "node-1")
    await fleet.start()
    agent = await fleet.agent(await agent_token(client, "node-1"))
    await agent.connect()
    await agent.call.write(message)
    error = await agent.ended()
    assert error is not None
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert field in (error.details() or "")


async def test_hostile_text_is_cut_to_what_the_schema_takes(client: KubeClient, fleet: Fleet) -> None:
    await add_node(client, "node-1")
    await fleet.start()
    agent = await fleet.agent(await agent_token(client, "node-1"))
    await agent.connect(agent_version="v" * 5000, boot_id="\x00\x1b[31m" * 100)
    long = "ä\x07" * 5000
    await agent.snapshot(
        incident("a", message=long, remedy=long, raw=long, mnemonic=long, process=long, check=long, kind=99, blame=77,
                 effects=[pb.Effect(code=1, count=1)] * 500, sources=[pb.SOURCE_NVML] * 500),
        seq=1,
        monitors=[pb.Monitor(name=f"m{index}" * 40, message=long) for index in range(200)],
    )  # fmt: skip
    status = await fleet.until("node-1", lambda status: status.get("incidents"))
    (told,) = status["incidents"]
    assert told["blame"] == "No"
    assert status["verdict"] in {"Healthy", "Blind"}
    assert "\x07" not in told["message"]


async def test_equal_snapshots_and_heartbeats_write_nothing(client: KubeClient, fleet: Fleet) -> None:
    await add_node(client, "node-1")
    await fleet.start()
    agent = await fleet.agent(await agent_token(client, "node-1"))
    await agent.connect()
    told = incident("a")
    await agent.snapshot(told, seq=1)
    await fleet.until("node-1", lambda status: status.get("verdict") == "Faulty")
    before = (await client.get(NODE_HEALTHS, "node-1"))["metadata"]["resourceVersion"]
    for _ in range(50):
        await agent.snapshot(told, seq=1)
        await agent.heartbeat()

    async def heard() -> bool:
        return fleet.service.metrics.snapshots_received._value.get() == 51

    await eventually(heard)
    assert (await client.get(NODE_HEALTHS, "node-1"))["metadata"]["resourceVersion"] == before


async def test_a_storm_of_repeats_costs_a_handful_of_writes(client: KubeClient, fleet: Fleet) -> None:
    await add_node(client, "node-1")
    await fleet.start()
    agent = await fleet.agent(await agent_token(client, "node-1"))
    await agent.connect()
    await agent.snapshot()
    for first in range(1, 2001, 50):  # our agent sends 64 at once
        told = [(seq, incident("a", count=seq * 500)) for seq in range(first, first + 50)]
        await agent.events(*(event(seq, each, pb.EVENT_KIND_UPDATED) for seq, each in told))
    await fleet.flush(agent, last_seq=2000)
    status = await fleet.status("node-1")
    assert [(told["id"], told["count"]) for told in status["incidents"]] == [("a", 1_000_000)]
    writes = fleet.service.metrics.node_health_writes.labels(result="written")._value.get()
    assert writes <= 10


async def test_a_confirmation_needs_every_event_up_to_it_stored(client: KubeClient, fleet: Fleet) -> None:
    await add_node(client, "node-1")
    service = await fleet.start()
    changed: list[str] = []
    service.confirmations.subscribe(changed.append)
    assert service.confirmations.confirmed_through("node-1") is None
    agent = await fleet.agent(await agent_token(client, "node-1"))
    await agent.connect()
    await agent.snapshot()
    first = await agent.next("sync")
    await agent.heartbeat(last_seq=1, sync_id=first.sync.id)  # seq 1 is not sent yet
    assert service.confirmations.confirmed_through("node-1") is None
    await agent.events(event(1, incident("a")))
    await agent.acked(1)

    async def confirmed() -> bool:
        return service.confirmations.confirmed_through("node-1") is not None

    await eventually(confirmed)
    assert "node-1" in changed


async def test_an_agent_that_has_not_read_its_sources_lives_and_confirms_nothing(
    client: KubeClient, fleet: Fleet
) -> None:
    await add_node(client, "node-1")
    service = await fleet.start()
    agent = await fleet.agent(await agent_token(client, "node-1"))
    await agent.connect()
    sync = await agent.next("sync")
    beat = pb.Heartbeat(sent_at=stamp(), sync_id=sync.sync.id)  # no observed_through
    await agent.call.write(pb.AgentMessage(heartbeat=beat))

    async def heard() -> bool:
        return bool(service.metrics.heartbeats_received._value.get() == 1)

    await eventually(heard)
    assert service.confirmations.confirmed_through("node-1") is None
    await agent.snapshot()
    await fleet.until("node-1", lambda status: status.get("verdict") == "Healthy")
    assert not agent.call.done()


async def test_a_stream_that_ends_while_something_is_being_written_ends_for_the_agent_too(
    client: KubeClient, fleet: Fleet
) -> None:
    """The status could not be sent beside an unfinished write: the agent kept on talking to nobody."""
    await add_node(client, "node-1")
    await fleet.start()
    agent = await fleet.agent(await agent_token(client, "node-1"))
    hello = pb.AgentMessage(hello=pb.Hello(min_protocol=1, max_protocol=1, outbox_id="o", boot_id="b"))

    async def refused() -> grpc.StatusCode:
        call = agent.stub.Connect(metadata=(("authorization", f"Bearer {agent.token}"),))
        status = FirstStatus(call)
        try:
            with contextlib.suppress(asyncio.InvalidStateError):
                await call.write(hello)
                await call.write(hello)  # refused, while the Welcome is on its way
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return status.told(error).code()
        return await call.code()

    for _ in range(60):
        async with asyncio.timeout(10):
            assert await refused() is grpc.StatusCode.INVALID_ARGUMENT
