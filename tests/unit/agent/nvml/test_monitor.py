"""The monitor with its real child process over a simulated node: what the stream says, and when it is blind."""

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from nvcre_agent.nvml.call_note import CallNote, Doing
from nvcre_agent.nvml.monitor import NvmlMonitor
from nvcre_agent.nvml.snapshot import MonitorState, Sight, Snapshot, Unread
from nvcre_agent.nvml.timing import Timing, backoff_s, failures_in_a_row

from tests.support.simulated_nvml import SOON_S, TIMING, SimulationDirectory, alive, eventually, monitoring


async def test_the_stream_begins_with_watching_and_a_snapshot_of_all_gpus(simulation: SimulationDirectory) -> None:
    async with monitoring(simulation.description) as listener:
        await listener.watching()
        snapshot = await listener.until(lambda item: isinstance(item, Snapshot))
        assert isinstance(snapshot, Snapshot)
        assert len(snapshot.gpus) == 8
        assert listener.monitor.inventory is not None
        assert len(listener.monitor.inventory.gpus) == 8


async def test_a_drain_ends_after_everything_that_happened_before_it_was_handed_out(
    simulation: SimulationDirectory,
) -> None:
    async with monitoring(simulation.description) as listener:
        await listener.watching()
        for code in range(1, 51):
            simulation.xid(code % 8, code)
        assert await listener.monitor.drain(SOON_S)
        assert [code for _, code in listener.xids()] == list(range(1, 51))


async def test_a_request_that_is_cancelled_in_the_moment_of_its_answer_is_cancelled() -> None:
    """A heartbeat that went on instead held its broken stream for ever."""
    monitor = NvmlMonitor()
    monitor.state = MonitorState(Sight.WATCHING)
    request = asyncio.create_task(monitor.drain(SOON_S))
    await asyncio.sleep(0)
    monitor._give_up_requests()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request


async def test_a_drain_does_not_wait_for_the_end_of_a_long_wait(simulation: SimulationDirectory) -> None:
    async with monitoring(simulation.description, replace(TIMING, wait_s=600, hang_s=600)) as listener:
        await listener.watching()
        await listener.until(lambda item: isinstance(item, Snapshot))
        simulation.xid(3, 31)
        assert await listener.monitor.drain(SOON_S)
        assert await listener.monitor.drain(SOON_S)
        assert listener.xids() == [("GPU-3", 31)]


async def test_a_lost_gpu_leaves_the_other_seven_watched(simulation: SimulationDirectory) -> None:
    async with monitoring(simulation.description) as listener:
        await listener.watching()
        simulation.xid(5, 79)
        simulation.set(5, lost=True)
        assert await listener.monitor.drain(SOON_S)
        simulation.xid(4, 31)
        assert await listener.monitor.drain(SOON_S)
        assert listener.xids() == [("GPU-5", 79), ("GPU-4", 31)]
        snapshot = await listener.monitor.snapshot(SOON_S)
        assert snapshot is not None
        assert [gpu.access for gpu in snapshot.gpus] == [Unread.LOST if i == 5 else None for i in range(8)]
        assert len(listener.monitor.inventory.gpus) == 8  # type: ignore[union-attr]
        assert listener.monitor.state.sight is Sight.WATCHING


async def test_a_gpu_that_came_back_is_watched_again(simulation: SimulationDirectory) -> None:
    async with monitoring(simulation.description) as listener:
        await listener.watching()
        simulation.set(5, lost=True)
        assert await listener.monitor.drain(SOON_S)
        await listener.monitor.snapshot(SOON_S)
        simulation.set(5, lost=False)
        await listener.monitor.snapshot(SOON_S)

        async def heard_again() -> None:
            while ("GPU-5", 31) not in listener.xids():
                simulation.xid(5, 31)
                await listener.monitor.drain(SOON_S)

        async with asyncio.timeout(SOON_S):
            await heard_again()


async def test_foreign_processes_are_those_that_are_not_ours(simulation: SimulationDirectory) -> None:
    simulation.set(0, processes=[11, 12])
    simulation.set(1, processes=[11, 13])
    async with monitoring(simulation.description) as listener:
        assert listener.monitor.foreign_processes([]) == 0
        await listener.until(lambda item: isinstance(item, Snapshot))
        assert listener.monitor.foreign_processes([]) == 3
        assert listener.monitor.foreign_processes([11, 13]) == 1


async def test_a_child_that_dies_is_replaced_and_the_gap_is_visible(simulation: SimulationDirectory) -> None:
    async with monitoring(simulation.description) as listener:
        await listener.watching()
        first, heard = listener.monitor.worker_pid, len(listener.heard)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert (await listener.blind(after=heard)).reason == "WorkerDied"
        await listener.watching(after=heard)
        assert listener.monitor.worker_pid not in (None, first)


