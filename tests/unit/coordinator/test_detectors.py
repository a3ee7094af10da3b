"""Node failure detectors: the user's CEL expression and our agents' evidence."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from nvcre_coordinator.api.workload import Node, node_from_json
from nvcre_coordinator.core.incidents import Component, Incident
from nvcre_coordinator.core.node_health import NodeHealth
from nvcre_coordinator.core.run_window import RunWindow
from nvcre_coordinator.detectors import DetectorSpecError, NodeView
from nvcre_coordinator.detectors.agent import AgentDetector
from nvcre_coordinator.detectors.cel import CelDetector, EvaluationError, compile_expression, filled, is_unhealthy
from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, IncidentKind

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
WINDOW = RunWindow(NOW - timedelta(minutes=1))
READY = 'node.status.conditions.exists(c, c.type == "Ready" && c.status != "True")'


def node(name: str = "n1", **parts: Any) -> Node:
    return node_from_json({"metadata": {"name": name, "resourceVersion": "1"}} | parts)


def cel_job(build: Any, expression: str) -> Any:
    return build.job(nodeHealthMonitor={"cel": {"expression": expression}})


@pytest.mark.parametrize(
    ("expression", "parts", "unhealthy"),
    [
        ("node.spec.unschedulable == true", {"spec": {"unschedulable": True}}, True),
        ("node.spec.unschedulable == true", {}, False),
        ("size(node.spec.taints) > 0", {}, False),
        ('node.spec.taints.exists(t, t.key == "bad")', {"spec": {"taints": [{"key": "bad"}]}}, True),
        ('"gpu" in node.metadata.labels', {}, False),
        (READY, {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, True),
        (READY, {"status": {}}, False),
        ("size(node.status.capacity) + size(node.status.allocatable) + size(node.status.addresses) > 0", {}, False),
        ('node.metadata.annotations[?"x"].orValue("") == "broken"', {}, False),
        ("node.spec.unschedulable", None, None),
    ],
)
def test_simple_expressions_work_on_sparse_nodes(
    expression: str, parts: dict[str, Any] | None, unhealthy: bool | None
) -> None:
    if parts is None:
        with pytest.raises(DetectorSpecError, match="must give a bool"):
            compile_expression(expression)
    else:
        assert is_unhealthy(expression, filled(node(**parts).decoded())) is unhealthy


@pytest.mark.parametrize("expression", ["node.spec.unschedulable ==", "pod.spec == 1", "1 + 1", "node.spec"])
def test_a_bad_expression_is_found_before_the_workload_is_created(build: Any, expression: str) -> None:
    with pytest.raises(DetectorSpecError) as error:
        CelDetector().validate(cel_job(build, expression))
    assert "\n" not in str(error.value)
    assert "node.spec.unschedulable == true" in str(error.value), "what to write instead"


def test_a_missing_key_blames_nobody_and_is_told(build: Any) -> None:
    expression = 'node.metadata.labels["zone"] == "b"'
    with pytest.raises(EvaluationError):
        is_unhealthy(expression, filled(node().decoded()))
    found, unknown = CelDetector().detect(cel_job(build, expression), [NodeView("n1", node(), None)], WINDOW, NOW)
    assert found == []
    assert [(item.node, "zone" in item.message) for item in unknown] == [("n1", True)]


def test_a_matching_node_is_named_with_the_expression_as_evidence(build: Any) -> None:
    views = [
        NodeView("n1", node("n1"), None),
        NodeView("n2", node("n2", spec={"unschedulable": True}), None),
        NodeView("n3", None, None),
    ]
    found, unknown = CelDetector().detect(cel_job(build, "node.spec.unschedulable == true"), views, WINDOW, NOW)
    assert unknown == []
    (entry,) = found
    assert (entry.name, entry.component.kind.value, entry.evidence[0].source) == ("n2", "Node", "cel")


def test_the_state_of_a_node_after_the_run_says_nothing_about_it(build: Any) -> None:
    views = [NodeView("n1", node(spec={"unschedulable": True}), None)]
    over = RunWindow(NOW - timedelta(hours=1), NOW)
    assert CelDetector().detect(cel_job(build, "node.spec.unschedulable == true"), views, over, NOW) == ([], [])


def incident(**changes: Any) -> Incident:
    fields: dict[str, Any] = {
        "id": "i", "kind": IncidentKind.XID, "code": 79, "fault_class": FaultClass.FATAL_HARDWARE, "blame": Blame.YES,
        "first_seen": NOW, "component": Component(kind=ComponentKind.GPU, index=5),
    }  # fmt: skip
    return Incident(**fields | changes)


@pytest.mark.parametrize(
    ("spec", "changes", "blamed"),
    [
        ({}, {}, True),
        ({"nodeHealthMonitor": {"agent": {"mode": "Blame"}}}, {}, True),
        ({"nodeHealthMonitor": {"agent": {}}}, {}, True),
        ({"nodeHealthMonitor": {"cel": {"expression": "true"}}}, {}, True),
        ({"nodeHealthMonitor": {"agent": {"mode": "Observe"}}}, {}, False),
        ({}, {"blame": Blame.CONDITIONAL}, False),
        ({}, {"injected": True}, False),
        ({}, {"fault_class": FaultClass.APPLICATION}, False),
        ({}, {"recovered_at": NOW - timedelta(hours=1), "first_seen": NOW - timedelta(hours=2)}, False),
    ],
)
def test_agents_blame_by_default_and_observe_when_told_to(
    build: Any, spec: dict[str, Any], changes: dict[str, Any], blamed: bool
) -> None:
    health = NodeHealth("n1", open=(incident(**changes),))
    found, _ = AgentDetector().detect(build.job(**spec), [NodeView("n1", None, health)], WINDOW, NOW)
    assert [entry.name for entry in found] == (["n1"] if blamed else [])


@pytest.mark.parametrize(
    ("component", "blamed"),
    [
        (Component(kind=ComponentKind.GPU, index=5), False),
        (Component(kind=ComponentKind.NVLINK, index=5), False),
        (Component(kind=ComponentKind.FABRIC), False),
        (Component(kind=ComponentKind.NIC), True),
        (Component(kind=ComponentKind.NODE), True),
        (None, True),
    ],
)
def test_a_launcher_without_gpus_has_no_part_in_the_faults_of_its_node_s_gpus(
    build: Any, component: Component | None, blamed: bool
) -> None:
    health = NodeHealth("n1", open=(incident(component=component),))
    view = NodeView("n1", None, health, uses_gpus=False)
    found, _ = AgentDetector().detect(build.job(), [view], WINDOW, NOW)
    assert [entry.name for entry in found] == (["n1"] if blamed else [])


def test_a_node_is_kept_as_bytes_without_its_images() -> None:
    kept = node_from_json(
        {"metadata": {"name": "n", "managedFields": [1]}, "status": {"images": [1], "capacity": {"cpu": "1"}}}
    )
    assert kept.decoded() == {"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "1"}}}
    assert msgspec.json.decode(kept.raw) == kept.decoded()
