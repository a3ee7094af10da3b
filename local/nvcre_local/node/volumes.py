"""Makes a Pod's volumes and keeps them fresh: ConfigMaps and Secrets as they change, tokens before they
expire.

Files are replaced by rename, so a reader sees the old or the new content. What the volumes hold is decided in
`volume_plan.py`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from nvcre_kube.client import CONNECTION_ERRORS, ApiError, KubeClient
from nvcre_kube.informer import Informer
from nvcre_kube.resources import CONFIG_MAPS, SECRETS, JsonObject

from nvcre_local.node.volume_plan import (
    EmptyDirectory,
    Files,
    Holder,
    HostPath,
    NotYet,
    ObjectFiles,
    TokenFile,
    object_files,
    plan,
    renew_at,
)

logger = logging.getLogger(__name__)

RETRY_S = 5.0


Key = tuple[Holder, str, str]
"""(kind, namespace, name) of a ConfigMap or Secret."""


class MountedObjects:
    """One watch for each ConfigMap and Secret that a Pod of this process mounts, shared by its Pods."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._watches: dict[Key, tuple[Informer[JsonObject], asyncio.Task[None]]] = {}
        self._listeners: dict[Key, list[Callable[[], None]]] = {}

    async def get(self, key: Key) -> JsonObject | None:
        watch = self._watches.get(key)
        if watch is None:
            return None
        informer = watch[0]
        await informer.wait_synced()
        _, namespace, name = key
        return informer.get(name, namespace)

    def listen(self, key: Key, callback: Callable[[], None]) -> None:
        holder, namespace, name = key
        self._listeners.setdefault(key, []).append(callback)
        if key not in self._watches:
            informer: Informer[JsonObject] = Informer(
                self._client,
                SECRETS if holder is Holder.SECRET else CONFIG_MAPS,
                convert=lambda obj: obj,
                namespace=namespace,
                field_selector=f"metadata.name={name}",
            )
            informer.add_handler(lambda *_: self._tell(key))
            self._watches[key] = (informer, asyncio.create_task(informer.run(), name=f"{holder} {namespace}/{name}"))

    def forget(self, key: Key, callback: Callable[[], None]) -> None:
        listeners = self._listeners.get(key, [])
        if callback in listeners:
            listeners.remove(callback)
        if not listeners and key in self._watches:
            self._listeners.pop(key, None)
            self._watches.pop(key)[1].cancel()

    def _tell(self, key: Key) -> None:
        for callback in list(self._listeners.get(key, ())):
            callback()


class PodVolumes:
    """The volumes of one Pod under `directory`. Call `prepare` until it returns, then run `keep_fresh` beside it."""

    def __init__(self, pod: JsonObject, directory: Path, client: KubeClient, mounted: MountedObjects) -> None:
        self._pod = pod
        self._directory = directory
        self._client = client
        self._mounted = mounted
        self._contents = plan(pod)
        self._changed = asyncio.Event()
        self._due: dict[tuple[str, str], datetime] = {}  # (volume, path) -> when its token is renewed
        self._namespace: str = pod["metadata"]["namespace"]
        for key in self._keys():
            mounted.listen(key, self._changed.set)

    def _keys(self) -> list[Key]:
        files = [content for content in self._contents.values() if isinstance(content, Files)]
        sources = [source for content in files for source in content.sources if isinstance(source, ObjectFiles)]
        return [(source.holder, self._namespace, source.name) for source in sources]

    async def prepare(self) -> None:
        """Raises NotYet when something is missing, ApiError when a token is refused."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._changed.clear()
        missing: NotYet | None = None
        for name, content in self._contents.items():
            target = self._directory / name
            match content:
                case EmptyDirectory():
                    target.mkdir(exist_ok=True)
                case HostPath(path):
                    with suppress(FileExistsError):
                        target.symlink_to(path)
                case Files():
                    if target.is_symlink():  # the workload's doing: what lies behind it is not ours to change
                        target.unlink()
                    target.mkdir(exist_ok=True)
                    missing = await self._fill(name, content, target) or missing
        if missing:
            raise missing

    async def changed(self, timeout_s: float) -> None:
        """Wait for a change of a ConfigMap or Secret, at most that long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    async def keep_fresh(self) -> None:
        """Until cancelled."""
        while True:
            now = datetime.now(UTC)
            next_token = min(self._due.values(), default=None)
            wait_s = None if next_token is None else max((next_token - now).total_seconds(), 0)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            try:
                await self.prepare()
            except NotYet as missing:
                # The object was deleted under a running Pod: it keeps what it has, as on a real node.
                logger.debug("volume not refreshed pod=%s reason=%r", self._pod["metadata"]["name"], str(missing))
                await asyncio.sleep(RETRY_S)
            except (ApiError, OSError, *CONNECTION_ERRORS) as error:  # OSError: a full disk, which may have room later
                logger.warning(
                    "volume not refreshed, trying again pod=%s error=%r", self._pod["metadata"]["name"], str(error)
                )
                self._changed.set()
                await asyncio.sleep(RETRY_S)

    def close(self) -> None:
        for key in self._keys():
            self._mounted.forget(key, self._changed.set)

    async def _fill(self, volume: str, content: Files, target: Path) -> NotYet | None:
        """Write what can be had; what is missing is returned, so that it does not hold up a token."""
        missing: NotYet | None = None
        wanted: dict[str, bytes] = {}
        kept: set[str] = set()
        for source in content.sources:
            match source:
                case ObjectFiles():
                    found = await self._mounted.get((source.holder, self._namespace, source.name))
                    try:
                        wanted |= object_files(source, found)
                    except NotYet as reason:
                        missing = reason
                case TokenFile():
                    due = self._due.get((volume, source.path))
                    if due is not None and datetime.now(UTC) < due:
                        kept.add(source.path)
                    else:
                        wanted[source.path] = await self._token(volume, source)
        for path, data in wanted.items():
            _replace(target / path, data)
        if missing is None:
            _remove_others(target, kept | wanted.keys())
        return missing

    async def _token(self, volume: str, source: TokenFile) -> bytes:
        metadata = self._pod["metadata"]
        spec: JsonObject = {
            "audiences": [source.audience] if source.audience else [],
            "expirationSeconds": source.expiration_s,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]},
        }
        issued = datetime.now(UTC)
        account = self._pod["spec"].get("serviceAccountName") or "default"
        status = (await self._client.create_token(account, self._namespace, spec))["status"]
        expires = datetime.fromisoformat(status["expirationTimestamp"])
        self._due[(volume, source.path)] = renew_at(issued, expires)
        return str(status["token"]).encode()


def _remove_others(directory: Path, wanted: set[str]) -> None:
    for file in directory.rglob("*"):
        if file.is_file() and str(file.relative_to(directory)) not in wanted:
            file.unlink()


def _replace(file: Path, data: bytes) -> None:
    try:
        if file.read_bytes() == data:
            return
    except OSError:
        pass  # not there yet
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as output:
        output.write(data)
    temporary.replace(file)
