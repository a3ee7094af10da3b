"""One watch, the answer that never ends: changes as JSON lines until its time is up or its client is too slow."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import msgspec

from nvcre_local.apiserver import errors, requests
from nvcre_local.apiserver.operations import Operations
from nvcre_local.apiserver.rendering import Rendering, watch_line
from nvcre_local.apiserver.schema import Cause
from nvcre_local.apiserver.selectors import Selector
from nvcre_local.apiserver.storage import Change, Expired, Stored, Watcher

BOOKMARK_EVERY_S = 60.0
DEFAULT_TIMEOUT_S = 1800.0
LINES_PER_CHUNK = 500


class Watches:
    """All watches of the server, so that its end can be theirs."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._open: set[Watcher] = set()
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True
        for watcher in self._open:
            watcher.wake()

    def open(self, rendering: Rendering, namespace: str, selector: Selector, query: Mapping[str, str]) -> Watch:
        """Raises ApiError; an expired version is told inside the stream, as real servers do."""
        return Watch(self, self._operations, Watched(rendering, namespace, selector), query)

    def opened(self, watcher: Watcher) -> None:
        self._open.add(watcher)

    def closed(self, watcher: Watcher) -> None:
        self._open.discard(watcher)

    @property
    def stopping(self) -> bool:
        return self._stopping


@dataclass(frozen=True, slots=True)
class Watched:
    """What a client wants to see, and how."""

    rendering: Rendering
    namespace: str
    selector: Selector


class Watch:
    def __init__(self, watches: Watches, operations: Operations, watched: Watched, query: Mapping[str, str]) -> None:
        self._watches = watches
        self._store = operations.store
        self._clock = operations.clock
        self._rendering = watched.rendering
        self._selector = watched.selector
        self._bookmarks = requests.flag(query, "allowWatchBookmarks")
        self._initial_events = requests.flag(query, "sendInitialEvents")
        self._timeout_s = float(requests.integer(query, "timeoutSeconds") or 0) or DEFAULT_TIMEOUT_S * (
            1 + random.random()  # noqa: S311 - spreads reconnects, decides nothing secret
        )
        if self._initial_events:
            _check_watch_list(query)
        since = None if self._initial_events else requests.resource_version(query)
        self._collection = watched.rendering.resource.lies_in
        self._initial: list[Stored] = []
        self._missed: list[Change] = []
        self.expired: errors.ApiError | None = None
        try:
            self.watcher, self._missed = self._store.watch(self._collection, watched.namespace, since)
        except Expired as error:
            self.expired = errors.expired(str(error))
            return
        self._version = self._store.version
        if since is None:
            self._initial = self._store.items(self._collection, watched.namespace)
        watches.opened(self.watcher)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Whole lines, many at a time."""
        if self.expired is not None:
            yield watch_line("ERROR", msgspec.json.encode(self.expired.status()))
            return
        try:
            for chunk in _chunked(self._first_lines()):
                yield chunk
            async for chunk in self._live():
                yield chunk
        finally:
            self.close()

    def close(self) -> None:
        if self.expired is None:
            self._store.unwatch(self._collection, self.watcher)
            self._watches.closed(self.watcher)

    def _first_lines(self) -> list[bytes]:
        now = self._clock()
        selected = (stored for stored in self._initial if self._rendering.selects(self._selector, stored))
        lines = [self._rendering.added(stored, now) for stored in selected]
        lines += self._lines(self._missed)
        if self._initial_events and self._bookmarks:
            lines.append(self._rendering.bookmark(self._version, initial_events_end=True))
        self._initial, self._missed = [], []
        return lines

    async def _live(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._timeout_s
        next_bookmark = loop.time() + BOOKMARK_EVERY_S if self._bookmarks else math.inf
        while not self._watches.stopping and not self.watcher.cut_off and loop.time() < ends:
            await self.watcher.wait(max(0.0, min(ends, next_bookmark) - loop.time()))
            lines = self._lines(self.watcher.take())
            if loop.time() >= next_bookmark:
                next_bookmark = loop.time() + BOOKMARK_EVERY_S
                # Nothing else is pending and versions are global: with these lines it has seen everything up to now.
                lines.append(self._rendering.bookmark(self._store.version))
            for chunk in _chunked(lines):
                yield chunk

    def _lines(self, changes: list[Change]) -> list[bytes]:
        now = self._clock()
        found = (self._rendering.changed(change, self._selector, now) for change in changes)
        return [line for line in found if line is not None]


def _check_watch_list(query: Mapping[str, str]) -> None:
    if query.get("resourceVersionMatch") != "NotOlderThan":
        cause = Cause(
            "FieldValueForbidden",
            "resourceVersionMatch",
            "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        )
        raise errors.invalid("meta.k8s.io", "ListOptions", "", [cause])


def _chunked(lines: list[bytes]) -> list[bytes]:
    return [b"".join(lines[at : at + LINES_PER_CHUNK]) for at in range(0, len(lines), LINES_PER_CHUNK)]
