"""The Pod that holds all GPUs of a node while we probe it, so that no tenant lands on them meanwhile (DESIGN 6.6).

The scheduler places it (nodeSelector, not nodeName), so it waits its turn like any workload and never takes GPUs from a
running one. It does nothing with the GPUs: the agent on the node runs nccl-tests.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import timedelta

from nvcre_kube.resources import JsonObject

from nvcre_coordinator.core.probe_rounds import PodPhase
from nvcre_coordinator.fleet.interface import ProbeRequest
from nvcre_coordinator.fleet.nodes import GPU_RESOURCE, HOSTNAME_LABEL, NodeFacts

PROBE_LABEL = "nvcre.nvidia.com/probe"
JOB_LABEL = "nvcre.nvidia.com/job"
JOB_UID_ANNOTATION = "nvcre.nvidia.com/job-uid"
JOB_NAMESPACE_ANNOTATION = "nvcre.nvidia.com/job-namespace"
NODE_ANNOTATION = "nvcre.nvidia.com/node"
MAX_LABEL_VALUE = 63


@dataclass(frozen=True, slots=True)
class ReservationPod:
    """What the cache keeps of a reservation Pod."""

    name: str
    uid: str
    probe: str  # the label's value
    phase: PodPhase
    message: str


def probe_hash(job_uid: str, node: str) -> str:
    """Names the probes of one node in one round; the same after a change of leader."""
    return hashlib.sha256(f"{job_uid}\0{node}".encode()).hexdigest()[:16]


def pod_name(probe: str) -> str:
    return f"nvcre-probe-{probe}"


def manifest(request: ProbeRequest, node: NodeFacts, *, namespace: str, image: str, deadline: timedelta) -> JsonObject:
    probe = probe_hash(request.job_uid, node.name)
    labels = {"app.kubernetes.io/managed-by": "nvcre", PROBE_LABEL: probe}
    if len(request.job_name) <= MAX_LABEL_VALUE:
        labels[JOB_LABEL] = request.job_name
    gpus = {GPU_RESOURCE: str(node.gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(probe),
            "namespace": namespace,
            "labels": labels,
            "annotations": {
                JOB_UID_ANNOTATION: request.job_uid,
                JOB_NAMESPACE_ANNOTATION: request.job_namespace,
                NODE_ANNOTATION: node.name,
            },
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": int(deadline.total_seconds()),
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "nodeSelector": {HOSTNAME_LABEL: node.hostname},
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {
                    "name": "reservation",
                    "image": image,
                    "command": ["sleep", "infinity"],
                    "resources": {"limits": gpus, "requests": dict(gpus)},
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": 65532,
                        "readOnlyRootFilesystem": True,
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }


def reservation_pod(pod: JsonObject) -> ReservationPod:
    metadata, status = pod["metadata"], pod.get("status") or {}
    if metadata.get("deletionTimestamp"):
        phase = PodPhase.DELETING
    else:
        phases = {"Running": PodPhase.RUNNING, "Succeeded": PodPhase.ENDED, "Failed": PodPhase.ENDED}
        phase = phases.get(status.get("phase") or "", PodPhase.PENDING)
    return ReservationPod(
        name=metadata["name"],
        uid=metadata.get("uid") or "",
        probe=(metadata.get("labels") or {}).get(PROBE_LABEL) or "",
        phase=phase,
        message=_message(status),
    )


def _message(status: JsonObject) -> str:
    """Why it is not running, in the words of the scheduler or the kubelet."""
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "")
    for container in status.get("containerStatuses") or []:
        state = container.get("state") or {}
        for value in (state.get("waiting") or {}, state.get("terminated") or {}):
            if value.get("reason"):
                return ": ".join(str(part) for part in (value["reason"], value.get("message")) if part)
    return ": ".join(str(part) for part in (status.get("reason"), status.get("message")) if part)
