"""Keeps objects, one global resourceVersion, and a bounded history of changes that watches resume from.

What is stored is never changed in place: a write puts a new dict, readers and watchers share the old one, and the JSON
bytes of an object are made once.  Everything here is synchronous, so a caller that reads and writes without awaiting in
between has a transaction.  Rules about objects (validation, deletion, defaults) are not here.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

Json = dict[str, Any]

HISTORY_PER_COLLECTION = 2048
PENDING_PER_WATCHER = 2048
SNAPSHOTS = 64


class Key(NamedTuple):
    """Where an object lies; `collection` is shared by all versions of a kind ("pods", "jobs.nvcre.nvidia.com")."""

    collection: str
    namespace: str
    name: str


class Stored:
    """One revision of one object. `body` is frozen by convention; `raw` is its JSON, encoded on first use."""

    __slots__ = ("_raw", "body", "key", "version")

    def __init__(self, key: Key, body: Json, version: int) -> None:
        self.key = key
        self.body = body
        self.version = version
        self._raw: bytes | None = None

    @property
    def raw(self) -> bytes:
        if self._raw is None:
            self._raw = msgspec.json.encode(self.body)
        return self._raw

    @property
    def metadata(self) -> Json:
        found: Json = self.body["metadata"]
        return found

    @property
    def uid(self) -> str:
        return str(self.metadata["uid"])


@dataclass(frozen=True, slots=True)
class Change:
    """One write. Created: no `before`. Deleted: `after` is the last state with the deletion's own version."""

    before: Stored | None
    after: Stored
    deleted: bool = False


class Expired(Exception):
    """The asked-for version is no longer (or not yet) in the history; the client has to list again."""


