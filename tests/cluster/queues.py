"""A queue of Kueue for the Jobs of one test: LocalQueue gpu-team-a in its namespace, and a ClusterQueue behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nvcre_kube.client import KubeClient
from nvcre_kube.resources import Resource

from .conftest import Api

VERSION = "v1beta2"
GROUP = "kueue.x-k8s.io"
FLAVORS = Resource(GROUP, VERSION, "resourceflavors", "ResourceFlavor", namespaced=False)
CLUSTER_QUEUES = Resource(GROUP, VERSION, "clusterqueues", "ClusterQueue", namespaced=False)
LOCAL_QUEUES = Resource(GROUP, VERSION, "localqueues", "LocalQueue")
PRIORITIES = Resource(GROUP, VERSION, "workloadpriorityclasses", "WorkloadPriorityClass", namespaced=False)

GPUS_OF_A_JOB = 16
QUEUE = {"kueue.x-k8s.io/queue-name": "gpu-team-a"}


class Queue:
    """Its ClusterQueue lets in one Job at a time; `urgent` are the labels of one that may push another out."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client = client
        self._name = namespace
        self.urgent = {**QUEUE, "kueue.x-k8s.io/priority-class": self._name}

    async def create(self) -> None:
        def named(resource: Resource, **more: object) -> dict[str, object]:
            return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": self._name}, **more}

        local = {"name": QUEUE["kueue.x-k8s.io/queue-name"], "namespace": self._name}
        await self._client.create(FLAVORS, named(FLAVORS))
        await self._client.create(PRIORITIES, named(PRIORITIES, value=1000))
        await self._client.create(CLUSTER_QUEUES, named(CLUSTER_QUEUES, spec=self._spec(GPUS_OF_A_JOB)))
        await self._client.create(
            LOCAL_QUEUES, named(LOCAL_QUEUES, spec={"clusterQueue": self._name}) | {"metadata": local}
        )

    async def set_quota(self, gpus: int) -> None:
        await self._client.merge_patch(CLUSTER_QUEUES, self._name, {"spec": self._spec(gpus)})

    async def delete(self) -> None:
        for resource in (CLUSTER_QUEUES, FLAVORS, PRIORITIES):
            await self._client.delete(resource, self._name)

    def _spec(self, gpus: int) -> dict[str, object]:
        resource = "nvidia.com/gpu"
        flavor = {"name": self._name, "resources": [{"name": resource, "nominalQuota": gpus}]}
        return {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self._name}},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": [{"coveredResources": [resource], "flavors": [flavor]}],
        }


@asynccontextmanager
async def queue_of(api: Api) -> AsyncIterator[Queue]:
    queue = Queue(api.client, api.namespace)
    await queue.create()
    try:
        yield queue
    finally:
        await queue.delete()
