"""Watches the GPUs for the agent: owns the NVML child process and turns what it says into one stream of values.

All NVML calls live in the child (worker.py), because a call can hang for ever in the driver.  This class starts the
child, notices when it dies or hangs, says Blind with a reason meanwhile, and never has more than one child: one that
is stuck in the kernel cannot be killed, so its successor waits until it is gone.  It neither judges snapshots (checks/)
nor keeps history.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

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

log = logging.getLogger(__name__)

Observation: TypeAlias = NvmlEvent | Snapshot | MonitorState

_LINE_LIMIT = 4 * 1024 * 1024  # a snapshot of 16 GPUs is about 15 KB
_QUEUE_LIMIT = 1024  # a slow consumer holds the child back, and NVML folds events meanwhile

_STARTING = MonitorState(Sight.BLIND, "Starting", "NVML has not answered yet")


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds.  `start_s` is generous: without the persistence daemon nvmlInit takes half a minute."""

    snapshot_interval_s: float = 30.0
    beat_interval_s: float = 10.0
    wait_s: float = 5.0  # one wait for events, which a drain interrupts; less than hang_s
    hang_s: float = 20.0  # a call inside NVML for longer than this hangs
    start_s: float = 90.0
    stop_s: float = 5.0
    first_backoff_s: float = 1.0
    longest_backoff_s: float = 60.0


def backoff_s(failures: int, timing: Timing) -> float:
    """Pause before the next child after so many in a row that never got to watch."""
    return min(timing.longest_backoff_s, timing.first_backoff_s * 2.0 ** min(failures, 16))


@dataclass(frozen=True, slots=True)
class _Drained:
    """Goes through the queue behind the events that came before it."""

    confirmed: asyncio.Future[bool]