async def test_a_call_that_hangs_is_unresponsive_and_no_children_pile_up(simulation: SimulationDirectory) -> None:
    async with monitoring(simulation.description) as listener:
        await listener.watching()
        first = listener.monitor.worker_pid
        simulation.set(None, hang_s=600)
        assert (await listener.blind()).reason == "NvmlUnresponsive"
        assert not await listener.monitor.drain(SOON_S)
        assert await listener.monitor.snapshot(SOON_S) is None
        assert first is not None
        await eventually(lambda: not alive(first))


async def test_an_init_that_is_slow_without_the_persistence_daemon_is_no_hang(
    simulation: SimulationDirectory,
) -> None:
    simulation.set(None, persistence_mode=0, init_s=2.0)  # twice what another call may take
    async with monitoring(simulation.description) as listener:
        await listener.watching()
        assert [item for item in listener.heard if isinstance(item, MonitorState)] == [listener.monitor.state]
        assert listener.monitor.counts.hung_calls == 0


async def test_a_stopped_process_is_unresponsive_too(simulation: SimulationDirectory) -> None:
    """What a child in uninterruptible sleep looks like from outside."""
    async with monitoring(simulation.description, replace(TIMING, stop_s=0.5)) as listener:
        await listener.watching()
        assert listener.monitor.worker_pid is not None
        heard = len(listener.heard)
        os.kill(listener.monitor.worker_pid, signal.SIGSTOP)
        assert (await listener.blind(after=heard)).reason == "NvmlUnresponsive"
        await listener.watching(after=heard)


async def test_a_child_that_cannot_be_started_is_blind_and_tried_again(
    simulation: SimulationDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = asyncio.create_subprocess_exec

    async def refuse(*_: object, **__: object) -> None:
        monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    async with monitoring(simulation.description) as listener:
        assert "cannot be started (Resource temporarily unavailable)" in (await listener.blind()).message
        await listener.watching()


async def test_a_driver_so_slow_that_nothing_is_seen_is_blind_though_no_call_hangs() -> None:
    monitor, note = NvmlMonitor(), CallNote.create()
    monitor.state = monitor._watching = MonitorState(Sight.WATCHING)
    note.write(Doing.CALLING, "nvmlDeviceGetName", 3)
    await monitor._look_after(note, silent_s=140)
    assert monitor.state.sight is Sight.WATCHING
    await monitor._look_after(note, silent_s=160)
    assert (monitor.state.reason, "so slowly that nothing was seen" in monitor.state.message) == (
        "NvmlUnresponsive",
        True,
    )
    await monitor._look_after(note)  # it has spoken
    assert monitor.state.sight is Sight.WATCHING


async def test_a_container_that_lost_its_devices_is_blind_and_accuses_nobody(
    simulation: SimulationDirectory,
) -> None:
    async with monitoring(simulation.description) as listener:
        await listener.watching()
        simulation.set(None, return_="UNKNOWN")
        assert (await listener.blind()).reason == "DevicesUnreadable"
        simulation.set(None, return_="SUCCESS")
        await listener.watching(after=len(listener.heard))
        snapshots = [item for item in listener.heard if isinstance(item, Snapshot)]
        assert not {gpu.access for snapshot in snapshots for gpu in snapshot.gpus} & {
            Unread.LOST,
            Unread.RESET_REQUIRED,
        }


async def test_released_nvml_has_no_process_of_ours_until_it_is_resumed(simulation: SimulationDirectory) -> None:
    async with monitoring(simulation.description) as listener:
        await listener.watching()
        pid, heard = listener.monitor.worker_pid, len(listener.heard)
        assert pid is not None
        assert await listener.monitor.release()
        assert (listener.monitor.worker_pid, alive(pid)) == (None, False)
        state = await listener.blind(after=heard)
        assert state.reason == "Released"
        assert not await listener.monitor.drain(SOON_S)
        listener.monitor.resume()
        await listener.watching(after=heard)
        assert listener.monitor.counts.restarts == 0


async def test_released_nvml_is_taken_up_again_by_itself(simulation: SimulationDirectory) -> None:
    async with monitoring(simulation.description) as listener:
        await listener.watching()
        heard = len(listener.heard)
        assert await listener.monitor.release(for_s=0.5)
        await listener.watching(after=heard)


async def test_nvml_is_not_released_while_a_call_holds_it(simulation: SimulationDirectory) -> None:
    async with monitoring(simulation.description, replace(TIMING, hang_s=600, stop_s=0.5)) as listener:
        await listener.watching()
        simulation.set(None, hang_s=600)
        assert not await listener.monitor.release()
        assert listener.monitor.worker_pid is not None


async def test_a_stop_ends_a_release(simulation: SimulationDirectory) -> None:
    async with monitoring(simulation.description) as listener:
        await listener.watching()
        assert await listener.monitor.release(for_s=3600)
    assert listener.monitor.worker_pid is None


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU")
async def test_without_nvml_it_is_blind_and_never_simulated() -> None:
    async with monitoring(None) as listener:
        state = await listener.blind()
        assert state.reason == "LibraryNotFound"
        assert listener.monitor.inventory is None
        assert not await listener.monitor.drain(SOON_S)


async def test_a_bad_description_is_blind_with_the_file_in_its_message(simulation: SimulationDirectory) -> None:
    simulation.description.write_text("{}")
    async with monitoring(simulation.description) as listener:
        state = await listener.blind()
        assert state.reason == "BadSimulation"
        assert "driver.json" in state.message


async def test_stopping_ends_the_child_and_the_stream(simulation: SimulationDirectory) -> None:
    async with monitoring(simulation.description) as listener:
        await listener.watching()
        pid = listener.monitor.worker_pid
    assert pid is not None
    assert not alive(pid)


async def test_stopping_does_not_wait_for_a_hung_child(simulation: SimulationDirectory) -> None:
    async with monitoring(simulation.description, replace(TIMING, hang_s=600, stop_s=0.5)) as listener:
        await listener.watching()
        pid = listener.monitor.worker_pid
        simulation.set(None, hang_s=600)
    assert pid is not None
    assert not alive(pid)


async def test_the_child_dies_with_an_agent_that_is_killed(simulation: SimulationDirectory) -> None:
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _AGENT, str(simulation.description), stdout=asyncio.subprocess.PIPE
    )
    assert agent.stdout is not None
    child = int(await asyncio.wait_for(agent.stdout.readline(), SOON_S))
    assert alive(child)
    agent.kill()
    await agent.wait()
    await eventually(lambda: not alive(child))


