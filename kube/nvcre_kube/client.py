"""Requests to a Kubernetes API server with raw JSON, over the HTTP client and the credentials of ``kubernetes.aio``.

One method a verb; every refusal of the server is an :class:`ApiError` that carries its Status. Nothing is retried here:
who calls knows whether a second try is safe (informers, work queues and elections each have their own rule).
"""

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject

from nvcre_kube.answers import FIELDS_IN_EVENT, FIELDS_IN_LIST, FIELDS_IN_OBJECT, decoded, is_object
from nvcre_kube.credentials import of_kubeconfig, of_pod
from nvcre_kube.proxy import environment_proxy
from nvcre_kube.resources import SERVICE_ACCOUNTS, JsonObject, Resource
from nvcre_kube.timestamps import rfc3339

PAGE_SIZE = 500
REQUEST_TIMEOUT_S = 30.0
WATCH_TIMEOUT_S = 300
MAX_WATCH_LINE = 16 * 1024 * 1024
BAD_GATEWAY = 502
"""Of an answer with another code that no API server gives: something in between broke it."""
MERGE_PATCH = "application/merge-patch+json"

CONNECTION_ERRORS = (aiohttp.ClientError, TimeoutError, ConnectionError, ssl.SSLError)
"""What a request may raise besides ApiError: nobody answered, or not in time."""


@dataclass
class ApiError(Exception):
    """The server's refusal: HTTP code, reason and message of its Status."""

    status: int
    reason: str
    message: str
    body: JsonObject = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.status} {self.reason}: {self.message}"

    @property
    def not_found(self) -> bool:
        return self.status == 404

    @property
    def conflict(self) -> bool:
        return self.status == 409 and self.reason == "Conflict"

    @property
    def already_exists(self) -> bool:
        return self.status == 409 and self.reason == "AlreadyExists"

    @property
    def gone(self) -> bool:
        return self.status == 410

    @property
    def invalid(self) -> bool:
        return self.status == 422

    @property
    def causes(self) -> list[JsonObject]:
        """``details.causes`` of the Status: one ``{reason, message, field}`` for each broken rule."""
        details = self.body.get("details")
        causes = details.get("causes") if isinstance(details, dict) else None
        return list(causes) if isinstance(causes, list) else []

    @classmethod
    def from_response(cls, status: int, body: bytes) -> Self:
        try:
            decoded = json.loads(body)
        except (ValueError, RecursionError):
            decoded = None
        if not isinstance(decoded, dict):
            text = body[:512].decode(errors="replace").strip()
            return cls(status, "", text or "no message", {})
        return cls.from_status(decoded, status)

    @classmethod
    def from_status(cls, body: JsonObject, default_code: int) -> Self:
        """From a Status object, as it also comes as the ERROR event of a watch."""
        code = body.get("code")
        return cls(
            code if isinstance(code, int) and code else default_code,
            str(body.get("reason") or ""),
            str(body.get("message") or "no message"),
            body,
        )


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """``type`` is ADDED, MODIFIED, DELETED or BOOKMARK (an ERROR is raised as ApiError)."""

    type: str
    object: JsonObject


@dataclass(frozen=True, slots=True)
class Page:
    items: list[JsonObject]
    resource_version: str
    continue_token: str