class Watcher:
    """A bounded mailbox of changes in one collection (and namespace, if given), read by one task."""

    def __init__(self, namespace: str, limit: int) -> None:
        self.namespace = namespace
        self.cut_off = False
        self.on_cut_off: Callable[[], None] | None = None
        self._limit = limit
        self._pending: deque[Change] = deque()
        self._wake = asyncio.Event()

    def offer(self, change: Change) -> None:
        if self.cut_off or (self.namespace and change.after.key.namespace != self.namespace):
            return
        if len(self._pending) >= self._limit:
            # A reader this slow would hold ever more memory; cut off, it resumes from the version it saw last.
            self.cut_off = True
            self._pending.clear()
            if self.on_cut_off is not None:
                self.on_cut_off()
        else:
            self._pending.append(change)
        self._wake.set()

    def wake(self) -> None:
        self._wake.set()

    async def wait(self, timeout_s: float) -> None:
        """Return when something is pending, when woken, or after the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return

    def take(self) -> list[Change]:
        self._wake.clear()
        taken = list(self._pending)
        self._pending.clear()
        return taken


class _Collection:
    __slots__ = ("_ordered", "entries", "forgotten", "history", "watchers")

    def __init__(self, history: int, forgotten: int) -> None:
        self.entries: dict[Key, Stored] = {}
        self.history: deque[Change] = deque(maxlen=history)
        self.forgotten = forgotten  # changes up to and including this version are not in the history
        self.watchers: set[Watcher] = set()
        self._ordered: list[Key] | None = None

    def put(self, stored: Stored) -> None:
        if stored.key not in self.entries:
            self._ordered = None
        self.entries[stored.key] = stored

    def drop(self, key: Key) -> None:
        del self.entries[key]
        self._ordered = None

    def ordered(self) -> list[Key]:
        if self._ordered is None:
            self._ordered = sorted(self.entries)
        return self._ordered

    def record(self, change: Change) -> None:
        if len(self.history) == self.history.maxlen:
            self.forgotten = self.history[0].after.version
        self.history.append(change)
        for watcher in tuple(self.watchers):
            watcher.offer(change)


class Store:
    """All objects of the server."""

    def __init__(
        self,
        *,
        history: int = HISTORY_PER_COLLECTION,
        pending: int = PENDING_PER_WATCHER,
        snapshots: int = SNAPSHOTS,
        first_version: int = 1,
    ) -> None:
        """`first_version`: above all of an earlier life of the server, or its clients would resume in the wrong one."""
        self.version = first_version
        self.listeners: list[Callable[[Change], None]] = []
        self._history = history
        self._pending = pending
        self._collections: dict[str, _Collection] = {}
        self._by_uid: dict[str, Key] = {}
        self._dependents: dict[str, set[Key]] = {}
        self._snapshots: OrderedDict[str, tuple[int, list[Stored]]] = OrderedDict()
        self._snapshot_limit = snapshots
        self._snapshot_count = 0

    # --- reading

    def get(self, key: Key) -> Stored | None:
        return self._collection(key.collection).entries.get(key)

    def items(self, collection: str, namespace: str = "") -> list[Stored]:
        """In order of namespace and name."""
        found = self._collection(collection)
        return [found.entries[key] for key in found.ordered() if not namespace or key.namespace == namespace]

    def collections(self) -> list[str]:
        return [name for name, found in self._collections.items() if found.entries]

    def by_uid(self, uid: str) -> Stored | None:
        key = self._by_uid.get(uid)
        return None if key is None else self.get(key)

    def dependents(self, uid: str) -> list[Stored]:
        """Objects with an owner reference to `uid`."""
        found = (self.get(key) for key in sorted(self._dependents.get(uid, ())))
        return [stored for stored in found if stored is not None]

    # --- writing

    def put(self, key: Key, body: Json) -> Stored:
        """Create or replace; `body` belongs to the store from here on and gets the next resourceVersion."""
        before = self.get(key)
        after = self._stamp(key, body)
        if before is not None:
            self._unindex(before)
        self._collection(key.collection).put(after)
        self._index(after)
        self._publish(Change(before, after))
        return after

    def remove(self, key: Key) -> Stored:
        """The removed object's last state, with the version of the removal."""
        before = self._collection(key.collection).entries[key]
        after = self._stamp(key, {**before.body, "metadata": {**before.metadata}})
        self._collection(key.collection).drop(key)
        self._unindex(before)
        self._publish(Change(before, after, deleted=True))
        return after

    def _stamp(self, key: Key, body: Json) -> Stored:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        return Stored(key, body, self.version)

    def _publish(self, change: Change) -> None:
        self._collection(change.after.key.collection).record(change)
        for listener in self.listeners:
            listener(change)

    # --- watching and paging

    def watch(self, collection: str, namespace: str, since: int | None) -> tuple[Watcher, list[Change]]:
        """A watcher from now on, and the changes after `since` that it missed. Raises Expired."""
        found = self._collection(collection)
        missed: list[Change] = []
        if since is not None:
            if since < found.forgotten:
                raise Expired(f"too old resource version: {since} ({found.forgotten})")
            if since > self.version:
                # State is in memory: a version from the future belongs to an earlier life of this server.
                raise Expired(f"resource version {since} is of another server instance (now {self.version})")
            missed = [
                change
                for change in _newer(found.history, since)
                if not namespace or change.after.key.namespace == namespace
            ]
        watcher = Watcher(namespace, self._pending)
        found.watchers.add(watcher)
        return watcher, missed

    def unwatch(self, collection: str, watcher: Watcher) -> None:
        self._collection(collection).watchers.discard(watcher)

    def keep_snapshot(self, version: int, rest: list[Stored]) -> str:
        """Remember what is left of a paged list; the oldest snapshot gives way."""
        self._snapshot_count += 1
        token = f"{version}-{self._snapshot_count}"
        self._snapshots[token] = (version, rest)
        if len(self._snapshots) > self._snapshot_limit:
            self._snapshots.popitem(last=False)
        return token

    def snapshot(self, token: str) -> tuple[int, list[Stored]]:
        """Raises Expired; ValueError for what `keep_snapshot` never gave.

        Asking twice is allowed: a client repeats a page whose answer was lost.
        """
        version, _, number = token.partition("-")
        if not (version.isdecimal() and number.isdecimal()):
            raise ValueError(token)
        try:
            return self._snapshots[token]
        except KeyError:
            raise Expired("The provided continue parameter is too old to display a consistent list result.") from None

    # --- indexes

    def _collection(self, name: str) -> _Collection:
        found = self._collections.get(name)
        if found is None:
            found = self._collections[name] = _Collection(self._history, forgotten=self.version)
        return found

    def _index(self, stored: Stored) -> None:
        self._by_uid[stored.uid] = stored.key
        for uid in owner_uids(stored.body):
            self._dependents.setdefault(uid, set()).add(stored.key)

    def _unindex(self, stored: Stored) -> None:
        self._by_uid.pop(stored.uid, None)
        for uid in owner_uids(stored.body):
            keys = self._dependents.get(uid, set())
            keys.discard(stored.key)
            if not keys:
                self._dependents.pop(uid, None)


def owner_uids(body: Json) -> Iterator[str]:
    for reference in body["metadata"].get("ownerReferences") or ():
        yield reference["uid"]


def _newer(history: Iterable[Change], since: int) -> list[Change]:
    """The tail of the history after `since`, found from its end: a resuming client is usually nearly up to date."""
    found: list[Change] = []
    for change in reversed(history):  # type: ignore[call-overload]
        if change.after.version <= since:
            break
        found.append(change)
    found.reverse()
    return found
