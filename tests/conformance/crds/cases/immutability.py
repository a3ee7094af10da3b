"""What of a Job may change: value and presence of four fields and the workload may not."""

import itertools

from ..case import ABSENT, CEL, INVALID, LABELS, RESERVED, TRAIN_JOB, Case, label, labels


def immutable(name: str) -> tuple[tuple[str, str, str], ...]:
    return ((INVALID, f"spec.{name}", f"{name} is immutable"),)


def presence(name: str) -> tuple[tuple[str, str, str], ...]:
    return ((INVALID, "spec", f"{name} cannot be added or removed after creation"),)


CASES = [
    Case("labels removed", given=labels(a="1"), change={LABELS: ABSENT}, refused=immutable("workloadMetadata")),
    Case("label added", given=labels(a="1"), change=labels(a="1", b="2"), refused=immutable("workloadMetadata")),
    Case("label removed", given=labels(a="1", b="2"), change=labels(a="1"), refused=immutable("workloadMetadata")),
    Case("label changed", given=labels(a="1"), change=labels(a="2"), refused=immutable("workloadMetadata")),
    Case(
        "labels added to empty metadata",
        given={"spec.workloadMetadata": {}},
        change=labels(a="1"),
        refused=immutable("workloadMetadata"),
    ),
    Case(
        "label replaced by a reserved one",
        given=labels(a="1"),
        change=label("nvcre.nvidia.com/job"),
        refused=(*immutable("workloadMetadata"), RESERVED),
    ),
    Case("metadata added", change=labels(a="1"), refused=presence("workloadMetadata")),
    Case(
        "metadata removed",
        given=labels(a="1"),
        change={"spec.workloadMetadata": ABSENT},
        refused=presence("workloadMetadata"),
    ),
    Case("empty metadata added", change={"spec.workloadMetadata": {}}, refused=presence("workloadMetadata")),
    Case(
        "monitor changed",
        given={"spec.nodeHealthMonitor": CEL},
        change={"spec.nodeHealthMonitor.cel.expression": "true"},
        refused=immutable("nodeHealthMonitor"),
    ),
    Case(
        "agent added to the monitor",
        given={"spec.nodeHealthMonitor": CEL},
        change={"spec.nodeHealthMonitor.agent": {}},
        refused=immutable("nodeHealthMonitor"),
    ),
    Case("monitor added", change={"spec.nodeHealthMonitor": CEL}, refused=presence("nodeHealthMonitor")),
    Case(
        "monitor removed",
        given={"spec.nodeHealthMonitor": CEL},
        change={"spec.nodeHealthMonitor": ABSENT},
        refused=presence("nodeHealthMonitor"),
    ),
    *itertools.chain.from_iterable(
        (
            Case(
                f"{name} changed",
                given={f"spec.{name}.logProfileRef": "a"},
                change={f"spec.{name}.logProfileRef": "b"},
                refused=immutable(name),
            ),
            Case(
                f"{name} gets an interval",
                given={f"spec.{name}.logProfileRef": "a"},
                change={f"spec.{name}.sampleInterval": "30s"},
                refused=immutable(name),
            ),
            Case(f"{name} added", change={f"spec.{name}.logProfileRef": "a"}, refused=presence(name)),
            Case(
                f"{name} removed",
                given={f"spec.{name}.logProfileRef": "a"},
                change={f"spec.{name}": ABSENT},
                refused=presence(name),
            ),
        )
        for name in ("goodputMeasurement", "bandwidthMeasurement")
    ),
    Case(
        "two fields appear at once",
        change={"spec.nodeHealthMonitor": CEL, **labels(a="1")},
        refused=(*presence("nodeHealthMonitor"), *presence("workloadMetadata")),
    ),
    Case("runtime changed", change={f"{TRAIN_JOB}.runtimeRef.name": "other"}, refused=immutable("workload")),
    Case("workload field added", change={f"{TRAIN_JOB}.trainer": {"numNodes": 4}}, refused=immutable("workload")),
    Case(
        "argument changed deep inside",
        given={f"{TRAIN_JOB}.trainer": {"args": ["-b", "8"]}},
        change={f"{TRAIN_JOB}.trainer": {"args": ["-b", "16"]}},
        refused=immutable("workload"),
    ),
    Case(
        "unknown workload field changed",
        given={f"{TRAIN_JOB}.podTemplateOverrides": [1]},
        change={f"{TRAIN_JOB}.podTemplateOverrides": [2]},
        refused=immutable("workload"),
    ),
    Case("unknown workload field added", change={f"{TRAIN_JOB}.later": {"x": 1}}, refused=immutable("workload")),
    Case(
        "one unknown workload field swapped for another goes unnoticed",
        given={f"{TRAIN_JOB}.later": 1},
        change={f"{TRAIN_JOB}.later": ABSENT, f"{TRAIN_JOB}.sooner": 1},
    ),
    Case(
        "environment in another order is the same",
        given={f"{TRAIN_JOB}.trainer": {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}},
        change={f"{TRAIN_JOB}.trainer": {"env": [{"name": "B", "value": "2"}, {"name": "A", "value": "1"}]}},
    ),
    Case("mutable field edited, metadata absent", change={"spec.stallMultiplier": 3}),
    Case(
        "mutable fields edited, metadata present",
        given=labels(a="1"),
        change={
            "spec.stallMultiplier": 3,
            "spec.startupStallTimeoutSeconds": 60,
            "spec.schedulingStallGraceSeconds": 60,
            "spec.checkpoint": {"pvcName": "ckpt"},
            "spec.thresholds": {"busBandwidthGBps": "value > 1.0"},
            "spec.measurementTimeout": "1m",
        },
    ),
]
