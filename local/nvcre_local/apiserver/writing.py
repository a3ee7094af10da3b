"""POST, PUT, PATCH and DELETE of resources: from the HTTP request to an operation and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from aiohttp import web
from multidict import CIMultiDict

from nvcre_local.apiserver import errors, requests
from nvcre_local.apiserver.operations import FieldValidation, Operations, Outcome, WriteOptions
from nvcre_local.apiserver.patch import MalformedPatch, PatchDoesNotApply, apply_json_patch, merge
from nvcre_local.apiserver.reading import selector_of
from nvcre_local.apiserver.rendering import Rendering
from nvcre_local.apiserver.requests import Shape, Target
from nvcre_local.apiserver.resources import Resource
from nvcre_local.apiserver.storage import Json, Key, Stored
from nvcre_local.apiserver.strategic import strategic_merge

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCHES = ("application/apply-patch+yaml", "application/apply-patch+cbor")


class Writing:
    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def create(self, request: web.Request, resource: Resource, target: Target) -> web.Response:
        body, options = await _to_write(request, "CreateOptions")
        outcome = self._operations.create(resource, target.namespace, body, options)
        return self._answer(request, resource, outcome, status=201)

    async def update(self, request: web.Request, resource: Resource, target: Target) -> web.Response:
        body, options = await _to_write(request, "UpdateOptions")
        outcome = self._operations.update(
            resource, target.namespace, target.name, body, options, subresource=target.subresource
        )
        return self._answer(request, resource, outcome)

    async def patch(self, request: web.Request, resource: Resource, target: Target) -> web.Response:
        options = requests.write_options(request.query, "PatchOptions")
        media = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        change = _change(media, resource, await request.read())
        outcome = self._operations.patch(
            resource, target.namespace, target.name, change, options, subresource=target.subresource
        )
        return self._answer(request, resource, outcome)

    async def delete(self, request: web.Request, resource: Resource, target: Target) -> web.Response:
        options = requests.delete_options(request.query, await _options_of(request))
        outcome = self._operations.delete(resource, target.namespace, target.name, options)
        if not outcome.removed or resource.lies_in in ("pods", "serviceaccounts"):
            return self._answer(request, resource, outcome)
        metadata = outcome.body["metadata"]
        details = {"name": metadata["name"], "group": resource.group, "kind": resource.plural, "uid": metadata["uid"]}
        return json_response(
            {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "details": {key: value for key, value in details.items() if value},
            }
        )

    async def delete_collection(self, request: web.Request, resource: Resource, target: Target) -> web.Response:
        options = requests.delete_options(request.query, await _options_of(request))
        selector = selector_of(resource, request.query)
        rendering = Rendering(resource)
        found = self._operations.store.items(resource.lies_in, target.namespace)
        selected = [stored for stored in found if rendering.selects(selector, stored)]
        for stored in selected:
            self._operations.delete(resource, stored.key.namespace, stored.key.name, options)
        metadata = {"resourceVersion": str(self._operations.store.version)}
        body = rendering.many(selected, self._operations.clock(), metadata)
        return web.Response(body=body, headers={"Content-Type": requests.JSON})

    def _answer(self, request: web.Request, resource: Resource, outcome: Outcome, status: int = 200) -> web.Response:
        shape = requests.negotiate(request.headers.get("Accept", ""))
        metadata = outcome.body["metadata"]
        key = Key(resource.lies_in, metadata.get("namespace", ""), metadata["name"])
        stored = Stored(key, outcome.body, int(metadata.get("resourceVersion", "0")))
        rendering = Rendering(resource, shape if shape is not Shape.TABLE else Shape.OBJECT)
        headers = CIMultiDict({"Content-Type": requests.JSON})
        add_warnings(headers, outcome.warnings)
        return web.Response(status=status, body=rendering.one(stored, self._operations.clock()), headers=headers)


def _change(media: str, resource: Resource, raw: bytes) -> Callable[[Json], Json]:
    """What the patch does to an object. Raises ApiError."""
    accepted = [JSON_PATCH, MERGE_PATCH, *(() if resource.custom else (STRATEGIC_PATCH,))]
    if media in APPLY_PATCHES:
        raise errors.ApiError(
            415,
            "UnsupportedMediaType",
            "this embedded API server has no server-side apply: use kubectl apply without --server-side "
            f"(accepted: {', '.join(accepted)}), or run with --control-plane real",
        )
    if media not in accepted:
        raise errors.unsupported_media_type(media or "none", accepted)
    patch = requests.decode(raw, requests.JSON)
    apply: Callable[[Json, Any], Any] = {
        JSON_PATCH: apply_json_patch,
        MERGE_PATCH: merge,
        STRATEGIC_PATCH: strategic_merge,
    }[media]
    if media == MERGE_PATCH and not isinstance(patch, dict):
        raise errors.bad_request("a merge patch must be an object")
    return partial(_applied, apply, patch)


def _applied(apply: Callable[[Json, Any], Any], patch: Any, body: Json) -> Any:
    try:
        return apply(body, patch)
    except MalformedPatch as error:
        raise errors.bad_request(str(error)) from None
    except PatchDoesNotApply as error:
        raise errors.unprocessable(str(error)) from None


async def _to_write(request: web.Request, kind: str) -> tuple[Json, WriteOptions]:
    options = requests.write_options(request.query, kind)
    raw, content_type = await request.read(), request.headers.get("Content-Type", "")
    body = requests.decode_object(raw, content_type)
    if options.field_validation is not FieldValidation.IGNORE:
        options = replace(options, duplicates=requests.duplicate_fields(raw, content_type))
    return body, options


async def object_of(request: web.Request) -> Json:
    return requests.decode_object(await request.read(), request.headers.get("Content-Type", ""))


async def _options_of(request: web.Request) -> Json:
    """DeleteOptions are optional."""
    raw = await request.read()
    return requests.decode_object(raw, request.headers.get("Content-Type", "")) if raw.strip() else {}


def json_response(body: Json, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), headers={"Content-Type": requests.JSON})


def add_warnings(headers: CIMultiDict[str], warnings: Iterable[str]) -> None:
    for warning in warnings:
        quoted = warning.replace("\\", "\\\\").replace('"', '\\"')
        if quoted.isprintable():
            headers.add("Warning", f'299 - "{quoted}"')
