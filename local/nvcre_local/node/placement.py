"""Decides on which node a Pod goes, or why on none. Pure; `nvcre_local.scheduler` carries it out.

A node fits when its labels match, its taints are tolerated and enough `nvidia.com/gpu` are free: the resource that this
project is about is counted, others are not, because all nodes of a local cluster share one machine. Among those that
fit, the choice is the same on every run: Pods of one replicated job spread, then the least used node, then the name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nvcre_kube.resources import JsonObject

GPU = "nvidia.com/gpu"
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"


@dataclass(frozen=True, slots=True)
class Unschedulable:
    message: str


@dataclass(slots=True)
class NodeUse:
    """What runs on a node: changed by `Cluster.add` only."""

    gpus: int = 0
    pods: int = 0
    replicated_jobs: Counter[tuple[str, str, str]] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    name: str
    labels: Mapping[str, str]
    taints: tuple[JsonObject, ...]
    gpus: int

    @classmethod
    def of(cls, node: JsonObject) -> NodeFacts:
        spec, status = node.get("spec") or {}, node.get("status") or {}
        taints = [taint for taint in spec.get("taints") or () if taint.get("effect") in ("NoSchedule", "NoExecute")]
        conditions = {c["type"]: c["status"] for c in status.get("conditions") or ()}
        # No other controller of a local cluster turns these into taints.
        if spec.get("unschedulable"):
            taints.append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
        if conditions.get("Ready") != "True":
            taints.append({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"})
        allocatable = status.get("allocatable") or {}
        return cls(
            name=node["metadata"]["name"],
            labels=node["metadata"].get("labels") or {},
            taints=tuple(taints),
            gpus=_count(allocatable.get(GPU, 0)),
        )


class Cluster:
    """The nodes and what runs on them, at one moment."""

    def __init__(self, nodes: Iterable[JsonObject], pods: Iterable[JsonObject]) -> None:
        self.nodes = sorted((NodeFacts.of(node) for node in nodes), key=lambda node: natural_order(node.name))
        self.use = {node.name: NodeUse() for node in self.nodes}
        for pod in pods:
            if pod["spec"].get("nodeName"):
                self.add(pod, pod["spec"]["nodeName"])

    def add(self, pod: JsonObject, node: str) -> None:
        """Count a Pod as running on a node, unless it is over."""
        use = self.use.get(node)
        if use is None or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            return
        use.gpus += gpu_request(pod)
        use.pods += 1
        use.replicated_jobs[_group(pod)] += 1


def place(pod: JsonObject, cluster: Cluster) -> str | Unschedulable:
    """The name of the node; a Pod that fits nowhere gets the reason in kube-scheduler's words."""
    wanted = gpu_request(pod)
    reasons: Counter[str] = Counter()
    best: tuple[tuple[int, int], NodeFacts] | None = None
    for node in cluster.nodes:
        use = cluster.use[node.name]
        if reason := _obstacle(pod, node, wanted, use):
            reasons[reason] += 1
            continue
        in_jobset = JOBSET_NAME in (pod["metadata"].get("labels") or {})
        rank = (use.replicated_jobs[_group(pod)] if in_jobset else use.pods, use.gpus)
        if best is None or rank < best[0]:
            best = (rank, node)
    if best is not None:
        return best[1].name
    listed = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    return Unschedulable(
        f"0/{len(cluster.nodes)} nodes are available: {listed}." if listed else "no nodes available to schedule pods"
    )


def in_order(pods: Iterable[JsonObject]) -> list[JsonObject]:
    """Pending Pods in the order in which they are placed: JobSet by JobSet, within one by completion index."""

    def key(pod: JsonObject) -> tuple[Any, ...]:
        metadata = pod["metadata"]
        labels = metadata.get("labels") or {}
        index = labels.get(COMPLETION_INDEX, "")
        return (
            metadata["namespace"],
            labels.get(JOBSET_NAME, ""),
            labels.get(REPLICATED_JOB, ""),
            int(index) if index.isdigit() else 0,
            metadata.get("creationTimestamp", ""),
            natural_order(metadata["name"]),
        )

    return sorted(pods, key=key)


def natural_order(name: str) -> tuple[tuple[bool, int, str], ...]:
    """node-2 before node-10."""
    return tuple(
        (part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name) if part
    )


def _count(amount: object) -> int:
    """A number of GPUs as an object has it; 0 for what is none, so that nobody's mistake stops the scheduler."""
    text = str(amount)
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def gpu_request(pod: JsonObject) -> int:
    """The GPUs a Pod asks for: the sum of its containers, or one init container that asks for more."""

    def of(container: JsonObject) -> int:
        resources = container.get("resources") or {}
        amount = (resources.get("requests") or {}).get(GPU, (resources.get("limits") or {}).get(GPU, 0))
        return _count(amount)

    spec = pod["spec"]
    return max(
        sum(of(container) for container in spec["containers"]),
        max((of(container) for container in spec.get("initContainers") or ()), default=0),
    )


def _group(pod: JsonObject) -> tuple[str, str, str]:
    labels = pod["metadata"].get("labels") or {}
    return (pod["metadata"]["namespace"], labels.get(JOBSET_NAME, ""), labels.get(REPLICATED_JOB, ""))


def _obstacle(pod: JsonObject, node: NodeFacts, wanted_gpus: int, use: NodeUse) -> str | None:
    spec = pod["spec"]
    tolerations = spec.get("tolerations") or ()
    for taint in node.taints:
        if not any(tolerates(toleration, taint) for toleration in tolerations):
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    if not _matches_labels(spec, node):
        return "node(s) didn't match Pod's node affinity/selector"
    if wanted_gpus and use.gpus + wanted_gpus > node.gpus:
        return f"Insufficient {GPU}"
    return None


def tolerates(toleration: JsonObject, taint: JsonObject) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    key = toleration.get("key", "")
    if toleration.get("operator", "Equal") == "Exists":
        return not key or key == taint["key"]
    return bool(key == taint["key"] and toleration.get("value", "") == taint.get("value", ""))


def _matches_labels(spec: JsonObject, node: NodeFacts) -> bool:
    selector = spec.get("nodeSelector") or {}
    if any(node.labels.get(key) != value for key, value in selector.items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or any(_term_matches(term, node) for term in required.get("nodeSelectorTerms") or ())


def _term_matches(term: JsonObject, node: NodeFacts) -> bool:
    expressions: Sequence[JsonObject] = term.get("matchExpressions") or ()
    fields: Sequence[JsonObject] = term.get("matchFields") or ()
    if not expressions and not fields:
        return False  # an empty term matches nothing
    return all(_holds(expression, node.labels) for expression in expressions) and all(
        _holds(expression, {"metadata.name": node.name}) for expression in fields
    )


def _holds(expression: JsonObject, values: Mapping[str, str]) -> bool:
    value = values.get(expression["key"])
    wanted: Sequence[str] = expression.get("values") or ()
    match expression["operator"]:
        case "In":
            result = value in wanted
        case "NotIn":
            result = value not in wanted
        case "Exists":
            result = value is not None
        case "DoesNotExist":
            result = value is None
        case "Gt":
            result = _compare(value, wanted) > 0
        case "Lt":
            result = _compare(value, wanted) < 0
        case _:
            result = False
    return result


def _compare(value: str | None, wanted: Sequence[str]) -> int:
    """-1, 0 or 1; 0 also where one of them is no number, which satisfies neither Gt nor Lt."""
    try:
        have, limit = int(value or ""), int(next(iter(wanted), ""))
    except ValueError:
        return 0
    return (have > limit) - (have < limit)
