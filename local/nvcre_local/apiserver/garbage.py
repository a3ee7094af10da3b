"""Removes what nobody owns any more: dependents of deleted owners, content of namespaces and of definitions that go.

Changes in the store put keys on a queue; one task works it off soon after, through the same operations clients use: a
dependent with finalizers or a running pod gets its graceful end.  Runs in the background and is level triggered: each
check looks at the present state only.
"""

from __future__ import annotations

import asyncio
from collections import deque

from nvcre_local.apiserver import deletion
from nvcre_local.apiserver.builtin import CRD_COLLECTION
from nvcre_local.apiserver.definitions import CLEANUP_FINALIZER
from nvcre_local.apiserver.errors import ApiError
from nvcre_local.apiserver.operations import Operations
from nvcre_local.apiserver.storage import Change, Json, Key, Stored, owner_uids

_BATCH = 200


class GarbageCollector:
    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._store = operations.store
        self._queue: deque[Key] = deque()
        self._queued: set[Key] = set()
        self._wake = asyncio.Event()
        self._store.listeners.append(self._seen)

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            if not self.work():
                self._wake.clear()
            await asyncio.sleep(0)  # a big cascade must not hold up requests

    def work(self) -> bool:
        """Looks at a batch of what is queued; whether more is."""
        for _ in range(min(_BATCH, len(self._queue))):
            key = self._queue.popleft()
            self._queued.discard(key)
            stored = self._store.get(key)
            if stored is not None:
                self._check(stored)
        return bool(self._queue)

    def _push(self, key: Key) -> None:
        if key not in self._queued:
            self._queued.add(key)
            self._queue.append(key)
            self._wake.set()

    # --- what a change may have made garbage

    def _seen(self, change: Change) -> None:
        after = change.after
        if not change.deleted:
            if after.metadata.get("ownerReferences") or "deletionTimestamp" in after.metadata:
                self._push(after.key)
            return
        for dependent in self._store.dependents(after.uid):
            self._push(dependent.key)
        for uid in owner_uids(after.body):
            owner = self._store.by_uid(uid)
            if owner is not None and "deletionTimestamp" in owner.metadata:
                self._push(owner.key)
        if after.key.namespace:
            self._push_if_leaving(Key("namespaces", "", after.key.namespace))
        self._push_if_leaving(Key(CRD_COLLECTION, "", after.key.collection))
        if after.key.collection == CRD_COLLECTION:
            spec = after.body["spec"]
            self._operations.registry.remove(spec["group"], spec["names"]["plural"])

    def _push_if_leaving(self, key: Key) -> None:
        found = self._store.get(key)
        if found is not None and "deletionTimestamp" in found.metadata:
            self._push(key)

    # --- looking at one object

    def _check(self, stored: Stored) -> None:
        if "deletionTimestamp" in stored.metadata:
            finalizers = stored.metadata.get("finalizers", ())
            if deletion.FOREGROUND_FINALIZER in finalizers:
                self._finish_foreground(stored)
            elif CLEANUP_FINALIZER in finalizers:
                self._finish_definition(stored)
            elif stored.key.collection == "namespaces":
                self._finish_namespace(stored)
        elif stored.metadata.get("ownerReferences"):
            self._check_owners(stored)

    def _check_owners(self, stored: Stored) -> None:
        owners = stored.metadata["ownerReferences"]
        gone = {owner["uid"] for owner in owners if self._is_gone(owner, stored.key.namespace)}
        if len(gone) == len(owners):
            self._delete(stored, deletion.Propagation.BACKGROUND)
        elif gone:
            self._operations.drop_owner(stored, gone)

    def _is_gone(self, owner: Json, namespace: str) -> bool:
        """Never true of a kind that is not served here: its objects cannot be looked up."""
        group, _, version = owner["apiVersion"].rpartition("/")
        kinds = [found for found in self._operations.registry.in_version(group, version) if found.kind == owner["kind"]]
        if not kinds:
            return False
        found = self._store.by_uid(owner["uid"])
        return found is None or found.key.namespace not in ("", namespace)

    def _finish_foreground(self, owner: Stored) -> None:
        for dependent in self._store.dependents(owner.uid):
            if "deletionTimestamp" in dependent.metadata:
                continue
            others = [uid for uid in owner_uids(dependent.body) if uid != owner.uid and self._store.by_uid(uid)]
            if others:
                self._operations.drop_owner(dependent, {owner.uid})
            else:
                self._delete(dependent, deletion.Propagation.FOREGROUND)
        blocking = (
            reference.get("blockOwnerDeletion")
            for dependent in self._store.dependents(owner.uid)
            for reference in dependent.metadata.get("ownerReferences", ())
            if reference["uid"] == owner.uid
        )
        if not any(blocking):
            self._drop_finalizer(owner, deletion.FOREGROUND_FINALIZER)

    def _finish_definition(self, crd: Stored) -> None:
        for instance in self._store.items(crd.key.name):
            self._delete(instance, deletion.Propagation.BACKGROUND)
        if not self._store.items(crd.key.name):
            self._drop_finalizer(crd, CLEANUP_FINALIZER)

    def _finish_namespace(self, namespace: Stored) -> None:
        left = False
        for collection in self._store.collections():
            for stored in self._store.items(collection, namespace.key.name):
                self._delete(stored, deletion.Propagation.BACKGROUND)
                left = left or self._store.get(stored.key) is not None
        if not left:
            current = self._store.get(namespace.key) or namespace
            metadata = {**current.metadata}
            self._operations.settle(current, {**current.body, "metadata": metadata, "spec": {}})

    def _drop_finalizer(self, stored: Stored, finalizer: str) -> None:
        current = self._store.get(stored.key)
        if current is None or finalizer not in current.metadata.get("finalizers", ()):
            return
        kept = [found for found in current.metadata["finalizers"] if found != finalizer]
        metadata = {key: value for key, value in current.metadata.items() if key != "finalizers"}
        if kept:
            metadata["finalizers"] = kept
        self._operations.settle(current, {**current.body, "metadata": metadata})

    def _delete(self, stored: Stored, propagation: deletion.Propagation) -> None:
        resource = self._operations.registry.in_collection(stored.key.collection)
        if resource is None or "deletionTimestamp" in stored.metadata:
            return
        options = deletion.DeleteOptions(propagation=propagation, uid=stored.uid)
        try:
            self._operations.delete(resource, stored.key.namespace, stored.key.name, options)
        except ApiError as error:
            if error.code not in (404, 409):  # gone or replaced meanwhile is what we wanted
                raise
