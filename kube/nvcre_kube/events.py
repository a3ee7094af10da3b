"""Kubernetes Events about our objects: best effort, bounded, repeats folded into one Event with a count.

Recording never blocks and never fails the caller; what does not fit or is refused is counted and dropped.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from nvcre_kube.client import CONNECTION_ERRORS, ApiError, KubeClient
from nvcre_kube.resources import EVENTS, JsonObject
from nvcre_kube.timestamps import rfc3339

logger = logging.getLogger(__name__)

NOTE_LIMIT = 1024
TRUNCATED = "... [truncated]"
QUEUE_LIMIT = 1000
REMEMBERED = 4096
ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """What an Event is about."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""

    @classmethod
    def of(cls, obj: JsonObject) -> "ObjectReference":
        metadata = obj["metadata"]
        return cls(
            obj["apiVersion"], obj["kind"], metadata["name"], metadata.get("namespace") or "", metadata.get("uid") or ""
        )


@dataclass(frozen=True, slots=True)
class _Note:
    regarding: ObjectReference
    type: str
    reason: str
    note: str

    @property
    def event_name(self) -> str:
        identity = "\0".join((self.regarding.uid, self.regarding.kind, self.type, self.reason, self.note))
        digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
        return f"{self.regarding.name[:230]}.{digest}"


class EventRecorder:
    """Queues Events; ``run`` writes them. Cluster-scoped objects get theirs in the namespace ``default``."""

    def __init__(
        self, client: KubeClient, component: str, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._client = client
        self._component = component
        self._clock = clock
        self._queue: asyncio.Queue[_Note] = asyncio.Queue(QUEUE_LIMIT)
        self._counts: OrderedDict[tuple[str, str], int] = OrderedDict()
        self.dropped = 0

    def record(
        self,
        regarding: JsonObject | ObjectReference,
        *,
        type: Literal["Normal", "Warning"],  # noqa: A002 (the field's name in the API)
        reason: str,
        note: str,
    ) -> None:
        reference = regarding if isinstance(regarding, ObjectReference) else ObjectReference.of(regarding)
        try:
            self._queue.put_nowait(_Note(reference, type, reason, truncate(note, NOTE_LIMIT)))
        except asyncio.QueueFull:
            self.dropped += 1

    async def run(self) -> None:
        while True:
            await self._write(await self._queue.get())

    async def drain(self) -> None:
        """Writes what is queued; for a process about to end."""
        while not self._queue.empty():
            await self._write(self._queue.get_nowait())

    async def _write(self, note: _Note) -> None:
        for attempt in range(ATTEMPTS):
            try:
                await self._create_or_count(note)
            except ApiError as error:
                logger.debug("event refused reason=%s error=%r", note.reason, str(error))
                break
            except CONNECTION_ERRORS as error:
                logger.debug("event not written reason=%s error=%r", note.reason, str(error))
                await asyncio.sleep(0.5 * (attempt + 1))
            else:
                return
        self.dropped += 1

    async def _create_or_count(self, note: _Note) -> None:
        namespace = note.regarding.namespace or "default"
        key = (namespace, note.event_name)
        now = rfc3339(self._clock())
        if key in self._counts:
            self._counts.move_to_end(key)
            patch: JsonObject = {"count": self._counts[key] + 1, "lastTimestamp": now}
            try:
                await self._client.merge_patch(EVENTS, note.event_name, patch, namespace)
            except ApiError as error:
                if not error.not_found:  # the API server forgets Events after an hour
                    raise
            else:
                self._counts[key] += 1
                return
        try:
            await self._client.create(EVENTS, self._event(note, namespace, now), namespace)
            self._counts[key] = 1
        except ApiError as error:
            if not error.already_exists:  # written before our restart
                raise
            existing = await self._client.get(EVENTS, note.event_name, namespace)
            count = int(existing.get("count") or 1) + 1
            await self._client.merge_patch(EVENTS, note.event_name, {"count": count, "lastTimestamp": now}, namespace)
            self._counts[key] = count
        while len(self._counts) > REMEMBERED:
            self._counts.popitem(last=False)

    def _event(self, note: _Note, namespace: str, now: str) -> JsonObject:
        involved = {
            "apiVersion": note.regarding.api_version,
            "kind": note.regarding.kind,
            "name": note.regarding.name,
            "namespace": note.regarding.namespace or None,
            "uid": note.regarding.uid or None,
        }
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": note.event_name, "namespace": namespace},
            "involvedObject": {key: value for key, value in involved.items() if value is not None},
            "type": note.type,
            "reason": note.reason,
            "message": note.note,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._component,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }


def truncate(text: str, limit: int) -> str:
    """At most ``limit`` bytes of UTF-8, the cut marked and never inside a character."""
    encoded = text.encode()
    if len(encoded) <= limit:
        return text
    return encoded[: limit - len(TRUNCATED)].decode(errors="ignore") + TRUNCATED
