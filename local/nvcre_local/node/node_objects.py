"""Decides what a simulated node looks like in the API: its Node, its status and its Lease. Pure."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from datetime import datetime

from nvcre_kube.resources import JsonObject
from nvcre_kube.timestamps import micro_time, rfc3339

from nvcre_local.node.environment import POD_ADDRESS

LEASE_NAMESPACE = "kube-node-lease"
LEASE_DURATION_S = 40
LEASE_RENEW_S = 10.0
"""The kubelet's defaults (kubernetes.io, Nodes, "Node heartbeats")."""

MAX_PODS = 110
CONTAINER_RUNTIME = "process://1"
"""By which Nodes of ours are told from others."""
NODE_NAME_HELP = "a lower-case DNS name, with =N for N GPUs, for example node-0=8"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node as it is asked for: `--node NAME[=GPUS]`."""

    name: str
    gpus: int
    product: str = ""


@dataclass(frozen=True, slots=True)
class Host:
    """What every simulated node shares with the machine."""

    cpus: int
    memory_kib: int
    boot_id: str
    machine_id: str
    kubelet_version: str = "v1.36.3"


def node_object(node: NodeSpec) -> JsonObject:
    labels = {
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
    }
    if node.gpus:
        labels["nvidia.com/gpu.present"] = "true"
        labels["nvidia.com/gpu.count"] = str(node.gpus)
        if node.product:
            labels["nvidia.com/gpu.product"] = node.product.replace(" ", "-")
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name, "labels": labels}, "spec": {}}


def node_status(node: NodeSpec, host: Host, port: int, now: datetime, *, ready_since: datetime) -> JsonObject:
    resources = {
        "cpu": str(host.cpus),
        "memory": f"{host.memory_kib}Ki",
        "pods": str(MAX_PODS),
        "nvidia.com/gpu": str(node.gpus),
    }

    def condition(kind: str, status: str, reason: str, message: str) -> JsonObject:
        return {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": rfc3339(now),
            "lastTransitionTime": rfc3339(ready_since),
        }

    return {
        "capacity": resources,
        "allocatable": resources,
        "conditions": [
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "memory is not looked at"),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "disks are not looked at"),
            condition("PIDPressure", "False", "KubeletHasSufficientPID", "process numbers are not looked at"),
            condition("Ready", "True", "KubeletReady", "the local node runtime runs Pods as processes"),
        ],
        "addresses": [
            {"type": "InternalIP", "address": POD_ADDRESS},
            {"type": "Hostname", "address": node.name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "nodeInfo": {
            "machineID": host.machine_id,
            "systemUUID": host.machine_id,
            "bootID": host.boot_id,
            "kernelVersion": platform.release(),
            "osImage": "nvcre local",
            "containerRuntimeVersion": CONTAINER_RUNTIME,
            "kubeletVersion": host.kubelet_version,
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": platform.machine(),
        },
    }


def is_ready(node: JsonObject) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def lease_object(node: str, node_uid: str, now: datetime) -> JsonObject:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": node,
            "namespace": LEASE_NAMESPACE,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}],
        },
        "spec": {
            "holderIdentity": node,
            "leaseDurationSeconds": LEASE_DURATION_S,
            "renewTime": micro_time(now),
        },
    }


def parse_node(text: str) -> NodeSpec:
    """`NAME` or `NAME=GPUS`; raises ValueError that says what is wrong with it."""
    name, separator, gpus = text.partition("=")
    allowed = set("abcdefghijklmnopqrstuvwxyz0123456789-.")
    if not name or len(name) > 63 or set(name) - allowed or name[0] in "-." or name[-1] in "-.":
        raise ValueError(f"--node {text!r}: expected {NODE_NAME_HELP}")
    if separator and not (gpus.isascii() and gpus.isdigit() and int(gpus) <= 64):
        raise ValueError(f"--node {text!r}: the number of GPUs must be 0 to 64; expected {NODE_NAME_HELP}")
    return NodeSpec(name, int(gpus) if separator else 8)
