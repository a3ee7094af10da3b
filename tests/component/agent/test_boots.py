"""What a real agent process tells over its own restarts and the node's reboots (scenarios of the reference note,
section 8, by number). The kernel log is a file; a new boot empties it, as a reboot empties the ring buffer.
"""

import json
import os
import signal
import sqlite3
import time

from nvcre_protos import nvcre_agent_v1_pb2 as pb

from .conftest import Coordinator, Node, Server, gpu_pci, gpu_uuid

LOST = "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def xid(code: int, text: str, gpu: int = 5) -> str:
    return f"NVRM: Xid (PCI:{gpu_pci(gpu)}): {code}, {text}"


def printed(node: Node, sequence: int, text: str, *, ago_s: float) -> None:
    """A record that the kernel printed before the agent started."""
    at = int((time.monotonic() - ago_s) * 1e6)
    with node.kernel_log.open("a") as log:
        log.write(f"3,{sequence},{at},-;{text}\n")


def rebooted(node: Node, boot_id: str) -> None:
    (node.root / "boot_id").write_text(f"{boot_id}\n")
    node.kernel_log.write_text("")
    (node.root / "driver-events.jsonl").unlink(missing_ok=True)


def opened(coordinator: Coordinator) -> list[int]:
    return [event.incident.code for event in coordinator.events.values() if event.kind == pb.EVENT_KIND_OPENED]


def watching(coordinator: Coordinator) -> bool:
    snapshots = coordinator.stream.of("snapshot") if coordinator.streams else []
    return any(len(one.inventory.gpus) == 8 for one in snapshots)


async def test_10_11_a_fault_from_before_the_start_is_told_once_with_its_time(server: Server, node: Node) -> None:
    coordinator = server.coordinator
    printed(node, 1, xid(79, LOST), ago_s=2.0)
    before_s = time.time() - 2.0
    await node.start(server.address)
    await coordinator.until(coordinator.incidents)
    [event] = coordinator.events.values()
    assert event.time_uncertain
    assert abs(event.incident.first_seen.ToNanoseconds() / 1e9 - before_s) < 1.0
    await coordinator.until(lambda: watching(coordinator))
    assert node.process is not None
    os.kill(node.process.pid, signal.SIGKILL)
    await node.process.wait()

    await node.start(server.address)
    await coordinator.until(lambda: len(coordinator.streams) == 2 and watching(coordinator))
    node.kernel(2, xid(13, "pid=7, name=a, Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0)", gpu=1))
    await coordinator.until(lambda: 13 in opened(coordinator))
    assert opened(coordinator) == [79, 13]
    [lost] = [one for one in coordinator.incidents().values() if one.code == 79]
    assert (lost.count, lost.blame, lost.component.uuid) == (1, pb.BLAME_YES, gpu_uuid(5))
    [exception] = [one for one in coordinator.incidents().values() if one.code == 13]
    assert (exception.unit, exception.pid) == ("GPC 1, TPC 3", 7)
    assert [one.code for one in coordinator.stream.of("snapshot")[-1].open_incidents if one.code == 79] == [79]
    assert await node.stop() == 0


async def test_01_12_after_a_reboot_the_old_fault_is_not_new_and_the_same_one_again_is_fatal(
    server: Server, node: Node
) -> None:
    coordinator = server.coordinator
    await node.start(server.address)
    await coordinator.until(lambda: watching(coordinator))
    node.kernel(1, xid(79, LOST))
    node.driver(gpu=5, set={"lost": True})
    await coordinator.until(lambda: 79 in opened(coordinator))
    assert await node.stop() == 0

    rebooted(node, "boot-2")
    await node.start(server.address)
    await coordinator.until(lambda: len(coordinator.streams) == 2 and watching(coordinator))
    assert [one.code for one in coordinator.stream.of("snapshot")[-1].open_incidents] == [79]
    node.kernel(1, xid(79, LOST))
    await coordinator.until(
        lambda: any(one.fault_class == pb.FAULT_CLASS_FATAL_HARDWARE for one in coordinator.incidents().values())
    )
    assert opened(coordinator) == [79]
    assert await node.stop() == 0

    with sqlite3.connect(node.root / "outbox.sqlite") as outbox:
        [(history,)] = outbox.execute("SELECT value FROM state WHERE key = 'fault_history'")
    outbox.close()
    assert list(json.loads(history)) == [f"{gpu_uuid(5)}/Xid 79"], "it is remembered for the next boot"
