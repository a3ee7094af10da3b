"""GET pods/log: finds the container and its node's kubelet, and passes the kubelet's stream on.

As a kube-apiserver does: the kubelet's certificate is not checked, the bearer token says who we are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote, urlencode

import aiohttp
from aiohttp import web

from nvcre_local.apiserver import errors, requests
from nvcre_local.apiserver.schema import Cause, causes
from nvcre_local.apiserver.storage import Json, Key, Store, Stored

_PASSED_ON = ("follow", "timestamps", "sinceTime", "sinceSeconds", "tailLines", "previous", "limitBytes")
_NUMBERS = (
    ("tailLines", 0, "must be greater than or equal to 0"),
    ("limitBytes", 1, "must be greater than 0"),
    ("sinceSeconds", 1, "must be greater than 0"),
)
_CONNECT_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class LogSource:
    url: str


def log_source(store: Store, pod: Stored, query: Mapping[str, str]) -> LogSource | None:
    """Where the log is; None while the pod has no node (the log is empty then). Raises ApiError."""
    _refuse_wrong_options(pod.key.name, query)
    container = pick_container(pod.body, query.get("container", ""))
    node_name = pod.body["spec"].get("nodeName")
    if not node_name:
        return None
    node = store.get(Key("nodes", "", node_name))
    if node is None:
        raise errors.not_found("", "nodes", node_name)
    host, port = _kubelet_address(node)
    path = "/".join(quote(part, safe="") for part in (pod.key.namespace, pod.key.name, container))
    passed = urlencode({name: query[name] for name in _PASSED_ON if query.get(name)})
    return LogSource(f"https://{host}:{port}/containerLogs/{path}{'?' if passed else ''}{passed}")


def _refuse_wrong_options(pod: str, query: Mapping[str, str]) -> None:
    found: list[Cause] = []
    for name, least, rule in _NUMBERS:
        value = requests.integer(query, name)
        if value is not None and value < least:
            found.append(causes.invalid(name, value, rule))
    if since := query.get("sinceTime"):
        try:
            datetime.fromisoformat(since)
        except ValueError:
            raise errors.bad_request(f"sinceTime {since[:40]!r} is not a time as RFC 3339 writes it") from None
        if query.get("sinceSeconds"):
            # The real server's path is as odd.
            found.append(causes.forbidden("[]", "at most one of `sinceTime` or `sinceSeconds` may be specified"))
    if found:
        raise errors.invalid("", "PodLogOptions", pod, found)


def pick_container(pod: Json, wanted: str) -> str:
    """The container asked for, or the only one beside init containers. Raises ApiError 400."""
    name = pod["metadata"]["name"]
    spec = pod["spec"]
    containers = [container["name"] for container in spec.get("containers", [])]
    init = [container["name"] for container in spec.get("initContainers", [])]
    if wanted:
        if wanted not in (*containers, *init):
            raise errors.bad_request(f"container {wanted} is not valid for pod {name}")
        return wanted
    if len(containers) == 1:
        return str(containers[0])
    choices = f"choose one of: [{' '.join(containers)}]"
    if init:
        choices += f" or one of the init containers: [{' '.join(init)}]"
    raise errors.bad_request(f"a container name must be specified for pod {name}, {choices}")


def _kubelet_address(node: Stored) -> tuple[str, int]:
    status = node.body.get("status", {})
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port") or 10250
    for address in status.get("addresses") or ():
        if address.get("type") == "InternalIP" and address.get("address"):
            host = str(address["address"])
            return (f"[{host}]" if ":" in host else host), int(port)
    raise errors.internal(f"no preferred addresses found for node {node.key.name}; known addresses: none")


class KubeletLogs:
    """Owns the client session towards kubelets."""

    def __init__(self, store: Store, token: str) -> None:
        self._store = store
        self._token = token
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def serve(self, request: web.Request, pod: Stored) -> web.StreamResponse:
        source = log_source(self._store, pod, request.query)
        if source is None:
            return web.Response(status=204)
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT_TIMEOUT_S)
            connector = aiohttp.TCPConnector(limit=0)  # every log that is followed holds a connection
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            async with self._session.get(source.url, headers=headers, ssl=False) as answer:
                if answer.status != 200:
                    raise _refused(answer.status, await answer.content.read(4096))
                return await _pass_on(request, answer)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise errors.internal(f'Get "{source.url}": {error}') from None


def _refused(status: int, body: bytes) -> errors.ApiError:
    said = body.decode("utf-8", "replace").strip()
    reason = {400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound"}.get(status, "InternalError")
    return errors.ApiError(status, reason, said or f"the kubelet answered {status}")


async def _pass_on(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    try:
        async for chunk in answer.content.iter_any():
            await response.write(chunk)
        await response.write_eof()
    except (ConnectionError, aiohttp.ClientPayloadError):
        response.force_close()  # one of the two has left: the reader sees a cut, not an end
    return response
