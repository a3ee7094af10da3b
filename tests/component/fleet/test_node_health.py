"""The only writer of NodeHealth, when others meddle, when nodes vanish, and when the whole fleet turns bad."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import ssl
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from cryptography import x509
from google.protobuf.timestamp_pb2 import Timestamp
from nvcre_coordinator.fleet.service import FleetService, FleetSettings
from nvcre_kube.client import KubeClient
from nvcre_kube.resources import CONFIG_MAPS, NODE_HEALTHS, NODES, SECRETS
from nvcre_protos import nvcre_agent_v1_pb2 as pb

from .conftest import NAMESPACE, FakeAgent, Fleet, add_node, agent_token, event, eventually, incident, stamp


async def healthy(client: KubeClient, fleet: Fleet, node: str = "node-1") -> FakeAgent:
    await add_node(client, node)
    agent = await fleet.agent(await agent_token(client, node))
    await agent.connect()
    await agent.snapshot()
    await fleet.until(node, lambda status: status.get("verdict") == "Healthy")
    return agent


async def test_a_label_that_a_person_adds_is_kept_and_costs_no_stream(client: KubeClient, fleet: Fleet) -> None:
    await fleet.start()
    agent = await healthy(client, fleet)
    await client.merge_patch(NODE_HEALTHS, "node-1", {"metadata": {"labels": {"rack": "r7"}}})
    await agent.events(event(1, incident("a")))
    await agent.acked(1)
    stored = await client.get(NODE_HEALTHS, "node-1")
    assert stored["status"]["verdict"] == "Faulty"
    assert stored["metadata"]["labels"]["rack"] == "r7"
    assert not agent.call.done()


async def test_another_leader_s_status_is_the_truth_and_the_agent_tells_the_rest_again(
    client: KubeClient, fleet: Fleet
) -> None:
    await fleet.start()
    agent = await healthy(client, fleet)
    rival = await client.get(NODE_HEALTHS, "node-1")
    rival["status"]["cursors"] = [{"outboxID": "outbox-1", "seq": 5}]
    await client.update_status(NODE_HEALTHS, rival)
    await agent.events(event(6, incident("f")))
    error = await agent.ended()
    assert error is not None
    assert error.code() is grpc.StatusCode.ABORTED
    again = await fleet.agent(agent.token)
    assert (await again.connect()).cursor == 5
    await again.snapshot(incident("f"), seq=6)
    await again.events(event(6, incident("f")))
    await fleet.flush(again, last_seq=6)


async def test_34_a_deleted_node_health_is_written_anew_in_full(client: KubeClient, fleet: Fleet) -> None:
    await fleet.start()
    agent = await healthy(client, fleet)
    await agent.events(event(1, incident("a")))
    await agent.acked(1)
    await client.delete(NODE_HEALTHS, "node-1")
    await agent.events(event(2, incident("b", code=48)))
    await agent.acked(2)
    assert [told["id"] for told in (await fleet.status("node-1"))["incidents"]] == ["a", "b"]


async def test_34_a_wiped_database_is_filled_again_by_the_snapshots_of_the_agents(
    client: KubeClient, fleet: Fleet
) -> None:
    await fleet.start()
    agents = [await healthy(client, fleet, node) for node in ("node-1", "node-2")]
    for agent in agents:
        await agent.events(event(1, incident("a")), event(2, incident("b", code=48)))
        await agent.acked(2)
    await fleet.stop()
    for node in ("node-1", "node-2"):
        await client.delete(NODE_HEALTHS, node)
    await fleet.start()
    for node, old in zip(("node-1", "node-2"), agents, strict=True):
        again = await fleet.agent(old.token)
        assert (await again.connect()).cursor == 0
        await again.snapshot(incident("a"), incident("b", code=48), seq=2)  # nothing is left in the outbox
        status = await fleet.until(node, lambda status: status.get("verdict") == "Faulty")
        assert {told["id"] for told in status["incidents"]} == {"a", "b"}


async def test_15_victims_of_a_dead_link_are_witnesses_and_the_end_with_a_reason_is_faulty(
    client: KubeClient, fleet: Fleet
) -> None:
    def link(reason: int, blame: pb.Blame.ValueType) -> pb.Incident:
        line = f"NVRM: Xid (PCI:0008:06:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 07 (0x{reason << 20:08x} 0x0 0x0)"
        component = pb.Component(kind=pb.COMPONENT_KIND_NVLINK, index=7, uuid="GPU-5")
        fields = {"fault_class": pb.FAULT_CLASS_NEEDS_RESET, "blame": blame, "component": component, "raw": line}
        return incident("link", code=149, **fields)

    await fleet.start()
    agents = []
    for number in range(4):
        await add_node(client, f"node-{number}", **{"nvidia.com/gpu.clique": "rack-1.0"})
        agent = await fleet.agent(await agent_token(client, f"node-{number}"))
        await agent.connect()
        await agent.snapshot()
        agents.append(agent)
    for agent in agents[:3]:  # on the first the driver asked for a reset, which raised the blame
        await agent.events(event(1, link(33, pb.BLAME_YES if agent is agents[0] else pb.BLAME_CONDITIONAL)))
        await agent.acked(1)
    await agents[3].events(event(1, link(4, pb.BLAME_YES)))
    guilty = await fleet.until("node-3", lambda status: status.get("verdict") == "Faulty")
    assert guilty["badGPUs"] == "5"
    for number in range(3):
        status = await fleet.until(f"node-{number}", lambda status: "node-3 has a reason" in status.get("message", ""))
        assert (status["verdict"], status["incidents"][0]["blame"]) == ("Healthy", "Conditional")


async def test_an_event_of_a_node_that_does_not_exist_is_not_acked(client: KubeClient, fleet: Fleet) -> None:
    await add_node(client, "node-1")
    token = await agent_token(client, "node-1")
    await fleet.start()
    agent = await fleet.agent(token)
    await agent.connect()
    await client.delete(NODES, "node-1")
    await agent.snapshot()
    await agent.events(event(1, incident("a")))

    async def taken() -> bool:
        return fleet.service.metrics.events_received._value.get() == 1

    await eventually(taken)
    assert await fleet.status("node-1") == {}
    assert not any(message.HasField("ack") for message in agent.received)


async def test_a_recovered_fault_is_watched_and_kept_in_the_history(client: KubeClient, fleet: Fleet) -> None:
    await fleet.start()
    agent = await healthy(client, fleet)
    await agent.events(event(1, incident("a")), event(2, incident("a"), pb.EVENT_KIND_RECOVERED))
    await agent.acked(2)
    status = await fleet.status("node-1")
    assert status["verdict"] == "Suspect"
    assert "incidents" not in status
    assert status["closedIncidents"][0]["recoveredAt"]


async def test_37_maintenance_is_declared_on_the_node_and_what_is_left_open_is_judged_after_it(
    client: KubeClient, fleet: Fleet
) -> None:
    async def maintenance(value: str | None) -> None:
        await client.merge_patch(NODES, "node-1", {"metadata": {"labels": {"nvcre.nvidia.com/maintenance": value}}})

    await fleet.start()
    agent = await healthy(client, fleet)
    await maintenance("true")
    await fleet.until("node-1", lambda status: status["verdict"] == "Maintenance")
    await agent.events(
        event(1, incident("a")), event(2, incident("b")), event(3, incident("b"), pb.EVENT_KIND_RECOVERED)
    )
    await agent.acked(3)
    status = await fleet.status("node-1")
    (told,) = status["incidents"]
    assert (status["verdict"], told["duringMaintenance"]) == ("Maintenance", True)
    await maintenance(None)
    status = await fleet.until("node-1", lambda status: status["verdict"] == "Faulty")
    assert "duringMaintenance" not in status["incidents"][0]
    assert status["closedIncidents"][0]["duringMaintenance"]


async def test_37_a_fault_that_is_told_late_is_not_of_the_maintenance_that_it_was_the_reason_for(
    client: KubeClient, fleet: Fleet
) -> None:
    await fleet.start()
    agent = await healthy(client, fleet)
    await client.merge_patch(NODES, "node-1", {"metadata": {"labels": {"nvcre.nvidia.com/maintenance": "rma"}}})
    await fleet.until("node-1", lambda status: status["verdict"] == "Maintenance")
    hour_ago = stamp(datetime.now(UTC) - timedelta(hours=1))
    reset = event(3, incident("b", first_seen=hour_ago), pb.EVENT_KIND_RECOVERED)
    await agent.events(event(1, incident("a")), event(2, incident("b", first_seen=hour_ago)), reset)
    await agent.acked(3)
    status = await fleet.status("node-1")
    assert (status["verdict"], status["incidents"][0]["duringMaintenance"]) == ("Maintenance", True)
    assert "duringMaintenance" not in status["closedIncidents"][0]  # a Job of that hour may read it


async def test_37_a_new_leader_that_has_not_seen_the_nodes_yet_ends_no_maintenance(
    client: KubeClient, fleet: Fleet
) -> None:
    await fleet.start()
    agent = await healthy(client, fleet)
    await client.merge_patch(NODES, "node-1", {"metadata": {"labels": {"nvcre.nvidia.com/maintenance": "true"}}})
    await fleet.until("node-1", lambda status: status["verdict"] == "Maintenance")
    await agent.events(event(1, incident("a")))
    await agent.acked(1)
    await fleet.stop()
    # No Node is selected: as before the first list of them has come.
    fleet.settings = dataclasses.replace(fleet.settings, node_selector="nvidia.com/gpu.present=not-yet")
    await fleet.start()
    again = await fleet.agent(agent.token)
    await again.connect()
    await again.snapshot(incident("a"), seq=1)
    await again.events(event(2, incident("b", code=48)))
    await again.acked(2)
    status = await fleet.status("node-1")
    assert status["verdict"] == "Maintenance"
    assert [told["duringMaintenance"] for told in status["incidents"]] == [True, True]


async def test_01_a_lost_gpu_that_a_reboot_does_not_bring_back_is_missed_though_its_agent_lost_its_memory(
    client: KubeClient, fleet: Fleet
) -> None:
    await fleet.start()
    agent = await healthy(client, fleet)
    place = pb.Component(kind=pb.COMPONENT_KIND_GPU, index=5, uuid="GPU-5", pci_bus_id="00000000:20:00.0")
    await agent.events(event(1, incident("a", component=place)))
    await agent.acked(1)
    again = await fleet.agent(agent.token, outbox_id="outbox-2")
    await again.connect(boot_id="boot-2")
    seven = [pb.Gpu(index=n, uuid=f"GPU-{n}", pci_bus_id=f"00000000:{0x1B + n:02X}:00.0") for n in range(8) if n != 5]
    await again.snapshot(boot_id="boot-2", inventory=pb.Inventory(gpus=seven))
    status = await fleet.until("node-1", lambda status: status["gpuCount"] == 7)
    assert (status["verdict"], status["closedIncidents"][0]["recoveredBy"]) == ("Suspect", "Reboot")
    assert "GPU 5 (GPU-5) was lost and has not come back since the reboot" in status["message"]


async def test_another_machine_under_the_name_of_a_node_does_not_inherit_what_the_old_one_did(
    client: KubeClient, fleet: Fleet
) -> None:
    await fleet.start()
    agent = await healthy(client, fleet)
    place = pb.Component(kind=pb.COMPONENT_KIND_GPU, index=5, uuid="GPU-5", pci_bus_id="00000000:20:00.0")
    await agent.events(event(1, incident("a", component=place)))
    await agent.acked(1)
    again = await fleet.agent(agent.token, outbox_id="outbox-2")
    await again.connect(boot_id="boot-2")
    others = [pb.Gpu(index=n, uuid=f"GPU-1{n}", pci_bus_id=f"00000001:{n + 1:02X}:00.0") for n in range(4)]
    await again.snapshot(boot_id="boot-2", inventory=pb.Inventory(gpus=others))
    status = await fleet.until("node-1", lambda status: status["gpuCount"] == 4)
    assert (status["verdict"], status["closedIncidents"][0]["recoveredBy"]) == ("Healthy", "Replaced")


async def test_a_node_that_is_gone_is_forgotten_once_its_agent_is(client: KubeClient, fleet: Fleet) -> None:
    service = await fleet.start()
    agent = await healthy(client, fleet)
    await client.delete(NODES, "node-1")

    await agent.close()

    async def gone() -> bool:
        return await fleet.status("node-1") == {} and service.metrics.agents_connected._value.get() == 0

    await eventually(gone)  # NodeHealth by the garbage collector
    service.node_health_changed("node-1", None)

    async def forgotten() -> bool:
        return service._store.stored("node-1") is None and not service._agents.lost_since()

    await eventually(forgotten)
    assert await fleet.status("node-1") == {}


async def test_41_many_nodes_at_once_are_one_alarm_and_accuse_none_of_them(client: KubeClient, fleet: Fleet) -> None:
    await fleet.start()
    agents = [await healthy(client, fleet, f"node-{number}") for number in range(5)]
    for agent in agents:
        await agent.events(event(1, incident("a")))
        await agent.acked(1)
    for number in range(5):  # also those that turned bad before there were five
        status = await fleet.until(f"node-{number}", lambda status: status["verdict"] == "Suspect")
        assert "5 of 5 nodes turned bad within 5 min" in status["message"]
        assert status["incidents"][0]["blame"] == "Yes"  # evidence that a Job may read
        assert status["gpus"][5]["verdict"] == "Suspect"
    assert fleet.service.metrics.verdicts_held._value.get() == 5
    assert fleet.service.metrics.breaker_open._value.get() == 1


async def test_replicas_that_start_together_agree_on_one_authority(client: KubeClient) -> None:
    services = [FleetService(client, FleetSettings(grpc_address="127.0.0.1:0")) for _ in range(4)]
    tasks = [asyncio.create_task(service.run()) for service in services]
    await asyncio.gather(*(service.wait_serving() for service in services))
    secret = await client.get(SECRETS, "nvcre-coordinator-tls", NAMESPACE)
    assert set(secret["data"]) == {"ca.key", "ca.crt", "tls.key", "tls.crt"}
    published = (await client.get(CONFIG_MAPS, "nvcre-coordinator-ca", NAMESPACE))["data"]["ca.crt"].encode()
    assert {service._tls.material.ca_cert for service in services} == {published}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_stream_ends_with_its_token(client: KubeClient) -> None:
    """The coordinator's clock stands a few seconds before the token's end."""
    await add_node(client, "node-1")
    fleet = Fleet(client)
    fleet.offset = timedelta(seconds=3590)
    await fleet.start()
    try:
        agent = await fleet.agent(await agent_token(client, "node-1"))
        await agent.connect()
        error = await agent.ended()
        assert error is not None
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "token" in (error.details() or "")
        await agent.close()
    finally:
        await fleet.stop()


async def test_a_renewed_certificate_is_served_without_a_restart(client: KubeClient, fleet: Fleet) -> None:
    service = await fleet.start()
    host, _, port = service.grpc_address.partition(":")
    fetch = functools.partial(ssl.get_server_certificate, (host, int(port)), timeout=10)
    before = await asyncio.to_thread(fetch)
    fleet.offset = timedelta(days=61)
    await service._tls._ensure()
    after = await asyncio.to_thread(fetch)
    assert before != after
    authority = (await client.get(CONFIG_MAPS, "nvcre-coordinator-ca", NAMESPACE))["data"]["ca.crt"]
    x509.load_pem_x509_certificate(after.encode()).verify_directly_issued_by(
        x509.load_pem_x509_certificate(authority.encode())
    )


async def test_a_crowd_that_asks_for_confirmation_costs_a_question_a_second(client: KubeClient, fleet: Fleet) -> None:
    service = await fleet.start()
    agent = await healthy(client, fleet)
    for _ in range(100):
        service.confirmations.request(["node-1"])
    sync = await agent.next("sync")
    await agent.heartbeat(sync_id=sync.sync.id)

    async def heard() -> bool:
        return service.metrics.heartbeats_received._value.get() == 1

    await eventually(heard)
    assert not any(message.HasField("sync") for message in agent.received)


async def test_the_job_side_hears_that_everything_before_its_question_is_told(client: KubeClient, fleet: Fleet) -> None:
    service = await fleet.start()
    agent = await healthy(client, fleet)
    asked_at = datetime.now(UTC)
    service.confirmations.request(["node-1"])

    async def confirmed() -> bool:
        for message in list(agent.received):
            if message.HasField("sync"):
                agent.received.remove(message)
                await agent.heartbeat(sync_id=message.sync.id)
        through = service.confirmations.confirmed_through("node-1")
        return through is not None and through >= asked_at

    await eventually(confirmed)
    clock = service.confirmations.clock_offset("node-1")
    assert clock is not None
    assert clock.uncertainty > timedelta(0)
    assert service.confirmations.clock_offset("node-9") is None


@pytest.mark.parametrize("hours", [-1, 1])
async def test_the_first_word_of_a_node_whose_clock_is_an_hour_off_is_put_on_our_clock(
    client: KubeClient, fleet: Fleet, hours: int
) -> None:
    """A first time is kept for good: an hour off it blames a run that ended before the fault, or misses the one hit."""
    service = await fleet.start()
    off = timedelta(hours=hours)
    await add_node(client, "node-1")
    agent = await fleet.agent(await agent_token(client, "node-1"))
    await agent.connect()
    told, taken_at = incident("a"), Timestamp()
    told.first_seen.FromDatetime(datetime.now(UTC) + off)
    taken_at.FromDatetime(datetime.now(UTC) + off)
    await agent.snapshot(told, seq=1, time=taken_at)
    status = await fleet.until("node-1", lambda status: status.get("incidents"))
    first_seen = datetime.fromisoformat(status["incidents"][0]["firstSeen"])
    assert abs(first_seen - datetime.now(UTC)) < timedelta(minutes=2)
    clock = service.confirmations.clock_offset("node-1")
    assert clock is not None
    assert abs(clock.offset - off) < timedelta(minutes=2)


async def test_a_stored_status_that_we_did_not_write_is_replaced_by_what_the_agent_knows(
    client: KubeClient, fleet: Fleet
) -> None:
    await add_node(client, "node-1")
    strange = {"apiVersion": "nvcre.nvidia.com/v1alpha1", "kind": "NodeHealth", "metadata": {"name": "node-1"}}
    created = await client.create(NODE_HEALTHS, strange)
    created["status"] = {"incidents": [{"id": "no-fault-class", "kind": "Xid"}]}
    await client.update_status(NODE_HEALTHS, created)
    await fleet.start()
    agent = await fleet.agent(await agent_token(client, "node-1"))
    assert (await agent.connect()).cursor == 0
    await agent.snapshot(incident("a"), seq=1)
    status = await fleet.until("node-1", lambda status: status.get("verdict") == "Faulty")
    assert [told["id"] for told in status["incidents"]] == ["a"]


async def test_46_a_long_silence_is_blindness_and_never_a_fault(client: KubeClient, fleet: Fleet) -> None:
    await fleet.start()
    agent = await healthy(client, fleet)
    fleet.offset = timedelta(minutes=-3)  # the agent goes three minutes ago
    await agent.close()

    async def gone() -> bool:
        return fleet.service.metrics.agents_connected._value.get() == 0

    await eventually(gone)
    fleet.offset = timedelta(0)
    status = await fleet.until("node-1", lambda status: status["verdict"] != "Healthy")
    assert status["verdict"] == "Blind"
    assert status["message"].startswith("no agent since ")
    again = await fleet.agent(agent.token)
    await again.connect()
    await again.snapshot()
    await fleet.until("node-1", lambda status: status["verdict"] == "Healthy")


async def test_a_node_health_deleted_by_hand_comes_back_without_any_news(client: KubeClient, fleet: Fleet) -> None:
    service = await fleet.start()
    agent = await healthy(client, fleet)
    await agent.events(event(1, incident("a")))
    await agent.acked(1)
    await client.delete(NODE_HEALTHS, "node-1")
    service.node_health_changed("node-1", None)
    status = await fleet.until("node-1", lambda status: status.get("verdict") == "Faulty")
    assert [told["id"] for told in status["incidents"]] == ["a"]
    assert not agent.call.done()


async def test_an_incident_that_a_person_removed_comes_back_with_the_agent(client: KubeClient, fleet: Fleet) -> None:
    service = await fleet.start()
    agent = await healthy(client, fleet)
    await agent.events(event(1, incident("a")))
    await agent.acked(1)
    edited = await client.get(NODE_HEALTHS, "node-1")
    edited["status"] |= {"incidents": [], "verdict": "Healthy"}
    edited = await client.update_status(NODE_HEALTHS, edited)
    service.node_health_changed("node-1", edited["metadata"]["resourceVersion"])
    error = await agent.ended()
    assert error is not None
    assert error.code() is grpc.StatusCode.ABORTED
    again = await fleet.agent(agent.token)
    await again.connect()
    await again.snapshot(incident("a"), seq=1)
    await fleet.until("node-1", lambda status: [told["id"] for told in status.get("incidents", [])] == ["a"])


async def test_our_own_writes_seen_by_a_watch_cost_nothing(client: KubeClient, fleet: Fleet) -> None:
    service = await fleet.start()
    agent = await healthy(client, fleet)
    version = (await client.get(NODE_HEALTHS, "node-1"))["metadata"]["resourceVersion"]
    service.node_health_changed("node-1", version)
    await agent.events(event(1, incident("a")))
    await agent.acked(1)
    assert not agent.call.done()
