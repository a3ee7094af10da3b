"""Child processes of the local cluster: started, awaited until they serve, watched, and ended without leftovers.

Each child is the leader of a session of its own (a Ctrl-C in the terminal reaches only us) and is killed by the kernel
when we die, however we die. Its output goes to a file; the last lines of it are shown when it ends unasked.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvcre_protos.ready_file import read_ready_file

PR_SET_PDEATHSIG = 1
TERMINATE_WITHIN_S = 10.0
LOOK_EVERY_S = 0.02
TAIL_LINES = 12
TAIL_BYTES = 16384

_libc = ctypes.CDLL(None, use_errno=True)


class ChildDied(Exception):
    """A process of the cluster ended by itself; the message has its last log lines."""


class NotReady(Exception):
    """A process did not come up in time; the message has its last log lines."""


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log, however long it is."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            content = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(content.splitlines()[-lines:])


@dataclass(frozen=True, slots=True)
class Child:
    name: str
    process: asyncio.subprocess.Process
    log: Path

    @property
    def last_words(self) -> str:
        return f"its log ({self.log}) ends:\n{tail(self.log)}" if tail(self.log) else f"its log ({self.log}) is empty"

    def signal_group(self, number: int) -> None:
        """To the child and what it started in its own process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


class Children:
    """The running children of one cluster. `died` is set as soon as one ends that was not asked to."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._children: dict[str, Child] = {}
        self._watchers: set[asyncio.Task[None]] = set()
        self._dismissed: set[int] = set()
        self.died: asyncio.Future[ChildDied] = asyncio.get_running_loop().create_future()

    async def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Child:
        """`environment` is added to ours. The log is appended to: a restarted child continues it."""
        log = self._directory / f"{name}.log"
        parent = os.getpid()

        def die_with_parent() -> None:
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # it died before the kernel was told
                os._exit(1)

        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        child = Child(name, process, log)
        self._children[name] = child
        watcher = asyncio.create_task(self._watch(child))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        return child

    async def _watch(self, child: Child) -> None:
        code = await child.process.wait()
        if child.process.pid not in self._dismissed and not self.died.done():
            how = f"exit code {code}" if code >= 0 else f"signal {-code}"
            self.died.set_result(ChildDied(f"{child.name} ended by itself ({how}); {child.last_words}"))

    async def ready(self, child: Child, ready_file: Path, *, within_s: float) -> dict[str, Any]:
        """What the child wrote to its ready file. Raises ChildDied or NotReady."""
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        while True:
            if (content := read_ready_file(ready_file)) is not None:
                return content
            if self.died.done():
                raise self.died.result()
            if loop.time() > until:
                raise NotReady(f"{child.name} is not ready after {within_s:.0f} s; {child.last_words}")
            await asyncio.sleep(LOOK_EVERY_S)

    async def kill(self, child: Child) -> None:
        """SIGKILL, on purpose."""
        self._dismissed.add(child.process.pid)
        child.signal_group(signal.SIGKILL)
        await child.process.wait()

    async def stop(self, *names: str) -> None:
        """SIGTERM, and SIGKILL for those that take more than 10 s. Safe to call for children that are gone."""
        children = [self._children.pop(name) for name in names if name in self._children]
        for child in children:
            self._dismissed.add(child.process.pid)
            child.signal_group(signal.SIGTERM)
        waits = [asyncio.create_task(child.process.wait()) for child in children]
        if waits:
            await asyncio.wait(waits, timeout=TERMINATE_WITHIN_S)
        for child in children:
            child.signal_group(signal.SIGKILL)
        if waits:
            await asyncio.wait(waits)

    def kill_all(self) -> None:
        """At once and without waiting: for the second Ctrl-C."""
        for child in self._children.values():
            self._dismissed.add(child.process.pid)
            child.signal_group(signal.SIGKILL)