class NvmlMonitor:
    """`async for item in monitor.events()` yields events, snapshots and changes of its own state, in order."""

    def __init__(self, *, simulate: Path | None = None, timing: Timing | None = None) -> None:
        self._simulate = simulate
        self._timing = timing or Timing()
        self._queue: asyncio.Queue[Observation | _Drained | None] = asyncio.Queue(_QUEUE_LIMIT)
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._stopping = asyncio.Event()
        self._last_request = 0
        self._drains: dict[int, asyncio.Future[bool]] = {}
        self._snapshots: dict[int, asyncio.Future[Snapshot | None]] = {}
        self._has_watched = False
        self.state = _STARTING
        self.inventory: Inventory | None = None  # the last one known in good order
        self.last_snapshot: Snapshot | None = None

    @property
    def worker_pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self) -> None:
        """Start the child; returns at once, the first MonitorState comes through events()."""
        self._task = asyncio.create_task(self._keep_a_child(), name="nvml-monitor")
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """End the child within `stop_s` + 1; one stuck in the driver is left behind with a log line."""
        self._stopping.set()
        self._send({"do": "stop"})
        if self._task is not None:
            done, _ = await asyncio.wait({self._task}, timeout=self._timing.stop_s)
            if not done:
                self._kill()
                done, _ = await asyncio.wait({self._task}, timeout=1.0)
            if not done:
                log.error("event=nvml_worker_left_behind pid=%s reason=stuck_in_driver", self.worker_pid)
                self._task.cancel()
            await asyncio.wait({self._task}, timeout=1.0)

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

    def foreign_processes(self, own_pids: Collection[int]) -> int:
        """Processes on the GPUs in the last snapshot that are not in own_pids (host PIDs, as NVML counts)."""
        if self.last_snapshot is None:
            return 0
        pids = {pid for gpu in self.last_snapshot.gpus if isinstance(gpu.processes, tuple) for pid in gpu.processes}
        return len(pids - set(own_pids))

    # --- the child ------------------------------------------------------------------------------------------------

    async def _keep_a_child(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            self._has_watched = False
            state = await self._one_child()
            self._give_up_requests()
            if self._stopping.is_set():
                return
            await self._change_state(state)
            failures = 0 if self._has_watched else failures + 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), backoff_s(failures, self._timing))

    async def _one_child(self) -> MonitorState:
        """Live with one child until it is dead; says why it ended."""
        command = [sys.executable, "-m", "nvcre_agent.nvml.worker", "--parent", str(os.getpid())]
        command += ["--snapshot-interval", str(self._timing.snapshot_interval_s)]
        command += ["--beat-interval", str(self._timing.beat_interval_s), "--wait", str(self._timing.wait_s)]
        if self._simulate is not None:
            command += ["--simulate", str(self._simulate)]
        self._process = process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, limit=_LINE_LIMIT
        )
        if self._stopping.is_set():
            self._send({"do": "stop"})
        try:
            state = await self._listen(process)
            if state.reason == "NvmlUnresponsive":
                # Said before waiting: a child in an uninterruptible call may stay for hours.
                await self._change_state(state)
                self._kill()
            self._close_stdin()
            code = await process.wait()
            if state.reason == "WorkerDied":
                state = MonitorState(
                    Sight.BLIND, "WorkerDied", f"the NVML process ended with code {code}; restarting it"
                )
            return state
        finally:
            self._kill()

    async def _listen(self, process: Process) -> MonitorState:
        assert process.stdout is not None
        patience = self._timing.start_s
        while True:
            try:
                line = await asyncio.wait_for(process.stdout.readline(), patience)
            except TimeoutError:
                return _unresponsive(f"the NVML process said nothing for {patience:.0f} s")
            except ValueError:
                return MonitorState(
                    Sight.BLIND, "WorkerGarbled", "the NVML process wrote an endless line; restarting it"
                )
            if not line.endswith(b"\n"):  # nothing, or the half line of one that was killed while it wrote
                return MonitorState(Sight.BLIND, "WorkerDied")
            patience = self._timing.beat_interval_s + self._timing.hang_s
            try:
                said = json.loads(line)
            except ValueError:
                return MonitorState(Sight.BLIND, "WorkerGarbled", "the NVML process wrote no JSON; restarting it")
            ended = await self._hear(said)
            if ended is not None:
                return ended

    async def _hear(self, said: dict[str, Any]) -> MonitorState | None:
        match said:
            case {"say": "event", "event": raw}:
                await self._queue.put(event_from_json(raw))
            case {"say": "snapshot", "snapshot": raw, "ids": ids}:
                snapshot = self.last_snapshot = snapshot_from_json(raw)
                for request in ids:
                    _answer(self._snapshots.pop(request, None), snapshot)
                await self._queue.put(snapshot)
            case {"say": "drained", "id": request}:
                if (confirmed := self._drains.pop(request, None)) is not None:
                    await self._queue.put(_Drained(confirmed))
            case {"say": "beat", "event_age_s": event_age_s, "snapshot_age_s": snapshot_age_s}:
                age_s = max(event_age_s, snapshot_age_s)
                if age_s > self._timing.hang_s:
                    return _unresponsive(f"a call has been inside NVML for {age_s:.0f} s")
            case {"say": "watching", "inventory": raw, "refused": refused}:
                self._has_watched = True
                self.inventory = inventory_from_json(raw).remembering(self.inventory)
                deaf = ", ".join(f"GPU {index} ({why})" for index, why in refused.items())
                message = f"no events from {deaf}; snapshots still cover it" if deaf else ""
                await self._change_state(MonitorState(Sight.WATCHING, "", message))
            case {"say": "blind", "reason": reason, "message": message}:
                return MonitorState(Sight.BLIND, reason, message)
            case _:
                raise ValueError(f"NVML process said {said!r}; agent and worker are of different versions")
        return None

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
            return await asyncio.wait_for(answer, deadline_s)
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

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


def _answer(future: asyncio.Future[Any] | None, value: object) -> None:
    if future is not None and not future.done():
        future.set_result(value)


def _unresponsive(what: str) -> MonitorState:
    return MonitorState(
        Sight.BLIND,
        "NvmlUnresponsive",
        f"{what}; look for Xid 119/120 and blocked tasks in the kernel log, the node may need a reboot",
    )
