"""The vocabulary of the admission table: valid objects, and what a case does to them."""

import copy
from dataclasses import dataclass, field
from typing import Any

from .judges import Judge, Refused

INVALID, REQUIRED, TYPE = "FieldValueInvalid", "FieldValueRequired", "FieldValueTypeInvalid"
UNSUPPORTED, TOO_LONG, TOO_MANY, DUPLICATE = (
    "FieldValueNotSupported",
    "FieldValueTooLong",
    "FieldValueTooMany",
    "FieldValueDuplicate",
)
LABELS = "spec.workloadMetadata.labels"
GRAMMAR = (INVALID, LABELS, "label keys must be qualified names")
RESERVED = (INVALID, LABELS, "are reserved for the controller")
TRAIN_JOB = "spec.workload.trainJob"
CEL = {"cel": {"expression": "node.spec.unschedulable"}}
NOW = "2026-03-01T12:00:00Z"
ABSENT = ...
"""As the value of a field: the field goes."""

BASE: dict[str, dict[str, Any]] = {
    "Job": {"spec": {"workload": {"trainJob": {"runtimeRef": {"kind": "TrainingRuntime", "name": "nccl"}}}}},
    "BandwidthMeasurement": {"spec": {"logProfileRef": "nccl-bandwidth"}},
    "GoodputMeasurement": {"spec": {"logProfileRef": "megatron-training"}},
    "LogProfile": {"spec": {"timestamp": {"layout": "2006-01-02"}, "patterns": {}}},
    "NodeHealth": {},
    "TrainJob": {"spec": {"runtimeRef": {"name": "nccl"}}},
    "ClusterTrainingRuntime": {"spec": {"mlPolicy": {"numNodes": 2}}},
}
GROUP = {"TrainJob": "trainer.kubeflow.org", "ClusterTrainingRuntime": "trainer.kubeflow.org"}


Expected = tuple[str, str, str]
"""Reason, field, part of the message."""


@dataclass(frozen=True)
class Case:
    """`given` is set on a valid object, which is created; a `change` or a `status` is then written to it and judged."""

    name: str
    kind: str = "Job"
    given: dict[str, Any] = field(default_factory=dict)
    change: dict[str, Any] | None = None
    status: dict[str, Any] | None = None
    refused: tuple[Expected, ...] = ()
    """That rules were not checked is left out: a server says so wherever a coarser fault kept it from checking them."""


def labels(**more: str) -> dict[str, Any]:
    return {LABELS: more}


def label(key: str, value: str = "x") -> dict[str, Any]:
    return {LABELS: {key: value}}


def failed_node(**more: Any) -> dict[str, Any]:
    return {"name": "node-3", "reason": "HardwareFailureDetected", **more}


def condition(**more: Any) -> dict[str, Any]:
    return {
        "type": "Attributed",
        "status": "Unknown",
        "reason": "Pending",
        "message": "",
        "lastTransitionTime": NOW,
    } | more


def base(kind: str) -> dict[str, Any]:
    return {"apiVersion": f"{GROUP.get(kind, 'nvcre.nvidia.com')}/v1alpha1", "kind": kind, **BASE[kind]}


def with_fields(obj: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """A copy with values set by dotted path."""
    changed = copy.deepcopy(obj)
    for path, value in fields.items():
        *parents, last = path.split(".")
        inner = changed
        for parent in parents:
            inner = inner.setdefault(parent, {})
        if value is ABSENT:
            inner.pop(last, None)
        else:
            inner[last] = copy.deepcopy(value)
    return changed


def judge(server: Judge, base: dict[str, Any], case: Any, name: str) -> dict[str, Any] | Refused:
    """Create `base` with what the case gives; answers that, or the update that the case asks for."""
    created = server.create(with_fields({**base, "metadata": {"name": name}}, case.given))
    if case.change is None and case.status is None:
        return created
    assert isinstance(created, dict), created
    if case.status is not None:
        return server.replace_status(created, {**created, "status": case.status})
    return server.replace(created, with_fields(created, case.change))
