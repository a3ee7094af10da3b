"""What the coordinator hears from a real agent process, whatever breaks in between."""

import asyncio
import json
import os
import signal
import stat
from datetime import timedelta

from nvcre_protos import nvcre_agent_v1_pb2 as pb

from .conftest import Coordinator, Node, Pki, Server, gpu_pci, gpu_uuid

LOST = "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def xid(code: int, text: str, gpu: int = 5) -> str:
    return f"NVRM: Xid (PCI:{gpu_pci(gpu)}): {code}, {text}"


def watching(stream_snapshot: pb.Snapshot) -> bool:
    return len(stream_snapshot.inventory.gpus) == 8


async def test_hello_snapshot_heartbeat_and_a_kernel_line(server: Server, node: Node) -> None:
    coordinator = server.coordinator
    await node.start(server.address)
    await coordinator.until(lambda: coordinator.streams and any(map(watching, coordinator.stream.of("snapshot"))))
    hello = coordinator.stream.hello
    assert (hello.min_protocol, hello.max_protocol, hello.simulated, hello.boot_id) == (1, 1, True, "boot-1")
    assert coordinator.stream.authorization == "Bearer token-1"
    assert coordinator.stream.received[0].WhichOneof("body") == "snapshot"
    inventory = coordinator.stream.of("snapshot")[-1].inventory
    assert inventory.driver_version == "570.133.20"
    assert (inventory.gpus[5].uuid, inventory.gpus[5].pci_bus_id) == (gpu_uuid(5), "00000000:20:00.0")
    assert inventory.infiniband

    node.kernel(1, xid(79, LOST))
    await coordinator.until(coordinator.incidents)
    [event] = coordinator.events.values()
    incident = event.incident
    assert (event.kind, event.boot_id, event.time_uncertain) == (pb.EVENT_KIND_OPENED, "boot-1", False)
    assert (incident.kind, incident.code, incident.blame) == (pb.INCIDENT_KIND_XID, 79, pb.BLAME_YES)
    assert (incident.component.index, incident.component.uuid) == (5, gpu_uuid(5))
    assert (incident.simulated, incident.injected) == (True, False)
    assert incident.raw == xid(79, LOST)

    beats = len(coordinator.stream.of("heartbeat"))
    await coordinator.until(lambda: len(coordinator.stream.of("heartbeat")) > beats + 1)
    beat = coordinator.stream.of("heartbeat")[-1]
    assert beat.last_seq == event.seq
    assert {monitor.name for monitor in beat.monitors} == {"nvml", "kernel-log", "outbox"}
    assert all(monitor.state == pb.MONITOR_STATE_WATCHING for monitor in beat.monitors)
    assert beat.HasField("observed_through")

    assert await node.stop() == 0
    assert "Traceback" not in node.log()


async def test_the_operator_s_catalogue_judges_in_the_running_agent_too(server: Server, node: Node) -> None:
    coordinator = server.coordinator
    file = node.root / "xid.yaml"
    file.write_text('xid: {79: {remedy: "call the hotline"}}')
    await node.start(server.address, "--xid-catalogue", str(file))
    node.kernel(1, xid(79, LOST))
    await coordinator.until(coordinator.incidents)
    assert [one.remedy for one in coordinator.incidents().values()] == ["call the hotline"]
    assert await node.stop() == 0


async def test_both_sources_are_one_incident(server: Server, node: Node) -> None:
    coordinator = server.coordinator
    await node.start(server.address)
    await coordinator.until(lambda: coordinator.streams and any(map(watching, coordinator.stream.of("snapshot"))))
    node.driver(gpu=5, event="xid", code=79)
    node.kernel(1, xid(79, LOST))
    await coordinator.until(lambda: any(len(one.sources) == 2 for one in coordinator.incidents().values()))
    [incident] = coordinator.incidents().values()
    assert (incident.count, sorted(incident.sources)) == (1, [pb.SOURCE_NVML, pb.SOURCE_KERNEL_LOG])


