"""What the fleet side keeps of a Node: a few facts of the 60 KB that the API server sends."""

from __future__ import annotations

from dataclasses import dataclass

from nvcre_kube.resources import JsonObject

from nvcre_coordinator.api.workload import nvlink_domain

GPU_RESOURCE = "nvidia.com/gpu"
HOSTNAME_LABEL = "kubernetes.io/hostname"
MAINTENANCE = "nvcre.nvidia.com/maintenance"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    name: str
    uid: str
    hostname: str  # the label's value: what a nodeSelector must say
    gpus: int  # allocatable
    maintenance: bool  # label or annotation nvcre.nvidia.com/maintenance, set by people
    nvlink_domain: str = ""  # empty: its own


def node_facts(node: JsonObject) -> NodeFacts:
    metadata = node["metadata"]
    labels = metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    gpus = str(allocatable.get(GPU_RESOURCE, "0"))
    mark = labels.get(MAINTENANCE, annotations.get(MAINTENANCE, "false"))
    return NodeFacts(
        name=metadata["name"],
        uid=metadata.get("uid") or "",
        hostname=labels.get(HOSTNAME_LABEL) or metadata["name"],
        gpus=int(gpus) if gpus.isdigit() else 0,
        maintenance=str(mark).lower() not in {"false", "", "0", "no"},
        nvlink_domain=nvlink_domain(labels),
    )
