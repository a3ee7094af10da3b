"""The fault scenarios that NVML shows, by number: real pynvml in the real child process, over the simulated C API."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from nvcre_agent.nvml.call_note import CallNote
from nvcre_agent.nvml.snapshot import EventType, MigInstance, MonitorState, NvmlEvent, Sight, Snapshot, Unread

from tests.support.simulated_nvml import (
    SOON_S,
    TIMING,
    Listener,
    SimulationDirectory,
    alive,
    eventually,
    monitoring,
)
from tests.support.watched_node import watching

ACCUSING = {Unread.LOST, Unread.RESET_REQUIRED}


@pytest.fixture
def node(tmp_path: Path) -> SimulationDirectory:
    return SimulationDirectory(tmp_path)


async def snapshot_of(listener: Listener) -> Snapshot:
    snapshot = await listener.monitor.snapshot(SOON_S)
    assert snapshot is not None
    return snapshot


def reasons(listener: Listener, after: int = 0) -> list[str]:
    return [item.reason for item in listener.heard[after:] if isinstance(item, MonitorState)]


def accused(listener: Listener) -> set[str]:
    snapshots = [item for item in listener.heard if isinstance(item, Snapshot)]
    return {gpu.identity.uuid for one in snapshots for gpu in one.gpus if gpu.access in ACCUSING}


async def test_01_a_gpu_off_the_bus_keeps_its_name_while_enumeration_fails_and_the_other_seven_stay_healthy(
    node: SimulationDirectory,
) -> None:
    async with monitoring(node.description) as listener:
        await listener.watching()
        before = listener.monitor.inventory
        node.xid(5, 79)
        node.set(5, lost=True)
        node.set(None, calls={"nvmlDeviceGetCount_v2": "GPU_IS_LOST"})
        assert await listener.monitor.drain(SOON_S)
        snapshot = await snapshot_of(listener)
        [event] = [item for item in listener.heard if isinstance(item, NvmlEvent)]
        assert (event.gpu, event.data) == (before and before.gpus[5], 79)
        assert [gpu.access for gpu in snapshot.gpus] == [Unread.LOST if i == 5 else None for i in range(8)]
        assert (snapshot.device_count, snapshot.unidentified) == (Unread.LOST, ())
        assert listener.monitor.inventory == before
        assert listener.monitor.state.sight is Sight.WATCHING
        assert "GPU 5 (Lost)" in listener.monitor.state.message
        # An agent that starts now still finds the seven that answer.
        os.kill(listener.monitor.worker_pid or 0, signal.SIGKILL)
        await listener.watching(after=len(listener.heard))
        snapshot = await snapshot_of(listener)
        assert [gpu.access for gpu in snapshot.gpus] == [None] * len(snapshot.gpus)
        assert listener.monitor.inventory == before


async def test_03_seven_of_eight_after_a_reboot_are_counted_against_the_inventory_that_was_known(
    node: SimulationDirectory,
) -> None:
    async with monitoring(node.description) as listener:
        await listener.watching()
        full = listener.monitor.inventory
        described = json.loads(node.description.read_text())["gpus"]
        node.describe(gpus=described[:2] + described[3:])
        heard = len(listener.heard)
        os.kill(listener.monitor.worker_pid or 0, signal.SIGKILL)
        await listener.watching(after=heard)
        snapshot = await snapshot_of(listener)
        assert (snapshot.device_count, len(snapshot.gpus), snapshot.gpu("GPU-2")) == (7, 7, None)
        assert listener.monitor.inventory is not None
        assert full is not None
        assert listener.monitor.inventory.by_uuid("GPU-2") == full.gpus[2]


def children() -> set[int]:
    """NVML processes that this one has started and that are alive."""
    mine = [int(pid) for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()]
    return {pid for pid in mine if alive(pid) and b"nvml.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()}


async def test_09_nvml_that_blocks_is_named_and_waited_for_and_never_has_two_children(
    node: SimulationDirectory,
) -> None:
    async with monitoring(node.description, replace(TIMING, abandon_s=600)) as listener:
        await listener.watching()
        node.xid(3, 119)
        assert await listener.monitor.drain(SOON_S)
        pid, heard = listener.monitor.worker_pid, len(listener.heard)
        node.set(None, hang={"nvmlEventSetWait_v2": 4})
        state = await listener.blind(after=heard)
        assert state.reason == "NvmlUnresponsive"
        assert "nvmlEventSetWait_v2 has not come back since 20" in state.message
        # The agent stays responsive: who asks gets an answer at once.
        async with asyncio.timeout(1):
            assert await listener.monitor.snapshot(SOON_S) is None
            assert not await listener.monitor.drain(SOON_S)
        assert children() == {pid}
        # It was only slow: the same child goes on, and what happened meanwhile is not lost.
        node.xid(4, 31)
        await listener.watching(after=heard)
        assert await listener.monitor.drain(SOON_S)
        assert (listener.xids(), children()) == ([("GPU-3", 119), ("GPU-4", 31)], {pid})
        assert (listener.monitor.counts.hung_calls, listener.monitor.counts.restarts) == (1, 0)


async def test_09_a_call_that_never_comes_back_says_which_and_on_which_gpu_until_nvml_answers_again(
    node: SimulationDirectory,
) -> None:
    async with monitoring(node.description) as listener:
        await listener.watching()
        await listener.until(lambda item: isinstance(item, Snapshot))
        heard = len(listener.heard)
        node.set(None, hang={"nvmlDeviceGetMemoryInfo": 6})
        asked = asyncio.create_task(listener.monitor.snapshot(SOON_S))
        state = await listener.blind(after=heard)
        assert "nvmlDeviceGetMemoryInfo on GPU 0" in state.message
        await listener.watching(after=heard)
        assert await asked is None
        assert set(reasons(listener, heard)) == {"NvmlUnresponsive", ""}  # ended, and yet nothing else is said
        assert children() == {listener.monitor.worker_pid}


GSP_TIMEOUT = "NVRM: Xid (PCI:0000:1e:00): 119, pid=4711, name=python, Timeout after 45s of waiting for RPC response"


async def test_09_the_agent_reports_119_and_that_it_is_blind_and_keeps_reading_the_kernel_log(
    node: SimulationDirectory,
) -> None:
    async with watching(node, replace(TIMING, abandon_s=600)) as agent:
        agent.kernel(GSP_TIMEOUT)
        agent.node.set(None, hang_s=5)
        await agent.nvml_says("NvmlUnresponsive")
        await agent.sees((119, "GPU-3"))
        agent.kernel(GSP_TIMEOUT)
        agent.kernel("NVRM: Xid (PCI:0000:1b:00): 48, pid=4711, name=python, DBE (double bit error)")
        await agent.sees((119, "GPU-3"), (48, "GPU-0"))
        await agent.nvml_says("")  # and nobody is accused by the silence
        await agent.sees((119, "GPU-3"), (48, "GPU-0"))


async def test_38_a_container_without_its_devices_opens_no_incident(node: SimulationDirectory) -> None:
    async with watching(node, TIMING) as agent:
        agent.node.set(None, return_="UNKNOWN")
        await agent.nvml_says("DevicesUnreadable")
        agent.node.set(None, return_="SUCCESS")
        await agent.nvml_says("")
        assert await agent.nvml.snapshot(SOON_S) is not None
        assert agent.incidents == []


MIG = [{"gpu_instance": gi, "compute_instance": 0, "uuid": f"MIG-{gi}", "profile": "1g.10gb"} for gi in (1, 2)]


async def test_36_an_xid_of_a_mig_gpu_says_which_instance_or_the_whole_gpu(node: SimulationDirectory) -> None:
    node.set(2, mig_instances=MIG)
    async with monitoring(node.description) as listener:
        await listener.watching()
        node.append({"gpu": 2, "event": "xid", "code": 31, "gpu_instance": 2, "compute_instance": 0})
        node.xid(2, 94)
        assert await listener.monitor.drain(SOON_S)
        events = [item for item in listener.heard if isinstance(item, NvmlEvent)]
        assert [(event.data, event.gpu_instance, event.compute_instance) for event in events] == [
            (31, 2, 0),
            (94, None, None),
        ]
        assert {event.gpu.uuid for event in events if event.gpu} == {"GPU-2"}
        gpu = (await snapshot_of(listener)).gpu("GPU-2")
        assert gpu is not None
        assert gpu.mig_mode == 1
        assert gpu.mig_instances == (MigInstance(1, 0, "MIG-1", "1g.10gb"), MigInstance(2, 0, "MIG-2", "1g.10gb"))


async def test_every_type_of_event_that_the_device_supports_is_delivered(node: SimulationDirectory) -> None:
    async with monitoring(node.description) as listener:
        await listener.watching()
        node.append(*[{"gpu": 1, "event": kind.name.lower(), "code": 0} for kind in EventType])
        assert await listener.monitor.drain(SOON_S)
        assert [item.event_type for item in listener.heard if isinstance(item, NvmlEvent)] == list(EventType)


async def test_37_a_driver_upgrade_is_let_through_and_watched_again_afterwards(node: SimulationDirectory) -> None:
    async with monitoring(node.description) as listener:
        await listener.watching()
        pid, heard = listener.monitor.worker_pid, len(listener.heard)
        assert pid is not None
        node.set(None, driver="unloaded")
        assert (await listener.blind(after=heard)).reason == "DriverReload"
        await eventually(lambda: not alive(pid))  # so it holds no device file

        async def hears(reason: str) -> None:
            await listener.until(lambda item: isinstance(item, MonitorState) and item.reason == reason, after=heard)

        await hears("DriverNotLoaded")
        node.set(None, driver="mismatch")
        await hears("DriverMismatch")
        node.set(None, driver="loaded")
        await listener.watching(after=heard)
        node.xid(3, 31)
        assert await listener.monitor.drain(SOON_S)
        assert listener.xids() == [("GPU-3", 31)]
        assert [gpu.access for gpu in (await snapshot_of(listener)).gpus] == [None] * 8
        assert accused(listener) == set()


async def test_37_handles_of_a_driver_that_was_exchanged_unseen_are_noticed(node: SimulationDirectory) -> None:
    async with monitoring(node.description, replace(TIMING, wait_s=5, hang_s=20)) as listener:
        await listener.watching()
        heard = len(listener.heard)
        node.append({"set": {"driver": "unloaded"}}, {"set": {"driver": "loaded"}})
        await listener.monitor.snapshot(SOON_S)
        assert (await listener.blind(after=heard)).reason == "DriverReload"
        await listener.watching(after=heard)
        assert accused(listener) == set()


@pytest.mark.parametrize("code", ["UNKNOWN", "NO_PERMISSION", "OPERATING_SYSTEM"])
async def test_38_a_container_that_lost_its_devices_asks_for_a_restart_and_accuses_no_gpu(
    node: SimulationDirectory, code: str
) -> None:
    async with monitoring(node.description) as listener:
        await listener.watching()
        heard = len(listener.heard)
        node.set(None, return_=code)
        state = await listener.blind(after=heard)
        assert state.reason == "DevicesUnreadable"
        assert "restart the agent's Pod" in state.message
        assert accused(listener) == set()
        assert listener.monitor.inventory is not None
        assert len(listener.monitor.inventory.gpus) == 8
        node.set(None, return_="SUCCESS")
        await listener.watching(after=len(listener.heard))


@pytest.fixture
async def worker(node: SimulationDirectory) -> AsyncIterator[asyncio.subprocess.Process]:
    """The child process by itself, watching."""
    note = CallNote.create()
    command = [sys.executable, "-m", "nvcre_agent.nvml.worker", "--parent", str(os.getpid()), "--note", str(note.fd)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, "--simulate", str(node.description), stdin=pipe, stdout=pipe, stderr=pipe, pass_fds=(note.fd,)
    )
    assert process.stdout is not None
    async with asyncio.timeout(SOON_S):
        while b'"snapshot"' not in await process.stdout.readline():
            pass
    yield process
    if process.returncode is None:
        process.kill()
        await process.wait()
    note.close()


async def test_44_a_term_ends_the_child_in_order(worker: asyncio.subprocess.Process) -> None:
    worker.terminate()
    assert await asyncio.wait_for(worker.wait(), SOON_S) == 0


async def test_44_a_term_skips_the_shutdown_where_a_call_is_stuck(
    node: SimulationDirectory, worker: asyncio.subprocess.Process
) -> None:
    node.set(None, hang_s=600)
    worker.terminate()
    assert worker.stderr is not None
    assert await asyncio.wait_for(worker.wait(), SOON_S) == 1
    assert b"action=exit_without_shutdown" in await worker.stderr.read()


async def test_44_the_agent_ends_inside_its_grace_period_although_a_call_is_stuck(node: SimulationDirectory) -> None:
    async with monitoring(node.description, replace(TIMING, hang_s=600)) as listener:
        await listener.watching()
        pid = listener.monitor.worker_pid
        node.set(None, hang_s=600)
        async with asyncio.timeout(SOON_S):
            await listener.monitor.stop()
        assert pid is not None
        assert not alive(pid)


async def test_48_a_wait_that_fails_for_ever_goes_on_without_the_lost_gpu(node: SimulationDirectory) -> None:
    async with monitoring(node.description) as listener:
        await listener.watching()
        node.xid(5, 79)
        node.set(5, lost=True)
        assert await listener.monitor.drain(SOON_S)
        for gpu in range(8):
            node.xid(gpu, 31)
        assert await listener.monitor.drain(SOON_S)
        assert listener.xids() == [("GPU-5", 79), *((f"GPU-{gpu}", 31) for gpu in range(8) if gpu != 5)]
        assert "no events from GPU 5 (Lost)" in listener.monitor.state.message


async def test_48_the_gpu_that_makes_the_wait_fail_is_found_although_it_says_nothing_itself(
    node: SimulationDirectory,
) -> None:
    async with monitoring(node.description) as listener:
        await listener.watching()
        node.set(5, calls={"nvmlEventSetWait_v2": "GPU_IS_LOST"})
        await listener.until(lambda item: isinstance(item, MonitorState) and "GPU 5" in item.message)
        node.xid(4, 31)
        assert await listener.monitor.drain(SOON_S)
        assert listener.xids() == [("GPU-4", 31)]
        assert accused(listener) == set()


async def test_48_a_wait_that_fails_for_no_gpu_is_blind_and_begins_anew(node: SimulationDirectory) -> None:
    async with monitoring(node.description, replace(TIMING, wait_s=0.02)) as listener:
        await listener.watching()
        heard = len(listener.heard)
        node.set(None, calls={"nvmlEventSetWait_v2": "UNKNOWN"})
        state = await listener.blind(after=heard)
        assert state.reason == "EventWaitFailed"
        assert "although the GPUs answer" in state.message
        node.set(None, calls={"nvmlEventSetWait_v2": "SUCCESS"})
        await listener.watching(after=len(listener.heard))