async def test_a_lost_ack_means_a_resend_and_nothing_twice(server: Server, node: Node) -> None:
    coordinator = server.coordinator
    coordinator.acks = False
    await node.start(server.address)
    await coordinator.until(lambda: coordinator.streams)
    node.kernel(1, xid(79, LOST))
    await coordinator.until(lambda: coordinator.deliveries)
    outbox_id, [(_, seq)] = coordinator.stream.hello.outbox_id, list(coordinator.events)
    drain = pb.Drain()
    drain.reconnect_after.FromTimedelta(timedelta(milliseconds=100))
    await coordinator.stream.send(drain=drain)
    coordinator.acks = True
    await coordinator.until(lambda: len(coordinator.streams) == 2 and coordinator.deliveries.count(seq) == 2)
    assert coordinator.stream.hello.outbox_id == outbox_id
    [open_incident] = coordinator.stream.of("snapshot")[0].open_incidents
    assert open_incident.code == 79
    # A stored cursor stops it: the third stream has nothing to send.
    await coordinator.stream.send(drain=drain)
    await coordinator.until(lambda: len(coordinator.streams) == 3 and coordinator.stream.of("heartbeat"))
    assert coordinator.deliveries.count(seq) == 2


async def test_killed_and_restarted_nothing_is_lost_and_nothing_repeated(server: Server, node: Node) -> None:
    coordinator = server.coordinator
    await node.start(server.address)
    await coordinator.until(lambda: coordinator.streams)
    node.kernel(1, xid(79, LOST))
    await coordinator.until(coordinator.incidents)
    await node.stop(signal.SIGKILL)
    node.kernel(2, xid(95, "Uncontained", gpu=2))  # happens while nobody looks
    await node.start(server.address)
    await coordinator.until(lambda: len(coordinator.incidents()) == 2)
    sync = pb.Sync(id="after")
    await coordinator.stream.send(sync=sync)
    await coordinator.until(lambda: any(beat.sync_id for beat in coordinator.stream.of("heartbeat")))
    found = sorted((one.code, one.count) for one in coordinator.incidents().values())
    assert found == [(79, 1), (95, 1)]
    late = next(event for event in coordinator.events.values() if event.incident.code == 95)
    assert late.time_uncertain
    assert sorted(one.code for one in coordinator.stream.of("snapshot")[-1].open_incidents)[0] == 79


async def test_events_made_while_the_coordinator_is_away_survive_kill_and_arrive_in_order(
    pki: Pki, server: Server, node: Node
) -> None:
    await server.server.stop(None)
    await node.start(server.address)
    for number in range(1, 6):
        node.kernel(number, xid(95, "Uncontained", gpu=number))
    async with asyncio.timeout(20):
        while json.loads((await node.get("/healthz"))[1])["outboxEvents"] < 5:  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(0.05)
    await node.stop(signal.SIGKILL)
    back = await pki.serve(Coordinator())
    try:
        await node.start(back.address)
        await back.coordinator.until(lambda: len(back.coordinator.incidents()) == 5)
        assert back.coordinator.deliveries == sorted(back.coordinator.deliveries)
        told = [one.component.pci_bus_id for one in back.coordinator.incidents().values()]
        assert told == [f"00000000:{0x1B + number:02X}:00.0" for number in range(1, 6)]
    finally:
        await back.server.stop(None)


async def test_sync_answers_after_everything_before_it(server: Server, node: Node) -> None:
    coordinator = server.coordinator
    await node.start(server.address)
    await coordinator.until(lambda: coordinator.streams and any(map(watching, coordinator.stream.of("snapshot"))))
    for number in range(1, 301):
        node.kernel(number, xid(45, f"Ch {number:08x}", gpu=1))
    node.kernel(301, xid(79, LOST))
    await coordinator.stream.send(sync=pb.Sync(id="s1"))
    await coordinator.until(lambda: any(beat.sync_id == "s1" for beat in coordinator.stream.of("heartbeat")))
    bodies = coordinator.stream.received
    answer = next(
        index
        for index, message in enumerate(bodies)
        if message.WhichOneof("body") == "heartbeat" and message.heartbeat.sync_id == "s1"
    )
    told = [event for message in bodies[:answer] for event in message.event_batch.events]
    newest = {event.incident.id: event.incident for event in told}
    assert sorted((one.code, one.count) for one in newest.values()) == [(45, 300), (79, 1)]
    heartbeat = bodies[answer].heartbeat
    assert heartbeat.last_seq == max(event.seq for event in told)
    assert heartbeat.HasField("observed_through")


