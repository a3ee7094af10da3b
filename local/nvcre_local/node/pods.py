"""The life of one Pod on its node: volumes, init containers, containers, deadline, deletion, last status.

One task a Pod. The Pod object may change under way (only deletion matters: a Pod's containers cannot change); what the
API server should say about it is computed by `pod_status.py` and written by one writer, newest state only.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nvcre_kube.client import CONNECTION_ERRORS, ApiError, KubeClient
from nvcre_kube.events import EventRecorder
from nvcre_kube.resources import PODS, JsonObject

from nvcre_local.node.containers import Container
from nvcre_local.node.environment import Launch, Machine, RefusedContainer, launch
from nvcre_local.node.log_files import MAX_BYTES
from nvcre_local.node.pod_status import OWN_CONDITIONS, PodFailure, Terminated, Waiting, pod_status
from nvcre_local.node.processes import Processes
from nvcre_local.node.volume_plan import NotYet, RefusedVolume
from nvcre_local.node.volumes import MountedObjects, PodVolumes

logger = logging.getLogger(__name__)

WRITE_RETRY_S = 1.0
VOLUME_RETRY_S = 2.0
KILL_AGAIN_S = 1.0
DEFAULT_GRACE_S = 30


@dataclass(frozen=True, slots=True)
class NodeServices:
    """What the Pods of one process share."""

    client: KubeClient
    events: EventRecorder
    processes: Processes
    mounted: MountedObjects
    machine: Machine
    root: Path
    log_max_bytes: int = MAX_BYTES  # of one file of a container's log


class Pod:
    def __init__(self, pod: JsonObject, services: NodeServices) -> None:
        metadata = pod["metadata"]
        self.uid: str = metadata["uid"]
        self.name: str = metadata["name"]
        self.namespace: str = metadata["namespace"]
        self.directory = services.root / "pods" / self.uid
        self.log_directory = services.root / "logs" / f"{self.namespace}_{self.name}_{self.uid}"
        self._pod = pod
        self._services = services
        self._started_at = datetime.now(UTC)
        self._failure: PodFailure | None = None
        self._restarting = True
        self._pod_changed = asyncio.Event()
        self._dirty = asyncio.Event()
        self._touched = False
        self._written: JsonObject | None = None
        self._gone = False  # the API object is no more
        spec = pod["spec"]
        self._init = [self._container(container) for container in spec.get("initContainers") or ()]
        self._main = [self._container(container) for container in spec["containers"]]

    def _container(self, spec: JsonObject, restarts: int = 0) -> Container:
        return Container(
            spec,
            log_dir=self.log_directory,
            log_max_bytes=self._services.log_max_bytes,
            processes=self._services.processes,
            on_change=self._container_changed,
            restarts=restarts,
        )

    def _container_changed(self) -> None:
        self._touched = True
        self._dirty.set()

    def update(self, pod: JsonObject | None) -> None:
        """The newest object, or None when it was removed from the API."""
        if pod is None:
            self._gone = True
        else:
            self._pod = pod
        self._pod_changed.set()

    def container(self, name: str) -> Container | None:
        return next((container for container in (*self._init, *self._main) if container.name == name), None)

    async def run(self) -> None:
        """Until the Pod object is deleted; then nothing of it is left on this node."""
        writer = asyncio.create_task(self._write_status(), name=f"status {self.namespace}/{self.name}")
        try:
            if self._phase() not in ("Succeeded", "Failed"):
                await self._live()
            while not self._deleting():
                await self._next_change()
            await self._write_last_status(writer)
        finally:
            writer.cancel()
        await self._delete()
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.rmtree(self.log_directory, ignore_errors=True)

    def _phase(self) -> str:
        return str((self._pod.get("status") or {}).get("phase", "Pending"))

    def _deleting(self) -> bool:
        return self._gone or "deletionTimestamp" in self._pod["metadata"]

    async def _next_change(self) -> None:
        await self._pod_changed.wait()
        self._pod_changed.clear()

    async def _live(self) -> None:
        """Run the containers to their end, or stop them when the Pod is deleted or over its deadline."""
        if self._deleting():
            self._settle()
            return
        if self._ran_before():
            return
        running = asyncio.create_task(self._run_containers(), name=f"pod {self.namespace}/{self.name}")
        try:
            await self._watch_over(running)
        finally:
            running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    async def _watch_over(self, running: asyncio.Task[None]) -> None:
        deadline_s = self._pod["spec"].get("activeDeadlineSeconds")
        loop = asyncio.get_running_loop()
        over_at = None if deadline_s is None else loop.time() + deadline_s
        while not running.done():
            if self._deleting():
                await self._stop(running)
                return
            if over_at is not None and loop.time() >= over_at:
                self._failure = PodFailure(
                    "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"
                )
                await self._stop(running)
                return
            self._pod_changed.clear()
            changed = asyncio.create_task(self._pod_changed.wait())
            await asyncio.wait(
                (running, changed),
                timeout=None if over_at is None else over_at - loop.time(),
                return_when=asyncio.FIRST_COMPLETED,
            )
            changed.cancel()

    def _ran_before(self) -> bool:
        """A Pod that an earlier process of this node had started: its processes ended with it, as in a reboot."""
        statuses = (self._pod.get("status") or {}).get("containerStatuses") or ()
        before = {status["name"]: status for status in statuses if not (status.get("state") or {}).get("waiting")}
        if not before:
            return False
        if self._pod["spec"].get("restartPolicy", "Always") == "Never":
            now = datetime.now(UTC)
            for container in self._main:
                container.lost(now)
            return True
        for index, spec in enumerate(self._pod["spec"]["containers"]):
            restarts = before.get(spec["name"], {}).get("restartCount", -1) + 1
            self._main[index] = self._container(spec, restarts)
        return False

    async def _run_containers(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        volumes: PodVolumes | None = None
        fresh: asyncio.Task[None] | None = None
        try:
            launches = self._launches()
            volumes = PodVolumes(self._pod, self.directory / "volumes", self._services.client, self._services.mounted)
            await self._wait_for_volumes(volumes)
            fresh = asyncio.create_task(volumes.keep_fresh(), name=f"volumes {self.namespace}/{self.name}")
            policy = self._pod["spec"].get("restartPolicy", "Always")
            for container in self._init:
                await self._run(container, launches, "Never" if policy == "Never" else "OnFailure")
                state = container.record.state
                if not (isinstance(state, Terminated) and state.exit_code == 0):
                    return
            await asyncio.gather(*(self._run(container, launches, policy) for container in self._main))
        except (RefusedContainer, RefusedVolume) as refusal:
            self._say_why("CreateContainerConfigError", str(refusal), event="FailedToStart")
            await asyncio.Event().wait()  # nothing can change about it; only deletion ends the wait
        except OSError as error:
            await self._give_up(f"the node runtime cannot write the Pod's files: {error}")
        finally:
            if fresh is not None:
                fresh.cancel()
            if volumes is not None:
                volumes.close()

    async def _give_up(self, message: str) -> None:
        """The disk is full, for example. Whoever waits for the Pod has to learn that it failed."""
        self._failure = PodFailure("NodeStorage", message)
        self._event("Failed", message)
        for container in (*self._main, *self._init):
            container.stop(signal.SIGKILL)
        await self._until_dead()
        self._settle()
        self._container_changed()

    def _launches(self) -> dict[str, Launch]:
        spec = self._pod["spec"]
        for container in spec.get("initContainers") or ():
            if container.get("restartPolicy") == "Always":
                raise RefusedContainer(
                    f"init container {container['name']!r}: restartPolicy Always (a sidecar) is not supported on a "
                    "local cluster; make it one of the containers"
                )
        return {
            container["name"]: launch(self._pod, container, pod_dir=str(self.directory), machine=self._services.machine)
            for container in (*(spec.get("initContainers") or ()), *spec["containers"])
        }

    async def _wait_for_volumes(self, volumes: PodVolumes) -> None:
        while True:
            try:
                await volumes.prepare()
            except (NotYet, ApiError, *CONNECTION_ERRORS) as missing:
                self._say_why("ContainerCreating", f"volumes are not ready: {missing}", event="FailedMount")
                await volumes.changed(VOLUME_RETRY_S)
            else:
                return

    async def _run(self, container: Container, launches: dict[str, Launch], policy: str) -> None:
        await container.run(
            launches[container.name],
            mark=str(self.directory),
            restart_policy=policy,
            simulation=self._services.machine.simulation,
        )
        state = container.record.state
        if isinstance(state, Terminated) and state.reason == "StartError":
            self._event("Failed", f"container {container.name!r}: {state.message}")

    def _say_why(self, reason: str, message: str, *, event: str) -> None:
        state = self._main[0].record.state
        if isinstance(state, Waiting) and (state.reason, state.message) == (reason, message):
            return
        for container in self._main:
            container.wait_for(reason, message)
        self._event(event, message)

    def _event(self, reason: str, note: str) -> None:
        self._services.events.record(self._pod, type="Warning", reason=reason, note=note)

    async def _stop(self, running: asyncio.Task[None]) -> None:
        """SIGTERM to every process group, after the grace period SIGKILL. A later deletion may shorten the grace."""
        self._restarting = False
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for container in (*self._main, *self._init):
            container.stop(signal.SIGTERM)
        while self._alive():
            left_s = begun + self._grace_s() - loop.time()
            if left_s <= 0:
                for container in (*self._main, *self._init):
                    container.stop(signal.SIGKILL)
                left_s = KILL_AGAIN_S
            self._pod_changed.clear()
            changed: asyncio.Task[Any] = asyncio.create_task(self._pod_changed.wait())
            dead: asyncio.Task[Any] = asyncio.create_task(self._until_dead())
            await asyncio.wait((changed, dead), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            dead.cancel()
        running.cancel()  # those that wait for a volume, a back-off or for ever
        self._settle()

    def _grace_s(self) -> float:
        if self._gone:
            return 0
        metadata = self._pod["metadata"]
        if "deletionTimestamp" in metadata:
            return float(metadata.get("deletionGracePeriodSeconds", DEFAULT_GRACE_S))
        return float(self._pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_S))

    def _alive(self) -> bool:
        return any(container.alive for container in (*self._main, *self._init))

    async def _until_dead(self) -> None:
        while self._alive():
            await asyncio.gather(*(container.ended() for container in (*self._main, *self._init)))

    def _settle(self) -> None:
        self._restarting = False
        now = datetime.now(UTC)
        for container in self._main:
            container.settle(now)

    def _status(self) -> JsonObject:
        # Our own conditions as last written: the informer may not have shown them to us yet.
        seen = {condition["type"]: condition for condition in (self._pod.get("status") or {}).get("conditions") or ()}
        if self._written is not None:
            seen |= {c["type"]: c for c in self._written["conditions"] if c["type"] in OWN_CONDITIONS}
        return pod_status(
            {**self._pod, "status": {"conditions": list(seen.values())}},
            init=[container.record for container in self._init],
            main=[container.record for container in self._main],
            started_at=self._started_at,
            now=datetime.now(UTC),
            restarting=self._restarting,
            failure=self._failure,
        )

    async def _write_status(self) -> None:
        """Write the newest status whenever a container changed; for ever."""
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            await self._write_once()

    async def _write_once(self) -> None:
        while not self._gone:
            status = self._status()
            if status == self._written:
                return
            try:
                patch: JsonObject = {"metadata": {"uid": self.uid}, "status": status}
                await self._services.client.merge_patch(PODS, self.name, patch, self.namespace, subresource="status")
            except ApiError as error:
                if error.not_found or error.status == 409:  # it is gone, and maybe another has its name
                    return
                logger.warning("pod status refused pod=%s/%s error=%r", self.namespace, self.name, str(error))
                await asyncio.sleep(WRITE_RETRY_S)
            except CONNECTION_ERRORS as error:
                logger.debug("pod status not written pod=%s/%s error=%r", self.namespace, self.name, str(error))
                await asyncio.sleep(WRITE_RETRY_S)
            else:
                self._written = status
                return

    async def _write_last_status(self, writer: asyncio.Task[None]) -> None:
        writer.cancel()
        await asyncio.wait([writer])
        if self._touched:
            await self._write_once()

    async def _delete(self) -> None:
        while not self._gone:
            try:
                await self._services.client.delete(PODS, self.name, self.namespace, uid=self.uid, grace_period_s=0)
            except ApiError as error:
                if error.not_found or error.status == 409:
                    return
                logger.warning("pod not deleted pod=%s/%s error=%r", self.namespace, self.name, str(error))
                await asyncio.sleep(WRITE_RETRY_S)
            except CONNECTION_ERRORS:
                await asyncio.sleep(WRITE_RETRY_S)
            else:
                return
