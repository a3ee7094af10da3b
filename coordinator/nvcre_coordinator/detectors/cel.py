"""The user's own rule: CEL over the Node object, true means unhealthy.

One variable `node`, the Node as JSON, with the usual absent fields filled in so that simple expressions do not fail
(spec/reference-behaviour.md section 3).  The expression must be a bool by type.  What fails to evaluate blames nobody;
it is said once per Job, node and message by whoever calls.  Judged only while the run lasts: the state of a node after
it says nothing about it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_optional
from nvcre_protos.vocabulary import ComponentKind

from nvcre_coordinator.api.job import Component, Evidence, FailedNode, FailedNodeReason, Job
from nvcre_coordinator.api.workload import Node
from nvcre_coordinator.core.limits import clip, clip_entry
from nvcre_coordinator.core.loops import code_of, depth_of_loops
from nvcre_coordinator.core.run_window import RunWindow
from nvcre_coordinator.core.thresholds import one_line
from nvcre_coordinator.detectors import Blindness, DetectorSpecError, NodeView

MOST_LOOPS = 2
"""Of all taints of a kind and their values, say."""


class EvaluationError(ValueError):
    """The expression has no answer for this node (a missing key, a wrong type)."""


@lru_cache(maxsize=1)
def _environment() -> cel.Env:
    return cel.NewEnv(
        variables={"node": cel.Type.Map(cel.Type.STRING, cel.Type.DYN)}, extensions=[ext_optional.ExtOptional()]
    )


@lru_cache(maxsize=256)
def compile_expression(expression: str) -> cel.Expression:
    """Raises DetectorSpecError."""
    loops = depth_of_loops(expression)
    if loops > MOST_LOOPS or (loops and "+" in code_of(expression)):
        raise DetectorSpecError(
            f'"{clip(expression, 256)}" has more than {MOST_LOOPS} loops within each other, or a loop and a +: it '
            "might build values without end; write it without, or with && and || between loops"
        )
    try:
        program = _environment().compile(expression)
    except RuntimeError as error:  # what the CEL runtime raises for every rejected expression
        raise DetectorSpecError(
            f'{clip(one_line(str(error)), 512)} in "{clip(expression, 256)}"; write CEL over node that gives a bool, '
            'such as "node.spec.unschedulable == true"'
        ) from error
    if program.return_type() != cel.Type.BOOL:
        raise DetectorSpecError(
            f"gives {program.return_type().name()}, must give a bool (compare it: node.spec.unschedulable == true)"
        )
    return program


def is_unhealthy(expression: str, node: dict[str, Any]) -> bool:
    """`node` is a filled Node.  Raises EvaluationError, DetectorSpecError."""
    program = compile_expression(expression)
    try:
        result = program.eval(data={"node": node})
    except RuntimeError as error:
        raise EvaluationError(clip(one_line(str(error)), 256)) from error
    if result.type() != cel.Type.BOOL:
        raise EvaluationError(clip(one_line(str(result.value())), 256))
    return bool(result.value())


@lru_cache(maxsize=512)
def _filled_once(name: str, resource_version: str, raw: bytes) -> dict[str, Any]:
    return filled(Node(name, resource_version, raw).decoded())


def filled(node: dict[str, Any]) -> dict[str, Any]:
    """The Node with labels, annotations, taints, unschedulable, conditions, addresses and resources never absent."""
    metadata = {"labels": {}, "annotations": {}, **_present(node.get("metadata"))}
    spec = {"taints": [], "unschedulable": False, **_present(node.get("spec"))}
    status = {"conditions": [], "addresses": [], "capacity": {}, "allocatable": {}, **_present(node.get("status"))}
    return {**node, "metadata": metadata, "spec": spec, "status": status}


def _present(part: dict[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (part or {}).items() if value is not None}


class CelDetector:
    name = "cel"

    def validate(self, job: Job) -> None:
        if job.spec.node_expression is not None:
            compile_expression(job.spec.node_expression)

    def detect(
        self, job: Job, nodes: Iterable[NodeView], window: RunWindow, now: datetime
    ) -> tuple[list[FailedNode], list[Blindness]]:
        expression = job.spec.node_expression
        found: list[FailedNode] = []
        unknown: list[Blindness] = []
        if expression is None or window.end is not None:
            return found, unknown
        for view in nodes:
            if view.node is None:
                continue
            raw = _filled_once(view.node.name, view.node.resource_version, view.node.raw)
            try:
                if is_unhealthy(expression, raw):
                    found.append(_entry(view.name, expression, now))
            except (EvaluationError, DetectorSpecError) as error:
                unknown.append(Blindness(view.name, f"spec.nodeHealthMonitor.cel.expression: {error}"))
        return found, unknown


def _entry(node: str, expression: str, now: datetime) -> FailedNode:
    message = f"the Node matches spec.nodeHealthMonitor.cel.expression: {expression}"
    return clip_entry(
        FailedNode(
            name=node,
            reason=FailedNodeReason.HARDWARE_FAILURE_DETECTED,
            message=f"{message}. See kubectl describe node {node}",
            component=Component(ComponentKind.NODE),
            evidence=(Evidence(source="cel", message=message, time=now),),
        )
    )