async def test_a_follower_names_the_leader_and_a_new_token_is_read(pki: Pki, server: Server, node: Node) -> None:
    follower = await pki.serve(Coordinator())
    follower.coordinator.redirect_to = server.address
    try:
        await node.start(follower.address)
        await server.coordinator.until(lambda: server.coordinator.streams)
        assert follower.coordinator.refused >= 1
        (node.root / "token").write_text("token-2")
        drain = pb.Drain()
        drain.reconnect_after.FromTimedelta(timedelta(milliseconds=50))
        await server.coordinator.stream.send(drain=drain)
        await server.coordinator.until(lambda: len(server.coordinator.streams) == 2)
        assert server.coordinator.stream.authorization == "Bearer token-2"
    finally:
        await follower.server.stop(None)


async def test_a_certificate_of_another_name_is_refused(server: Server, node: Node) -> None:
    await node.start(server.address, "--server-name", "somebody-else")
    async with asyncio.timeout(30):
        while "reason=unreachable" not in node.log():  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(0.05)
    assert not server.coordinator.streams


async def test_a_forged_line_is_told_as_injected(server: Server, node: Node) -> None:
    coordinator = server.coordinator
    await node.start(server.address)
    node.kernel(1, xid(79, LOST), priority=12)
    await coordinator.until(coordinator.incidents)
    [incident] = coordinator.incidents().values()
    assert (incident.injected, incident.blame) == (True, pb.BLAME_NO)


async def test_nvml_that_does_not_load_is_blind_and_never_simulated(server: Server, node: Node) -> None:
    coordinator = server.coordinator
    await node.start(server.address, simulate=False)

    def nvml() -> list[pb.Monitor]:
        beats = coordinator.stream.of("heartbeat") if coordinator.streams else []
        return [m for beat in beats for m in beat.monitors if m.name == "nvml" and m.reason != "Starting"]

    await coordinator.until(nvml)
    assert not coordinator.stream.hello.simulated
    assert (nvml()[-1].state, nvml()[-1].reason) == (pb.MONITOR_STATE_BLIND, "LibraryNotFound")
    node.kernel(1, xid(79, LOST))
    await coordinator.until(coordinator.incidents)
    [incident] = coordinator.incidents().values()
    assert (incident.simulated, incident.component.pci_bus_id) == (False, "00000000:20:00.0")
    status, body = await node.get("/healthz")
    assert (status, json.loads(body)["monitors"]["nvml"]["reason"]) == (200, "LibraryNotFound")
    _, metrics = await node.get("/metrics")
    assert 'nvcre_agent_monitor_blind{monitor="nvml",node="node-0",reason="LibraryNotFound"} 1.0' in metrics


TABLE = """#!/bin/sh
cat <<'EOF'
# nccl-tests version 2.19.0 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 8 minBytes 8388608 maxBytes 16777216 step: 2(factor) warmup iters: 1 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid   1000 on     node-0 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
     8388608       2097152     float     sum      -1   100.00   83.88  146.80       0   100.00   83.88  146.80       0
    16777216       4194304     float     sum      -1   120.00  139.81  244.67       0   120.00  139.81  244.67       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 195.735
#
# Collective test concluded: all_reduce_perf
EOF
"""


