"""Runs one container: looks the program up, starts it, collects its output, and runs it again as its Pod wants.

What a container's state means for the Pod, and whether it starts again, is decided in `pod_status.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path, PurePath

from nvcre_kube.resources import JsonObject

from nvcre_local.node.environment import Launch
from nvcre_local.node.log_files import ContainerLog
from nvcre_local.node.pod_status import (
    BACKOFF_FORGOTTEN_AFTER_S,
    ContainerRecord,
    Running,
    Terminated,
    Waiting,
    backoff_s,
    exit_reason,
    starts_again,
)
from nvcre_local.node.processes import CannotStart, Process, Processes

logger = logging.getLogger(__name__)

START_ERROR_CODE = 127
"""What a shell answers for a program that is not there."""
OUTPUT_DRAIN_S = 2.0
READ_SIZE = 64 * 1024

_sequence = itertools.count(1)


class StartError(Exception):
    """The program cannot be run; the message says which and where it was looked for."""


def find_program(name: str, search_path: str, working_dir: str, simulation: PurePath | None) -> str:
    """The file to execute. A scenario's programs win, also over an absolute path into an image that is not here."""
    if not os.path.isdir(working_dir):
        raise StartError(f"workingDir {working_dir!r} does not exist on this machine")
    if simulation is not None and "/" in name:
        shim = Path(simulation) / "bin" / PurePath(name).name
        if os.access(shim, os.X_OK):
            return str(shim)
    if "/" in name:
        path = os.path.join(working_dir, name)
        if not os.path.exists(path):
            raise StartError(f"exec {name!r}: no such file on this machine (images are not pulled on a local cluster)")
        return path
    found = shutil.which(name, path=search_path)
    if found is None:
        raise StartError(f"exec {name!r}: executable file not found in $PATH ({search_path})")
    return found


class Container:
    """One container of a Pod: its record, the logs of its current and its previous run, its process."""

    def __init__(
        self,
        spec: JsonObject,
        *,
        log_dir: Path,
        log_max_bytes: int,
        processes: Processes,
        on_change: Callable[[], None],
        restarts: int = 0,
    ) -> None:
        self.record = ContainerRecord(spec["name"], spec.get("image", ""), restarts=restarts)
        self.log: ContainerLog | None = None
        self.previous_log: ContainerLog | None = None
        self._log_dir = log_dir
        self._log_max_bytes = log_max_bytes
        self._processes = processes
        self._on_change = on_change
        self._process: Process | None = None
        self._stopping = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self, launch: Launch, *, mark: str, restart_policy: str, simulation: PurePath | None) -> None:
        """Until it ended for good. `stop` ends it early; the record always says how it ended."""
        ends_in_a_row = 0
        while not self._stopping:
            self._idle.clear()
            try:
                ended = await self._run_once(launch, mark, simulation)
            finally:
                self._idle.set()
            self._change(replace(self.record, state=ended))
            if self._stopping or not starts_again(restart_policy, ended.exit_code):
                return
            if (ended.finished_at - ended.started_at).total_seconds() >= BACKOFF_FORGOTTEN_AFTER_S:
                ends_in_a_row = 0
            ends_in_a_row += 1
            delay_s = backoff_s(ends_in_a_row)
            if delay_s:
                waiting = Waiting(
                    "CrashLoopBackOff", f"back-off {delay_s:.0f}s restarting failed container={self.name}"
                )
                self._change(replace(self.record, state=waiting, last=ended))
                await asyncio.sleep(delay_s)
            self.record = replace(self.record, last=ended, restarts=self.record.restarts + 1)

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def alive(self) -> bool:
        """A process of it runs or is being started."""
        return not self._idle.is_set()

    async def ended(self) -> None:
        await self._idle.wait()

    def wait_for(self, reason: str, message: str) -> None:
        """Say why it does not start."""
        self._change(replace(self.record, state=Waiting(reason, message)))

    def lost(self, now: datetime) -> None:
        """A run that an earlier kubelet process began; nobody knows how it ended."""
        message = "the node runtime was restarted; the process ended with it"
        self._change(replace(self.record, state=Terminated(137, "ContainerStatusUnknown", now, now, message)))

    def stop(self, number: signal.Signals) -> None:
        """Send a signal to the whole process group; it is not started again."""
        self._stopping = True
        if self._process is not None:
            self._process.signal_group(number)

    def settle(self, now: datetime) -> None:
        """For a container that was stopped while nothing of it ran: say how its last run ended."""
        if isinstance(self.record.state, Waiting):
            ended = self.record.last or Terminated(
                137, "Error", now, now, "the Pod was stopped before the container started"
            )
            self._change(replace(self.record, state=ended))

    async def _run_once(self, launch: Launch, mark: str, simulation: PurePath | None) -> Terminated:
        self._new_log()
        started_at = datetime.now(UTC)
        output, log_fd = os.pipe2(os.O_CLOEXEC)
        collecting = asyncio.create_task(self._collect(output))
        try:
            try:
                path = find_program(launch.argv[0], launch.env["PATH"], launch.working_dir, simulation)
                process = await self._processes.start(
                    path=path,
                    argv=launch.argv,
                    env=launch.env,
                    cwd=launch.working_dir,
                    log_fd=log_fd,
                    mark=mark,
                    id=f"{self.name}-{next(_sequence)}",
                )
            finally:
                os.close(log_fd)
        except (StartError, CannotStart) as error:
            await collecting
            message = str(error) if isinstance(error, StartError) else f"exec {launch.argv[0]!r}: {error}"
            now = datetime.now(UTC)
            return Terminated(START_ERROR_CODE, "StartError", now, now, message)
        self._process = process
        container_id = f"process://{process.pid}"
        self._change(replace(self.record, state=Running(started_at), container_id=container_id))
        if self._stopping:  # asked to stop while it was being started
            process.signal_group(signal.SIGTERM)
        end = await asyncio.shield(process.exited)  # its end is still to be known when we are cancelled
        self._process = None
        # Its whole group is dead by now; a process that hides from us may still hold the pipe open.
        with suppress(TimeoutError):
            async with asyncio.timeout(OUTPUT_DRAIN_S):
                await collecting
        return Terminated(end.code, exit_reason(end.code), started_at, end.at)

    def _new_log(self) -> None:
        if self.log is not None:
            if self.previous_log is not None:
                self.previous_log.remove()
            self.previous_log = self.log
        self.log = ContainerLog(self._log_dir / self.name / f"{self.record.restarts}.log", self._log_max_bytes)

    async def _collect(self, output: int) -> None:
        """Move the output into the log until all who hold the pipe have closed it."""
        loop = asyncio.get_running_loop()
        log = self.log
        assert log is not None
        done: asyncio.Future[None] = loop.create_future()
        os.set_blocking(output, False)

        def on_readable() -> None:
            try:
                chunk = os.read(output, READ_SIZE)
            except BlockingIOError:
                return
            if chunk:
                log.write(chunk)
            elif not done.done():
                done.set_result(None)

        loop.add_reader(output, on_readable)
        try:
            await done
        finally:
            loop.remove_reader(output)
            os.close(output)
            log.finish()

    def _change(self, record: ContainerRecord) -> None:
        self.record = record
        self._on_change()
