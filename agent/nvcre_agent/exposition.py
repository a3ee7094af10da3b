"""/metrics, /healthz and /state over HTTP/1.0-style answers on the agent's event loop.

GET and HEAD, one request a connection, bounded in size, time and number: an asyncio server of a page saves the threads
that the libraries' servers bring. Whoever was slow for longest makes room for a newcomer, so that idle connections do
not keep kubelet's probe out. It decides nothing; `health` says whether the loops live.
"""

import asyncio
import json
import os
from collections.abc import Callable, Mapping

from nvcre_protos.addresses import format_address

MAX_REQUEST = 8192
TIMEOUT_S = 5.0
MAX_CONNECTIONS = 16

Health = Callable[[], tuple[bool, Mapping[str, object]]]
State = Callable[[], Mapping[str, object]]


class Exposition:
    """`scrape` gives the Prometheus text, `health` (alive, facts), `state` a document."""

    def __init__(self, scrape: Callable[[], bytes], health: Health, state: State) -> None:
        self._scrape = scrape
        self._health = health
        self._state = state
        self._serving: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> str:
        """Listen; the address that was taken, as host:port. Raises OSError when it is occupied."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=MAX_REQUEST)
        except OSError as error:
            why = os.strerror(number) if (number := error.errno or 0) > 0 else error.strerror or error
            raise OSError(f"--listen {format_address(host, port)}: {why}; choose another address or port") from None
        return format_address(*self._server.sockets[0].getsockname()[:2])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = asyncio.current_task()
        assert own is not None
        if len(self._serving) >= MAX_CONNECTIONS:
            oldest = next(iter(self._serving))
            del self._serving[oldest]
            oldest.cancel()
        self._serving[own] = None
        try:
            async with asyncio.timeout(TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a client that is slow, gone or not speaking HTTP concerns nobody
        finally:
            self._serving.pop(own, None)
            writer.transport.abort()  # what a client does not take would be kept for it without end

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method == b"HEAD":
            header, blank, _ = self._of(path).partition(b"\r\n\r\n")
            return header + blank
        if method != b"GET":
            return _response("405 Method Not Allowed", "text/plain", b"only GET and HEAD\n")
        return self._of(path)

    def _of(self, path: bytes) -> bytes:
        match path:
            case b"/metrics":
                return _response("200 OK", "text/plain; version=0.0.4; charset=utf-8", self._scrape())
            case b"/healthz":
                alive, facts = self._health()
                body = json.dumps({"ok": alive, **facts}).encode() + b"\n"
                return _response("200 OK" if alive else "503 Service Unavailable", "application/json", body)
            case b"/state":
                return _response("200 OK", "application/json", json.dumps(self._state()).encode() + b"\n")
            case _:
                return _response("404 Not Found", "text/plain", b"/metrics, /healthz and /state are here\n")


def _response(status: str, content_type: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