async def test_a_probe_order_is_carried_out_and_told_again_after_a_reconnect(server: Server, node: Node) -> None:
    tool = node.root / "bin" / "all_reduce_perf"
    tool.write_text(TABLE)
    os.chmod(tool, os.stat(tool).st_mode | stat.S_IXUSR)
    coordinator = server.coordinator
    await node.start(server.address)
    await coordinator.until(lambda: coordinator.streams and any(map(watching, coordinator.stream.of("snapshot"))))
    assert coordinator.stream.of("snapshot")[-1].inventory.nccl_tests == str(tool)
    order = pb.ProbeOrder(
        probe_id="p1",
        kind=pb.PROBE_KIND_NVLINK_ALL_REDUCE,
        min_bytes=8388608,
        max_bytes=16777216,
        step_factor=2,
        iterations=20,
        runs=2,
    )
    order.timeout.FromTimedelta(timedelta(seconds=60))
    await coordinator.stream.send(probe_order=order)

    def finals() -> list[pb.ProbeUpdate]:
        return [one for one in coordinator.stream.of("probe_update") if one.state != pb.PROBE_STATE_RUNNING]

    await coordinator.until(finals)
    states = [update.state for update in coordinator.stream.of("probe_update")]
    assert states == [pb.PROBE_STATE_RUNNING, pb.PROBE_STATE_MEASURED], finals()
    update = finals()[0]
    assert [[size.busbw_gbps for size in run.sizes] for run in update.runs] == [[146.80, 244.67]] * 2
    assert (update.gpu_product, update.driver_version, update.simulated) == (
        "NVIDIA H100 80GB HBM3",
        "570.133.20",
        True,
    )
    drain = pb.Drain()
    drain.reconnect_after.FromTimedelta(timedelta(milliseconds=50))
    await coordinator.stream.send(drain=drain)
    await coordinator.until(lambda: len(coordinator.streams) == 2 and finals())
    assert finals()[0] == update
    assert 'size="16777216"' in (await node.get("/metrics"))[1]


async def test_healthz_and_sigterm_without_a_coordinator(node: Node) -> None:
    await node.start(None)
    status, body = await node.get("/healthz")
    assert (status, json.loads(body)["ok"], json.loads(body)["connected"]) == (200, True, False)
    assert (await node.get("/nothing"))[0] == 404
    assert await node.stop() == 0


async def test_a_flood_pushes_out_what_accuses_nobody_and_a_snapshot_makes_it_good(server: Server, node: Node) -> None:
    coordinator = server.coordinator
    coordinator.acks = False  # the window fills, and everything after it waits
    await node.start(server.address)
    await coordinator.until(lambda: coordinator.streams and any(map(watching, coordinator.stream.of("snapshot"))))
    for number in range(1, 5001):
        line = xid(79, LOST) if number == 1000 else xid(31, f"pid={number}, name=python, MMU Fault", gpu=1)
        node.kernel(number, line)

    def told_by_a_snapshot() -> bool:
        return any(one.code == 79 for told in coordinator.stream.of("snapshot") for one in told.open_incidents)

    await coordinator.until(told_by_a_snapshot)
    coordinator.acks = True
    node.kernel(5001, xid(79, LOST, gpu=2))  # the acknowledgement of this is one of everything before
    await coordinator.until(lambda: [one.code for one in coordinator.incidents().values()].count(79) == 2)


async def test_a_process_cannot_bring_a_link_up_again(server: Server, node: Node) -> None:
    coordinator = server.coordinator
    await node.start(server.address)
    await coordinator.until(lambda: coordinator.streams)
    node.kernel(1, "mlx5_core 0000:29:00.0 mlx5_0: Port: 1 Link DOWN")
    await coordinator.until(coordinator.incidents)
    node.kernel(2, "mlx5_core 0000:29:00.0 mlx5_0: Port: 1 Link ACTIVE", priority=8 + 6)
    node.kernel(3, xid(79, LOST))
    await coordinator.until(lambda: len(coordinator.incidents()) == 2)
    assert [one.HasField("recovered_at") for one in coordinator.incidents().values()] == [False, False]


async def test_a_restarted_agent_names_no_number_that_was_never_sent(server: Server, node: Node) -> None:
    coordinator = server.coordinator
    await node.start(server.address)
    await coordinator.until(lambda: coordinator.streams)
    node.kernel(1, xid(79, LOST))
    await coordinator.until(coordinator.incidents)
    [(outbox_id, seq)] = coordinator.events
    await node.stop()
    await node.start(server.address)
    await coordinator.until(lambda: len(coordinator.streams) == 2 and coordinator.stream.of("heartbeat"))
    named = coordinator.stream.of("heartbeat")[-1].last_seq

    def has_come() -> bool:  # a heartbeat may overtake the event it names, never name one that does not come
        return named <= max(seq for outbox, seq in coordinator.events if outbox == outbox_id)

    assert named >= seq
    await coordinator.until(has_come)
