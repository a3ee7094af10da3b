"""A local, always nearly current copy of one resource: list in pages, then watch, for ever.

Handlers hear (old, new) of each change in order; they run in the event loop and only put keys into work queues. The
cache holds what ``convert`` returns, not the object: a GPU Node is 63 KB as a dict. What it does *not* say: that an
object missing here is gone. A relist may lag; whoever is about to act on an absence asks the server first.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from nvcre_kube.client import CONNECTION_ERRORS, ApiError, KubeClient
from nvcre_kube.resources import JsonObject, Resource

T = TypeVar("T")
Key = tuple[str, str]
"""(namespace, name); the namespace of a cluster-scoped object is empty."""

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.2
MAX_BACKOFF_S = 30.0


def keep_object(obj: JsonObject) -> JsonObject:
    """The ``convert`` of those who want everything but managedFields."""
    obj.get("metadata", {}).pop("managedFields", None)
    return obj


class Informer(Generic[T]):
    """Caches one resource; ``indexers`` name functions that give the index values of a cached item."""

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        *,
        convert: Callable[[JsonObject], T],
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        indexers: Mapping[str, Callable[[T], Iterable[str]]] | None = None,
    ) -> None:
        self._client = client
        self._resource = resource
        self._convert = convert
        self._namespace = namespace
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._indexers = dict(indexers or {})
        self._items: dict[Key, T] = {}
        self._indices: dict[str, dict[str, dict[Key, None]]] = {name: {} for name in self._indexers}
        self._handlers: list[Callable[[T | None, T | None], None]] = []
        self._synced = asyncio.Event()
        self._version = ""  # up to where the cache has seen all; "" before the first list, and when that is forgotten

    @property
    def synced(self) -> bool:
        """True once the first list is in the cache; it never becomes false again."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        await self._synced.wait()

    def add_handler(self, handler: Callable[[T | None, T | None], None]) -> None:
        """``handler(old, new)``: old is None for an addition, new for a removal. Items already there are told now."""
        self._handlers.append(handler)
        for item in list(self._items.values()):
            handler(None, item)

    def get(self, name: str, namespace: str | None = None) -> T | None:
        return self._items.get((namespace or "", name))

    def all(self) -> Iterator[T]:
        return iter(list(self._items.values()))

    def __len__(self) -> int:
        return len(self._items)

    def by_index(self, index: str, value: str) -> list[T]:
        """The items for which the named indexer gives ``value``, in order of arrival."""
        return [self._items[key] for key in self._indices[index].get(value, ())]

    async def run(self) -> None:
        """Lists and watches until cancelled; errors of the connection are logged once an outage and retried."""
        failures = 0
        while True:
            try:
                if not self._version:
                    self._version = await self._relist()
                    self._synced.set()
                await self._follow()
                failures = 0
            except ApiError as error:
                failures += 1
                if error.status != 429:
                    self._version = ""
                if not error.gone:  # which is no trouble: too long away to be told of every change
                    self._report(failures, error)
            except CONNECTION_ERRORS as error:
                failures += 1
                self._report(failures, error)
            if failures:
                ceiling = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(failures, 10))
                await asyncio.sleep(random.uniform(ceiling / 2, ceiling))  # noqa: S311 (jitter)

    def _report(self, failures: int, error: Exception) -> None:
        level = logging.WARNING if failures == 1 else logging.DEBUG
        logger.log(level, "informer interrupted resource=%s error=%r", self._resource.plural, str(error))

    async def _relist(self) -> str:
        seen: set[Key] = set()
        token = ""
        while True:
            page = await self._client.list_page(
                self._resource,
                self._namespace,
                label_selector=self._label_selector,
                field_selector=self._field_selector,
                continue_token=token,
            )
            for obj in page.items:
                seen.add(_key(obj))
                self._put(obj)
            token = page.continue_token
            if not token:
                break
        for key in [key for key in self._items if key not in seen]:
            self._remove(key)
        return page.resource_version

    async def _follow(self) -> None:
        """Until the server ends the watch. However it ends, what was seen is not asked for again: an old state of an
        object must never replace a newer one."""
        events = self._client.watch(
            self._resource,
            self._namespace,
            resource_version=self._version,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            timeout_s=random.randint(240, 360),  # noqa: S311 (so that not all watches end at once)
        )
        started = asyncio.get_running_loop().time()
        async for event in events:
            match event.type:
                case "ADDED" | "MODIFIED":
                    self._put(event.object)
                case "DELETED":
                    self._remove(_key(event.object))
            self._version = str(event.object["metadata"].get("resourceVersion") or "")
        if asyncio.get_running_loop().time() - started < 1:
            await asyncio.sleep(1)  # a server that ends every watch at once must not be asked in a tight loop

    def _put(self, obj: JsonObject) -> None:
        key = _key(obj)
        old = self._items.get(key)
        try:
            new = self._convert(obj)
            if old == new and key in self._items:
                return
            indexed = [(self._indices[name], tuple(values(new))) for name, values in self._indexers.items()]
        except Exception:  # one object that nobody understands must not take the others' news away
            logger.exception("object not understood resource=%s namespace=%s name=%s", self._resource.plural, *key)
            return
        if old is not None:
            self._unindex(key, old)
        self._items[key] = new
        for index, found in indexed:
            for value in found:
                index.setdefault(value, {})[key] = None
        self._tell(old, new)

    def _remove(self, key: Key) -> None:
        old = self._items.pop(key, None)
        if old is not None:
            self._unindex(key, old)
            self._tell(old, None)

    def _unindex(self, key: Key, item: T) -> None:
        for name, values in self._indexers.items():
            for value in values(item):
                keys = self._indices[name].get(value)
                if keys is not None:
                    keys.pop(key, None)
                    if not keys:
                        del self._indices[name][value]

    def _tell(self, old: T | None, new: T | None) -> None:
        for handler in self._handlers:
            try:
                handler(old, new)
            except Exception:  # as above
                logger.exception("change not handled resource=%s item=%.200r", self._resource.plural, new or old)


def _key(obj: JsonObject) -> Key:
    metadata = obj["metadata"]
    return (metadata.get("namespace") or "", metadata["name"])
