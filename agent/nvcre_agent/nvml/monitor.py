"""Watches the GPUs for the agent: owns the NVML child process and turns what it says into one stream of values.

All NVML calls live in the child (worker.py), because a call can hang for ever in the driver.  This class starts the
child, notices when it dies or hangs, says Blind with a reason meanwhile, and never has more than one child: one that
is stuck in the kernel cannot be killed, so its successor waits until it is gone.  A child inside a call is left alone
for long, because killing it there can freeze the GPU (https://github.com/NVIDIA/dcgm-exporter/issues/84), and most
calls come back.  `release` gives NVML to somebody else for a while.  It neither judges snapshots (checks/) nor keeps
history.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from nvcre_agent.nvml import blindness
from nvcre_agent.nvml.call_note import CallNote, overdue
from nvcre_agent.nvml.snapshot import (
    Inventory,
    MonitorState,
    NvmlEvent,
    Sight,
    Snapshot,
    event_from_json,
    inventory_from_json,
    snapshot_from_json,
)
from nvcre_agent.nvml.timing import CALL_SECONDS, Timing, backoff_s, failures_in_a_row

log = logging.getLogger(__name__)

Observation: TypeAlias = NvmlEvent | Snapshot | MonitorState

_LINE_LIMIT = 4 * 1024 * 1024  # a snapshot of 16 GPUs is about 15 KB
_QUEUE_LIMIT = 1024  # a slow consumer holds the child back, and NVML folds events meanwhile

RELEASE_S = 600.0
# What reading a line raises that the worker did not write, or not as it meant to: the driver's library lives with it.
_NOT_OURS = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class _Drained:
    """Goes through the queue behind the events that came before it."""

    confirmed: asyncio.Future[bool]


@dataclass(slots=True)
class Counts:
    """Of the monitor's own life, for its metrics."""

    hung_calls: int = 0
    restarts: int = 0  # children after the first one, those after a release apart
    calls: int = 0  # NVML calls that came back, waiting for events apart
    call_seconds: float = 0.0
    within: list[int] = field(default_factory=lambda: [0] * (len(CALL_SECONDS) + 1))  # of calls, by CALL_SECONDS
    slowest_call_s: float = 0.0  # since the snapshot before the last one


