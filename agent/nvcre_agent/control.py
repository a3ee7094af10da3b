"""The Unix socket by which an operator on the node asks the running agent: one JSON line each way.

    {"do": "state"}                      -> {"ok": true, ...}
    {"do": "set-healthy", "gpu": "9"}    -> {"ok": false, "error": "no GPU '9'; ..."}

Only root and the agent's own user are answered, as the kernel names them (SO_PEERCRED); the file has mode 0600 besides.
Requests are bounded in size, time and number. What is asked for is done by the `actions`. An agent that cannot have the
socket says so and goes on: watching GPUs does not need it.
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

MAX_REQUEST = 16 * 1024
MAX_CONNECTIONS = 8
REQUEST_TIMEOUT_S = 5.0
_ADDRESS_BYTES = 100  # of the 108 that the kernel has for one

Action = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


class RefusedError(Exception):
    """What was asked for is not done; the text says why and what would be."""


@contextlib.contextmanager
def address(path: Path) -> Iterator[str]:
    """What to bind or connect to: a path that is too long for a socket goes through its open directory."""
    if len(os.fsencode(path)) <= _ADDRESS_BYTES:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def listener(path: Path) -> str | None:
    """Who listens there now; None for nobody, also where a socket was left behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        try:
            with address(path) as where:
                connection.connect(where)
            pid, _, _ = _peer(connection)
        except BlockingIOError:  # too busy to take one more
            return "another process"
        except OSError:
            return None
    return f"process {pid}"


class ControlSocket:
    """`actions` by the word of "do"; each answers an object or raises RefusedError."""

    def __init__(self, path: Path, actions: Mapping[str, Action]) -> None:
        self._path = path
        self._actions = actions
        self._connections = 0
        self._server: asyncio.Server | None = None
        self._inode = 0

    async def start(self) -> None:
        try:
            listening = self._listen()
        except OSError as error:
            log.warning("no control socket path=%s error=%r; state, set-healthy ... will not work", self._path, error)
            return
        self._inode = self._path.lstat().st_ino
        self._server = await asyncio.start_unix_server(self._serve, sock=listening, limit=MAX_REQUEST)

    async def stop(self) -> None:
        if self._server is None:
            return
        self._server.close()
        with contextlib.suppress(OSError):
            if self._path.lstat().st_ino == self._inode:  # not the one of a successor
                self._path.unlink()

    def _listen(self) -> socket.socket:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if self._path.is_socket():  # left behind by an agent that was killed
                self._path.unlink()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(listening.fileno(), 0o600)  # before bind: the file never exists with another mode
            with address(self._path) as where:
                listening.bind(where)
        except OSError:
            listening.close()
            raise
        listening.setblocking(False)
        return listening

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections > MAX_CONNECTIONS:
                answer: Mapping[str, Any] = _refusal(f"more than {MAX_CONNECTIONS} requests at once; try again")
            elif (refused := _stranger(writer.get_extra_info("socket"))) is not None:
                log.warning("control socket refused %s", refused)
                answer = _refusal(f"{refused}; run as root or as the agent's user")
            else:
                answer = await self._answer(reader)
            writer.write(json.dumps(answer).encode() + b"\n")
            writer.close()
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await writer.wait_closed()
        except (TimeoutError, OSError):
            pass  # a client that is slow or gone concerns nobody
        finally:
            self._connections -= 1
            writer.transport.abort()  # what a client does not take would be kept for it without end

    async def _answer(self, reader: asyncio.StreamReader) -> Mapping[str, Any]:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                line = await reader.readline()
        except ValueError:
            return _refusal(f"a request has at most {MAX_REQUEST} bytes")
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            request = None
        if not isinstance(request, dict) or not isinstance(request.get("do"), str):
            return _refusal('a request is one line of JSON such as {"do": "state"}')
        action = self._actions.get(request["do"])
        if action is None:
            return _refusal(f"cannot do {request['do'][:32]!r}, only {', '.join(self._actions)}")
        try:
            return {"ok": True, **await action(request)}
        except RefusedError as error:
            return _refusal(str(error))


def _refusal(why: str) -> Mapping[str, Any]:
    return {"ok": False, "error": why}


def _stranger(connection: Any) -> str | None:
    """Who is at the other end, unless it is root or our own user."""
    pid, uid, _ = _peer(connection)
    return None if uid in (0, os.getuid()) else f"uid {uid} (pid {pid})"


def _peer(connection: Any) -> tuple[int, int, int]:
    """Process, user and group at the other end."""
    pid, uid, gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid, gid
