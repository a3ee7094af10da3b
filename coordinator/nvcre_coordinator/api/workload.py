"""The parts of other people's objects that our rules read: TrainJob, Pod, Node, Lease, ConfigMap."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from nvcre_coordinator.api.meta import ObjectMeta


class WorkloadCondition(msgspec.Struct, frozen=True, rename="camel"):
    """A condition somebody else wrote, on a TrainJob or a Pod: read leniently."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class TrainJobSpec(msgspec.Struct, frozen=True, rename="camel"):
    suspend: bool | None = None
    managed_by: str | None = None


class TrainJobStatus(msgspec.Struct, frozen=True, rename="camel"):
    conditions: tuple[WorkloadCondition, ...] = ()


class TrainJob(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: TrainJobSpec = TrainJobSpec()
    status: TrainJobStatus = TrainJobStatus()


class ContainerStateTerminated(msgspec.Struct, frozen=True, rename="camel"):
    exit_code: int
    reason: str | None = None
    signal: int | None = None
    message: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


class ContainerStateWaiting(msgspec.Struct, frozen=True, rename="camel"):
    reason: str | None = None


class ContainerStateRunning(msgspec.Struct, frozen=True, rename="camel"):
    started_at: datetime | None = None


class ContainerState(msgspec.Struct, frozen=True, rename="camel"):
    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class Resources(msgspec.Struct, frozen=True):
    limits: dict[str, Any] | None = None


class Container(msgspec.Struct, frozen=True):
    resources: Resources | None = None
    image: str = ""
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None


class PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str | None = None
    containers: tuple[Container, ...] = ()

    def asks_for(self, resource: str) -> bool:
        """An extended resource stands in the limits, always."""
        limits = [(each.resources and each.resources.limits) or {} for each in self.containers]
        return any(str(each.get(resource, "0")) != "0" for each in limits)


class PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    phase: str = "Pending"
    container_statuses: tuple[ContainerStatus, ...] | None = None
    conditions: tuple[WorkloadCondition, ...] | None = None


class Pod(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def key(self) -> tuple[str, str]:
        return self.metadata.namespace, self.metadata.name

    @property
    def unschedulable(self) -> str | None:
        """What the scheduler says of a pod that it cannot place; None for a pod that it may still look at."""
        if self.spec.node_name:
            return None
        refusals = [
            each
            for each in self.status.conditions or ()
            if (each.type, each.status, each.reason) == ("PodScheduled", "False", "Unschedulable")
        ]
        return refusals[0].message if refusals else None

    @property
    def containers(self) -> tuple[ContainerStatus, ...]:
        return self.status.container_statuses or ()


CLIQUE_LABEL = "nvidia.com/gpu.clique"  # GPU feature discovery: which nodes of a rack share an NVLink domain


class Node(msgspec.Struct, frozen=True):
    """A Node as CEL sees it: the JSON without the parts nobody asks about (managedFields, status.images)."""

    name: str
    resource_version: str
    raw: bytes  # JSON; a dict of a GPU node is four times as large
    nvlink_domain: str = ""

    def decoded(self) -> dict[str, Any]:
        decoded: dict[str, Any] = msgspec.json.decode(self.raw)
        return decoded


class ConfigMap(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    data: dict[str, str] = {}


def node_from_json(obj: dict[str, Any]) -> Node:
    metadata = {key: value for key, value in obj.get("metadata", {}).items() if key != "managedFields"}
    status = {key: value for key, value in obj.get("status", {}).items() if key != "images"}
    slim = {**obj, "metadata": metadata, "status": status}
    return Node(
        name=metadata.get("name", ""),
        resource_version=metadata.get("resourceVersion", ""),
        raw=msgspec.json.encode(slim),
        nvlink_domain=nvlink_domain(metadata.get("labels") or {}),
    )


def nvlink_domain(labels: dict[str, Any]) -> str:
    """ "CLUSTER-UUID.CLIQUE", the same on all nodes of a rack; empty: the node shares no NVLink with others.

    NVML gives an HGX node without a rack-scale fabric a cluster UUID of zeros, which would be one rack of all of them
    (https://github.com/meta-pytorch/torchcomms/pull/1385).
    """
    clique = labels.get(CLIQUE_LABEL) or ""
    return clique if clique.partition(".")[0].strip("0-") else ""
