"""GET of resources: one object, a list (paged, selected), or a watch."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from aiohttp import web

from nvcre_local.apiserver import errors, requests
from nvcre_local.apiserver.operations import Operations
from nvcre_local.apiserver.rendering import Rendering
from nvcre_local.apiserver.requests import Target
from nvcre_local.apiserver.resources import Resource
from nvcre_local.apiserver.selectors import Selector, SelectorError, parse_fields, parse_labels
from nvcre_local.apiserver.storage import Expired, Json, Stored
from nvcre_local.apiserver.views import field_text, shown
from nvcre_local.apiserver.watching import Watches

JSON_HEADERS = {"Content-Type": "application/json"}


class Reading:
    def __init__(self, operations: Operations, watches: Watches) -> None:
        self._operations = operations
        self._watches = watches

    def one(self, request: web.Request, resource: Resource, target: Target) -> web.Response:
        rendering = _rendering(request, resource)
        stored = self._operations.get(resource, target.namespace, target.name)
        return web.Response(body=rendering.one(stored, self._operations.clock()), headers=JSON_HEADERS)

    def many(self, request: web.Request, resource: Resource, target: Target) -> web.Response:
        rendering = _rendering(request, resource)
        found, metadata = self._page(resource, target, request.query)
        return web.Response(body=rendering.many(found, self._operations.clock(), metadata), headers=JSON_HEADERS)

    def _page(self, resource: Resource, target: Target, query: Mapping[str, str]) -> tuple[list[Stored], Json]:
        store = self._operations.store
        limit = requests.integer(query, "limit") or 0
        if limit < 0:
            raise errors.bad_request("limit must not be negative")
        token = query.get("continue", "")
        if token:
            version, rest = self._continued(token)
        else:
            wanted = requests.resource_version(query)
            version = store.version
            if wanted is not None and wanted > version:
                raise errors.too_new(wanted, version)
            selector = selector_of(resource, query)
            everything = store.items(resource.lies_in, target.namespace)
            rest = [stored for stored in everything if not selector or selector.matches(shown(resource, stored.body))]
        metadata: Json = {"resourceVersion": str(version)}
        if not limit or len(rest) <= limit:
            return rest, metadata
        kept = store.keep_snapshot(version, rest[limit:])
        metadata["continue"] = base64.urlsafe_b64encode(kept.encode()).decode()
        if not (query.get("labelSelector") or query.get("fieldSelector")):
            metadata["remainingItemCount"] = len(rest) - limit
        return rest[:limit], metadata

    def _continued(self, token: str) -> tuple[int, list[Stored]]:
        try:
            return self._operations.store.snapshot(base64.b64decode(token, altchars=b"-_", validate=True).decode())
        except (binascii.Error, ValueError):
            raise errors.bad_request(f"continue key is not valid: {token[:80]!r}") from None
        except Expired as error:
            raise errors.expired(str(error)) from None

    async def watch(self, request: web.Request, resource: Resource, target: Target) -> web.StreamResponse:
        rendering = _rendering(request, resource)
        selector = selector_of(resource, request.query, name=target.name)
        watch = self._watches.open(rendering, target.namespace, selector, request.query)
        transport = request.transport
        if transport is not None and watch.expired is None:
            # The task may be stuck writing to a client that does not read: only the connection's end frees it.
            watch.watcher.on_cut_off = transport.abort
        response = web.StreamResponse(headers=JSON_HEADERS)
        try:
            await response.prepare(request)
            async for chunk in watch.chunks():
                await response.write(chunk)
            await response.write_eof()
        except ConnectionError:
            pass  # the client has left
        finally:
            watch.close()
        return response


def selector_of(resource: Resource, query: Mapping[str, str], *, name: str = "") -> Selector:
    """The request's label and field selectors. Raises ApiError 400."""
    fields = query.get("fieldSelector", "")
    try:
        selector = Selector(
            labels=parse_labels(query.get("labelSelector", "")),
            fields=parse_fields(fields, resource.fields) if fields else (),
            read=field_text,
        )
    except SelectorError as error:
        raise errors.bad_request(str(error)) from None
    return selector.named(name) if name else selector


def _rendering(request: web.Request, resource: Resource) -> Rendering:
    shape = requests.negotiate(request.headers.get("Accept", ""))
    return Rendering(resource, shape, request.query.get("includeObject") or "Metadata")
