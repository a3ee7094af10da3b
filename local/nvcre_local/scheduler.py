"""The tiny scheduler: binds Pods without a node, and says on those that fit nowhere why.

Used only where no kube-scheduler runs. Where a Pod goes is decided in `nvcre_local.node.placement`; this module
watches, binds, and remembers its bindings until the watch shows them.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime

from nvcre_kube.client import CONNECTION_ERRORS, ApiError, KubeClient
from nvcre_kube.events import EventRecorder
from nvcre_kube.informer import Informer
from nvcre_kube.resources import PODS, JsonObject
from nvcre_kube.timestamps import rfc3339

from nvcre_local.node.placement import Cluster, Unschedulable, in_order, place

logger = logging.getLogger(__name__)

RETRY_S = 1.0


def is_waiting(pod: JsonObject) -> bool:
    """Is it ours to place?"""
    spec, metadata = pod["spec"], pod["metadata"]
    return (
        not spec.get("nodeName")
        and not spec.get("schedulingGates")
        and spec.get("schedulerName", "default-scheduler") == "default-scheduler"
        and "deletionTimestamp" not in metadata
        and (pod.get("status") or {}).get("phase", "Pending") == "Pending"
    )


def unschedulable_patch(pod: JsonObject, message: str, now: datetime) -> JsonObject | None:
    """The status patch that says so; None when the Pod says it already."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    old: JsonObject = next((condition for condition in conditions if condition["type"] == "PodScheduled"), {})
    if old.get("status") == "False" and old.get("message") == message:
        return None
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
        "lastTransitionTime": old.get("lastTransitionTime") if old.get("status") == "False" else rfc3339(now),
    }
    others = [condition for condition in conditions if condition["type"] != "PodScheduled"]
    return {"status": {"phase": "Pending", "conditions": [*others, condition]}}


class Scheduler:
    def __init__(
        self, client: KubeClient, events: EventRecorder, pods: Informer[JsonObject], nodes: Informer[JsonObject]
    ) -> None:
        self._client = client
        self._events = events
        self._pods = pods
        self._nodes = nodes
        self._bound: dict[str, str] = {}  # uid -> node, until the watch shows it
        self._wake = asyncio.Event()
        pods.add_handler(self._on_pod)
        nodes.add_handler(lambda *_: self._wake.set())

    def _on_pod(self, old: JsonObject | None, new: JsonObject | None) -> None:
        if new is None or new["spec"].get("nodeName"):
            seen = new or old
            if seen is not None:
                self._bound.pop(seen["metadata"]["uid"], None)
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled: look at all waiting Pods whenever Pods or nodes changed."""
        await self._pods.wait_synced()
        await self._nodes.wait_synced()
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not await self._place_all():
                await asyncio.sleep(RETRY_S)
                self._wake.set()

    async def _place_all(self) -> bool:
        """False when something could not be written and is to be tried again."""
        pods = list(self._pods.all())
        waiting = [pod for pod in pods if is_waiting(pod) and pod["metadata"]["uid"] not in self._bound]
        if not waiting:
            return True
        cluster = Cluster(self._nodes.all(), pods)
        for pod in pods:
            if (node := self._bound.get(pod["metadata"]["uid"])) and not pod["spec"].get("nodeName"):
                cluster.add(pod, node)
        written = True
        for pod in in_order(waiting):
            match place(pod, cluster):
                case Unschedulable(message):
                    written &= await self._say_unschedulable(pod, message)
                case node if await self._bind(pod, node):
                    cluster.add(pod, node)
                case _:
                    written = False
        return written

    async def _bind(self, pod: JsonObject, node: str) -> bool:
        metadata = pod["metadata"]
        name, namespace = metadata["name"], metadata["namespace"]
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": metadata["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        self._bound[metadata["uid"]] = node
        try:
            await self._client.post(PODS.path(namespace, name, "binding"), binding)
        except (ApiError, *CONNECTION_ERRORS) as error:
            self._bound.pop(metadata["uid"], None)
            if isinstance(error, ApiError) and (error.not_found or error.status == 409):
                return True  # it was deleted or bound meanwhile; the watch tells
            logger.warning("pod not bound pod=%s/%s node=%s error=%r", namespace, name, node, str(error))
            return False
        logger.info("pod bound pod=%s/%s node=%s", namespace, name, node)
        self._events.record(
            pod, type="Normal", reason="Scheduled", note=f"Successfully assigned {namespace}/{name} to {node}"
        )
        return True

    async def _say_unschedulable(self, pod: JsonObject, message: str) -> bool:
        patch = unschedulable_patch(pod, message, datetime.now(UTC))
        if patch is None:
            return True
        metadata = pod["metadata"]
        try:
            await self._client.merge_patch(PODS, metadata["name"], patch, metadata["namespace"], subresource="status")
        except (ApiError, *CONNECTION_ERRORS) as error:
            return isinstance(error, ApiError) and error.not_found
        self._events.record(pod, type="Warning", reason="FailedScheduling", note=message)
        return True
