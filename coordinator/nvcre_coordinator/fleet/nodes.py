"""What the fleet side keeps of a Node: a few facts of the 60 KB that the API server sends."""

from __future__ import annotations

from dataclasses import dataclass

from nvcre_kube.resources import JsonObject

GPU_RESOURCE = "nvidia.com/gpu"
HOSTNAME_LABEL = "kubernetes.io/hostname"
MAINTENANCE = "nvcre.nvidia.com/maintenance"
CLIQUE_LABEL = "nvidia.com/gpu.clique"  # GPU feature discovery: which nodes of a rack share an NVLink domain


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
        nvlink_domain=_nvlink_domain(labels.get(CLIQUE_LABEL) or ""),
    )


def _nvlink_domain(clique: str) -> str:
    """ "CLUSTER-UUID.CLIQUE", the same on all nodes of a rack; empty: the node shares no NVLink with others.

    NVML gives an HGX node without a rack-scale fabric a cluster UUID of zeros, which would be one rack of all of them
    (https://github.com/meta-pytorch/torchcomms/pull/1385).
    """
    return clique if clique.partition(".")[0].strip("0-") else ""