class KubeClient:
    """A connection to one API server; safe for concurrent use inside one event loop."""

    def __init__(self, configuration: Configuration, *, namespace: str = "default") -> None:
        """`namespace` is the one that a person means who names none."""
        self.namespace = namespace
        configuration.connection_pool_maxsize = 0  # every watch and followed log holds a connection of its own
        configuration.retries = False
        # With the library's trust_env, aiohttp waits for a thread twice before each request: to read the proxy's
        # variables and to read ~/.netrc, whose entry for the API server would only clash with our token.
        configuration.proxy = configuration.proxy or environment_proxy(configuration.host)
        configuration.client_session_kwargs = {"trust_env": False}
        self._configuration = configuration
        self._rest = RESTClientObject(configuration)

    @classmethod
    async def from_kubeconfig(cls, path: Path | None, context: str | None = None) -> Self:
        """``None`` reads ``$KUBECONFIG`` or ``~/.kube/config``, and its current context. Raises ConfigError."""
        async with of_kubeconfig(path, context) as (configuration, namespace):
            return cls(configuration, namespace=namespace)

    @classmethod
    async def in_cluster(cls) -> Self:
        """With the ServiceAccount of the Pod this runs in. Raises ConfigError."""
        return cls(of_pod())

    @property
    def server(self) -> str:
        return str(self._configuration.host)

    async def close(self) -> None:
        await self._rest.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> JsonObject:
        if name in (".", ".."):  # no object has such a name, and in a path they lead to something else
            raise ApiError(HTTPStatus.NOT_FOUND, "NotFound", f"{resource.plural} {name!r} not found")
        return await self._object("GET", resource.path(namespace, name))

    async def list_page(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        continue_token: str = "",
        limit: int = PAGE_SIZE,
    ) -> Page:
        query = _query(
            labelSelector=label_selector, fieldSelector=field_selector, limit=limit, **{"continue": continue_token}
        )
        body = await self._json("GET", resource.path(namespace), query, fields_at=FIELDS_IN_LIST)
        metadata = body.get("metadata") or {}
        items = body.get("items") or []
        if not isinstance(items, list) or not all(map(is_object, items)) or not isinstance(metadata, dict):
            raise ApiError(BAD_GATEWAY, "", f"GET {resource.path(namespace)}: the answer is not a list of objects")
        for item in items:  # the server leaves them out inside a list
            item.setdefault("apiVersion", resource.api_version)
            item.setdefault("kind", resource.kind)
        return Page(items, str(metadata.get("resourceVersion", "")), str(metadata.get("continue") or ""))

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> list[JsonObject]:
        """All objects, read page by page."""
        items: list[JsonObject] = []
        token = ""
        while True:
            page = await self.list_page(
                resource, namespace, label_selector=label_selector, field_selector=field_selector, continue_token=token
            )
            items += page.items
            token = page.continue_token
            if not token:
                return items

    async def create(
        self, resource: Resource, obj: JsonObject, namespace: str | None = None, *, dry_run: bool = False
    ) -> JsonObject:
        namespace = namespace or _namespace_of(obj)
        query = _query(dryRun="All" if dry_run else None, fieldValidation="Strict")
        return await self._json("POST", resource.path(namespace), query, obj)

    async def update(self, resource: Resource, obj: JsonObject) -> JsonObject:
        """Replaces the object; 409 Conflict when its resourceVersion is no longer the newest."""
        return await self._object("PUT", resource.path(_namespace_of(obj), _name_of(obj)), obj)

    async def update_status(self, resource: Resource, obj: JsonObject) -> JsonObject:
        """Replaces the status only; 409 Conflict as for update."""
        return await self._object("PUT", resource.path(_namespace_of(obj), _name_of(obj), "status"), obj)

    async def merge_patch(
        self,
        resource: Resource,
        name: str,
        patch: JsonObject,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
    ) -> JsonObject:
        path = resource.path(namespace, name, subresource)
        return await self._object("PATCH", path, patch, content_type=MERGE_PATCH)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        grace_period_s: int | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] | None = None,
    ) -> None:
        """Deletes one object, only that very one when ``uid`` is given (409 Conflict if the name is another's now)."""
        options: JsonObject = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_period_s is not None:
            options["gracePeriodSeconds"] = grace_period_s
        if propagation is not None:
            options["propagationPolicy"] = propagation
        await self._json("DELETE", resource.path(namespace, name), "", options)

    async def create_token(self, service_account: str, namespace: str, spec: JsonObject) -> JsonObject:
        """TokenRequest: ``spec`` has audiences, expirationSeconds and boundObjectRef; the answer has status.token."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return await self._json("POST", SERVICE_ACCOUNTS.path(namespace, service_account, "token"), "", body)

    async def post(self, path: str, body: JsonObject) -> JsonObject:
        """Any other subresource, for example a Pod's binding."""
        return await self._json("POST", path, "", body)

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str | None = None,
        field_selector: str | None = None,
        timeout_s: int = WATCH_TIMEOUT_S,
    ) -> AsyncIterator[WatchEvent]:
        """Events after ``resource_version`` until the server ends the watch (normal, after ``timeout_s`` at most).

        Raises ApiError with status 410 when the version is too old to resume from.
        """
        query = _query(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            labelSelector=label_selector,
            fieldSelector=field_selector,
            timeoutSeconds=timeout_s,
        )
        # A peer that vanished without closing: the server ends a watch in time, so silence beyond that is a dead link.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT_S, sock_read=timeout_s + 30)
        response = await self._send("GET", resource.path(namespace), query, timeout=timeout)
        try:
            async for line in _lines(response.content.iter_any()):
                event = decoded(line, FIELDS_IN_EVENT) or {}
                kind, obj = event.get("type"), event.get("object")
                if kind == "ERROR" and isinstance(obj, dict):
                    raise ApiError.from_status(obj, 500)
                if not is_object(obj, named=kind != "BOOKMARK"):
                    raise ApiError(BAD_GATEWAY, "", f"watch of {resource.plural}: an event is not one: {line[:200]!r}")
                yield WatchEvent(str(kind), obj)
        finally:
            response.close()

    async def pod_log(
        self,
        name: str,
        namespace: str,
        *,
        container: str | None = None,
        follow: bool = False,
        timestamps: bool = False,
        since_time: datetime | None = None,
        tail_lines: int | None = None,
        limit_bytes: int | None = None,
    ) -> AsyncIterator[bytes]:
        """Raw chunks of a container's log, to its end; with ``follow`` that is the end of the container."""
        query = _query(
            container=container,
            follow="true" if follow else None,
            timestamps="true" if timestamps else None,
            sinceTime=None if since_time is None else rfc3339(since_time),
            tailLines=tail_lines,
            limitBytes=limit_bytes,
        )
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=REQUEST_TIMEOUT_S, sock_read=None if follow else REQUEST_TIMEOUT_S
        )
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/log"
        response = await self._send("GET", path, query, timeout=timeout)
        try:
            async for chunk in response.content.iter_any():
                yield chunk
        finally:
            response.close()

    async def _object(
        self, method: str, path: str, body: JsonObject | None = None, *, content_type: str | None = None
    ) -> JsonObject:
        answer = await self._json(method, path, "", body, content_type=content_type)
        if not is_object(answer):
            raise ApiError(BAD_GATEWAY, "", f"{method} {path}: the answer is not an object of Kubernetes")
        return answer

    async def _json(
        self,
        method: str,
        path: str,
        query: str = "",
        body: JsonObject | None = None,
        *,
        content_type: str | None = None,
        fields_at: int = FIELDS_IN_OBJECT,
    ) -> JsonObject:
        response = await self._send(method, path, query, body, content_type=content_type)
        async with response:
            answer = decoded(await response.read(), fields_at)
        if answer is None:
            raise ApiError(BAD_GATEWAY, "", f"{method} {path}: the answer is not an object")
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        query: str = "",
        body: JsonObject | None = None,
        *,
        content_type: str | None = None,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json", "Content-Type": content_type or "application/json"}
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        if token:
            headers["Authorization"] = token
        answer = await self._rest.request(
            method,
            f"{self._configuration.host}{path}{query}",
            headers=headers,
            body=body,
            _request_timeout=timeout or aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S),
        )
        response: aiohttp.ClientResponse = answer.response
        if response.status >= 400:
            async with response:
                raise ApiError.from_response(response.status, await response.read())
        return response


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    pending = bytearray()
    async for chunk in chunks:
        pending += chunk
        if len(pending) > MAX_WATCH_LINE:
            raise ApiError(500, "InternalError", f"a watch event is longer than {MAX_WATCH_LINE} bytes")
        if b"\n" not in chunk:
            continue
        *lines, rest = bytes(pending).split(b"\n")
        pending = bytearray(rest)
        for line in lines:
            if line:
                yield line


def _query(**parameters: Any) -> str:
    given = {key: value for key, value in parameters.items() if value not in (None, "")}
    return f"?{urlencode(given)}" if given else ""


def _name_of(obj: Mapping[str, Any]) -> str:
    return str(obj["metadata"]["name"])


def _namespace_of(obj: Mapping[str, Any]) -> str | None:
    namespace = obj.get("metadata", {}).get("namespace")
    return None if namespace is None else str(namespace)
