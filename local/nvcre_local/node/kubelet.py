"""Keeps the simulated nodes registered and alive in the API, and gives each of their Pods its task.

One process serves any number of nodes over one watch of Pods. What happens inside a Pod is in `pods.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from nvcre_kube.client import CONNECTION_ERRORS, ApiError
from nvcre_kube.informer import Informer
from nvcre_kube.resources import LEASES, NAMESPACES, NODES, JsonObject
from nvcre_kube.timestamps import micro_time

from nvcre_local.node.containers import Container
from nvcre_local.node.node_objects import (
    LEASE_NAMESPACE,
    LEASE_RENEW_S,
    Host,
    NodeSpec,
    is_ready,
    lease_object,
    node_object,
    node_status,
)
from nvcre_local.node.pods import NodeServices, Pod

logger = logging.getLogger(__name__)

RETRY_S = 1.0
STATUS_REFRESH_S = 300.0
"""As a kubelet does: its status is told at this interval, and at once when the Node says something else. It does
after an outage: the node controller calls a Node unknown whose Lease it could not see."""


class Kubelet:
    def __init__(
        self,
        nodes: Sequence[NodeSpec],
        ports: Mapping[str, int],
        host: Host,
        services: NodeServices,
        pods: Informer[JsonObject],
    ) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._ports = ports
        self._host = host
        self._services = services
        self._pods: dict[str, Pod] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._informer = pods

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for index, node in enumerate(self._nodes.values()):
                # Spread over the period: a thousand nodes must not renew in the same instant.
                tasks.create_task(self._stay_alive(node, LEASE_RENEW_S * index / len(self._nodes)))
            self._informer.add_handler(self._on_pod)

    async def register(self) -> None:
        """Returns once all nodes are in the API."""
        await asyncio.gather(*(self._register(node) for node in self._nodes.values()))

    def find(self, node: str, namespace: str, pod: str, container: str) -> Container | None:
        """The container whose log is asked for; None when this node does not have it."""
        seen = self._informer.get(pod, namespace)
        if seen is None or seen["spec"].get("nodeName") != node:
            return None
        running = self._pods.get(seen["metadata"]["uid"])
        return running.container(container) if running else None

    def _on_pod(self, old: JsonObject | None, new: JsonObject | None) -> None:
        replaced = old is not None and (new is None or new["metadata"]["uid"] != old["metadata"]["uid"])
        if replaced and old and (removed := self._pods.get(old["metadata"]["uid"])):
            removed.update(None)
        if new is None or new["spec"].get("nodeName") not in self._nodes:
            return
        uid = new["metadata"]["uid"]
        if known := self._pods.get(uid):
            known.update(new)
            return
        assert self._tasks is not None
        pod = self._pods[uid] = Pod(new, self._services)
        self._tasks.create_task(self._look_after(pod), name=f"pod {pod.namespace}/{pod.name}")

    async def _look_after(self, pod: Pod) -> None:
        try:
            await pod.run()
        except Exception:
            # One Pod that trips over a bug of ours or a full disk must not take down the others of the process.
            logger.exception("pod abandoned pod=%s/%s uid=%s", pod.namespace, pod.name, pod.uid)
        finally:
            self._pods.pop(pod.uid, None)

    async def _register(self, node: NodeSpec) -> None:
        now = datetime.now(UTC)
        wanted = node_object(node)
        while True:
            try:
                try:
                    await self._services.client.create(NODES, wanted)
                except ApiError as error:
                    if not error.already_exists:
                        raise
                    labels = {"metadata": {"labels": wanted["metadata"]["labels"]}}
                    await self._services.client.merge_patch(NODES, node.name, labels)
                status = node_status(node, self._host, self._ports[node.name], now, ready_since=now)
                registered = await self._services.client.merge_patch(
                    NODES, node.name, {"status": status}, subresource="status"
                )
                await self._renew(node, registered["metadata"]["uid"])
            except (ApiError, *CONNECTION_ERRORS) as error:
                logger.warning("node not registered, trying again node=%s error=%r", node.name, str(error))
                await asyncio.sleep(RETRY_S)
            else:
                logger.info("node registered node=%s gpus=%d port=%d", node.name, node.gpus, self._ports[node.name])
                return

    async def _stay_alive(self, node: NodeSpec, first_after_s: float) -> None:
        loop = asyncio.get_running_loop()
        ready_since = datetime.now(UTC)
        told_at = loop.time()
        failing = False
        await asyncio.sleep(first_after_s)
        while True:
            try:
                await self._renew(node, None)
                seen = await self._services.client.get(NODES, node.name)
                if loop.time() >= told_at + STATUS_REFRESH_S or not is_ready(seen):
                    told_at = loop.time()
                    now = datetime.now(UTC)
                    status = node_status(node, self._host, self._ports[node.name], now, ready_since=ready_since)
                    await self._services.client.merge_patch(NODES, node.name, {"status": status}, subresource="status")
                failing = False
            except (ApiError, *CONNECTION_ERRORS) as error:
                if isinstance(error, ApiError) and error.not_found:
                    await self._register(node)  # somebody deleted the Node or its Lease
                elif not failing:
                    failing = True
                    logger.warning("node lease not renewed node=%s error=%r", node.name, str(error))
            await asyncio.sleep(LEASE_RENEW_S)

    async def _renew(self, node: NodeSpec, node_uid: str | None) -> None:
        """Renew the Lease; with the uid of its Node, make it when there is none."""
        now = datetime.now(UTC)
        client = self._services.client
        patch = {"spec": {"holderIdentity": node.name, "renewTime": micro_time(now)}}
        try:
            await client.merge_patch(LEASES, node.name, patch, LEASE_NAMESPACE)
        except ApiError as error:
            if not error.not_found or node_uid is None:
                raise
            await self._ensure_lease_namespace()
            await client.create(LEASES, lease_object(node.name, node_uid, now))

    async def _ensure_lease_namespace(self) -> None:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LEASE_NAMESPACE}}
        try:
            await self._services.client.get(NAMESPACES, LEASE_NAMESPACE)
        except ApiError as error:
            if not error.not_found:
                raise
            try:
                await self._services.client.create(NAMESPACES, namespace)
            except ApiError as race:
                if not race.already_exists:
                    raise
