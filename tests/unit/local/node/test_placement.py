"""Where a Pod goes, and kube-scheduler's words where it fits nowhere."""

from typing import Any

import pytest
from nvcre_local.node.placement import Cluster, Unschedulable, gpu_request, in_order, natural_order, place


def node(name: str, gpus: int = 8, *, ready: str = "True", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "nvidia.com/gpu.count": str(gpus)}},
        "spec": spec,
        "status": {
            "allocatable": {"nvidia.com/gpu": str(gpus)},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def pod(
    name: str = "p", gpus: int = 0, *, job: str = "", index: int | None = None, on: str = "", **spec: Any
) -> dict[str, Any]:
    labels: dict[str, str] = {}
    if job:
        labels = {"jobset.sigs.k8s.io/jobset-name": "js", "jobset.sigs.k8s.io/replicatedjob-name": job}
    if index is not None:
        labels["batch.kubernetes.io/job-completion-index"] = str(index)
    resources = {"limits": {"nvidia.com/gpu": gpus}} if gpus else {}
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": name, "labels": labels},
        "spec": {"containers": [{"name": "c", "resources": resources}], **({"nodeName": on} if on else {}), **spec},
        "status": {"phase": "Running" if on else "Pending"},
    }


def affinity(*expressions: dict[str, Any]) -> dict[str, Any]:
    terms = [{"matchExpressions": list(expressions)}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def host_in(*names: str) -> dict[str, Any]:
    return affinity({"key": "kubernetes.io/hostname", "operator": "In", "values": list(names)})


NODES = [node("node-0"), node("node-1"), node("node-2")]
TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("wanted", "nodes", "running", "expected"),
    [
        (pod(), NODES, [], "node-0"),
        (pod(), [node("node-10"), node("node-9")], [], "node-9"),
        (pod(), NODES, [pod("a", on="node-0")], "node-1"),
        (pod(gpus=8), NODES, [pod("a", 1, on="node-0")], "node-1"),
        (pod(gpus=8), NODES, [{**pod("a", 8, on="node-0"), "status": {"phase": "Succeeded"}}], "node-0"),
        (pod(nodeSelector={"kubernetes.io/hostname": "node-2"}), NODES, [], "node-2"),
        (pod(affinity=host_in("node-1", "node-2")), NODES, [], "node-1"),
        (pod(), [node("node-0", taints=[TAINT]), node("node-1")], [], "node-1"),
        (pod(tolerations=[{"operator": "Exists"}]), [node("node-0", taints=[TAINT])], [], "node-0"),
        (pod(), [node("node-0", taints=[{**TAINT, "effect": "PreferNoSchedule"}])], [], "node-0"),
        (pod(), [node("node-0", ready="Unknown"), node("node-1")], [], "node-1"),
        (pod(), [node("node-0", unschedulable=True), node("node-1")], [], "node-1"),
        # A launcher on node-0 must not shift the ranks.
        (pod(gpus=8, job="node", index=0), NODES, [pod("l", job="launcher", on="node-0")], "node-0"),
        (pod(gpus=4, job="node", index=1), NODES, [pod("w", 4, job="node", on="node-0")], "node-1"),
    ],
)
def test_placed(wanted: dict[str, Any], nodes: list[Any], running: list[Any], expected: str) -> None:
    assert place(wanted, Cluster(nodes, running)) == expected


@pytest.mark.parametrize(
    ("wanted", "nodes", "message"),
    [
        (pod(gpus=9), NODES, "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),
        (
            pod(gpus=8, affinity=host_in("node-1")),
            [node("node-0"), node("node-1", 4), node("node-2", taints=[TAINT])],
            "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node "
            "affinity/selector, 1 node(s) had untolerated taint {gpu: yes}.",
        ),
        (pod(), [], "no nodes available to schedule pods"),
    ],
)
def test_unschedulable_in_the_words_of_kube_scheduler(wanted: dict[str, Any], nodes: list[Any], message: str) -> None:
    assert place(wanted, Cluster(nodes, [])) == Unschedulable(message)


@pytest.mark.parametrize(
    ("operator", "values", "matches"),
    [
        ("In", ["8"], True), ("In", ["4"], False), ("NotIn", ["4"], True), ("Exists", None, True),
        ("DoesNotExist", None, False), ("Gt", ["4"], True), ("Gt", ["8"], False), ("Lt", ["9"], True),
        ("Gt", ["many"], False), ("Like", ["8"], False),
    ],
)  # fmt: skip
def test_affinity_operators(operator: str, values: list[str] | None, matches: bool) -> None:
    wanted = pod(affinity=affinity({"key": "nvidia.com/gpu.count", "operator": operator, "values": values}))
    assert (place(wanted, Cluster([node("node-0", 8)], [])) == "node-0") is matches


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_tolerations(toleration: dict[str, Any], tolerated: bool) -> None:
    cluster = Cluster([node("node-0", taints=[TAINT])], [])
    assert (place(pod(tolerations=[toleration]), cluster) == "node-0") is tolerated


def test_ranks_go_to_nodes_in_the_order_of_both() -> None:
    cluster = Cluster(NODES, [])
    placed = []
    for wanted in in_order([pod(f"js-node-0-{i}-zz", 8, job="node", index=i) for i in (2, 0, 1)]):
        where = place(wanted, cluster)
        assert isinstance(where, str)
        cluster.add(wanted, where)
        placed.append((wanted["metadata"]["name"], where))
    assert placed == [("js-node-0-0-zz", "node-0"), ("js-node-0-1-zz", "node-1"), ("js-node-0-2-zz", "node-2")]


def test_names_are_ordered_as_people_count() -> None:
    assert sorted(["n-10", "n-9", "n-2a", "n-2"], key=natural_order) == ["n-2", "n-2a", "n-9", "n-10"]


def test_the_request_of_a_pod_is_its_containers_or_its_largest_init_container() -> None:
    def c(gpus: int, kind: str = "limits") -> dict[str, Any]:
        return {"name": "c", "resources": {kind: {"nvidia.com/gpu": str(gpus)}}}

    assert gpu_request({"spec": {"containers": [c(2), c(3, "requests")]}}) == 5
    assert gpu_request({"spec": {"containers": [c(2)], "initContainers": [c(4), c(1)]}}) == 4


@pytest.mark.parametrize("amount", ["many", "\u00b2", -3, 1.5, "9" * 5000])
def test_what_is_no_number_of_gpus_is_none(amount: Any) -> None:
    resources = {"limits": {"nvidia.com/gpu": amount}}
    assert gpu_request({"spec": {"containers": [{"name": "c", "resources": resources}]}}) == 0