class NvmlMonitor:
    """`async for item in monitor.events()` yields events, snapshots and changes of its own state, in order."""

    def __init__(self, *, simulate: Path | None = None, timing: Timing | None = None) -> None:
        self._simulate = simulate
        self._timing = timing or Timing()
        self._queue: asyncio.Queue[Observation | _Drained | None] = asyncio.Queue(_QUEUE_LIMIT)
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._stopping = False
        self._wake = asyncio.Event()
        self._released_until_s = 0.0  # of the event loop's clock; 0 is not released
        self._has_released = asyncio.Event()
        self._last_request = 0
        self._drains: dict[int, asyncio.Future[bool]] = {}
        self._snapshots: dict[int, asyncio.Future[Snapshot | None]] = {}
        self._watching: MonitorState | None = None  # what the child of now said when it began
        self._watching_since_s: float | None = None
        self.state = blindness.STARTING
        self.inventory: Inventory | None = None  # the last one known in good order
        self.last_snapshot: Snapshot | None = None
        self.counts = Counts()

    @property
    def worker_pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self) -> None:
        """Start the child; returns at once, the first MonitorState comes through events()."""
        self._task = asyncio.create_task(self._keep_a_child(), name="nvml-monitor")
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """End the child within `stop_s` + 2; one stuck in the driver is left behind with a log line."""
        self._stopping = True
        self._wake.set()
        self._send({"do": "stop"})
        if self._task is None:
            return
        for patience_s, next_step in ((self._timing.stop_s, self._terminate), (1.0, self._kill), (1.0, None)):
            done, _ = await asyncio.wait({self._task}, timeout=patience_s)
            if done:
                return
            if next_step is not None:
                next_step()
        log.error("event=nvml_worker_left_behind pid=%s reason=stuck_in_driver", self.worker_pid)
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=1.0)

    async def release(self, for_s: float = RELEASE_S) -> bool:
        """Give NVML back, so that a GPU can be reset or the driver unloaded; taken up again after `for_s` or resume().

        True once no process of ours holds the driver, and the state is Blind with the reason Released.  False while a
        call that does not come back still holds it; it is released when that ends.
        """
        self._released_until_s = asyncio.get_running_loop().time() + for_s
        self._wake.set()
        self._send({"do": "stop"})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timing.stop_s):
                await self._has_released.wait()
        return self._has_released.is_set()

    def resume(self) -> bool:
        """End a release before its time; False where there was none."""
        was_released, self._released_until_s = self._released_until_s > 0, 0.0
        self._wake.set()
        return was_released

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._failure = task.exception()
        self._give_up_requests()
        # Room is made for the end mark when nobody consumes any more.
        while self._queue.full():
            self._queue.get_nowait()
        self._queue.put_nowait(None)

    async def events(self) -> AsyncIterator[Observation]:
        """For one consumer; ends after stop().  Raises what ended the monitor, should it fail."""
        while True:
            match await self._queue.get():
                case None if self._failure is not None:
                    raise self._failure
                case None:
                    return
                case _Drained(confirmed):
                    if not confirmed.done():
                        confirmed.set_result(True)
                case observation:
                    yield observation

    async def drain(self, deadline_s: float) -> bool:
        """True once every event that NVML had before this call was handed out by events() and the consumer is back.

        False while Blind, when the child dies meanwhile, or after `deadline_s`.
        """
        if self.state.sight is Sight.BLIND:
            return False
        return await self._ask("drain", self._drains, deadline_s) or False

    async def snapshot(self, deadline_s: float) -> Snapshot | None:
        """A fresh snapshot, which events() hands out too; None while Blind or after `deadline_s`."""
        if self.state.sight is Sight.BLIND:
            return None
        answer: Snapshot | None = await self._ask("snapshot", self._snapshots, deadline_s)
        return answer

    @property
    def backlog(self) -> int:
        """Observations that nobody has taken from events() yet."""
        return self._queue.qsize()

    def foreign_processes(self, own_pids: Collection[int]) -> int:
        """Processes on the GPUs in the last snapshot that are not in own_pids (host PIDs, as NVML counts)."""
        if self.last_snapshot is None:
            return 0
        pids = {pid for gpu in self.last_snapshot.gpus if isinstance(gpu.processes, tuple) for pid in gpu.processes}
        return len(pids - set(own_pids))

    # --- the child ------------------------------------------------------------------------------------------------

    async def _keep_a_child(self) -> None:
        failures = 0
        while not self._stopping:
            self._wake.clear()
            if await self._stay_released():
                failures = 0
                continue
            self._watching = self._watching_since_s = None
            state = await self._one_child()
            self._process = None
            self._give_up_requests()
            if self._stopping or self._released_until_s:
                continue
            await self._change_state(state)
            failures = failures_in_a_row(failures, self._watched_s(), self._timing)
            self.counts.restarts += 1
            await self._pause(backoff_s(failures, self._timing))

    def _watched_s(self) -> float:
        return 0.0 if self._watching_since_s is None else time.monotonic() - self._watching_since_s

    async def _stay_released(self) -> bool:
        """False at once where nobody asked for it."""
        left_s = self._released_until_s - asyncio.get_running_loop().time()
        if left_s <= 0:
            self._released_until_s = 0.0
            return False
        await self._change_state(blindness.released(time.time() + left_s))
        self._has_released.set()
        await self._pause(left_s)
        self._has_released.clear()
        return True

    async def _pause(self, seconds: float) -> None:
        """Until stop, release or resume."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _one_child(self) -> MonitorState:
        """Live with one child until it is dead; says why it ended."""
        note = CallNote.create()
        command = [sys.executable, "-m", "nvcre_agent.nvml.worker", "--parent", str(os.getpid())]
        command += ["--note", str(note.fd), "--snapshot-interval", str(self._timing.snapshot_interval_s)]
        command += ["--wait", str(self._timing.wait_s)]
        if self._simulate is not None:
            command += ["--simulate", str(self._simulate)]
        try:
            try:
                self._process = process = await asyncio.create_subprocess_exec(
                    *command, stdin=PIPE, stdout=PIPE, limit=_LINE_LIMIT, pass_fds=(note.fd,)
                )
            except OSError as error:
                return blindness.not_started(error)
            if self._stopping or self._released_until_s:
                self._send({"do": "stop"})
            state = await self._listen(process, note)
            if state is not None and not self._released_until_s:
                await self._change_state(state)  # before its end, which can take as long as a call does
            self._close_stdin()
            await self._outlive(process)
            if state is None and self.state.reason == blindness.UNRESPONSIVE:
                return self.state  # why it was ended
            return state or blindness.died(process.returncode)
        finally:
            self._kill()
            note.close()

    async def _outlive(self, process: Process) -> None:
        """It has said its last word and ends by itself; one that does not is ended."""
        for next_step in (self._terminate, self._kill):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timing.stop_s):
                    await process.wait()
                return
            next_step()
        await process.wait()

    async def _listen(self, process: Process, note: CallNote) -> MonitorState | None:
        """Until the child is blind or ends (None)."""
        assert process.stdout is not None
        heard_s = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(self._timing.check_s):
                    line = await process.stdout.readline()
            except TimeoutError:
                await self._look_after(note, silent_s=time.monotonic() - heard_s)
                continue
            except ValueError:
                return blindness.garbled("an endless line")
            if not line.endswith(b"\n"):  # nothing, or the half line of one that was killed while it wrote
                return None
            heard_s = time.monotonic()
            try:
                ended = await self._hear(json.loads(line))
            except _NOT_OURS as error:
                return blindness.garbled(f"{line[:80]!r} ({type(error).__name__})")
            if ended is not None:
                return ended
            if self.state.reason == blindness.UNRESPONSIVE:
                await self._look_after(note)

    async def _look_after(self, note: CallNote, *, silent_s: float = 0.0) -> None:
        """The child is silent: does it hang?  Then say so, and end it only when it will not come back."""
        seen = note.read()
        now_ns = time.monotonic_ns()
        if not overdue(seen, now_ns, start_s=self._timing.start_s, hang_s=self._timing.hang_s):
            if self._watching is not None and silent_s > self._timing.snapshot_interval_s + self._timing.abandon_s:
                await self._change_state(blindness.slow(time.time() - silent_s))
            elif self._watching is not None and self.state.reason == blindness.UNRESPONSIVE:
                await self._change_state(self._watching)
            return
        age_s = seen.age_s(now_ns)
        if self.state.reason != blindness.UNRESPONSIVE:
            self.counts.hung_calls += 1
            await self._change_state(blindness.unresponsive(seen, time.time() - age_s))
        limit_s = max(self._timing.abandon_s, self._timing.start_s if self._watching is None else 0.0)
        if age_s > limit_s + self._timing.stop_s:
            self._kill()
        elif age_s > limit_s:
            self._terminate()

    async def _hear(self, said: Any) -> MonitorState | None:
        """Raises one of _NOT_OURS."""
        match said:
            case {"say": "event", "event": raw}:
                await self._queue.put(event_from_json(raw))
            case {"say": "snapshot", "snapshot": raw, "ids": ids, "calls": calls}:
                self._count(calls)
                snapshot = self.last_snapshot = snapshot_from_json(raw)
                for request in ids:
                    _answer(self._snapshots.pop(request, None), snapshot)
                await self._queue.put(snapshot)
            case {"say": "drained", "id": request}:
                if (confirmed := self._drains.pop(request, None)) is not None:
                    await self._queue.put(_Drained(confirmed))
            case {"say": "watching", "inventory": raw, "refused": refused}:
                self.inventory = inventory_from_json(raw).remembering(self.inventory)
                deaf = ", ".join(f"GPU {index} ({why})" for index, why in refused.items())
                message = f"no events from {deaf}; snapshots still cover it" if deaf else ""
                self._watching = MonitorState(Sight.WATCHING, "", message)
                self._watching_since_s = self._watching_since_s or time.monotonic()
                await self._change_state(self._watching)
            case {"say": "blind", "reason": reason, "message": message}:
                return MonitorState(Sight.BLIND, reason, message)
            case _:
                raise ValueError("nothing that a worker of this version says")
        return None

    def _count(self, calls: dict[str, Any]) -> None:
        self.counts.calls += int(calls["count"])
        self.counts.call_seconds += calls["sum_s"]
        self.counts.slowest_call_s = calls["max_s"]
        self.counts.within = [before + more for before, more in zip(self.counts.within, calls["within"], strict=True)]

    async def _change_state(self, state: MonitorState) -> None:
        if state == self.state:
            return
        self.state = state
        await self._queue.put(state)

    async def _ask(self, what: str, waiting: dict[int, asyncio.Future[Any]], deadline_s: float) -> Any:
        self._last_request += 1
        request = self._last_request
        answer = waiting[request] = asyncio.get_running_loop().create_future()
        self._send({"do": what, "id": request})
        try:
            async with asyncio.timeout(deadline_s):
                return await answer
        except TimeoutError:
            return None
        finally:
            waiting.pop(request, None)

    def _give_up_requests(self) -> None:
        for drain in self._drains.values():
            _answer(drain, False)
        for snapshot in self._snapshots.values():
            _answer(snapshot, None)

    def _send(self, command: dict[str, Any]) -> None:
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(json.dumps(command).encode() + b"\n")

    def _close_stdin(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def _terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


def _answer(future: asyncio.Future[Any] | None, value: object) -> None:
    if future is not None and not future.done():
        future.set_result(value)
