"""What the coordinator hears from a real agent over broken connections, lost words, wrong clocks and kill -9."""

import asyncio
import json
import re
import resource
import signal
import sqlite3
from typing import Any

import pytest
from nvcre_protos import nvcre_agent_v1_pb2 as pb
from support.chaos_proxy import AckChaos, Odds, TcpProxy
from support.eventually import eventually
from support.shifted_clock import Clock

from .conftest import PATIENCE_S, SERVER_NAME, Coordinator, Node, Pki, Server, gpu_pci

HOUR = 3600.0
APPLICATION_ERROR = 31  # each process its own incident


def line(number: int) -> str:
    return f"NVRM: Xid (PCI:{gpu_pci(number % 8)}): {APPLICATION_ERROR}, pid={number}, name=python, MMU Fault"


async def queued(node: Node) -> int:
    return int(json.loads((await node.get("/healthz"))[1])["outboxEvents"])


def opened(coordinator: Coordinator) -> list[int]:
    """Which lines arrived, in the order of their numbers in the outbox."""
    events = [coordinator.events[key] for key in sorted(coordinator.events)]
    return [event.incident.pid for event in events if event.kind == pb.EVENT_KIND_OPENED]


def in_file(node: Node) -> dict[int, pb.Event]:
    """What a dead agent left behind."""
    with sqlite3.connect(node.root / "outbox.sqlite") as file:
        rows = dict(file.execute("SELECT seq, body FROM events"))
    file.close()
    return {seq: pb.Event.FromString(body) for seq, body in rows.items()}


def times(event: pb.Event) -> tuple[Any, ...]:
    return event.time, event.monotonic_ns, event.incident.first_seen, event.boot_id


async def test_32_two_hours_without_a_coordinator_and_a_kill_lose_double_and_reorder_nothing(
    pki: Pki, node: Node
) -> None:
    clock = Clock(node.root / "clock")
    node.launcher = clock.launcher
    clock.jump_to(-2 * HOUR)
    nobody = "127.0.0.1:9"
    await node.start(nobody)
    for number in range(1, 151):
        node.kernel(number, line(number))

    async def some() -> bool:
        return await queued(node) >= 100

    await eventually(some)
    await node.stop(signal.SIGKILL)
    kept = await asyncio.to_thread(in_file, node)
    assert kept, "what waited for its commit no longer than 50 ms may be missing, because the log has it; not all"
    for number in range(151, 301):
        node.kernel(number, line(number))
    clock.jump_to(0.0)
    back = await pki.serve(Coordinator())
    try:
        await node.start(back.address)
        coordinator = back.coordinator
        await coordinator.until(lambda: len(set(opened(coordinator))) == 300)
        assert opened(coordinator) == list(range(1, 301))
        assert coordinator.deliveries == sorted(set(coordinator.deliveries)), "once, and in order"
        outbox_id = coordinator.stream.hello.outbox_id
        for seq, event in kept.items():
            assert times(coordinator.events[outbox_id, seq]) == times(event)
        absence_s = coordinator.stream.hello.sent_at.seconds - max(one.time.seconds for one in kept.values())
        assert absence_s >= 2 * HOUR - 1

        async def none() -> bool:
            return await queued(node) == 0

        await eventually(none)
    finally:
        await back.server.stop(None)


async def test_32_what_a_small_outbox_gives_up_is_counted_by_reason_and_what_accuses_stays(
    pki: Pki, node: Node
) -> None:
    await node.start("127.0.0.1:9", "--outbox-max-mib", "0.01")
    node.kernel(1, f"NVRM: Xid (PCI:{gpu_pci(0)}): 79, GPU has fallen off the bus.")
    for number in range(2, 101):
        node.kernel(number, line(number))

    async def counted() -> bool:
        found = re.search(r'events_dropped_total{node="node-0",reason="full"} (\S+)', (await node.get("/metrics"))[1])
        return found is not None and float(found[1]) > 50

    await eventually(counted)
    await node.stop(signal.SIGKILL)
    left = (await asyncio.to_thread(in_file, node)).values()
    assert sum(event.ByteSize() for event in left) <= 0.01 * (1 << 20)
    assert 79 in {event.incident.code for event in left}, "the oldest, and the last to go"


async def test_34_the_snapshot_of_every_new_stream_lists_all_open_faults(server: Server, node: Node) -> None:
    coordinator, proxy = server.coordinator, TcpProxy()
    async with proxy.to(server.address) as address:
        await node.start(address)
        await coordinator.until(lambda: coordinator.streams)
        for count in range(1, 4):
            node.kernel(count, line(count))
            await coordinator.until(lambda count=count: count in opened(coordinator))
            coordinator.cursor.clear()  # its database is wiped, and no event comes again: they were acknowledged
            coordinator.events.clear()
            proxy.break_connections()
            await coordinator.until(
                lambda count=count: len(coordinator.streams) == count + 1 and coordinator.stream.received
            )
            first = coordinator.stream.received[0]
            assert first.WhichOneof("body") == "snapshot"
            assert sorted(one.pid for one in first.snapshot.open_incidents) == list(range(1, count + 1))
            assert first.snapshot.outbox_id == coordinator.stream.hello.outbox_id
            assert first.snapshot.seq >= max(coordinator.deliveries)
        assert await node.stop() == 0


