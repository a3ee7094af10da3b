"""Starts and signals container processes through the spawner, and tells how they ended; knows nothing of Pods.

The processes are not children of this process: see `spawner.py`, which also makes sure that none survives it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nvcre_local.node.spawner import become_subreaper, kill_descendants

logger = logging.getLogger(__name__)

SPAWNER = Path(__file__).with_name("spawner.py")
GRACE_S = 2.0
STOP_TIMEOUT_S = 5.0


class SpawnerLost(Exception):
    """The spawner process ended; every container ended with it."""


class CannotStart(Exception):
    """The program was found but the kernel refused to run it."""


@dataclass(frozen=True, slots=True)
class Exit:
    code: int
    at: datetime


@dataclass(slots=True)
class Process:
    """One started container process, the leader of a session and group of its own."""

    id: str
    pid: int
    exited: asyncio.Future[Exit]
    _processes: Processes = field(repr=False)

    def signal_group(self, number: signal.Signals) -> None:
        self._processes.send({"op": "kill", "id": self.id, "signal": int(number)})


class Processes:
    def __init__(self) -> None:
        self._starting: dict[str, asyncio.Future[int]] = {}
        self._running: dict[str, asyncio.Future[Exit]] = {}
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Resolves when the spawner is gone without having been asked to."""
        become_subreaper()  # should the spawner be killed, what it leaves behind is ours to kill
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._spawner = subprocess.Popen(
                [sys.executable, "-I", str(SPAWNER), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C in the terminal is for the runtime alone
                cwd="/",
            )
        self._control = ours
        asyncio.get_running_loop().add_reader(ours.fileno(), self._on_readable)

    async def start(
        self,
        *,
        path: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        log_fd: int,
        mark: str,
        id: str,  # noqa: A002
    ) -> Process:
        """Start a program; raises CannotStart. `mark` is the value of NVCRE_POD_DIR, by which strays are found."""
        loop = asyncio.get_running_loop()
        request = os.memfd_create("nvcre-spawn")
        started: asyncio.Future[int] = loop.create_future()
        exited: asyncio.Future[Exit] = loop.create_future()
        self._starting[id], self._running[id] = started, exited
        try:
            with open(request, "wb", closefd=False) as file:  # noqa: ASYNC230 (memory, not a disk)
                file.write(json.dumps({"path": path, "argv": list(argv), "env": dict(env), "cwd": cwd}).encode())
            self.send({"op": "spawn", "id": id, "mark": mark}, [request, log_fd])
            pid = await started
        except CannotStart:
            del self._running[id]
            raise
        finally:
            del self._starting[id]
            os.close(request)
        return Process(id, pid, exited, self)

    def send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        # Blocking for a moment at most: the spawner never waits for us, its answers are queued on its side.
        data = json.dumps(message).encode()
        try:
            socket.send_fds(self._control, [data], list(fds))
        except OSError:
            self._lose()
            if fds:
                raise SpawnerLost from None

    def _on_readable(self) -> None:
        try:
            data = self._control.recv(65536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose()
            return
        message = json.loads(data)
        match message:
            case {"event": "started", "id": name, "pid": pid}:
                _resolve(self._starting.get(name), pid)
            case {"event": "refused", "id": name, "errno": number}:
                if (waiting := self._starting.get(name)) and not waiting.done():
                    waiting.set_exception(CannotStart(os.strerror(number)))
            case {"event": "exited", "id": name, "code": code, "at": at}:
                _resolve(self._running.pop(name, None), Exit(code, datetime.fromtimestamp(at, UTC)))

    def _lose(self) -> None:
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        _resolve(self.lost, None)
        for waiting in self._starting.values():
            if not waiting.done():
                waiting.set_exception(SpawnerLost())
        now = datetime.now(UTC)
        while self._running:
            _resolve(self._running.popitem()[1], Exit(137, now))

    async def close(self) -> None:
        """SIGTERM to whatever still runs, after a moment SIGKILL; returns when it is gone."""
        loop = asyncio.get_running_loop()
        for name in list(self._running):
            self.send({"op": "kill", "id": name, "signal": int(signal.SIGTERM)})
        if self._running:
            await asyncio.wait(list(self._running.values()), timeout=GRACE_S)
        loop.remove_reader(self._control.fileno())
        self._control.close()
        try:
            await asyncio.to_thread(self._spawner.wait, STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            logger.warning("spawner does not end, killing it pid=%d", self._spawner.pid)
            self._spawner.kill()
        if self._spawner.returncode != 0:
            await asyncio.to_thread(kill_descendants)


def _resolve(future: asyncio.Future[Any] | None, value: object) -> None:
    if future is not None and not future.done():
        future.set_result(value)