_AGENT = """
import asyncio, sys
from pathlib import Path
from types import SimpleNamespace
from nvcre_agent.nvml.monitor import NvmlMonitor

async def main():
    monitor = NvmlMonitor(simulate=Path(sys.argv[1]))
    await monitor.start()
    async for _ in monitor.events():
        print(monitor.worker_pid, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize(("failures", "pause_s"), [(0, 1), (1, 2), (3, 8), (6, 60), (10_000, 60)])
def test_restarts_slow_down(failures: int, pause_s: float) -> None:
    assert backoff_s(failures, Timing()) == pause_s


def test_a_child_that_ends_again_and_again_soon_after_it_began_is_not_started_each_second() -> None:
    failures = 0
    for _ in range(6):
        failures = failures_in_a_row(failures, 2.0, Timing())
    assert backoff_s(failures, Timing()) == 60
    assert failures_in_a_row(failures, 60.0, Timing()) == 0


def test_the_child_stays_small() -> None:
    """It is most of the agent's second process: no gRPC, no asyncio, nothing of the agent above NVML."""
    heavy = "grpc", "asyncio", "google", "yaml"
    code = f"import sys, nvcre_agent.nvml.worker; print([name for name in {heavy} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (b'{"say": "snapsh', None),
        (b"", None),
        (b"Segmentation fault\n", "WorkerGarbled"),
        (b"[" * 100_000 + b"\n", "WorkerGarbled"),
        (b"[]\n", "WorkerGarbled"),
        (b'{"say": "joke"}\n', "WorkerGarbled"),
        (b'{"say": "event", "event": {}}\n', "WorkerGarbled"),
        (b'{"say": "event", "event": null}\n', "WorkerGarbled"),
        (b'{"say": "watching", "inventory": {"gpus": 5}, "refused": {}}\n', "WorkerGarbled"),
        (b'{"say": "snapshot", "snapshot": {}, "ids": [], "calls": {"count": NaN}}\n', "WorkerGarbled"),
        (b'{"say": "snapshot", "snapshot": {}, "ids": [], "calls": {"count": Infinity}}\n', "WorkerGarbled"),
    ],
)
async def test_whatever_a_child_writes_does_not_take_the_agent_with_it(written: bytes, reason: str | None) -> None:
    stdout = asyncio.StreamReader()
    stdout.feed_data(written)
    stdout.feed_eof()
    state = await NvmlMonitor()._listen(SimpleNamespace(stdout=stdout), CallNote.create())  # type: ignore[arg-type]
    assert (state.reason if state else None) == reason
