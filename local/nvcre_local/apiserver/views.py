"""An object as one version of its kind shows it.  Pure.

Versions of a custom kind differ in `apiVersion` only (conversion strategy None).  Events are stored as core/v1 and
shown as events.k8s.io/v1 under that API's names, as the real server does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from nvcre_local.apiserver.resources import Resource
from nvcre_local.apiserver.selectors import field_value
from nvcre_local.apiserver.storage import Json, Stored

_EVENT_NAMES = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_CORE_EVENT_NAMES = {new: old for old, new in _EVENT_NAMES.items()}


def shown(resource: Resource, body: Json) -> Json:
    """The stored body as `resource` shows it; the stored one itself where nothing differs."""
    if resource.group == "events.k8s.io":
        return {**_renamed(body, _EVENT_NAMES), "apiVersion": resource.api_version}
    if body["apiVersion"] != resource.api_version:
        return {**body, "apiVersion": resource.api_version}
    return body


def shown_raw(resource: Resource, stored: Stored) -> bytes:
    body = shown(resource, stored.body)
    return stored.raw if body is stored.body else msgspec.json.encode(body)


def to_stored(resource: Resource, body: Json) -> Json:
    """The inverse: a body a client sent, as it is stored."""
    if resource.group == "events.k8s.io":
        return {**_renamed(body, _CORE_EVENT_NAMES), "apiVersion": "v1"}
    return body


def metadata_only(body: Json) -> Json:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": body["metadata"]}


def _renamed(body: Json, names: dict[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in body.items()}


def field_text(body: Mapping[str, Any], path: str) -> str:
    """The value of a field selector's path, with the few that are not simply the field of that name."""
    match path:
        case "source":
            return field_value(body, "source.component") or field_value(body, "reportingComponent")
        case "spec.unschedulable" | "spec.hostNetwork":
            return field_value(body, path) or "false"
        case _:
            return field_value(body, path)
