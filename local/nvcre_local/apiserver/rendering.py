"""Objects, lists and watch events as bytes, in the shape the client asked for (object, table, metadata only)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from nvcre_local.apiserver.requests import Shape
from nvcre_local.apiserver.resources import Resource
from nvcre_local.apiserver.selectors import Selector
from nvcre_local.apiserver.storage import Change, Json, Key, Stored
from nvcre_local.apiserver.tables import table
from nvcre_local.apiserver.views import metadata_only, shown, shown_raw


@dataclass(frozen=True, slots=True)
class Rendering:
    """`include` (None, Metadata, Object) says what a table's rows carry."""

    resource: Resource
    shape: Shape = Shape.OBJECT
    include: str = "Metadata"

    def one(self, stored: Stored, now: datetime) -> bytes:
        match self.shape:
            case Shape.OBJECT:
                return shown_raw(self.resource, stored)
            case Shape.METADATA:
                return msgspec.json.encode(metadata_only(stored.body))
            case Shape.TABLE:
                metadata = {"resourceVersion": str(stored.version)}
                return self._table([stored], now, metadata)

    def many(self, found: Sequence[Stored], now: datetime, metadata: Json) -> bytes:
        match self.shape:
            case Shape.OBJECT:
                head = {"kind": self.resource.lists_as, "apiVersion": self.resource.api_version, "metadata": metadata}
                return _with_items(head, [shown_raw(self.resource, stored) for stored in found])
            case Shape.METADATA:
                head = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
                return _with_items(head, [msgspec.json.encode(metadata_only(stored.body)) for stored in found])
            case Shape.TABLE:
                return self._table(found, now, metadata)

    def _table(self, found: Sequence[Stored], now: datetime, metadata: Json) -> bytes:
        bodies = [stored.body for stored in found]
        return msgspec.json.encode(table(self.resource, bodies, now, include=self.include, metadata=metadata))

    def bookmark(self, version: int, *, initial_events_end: bool = False) -> bytes:
        metadata: Json = {"resourceVersion": str(version), "creationTimestamp": None}
        if initial_events_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        match self.shape:
            case Shape.OBJECT:
                kind, api_version = self.resource.kind, self.resource.api_version
            case shape:
                kind, api_version = shape.value, "meta.k8s.io/v1"
        body: Json = {"kind": kind, "apiVersion": api_version, "metadata": metadata}
        if self.shape is Shape.TABLE:
            body |= {"columnDefinitions": [], "rows": []}
        return watch_line("BOOKMARK", msgspec.json.encode(body))

    def added(self, stored: Stored, now: datetime) -> bytes:
        return watch_line("ADDED", self.one(stored, now))

    def changed(self, change: Change, selector: Selector, now: datetime) -> bytes | None:
        """The event a watcher with this selector sees; None if it sees nothing."""
        before, after = change.before, change.after
        was = before is not None and self.selects(selector, before)
        if change.deleted:
            return watch_line("DELETED", self.one(after, now)) if was else None
        if self.selects(selector, after):
            return watch_line("MODIFIED" if was else "ADDED", self.one(after, now))
        if was and before is not None:
            # It left the selection: to this watcher it is deleted, in the state it was last seen, now.
            return watch_line("DELETED", self.one(_at_version(before, after.version), now))
        return None

    def selects(self, selector: Selector, stored: Stored) -> bool:
        return not selector or selector.matches(shown(self.resource, stored.body))


def _at_version(stored: Stored, version: int) -> Stored:
    metadata = {**stored.metadata, "resourceVersion": str(version)}
    return Stored(Key(*stored.key), {**stored.body, "metadata": metadata}, version)


def watch_line(kind: str, body: bytes) -> bytes:
    return b'{"type":"' + kind.encode() + b'","object":' + body + b"}\n"


def _with_items(head: Json, items: Sequence[bytes]) -> bytes:
    return msgspec.json.encode(head)[:-1] + b',"items":[' + b",".join(items) + b"]}"
