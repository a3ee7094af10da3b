"""One API server of the two, and how the tests speak to it: raw requests and answers, nothing retried."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

JsonObject = dict[str, Any]
JSON = "application/json"
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Answer:
    code: int
    body: Any
    """Decoded where it is JSON."""
    headers: Mapping[str, str]

    @property
    def refusal(self) -> tuple[int, str]:
        """HTTP code and reason: what clients decide by."""
        assert self.body["kind"] == "Status", self.body
        assert self.body["code"] == self.code
        return self.code, self.body["reason"]

    @property
    def causes(self) -> list[tuple[str, str]]:
        """(reason, field), sorted: a real server's order is random."""
        return sorted((cause["reason"], cause["field"]) for cause in self.body["details"].get("causes", []))

    def expect(self, *codes: int) -> Any:
        """The body, of an answer with one of these codes."""
        assert self.code in (codes or (200, 201)), self.body
        return self.body


@dataclass
class Server:
    """`kubelet_flags` let this server read logs from a kubelet of ours that is started with them."""

    name: str
    url: str
    token: str
    authority: Path | None
    kubeconfig: Path
    kubelet_flags: tuple[str, ...]
    forget: Callable[[], None] = field(init=False)
    """Brings about that the server no longer knows what was before now."""
    _tls: ssl.SSLContext | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.authority is not None:
            self._tls = ssl.create_default_context(cafile=self.authority)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        token: str | None = None,
    ) -> Answer:
        """`body` is sent as JSON, bytes as they are."""
        with self._sent(method, path, body, query, content_type, accept, token) as response:
            raw = response.read()
            body = json.loads(raw) if raw.startswith(b"{") else raw.decode()
            return Answer(response.status, body, dict(response.headers))

    @contextmanager
    def stream(self, path: str, query: Mapping[str, Any], accept: str = JSON) -> Iterator[http.client.HTTPResponse]:
        with self._sent("GET", path, None, query, JSON, accept, None) as response:
            assert response.status == 200, response.read()
            yield response

    @contextmanager
    def watch(self, path: str, *, accept: str = JSON, **query: Any) -> Iterator[Events]:
        with self.stream(path, {"watch": "true", **query}, accept) as response:
            yield Events(response)

    @contextmanager
    def _sent(
        self,
        method: str,
        path: str,
        body: Any,
        query: Mapping[str, Any] | None,
        content_type: str,
        accept: str,
        token: str | None,
    ) -> Iterator[http.client.HTTPResponse]:
        headers = {"Authorization": f"Bearer {self.token if token is None else token}", "Accept": accept}
        if body is not None:
            headers["Content-Type"] = content_type
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        address = urlsplit(self.url)
        connection: http.client.HTTPConnection
        if self._tls is None:
            connection = http.client.HTTPConnection(address.netloc, timeout=PATIENCE_S)
        else:
            connection = http.client.HTTPSConnection(address.netloc, timeout=PATIENCE_S, context=self._tls)
        try:
            connection.request(method, path + (f"?{urlencode(query)}" if query else ""), data, headers)
            response = connection.getresponse()
            yield response
            response.close()
        finally:
            connection.close()


class Events:
    """What a watch tells, one event at a time."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response

    def next(self) -> tuple[str, JsonObject]:
        """(type, object)."""
        line = self._response.readline()
        assert line, "the watch ended"
        event = json.loads(line)
        return event["type"], event["object"]

    def ended(self) -> bool:
        return self._response.readline() == b""