@pytest.mark.parametrize("seed", [1, 2])
async def test_acknowledgements_lost_repeated_and_out_of_order_over_breaking_connections(
    pki: Pki, server: Server, node: Node, seed: int
) -> None:
    coordinator, proxy = server.coordinator, TcpProxy()
    chaos = AckChaos(server.address, pki.ca, SERVER_NAME, seed=seed)
    chaos.odds = Odds(lost=0.3, repeated=0.3, delay_s=0.05)
    relay = await pki.serve(chaos)
    try:
        async with proxy.to(relay.address) as address:
            await node.start(address)
            for number in range(1, 121):
                node.kernel(number, line(number))
                if number % 40 == 0:
                    await coordinator.until(lambda number=number: len(set(opened(coordinator))) >= number - 30)
                    proxy.break_connections()
                await asyncio.sleep(0.005)
            await coordinator.until(lambda: len(set(opened(coordinator))) == 120)
            assert opened(coordinator) == list(range(1, 121)), "stored once each, in the order of the lines"
            for stream in coordinator.streams:
                sent = [event.seq for batch in stream.of("event_batch") for event in batch.events]
                assert sent == sorted(set(sent))
            assert chaos.lost
            assert chaos.repeated
            chaos.odds = Odds()
            proxy.break_connections()  # a new stream's Welcome says what no acknowledgement said

            async def none() -> bool:
                return await queued(node) == 0

            await eventually(none)
    finally:
        await relay.server.stop(None)


async def test_35_a_wall_clock_that_jumps_an_hour_back_and_forth(server: Server, node: Node) -> None:
    coordinator = server.coordinator
    clock = Clock(node.root / "clock")
    node.launcher = clock.launcher
    await node.start(server.address)
    await coordinator.until(lambda: coordinator.streams)

    async def told(number: int, count: int = 1) -> None:
        def arrived() -> bool:
            return any((one.pid, one.count) == (number, count) for one in coordinator.incidents().values())

        await coordinator.until(arrived)

    record = 0
    for step, offset_s in enumerate((0.0, -HOUR, HOUR, 0.0), 1):
        clock.jump_to(offset_s)
        for number in (1000, step):  # one that repeats over the jumps, one of its own
            record += 1
            node.kernel(record, line(number))
        await told(step)
        beats = len(coordinator.stream.of("heartbeat"))
        await coordinator.until(lambda beats=beats: len(coordinator.stream.of("heartbeat")) > beats + 1)
    await coordinator.stream.send(sync=pb.Sync(id="all"))
    await told(1000, count=4)

    assert len(coordinator.streams) == 1, "no timer of the stream is on the wall clock"
    events = [coordinator.events[key] for key in sorted(coordinator.events)]
    assert [one.incident.pid for one in events if one.kind == pb.EVENT_KIND_OPENED] == [1000, 1, 2, 3, 4]
    assert [one.monotonic_ns for one in events] == sorted(one.monotonic_ns for one in events)
    incidents = coordinator.incidents().values()
    assert len(incidents) == 5, "a repeat is found whatever the clock says"
    for one in incidents:
        assert one.last_seen.ToNanoseconds() >= one.first_seen.ToNanoseconds()
    beats_ns = [beat.monotonic_ns for beat in coordinator.stream.of("heartbeat")]
    assert beats_ns == sorted(beats_ns)
    assert await node.stop() == 0


async def test_44_sigterm_under_load_writes_the_queue_and_ends_in_time(pki: Pki, node: Node) -> None:
    await node.start("127.0.0.1:9")
    for number in range(1, 401):
        node.kernel(number, line(number))

    async def some() -> bool:
        return await queued(node) > 20

    await eventually(some)
    assert await node.stop(signal.SIGTERM) == 0, node.log()
    left = await asyncio.to_thread(in_file, node)
    assert len(left) > 20
    assert "Traceback" not in node.log()
    assert "not closed" not in node.log()
    back = await pki.serve(Coordinator())
    try:
        await node.start(back.address)
        await back.coordinator.until(lambda: len(set(opened(back.coordinator))) == 400)
        assert opened(back.coordinator) == list(range(1, 401)), "nothing of it is told twice after a clean end"
    finally:
        await back.server.stop(None)


async def test_a_disk_that_is_full_for_everything_and_has_room_again_under_a_running_agent(
    server: Server, node: Node
) -> None:
    coordinator = server.coordinator
    coordinator.acks = False
    await node.start(server.address)
    await coordinator.until(lambda: coordinator.streams)
    assert node.process is not None
    _, most = resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (1, most))  # no file grows, its own log neither

    def outbox() -> str:
        beats = coordinator.stream.of("heartbeat")
        return next((one.reason for one in beats[-1].monitors if one.name == "outbox"), "") if beats else ""

    node.kernel(1, line(1))
    await coordinator.until(lambda: outbox() == "OutboxUnwritable")
    await coordinator.until(lambda: opened(coordinator) == [1])
    assert 'nvcre_agent_outbox_in_memory{node="node-0"} 1.0' in (await node.get("/metrics"))[1]
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (most, most))
    node.kernel(2, line(2))
    await coordinator.until(lambda: outbox() == "")
    await node.stop(signal.SIGKILL)
    left = (await asyncio.to_thread(in_file, node)).values()
    assert {event.incident.pid for event in left} == {1, 2}, "also what came while nothing could be written"


async def test_a_second_agent_on_the_same_outbox_or_socket_ends_and_says_whose_it_is(node: Node) -> None:
    await node.start(None)
    first = node.process
    assert first is not None
    for flags, held in (((), r"outbox\.sqlite"), (("--outbox", str(node.root / "own.sqlite")), r"control\.sock")):
        with pytest.raises(AssertionError, match=rf"{held} is in use by process {first.pid}: .*stop the other one"):
            await node.start(None, *flags)
        assert node.process is not None
        assert node.process.returncode not in (0, None)
    node.process = first
    async with asyncio.timeout(PATIENCE_S):
        assert await node.stop() == 0
