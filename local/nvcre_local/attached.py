"""A cluster on a control plane that somebody else started and that goes on afterwards (`nvcre local run --attach`).

CRDs, Nodes and NodeHealths belong to the whole control plane, so it serves one cluster at a time: whoever holds the
lock on its ready file. What a cluster makes there is removed when it ends; what one left that was killed, before the
next begins. CRDs, rights, LogProfiles and namespaces stay.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from nvcre_kube.client import CONNECTION_ERRORS, ApiError, KubeClient
from nvcre_kube.credentials import ConfigError
from nvcre_kube.resources import (
    BANDWIDTH_MEASUREMENTS,
    GOODPUT_MEASUREMENTS,
    JOBS,
    NAMESPACES,
    NODE_HEALTHS,
    NODES,
    PODS,
    TRAIN_JOBS,
    TRAINING_RUNTIMES,
    JsonObject,
    Resource,
)
from nvcre_protos.ready_file import read_ready_file

from nvcre_local.api_servers import CannotAttach
from nvcre_local.cluster_objects import SYSTEM_NAMESPACE
from nvcre_local.control_plane.plane import Served
from nvcre_local.node.node_objects import CONTAINER_RUNTIME

GONE_WITHIN_S = 60.0
LOOK_EVERY_S = 0.2
HOW_TO_START = "python -m nvcre_local.control_plane up --ready-file FILE"
OURS = "app.kubernetes.io/managed-by=nvcre"


@dataclass(frozen=True, slots=True)
class Attachment:
    """The one cluster's hold on a control plane, until `release` or the end of this process."""

    served: Served
    _lock: int
    """A file descriptor."""

    @classmethod
    def of(cls, ready_file: Path) -> Self:
        """Raises CannotAttach."""
        try:
            lock = os.open(ready_file, os.O_RDONLY)
        except OSError as error:
            raise CannotAttach(f"{ready_file}: {error.strerror}; {HOW_TO_START} writes it") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return cls(_read(ready_file), lock)
        except BlockingIOError:
            os.close(lock)
            raise CannotAttach(f"{ready_file}: another run uses this control plane; wait for it to end") from None
        except CannotAttach:
            os.close(lock)
            raise

    async def begin(self, client: KubeClient) -> None:
        """Raises CannotAttach while somebody's nodes are alive there, ApiError."""
        ready = sorted(str(node["metadata"]["name"]) for node in await client.list(NODES) if _is_ready(node))
        if ready:
            raise CannotAttach(
                f"{self.served.url} has nodes already ({', '.join(ready[:4])}{', ...' if len(ready) > 4 else ''}): a "
                "cluster that was killed is given up after a minute; otherwise end what runs there, or start another "
                f"control plane: {HOW_TO_START}"
            )
        await sweep(client)

    async def watch(self, client: KubeClient, *, every_s: float = 5.0, patience_s: float = 120.0) -> None:
        """For ever: its processes are not ours to watch. Raises CannotAttach when it has not answered for so long."""
        loop = asyncio.get_running_loop()
        answered = loop.time()
        while True:
            await asyncio.sleep(every_s)
            try:
                await client.get(NAMESPACES, SYSTEM_NAMESPACE)
                answered = loop.time()
            except (ApiError, *CONNECTION_ERRORS) as error:
                if loop.time() - answered > patience_s:
                    why = str(error) or type(error).__name__
                    raise CannotAttach(
                        f"the control plane has ended, or hangs: no answer for {patience_s:.0f} s ({why})"
                    ) from None

    async def end(self, say: Callable[[str], None]) -> None:
        """When no process of ours runs any more: removes what the cluster made, and lets the next one begin."""
        try:
            async with await KubeClient.from_kubeconfig(self.served.kubeconfig) as client:
                await sweep(client)
        except (ApiError, ConfigError, *CONNECTION_ERRORS) as error:
            say(f"something may be left at {self.served.url} until the next run there: {error!r}")
        finally:
            self.release()

    def release(self) -> None:
        os.close(self._lock)


def _read(ready_file: Path) -> Served:
    try:
        content = read_ready_file(ready_file) or {}
        paths = (Path(content[key]) for key in ("authority", "kubeconfig", "kubelets"))
        served = Served(str(content["url"]), *paths)
    except (ValueError, KeyError, TypeError):
        raise CannotAttach(f"{ready_file} is not what {HOW_TO_START} writes") from None
    if not served.kubeconfig.is_file():
        raise CannotAttach(f"{ready_file}: its control plane has ended; start one with {HOW_TO_START}")
    return served


def _is_ready(node: JsonObject) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


async def sweep(client: KubeClient) -> None:
    """Removes what clusters of ours made, with no coordinator or kubelet to help. Raises ApiError, TimeoutError."""
    async with asyncio.timeout(GONE_WITHIN_S):
        for resource in (JOBS, BANDWIDTH_MEASUREMENTS, GOODPUT_MEASUREMENTS):
            for obj in await client.list(resource):
                await _delete(client, resource, obj)
                await _drop_finalizers(client, resource, obj)
        for health in await client.list(NODE_HEALTHS):
            await _delete(client, NODE_HEALTHS, health)
        nodes = [node for node in await client.list(NODES) if _is_ours(node)]
        for node in nodes:
            await _delete(client, NODES, node)
        await _sweep_workloads(client, {str(node["metadata"]["name"]) for node in nodes})
        for runtime in await client.list(TRAINING_RUNTIMES, label_selector=OURS):
            await _delete(client, TRAINING_RUNTIMES, runtime)


async def _sweep_workloads(client: KubeClient, nodes: Set[str]) -> None:
    """TrainJobs in the foreground: when they are gone, nothing is left below them.

    What the garbage collector has begun to take along with a deleted Job (a pair's, say) is its own to finish.
    """
    for train_job in await client.list(TRAIN_JOBS, label_selector=OURS):
        await _delete(client, TRAIN_JOBS, train_job, propagation="Foreground")
    while True:
        pods = [pod for pod in await client.list(PODS) if _is_of(pod, nodes)]
        for pod in pods:
            await _delete(client, PODS, pod, grace_period_s=0)  # no kubelet is left to end it
        if not pods and not await client.list(TRAIN_JOBS, label_selector=OURS):
            return
        await asyncio.sleep(LOOK_EVERY_S)


def _is_ours(node: JsonObject) -> bool:
    information = (node.get("status") or {}).get("nodeInfo") or {}
    return bool(information.get("containerRuntimeVersion") == CONTAINER_RUNTIME)


def _is_of(pod: JsonObject, nodes: Set[str]) -> bool:
    return pod["metadata"]["namespace"] == SYSTEM_NAMESPACE or pod["spec"].get("nodeName") in nodes


async def _delete(client: KubeClient, resource: Resource, obj: JsonObject, **how: Any) -> None:
    try:
        await client.delete(resource, obj["metadata"]["name"], obj["metadata"].get("namespace"), **how)
    except ApiError as error:
        if not error.not_found:
            raise


async def _drop_finalizers(client: KubeClient, resource: Resource, obj: JsonObject) -> None:
    """What they wait for is a coordinator."""
    nothing = {"metadata": {"finalizers": None}}
    try:
        await client.merge_patch(resource, obj["metadata"]["name"], nothing, obj["metadata"].get("namespace"))
    except ApiError as error:
        if not error.not_found:
            raise
