"""What the CRDs accept and refuse: one table, judged by our schema engine and, where there is one, by a real kube-apiserver.

Each refusal is expected with reason, field and a part of the message; the two judges must agree on every word. The rules
are those of the Job page (labels, reserved keys, immutability in value and in presence) and of DESIGN section 4.
"""

import copy
import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest

INVALID, REQUIRED, TYPE = "FieldValueInvalid", "FieldValueRequired", "FieldValueTypeInvalid"
UNSUPPORTED, TOO_LONG, TOO_MANY, DUPLICATE = (
    "FieldValueNotSupported",
    "FieldValueTooLong",
    "FieldValueTooMany",
    "FieldValueDuplicate",
)
UNCHECKED = (INVALID, "<nil>", "some validation rules were not checked")
"""A real server adds this where a coarser fault kept it from evaluating rules."""

LABELS = "spec.workloadMetadata.labels"
GRAMMAR = (INVALID, LABELS, "label keys must be qualified names")
RESERVED = (INVALID, LABELS, "are reserved for the controller")
TRAIN_JOB = "spec.workload.trainJob"
CEL = {"cel": {"expression": "node.spec.unschedulable"}}
NOW = "2026-03-01T12:00:00Z"
ABSENT = object()
"""In a change: the field goes."""

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


@dataclass(frozen=True)
class Case:
    """`given` is set on a valid object and created; then `change` (or `status`) is applied and judged, if there is one."""

    name: str
    kind: str = "Job"
    given: dict[str, Any] = field(default_factory=dict)
    change: dict[str, Any] | None = None
    status: dict[str, Any] | None = None
    refused: tuple[tuple[str, str, str], ...] = ()


def labels(**more: str) -> dict[str, Any]:
    return {LABELS: more}


def label(key: str, value: str = "x") -> dict[str, Any]:
    return {LABELS: {key: value}}


def failed_node(**more: Any) -> dict[str, Any]:
    return {"name": "node-3", "reason": "HardwareFailureDetected", **more}


def condition(**more: Any) -> dict[str, Any]:
    return {"type": "Attributed", "status": "Unknown", "reason": "Pending", "message": "", "lastTransitionTime": NOW} | more


LABEL_CASES = [
    Case("three labels of the page", given={LABELS: {
        "kueue.x-k8s.io/queue-name": "gpu-team-a", "kai.scheduler/queue": "burn-in", "environment": "burn-in"}}),
    Case("empty value is a label", given=label("environment", "")),
    Case("value of 63 characters", given=label("a", "v" * 63)),
    Case("value of 64 characters", given=label("a", "v" * 64), refused=((TOO_LONG, f"{LABELS}.a", "63 bytes"), UNCHECKED)),
    Case("value with a space", given=label("a", "x y"), refused=((INVALID, f"{LABELS}.a", "should match"),)),
    Case("value that ends in a dash", given=label("a", "x-"), refused=((INVALID, f"{LABELS}.a", "should match"),)),
    Case("value with a line feed at the end", given=label("a", "x\n"), refused=((INVALID, f"{LABELS}.a", "should match"),)),
    Case("value that is a number", given={LABELS: {"a": 1}}, refused=((TYPE, f"{LABELS}.a", "must be of type string"), UNCHECKED)),
    Case("name of 63 characters", given=label("n" * 63)),
    Case("name of 64 characters", given=label("n" * 64), refused=(GRAMMAR,)),
    Case("prefix of 253 characters", given=label("p" * 253 + "/" + "n" * 63)),
    Case("prefix of 254 characters", given=label("p" * 254 + "/n"), refused=(GRAMMAR,)),
    Case("name of 64 characters after a prefix", given=label("p/" + "n" * 64), refused=(GRAMMAR,)),
    Case("empty key", given=label(""), refused=(GRAMMAR,)),
    Case("empty prefix", given=label("/n"), refused=(GRAMMAR,)),
    Case("empty name", given=label("p/"), refused=(GRAMMAR,)),
    Case("two slashes", given=label("p/q/n"), refused=(GRAMMAR,)),
    Case("prefix in capitals", given=label("Example.com/n"), refused=(GRAMMAR,)),
    Case("prefix with an empty part", given=label("a..b/n"), refused=(GRAMMAR,)),
    Case("prefix with an underscore", given=label("a_b/n"), refused=(GRAMMAR,)),
    Case("prefix that begins with a dash", given=label("-a/n"), refused=(GRAMMAR,)),
    Case("name with capitals, dots and underscores", given=label("a.b/N_a.m-e")),
    Case("name that begins with a dot", given=label(".a"), refused=(GRAMMAR,)),
    Case("name that ends in a dash", given=label("a-"), refused=(GRAMMAR,)),
    Case("name with a letter of another script", given=label("é"), refused=(GRAMMAR,)),
    Case("key with a line feed at the end", given=label("a\n"), refused=(GRAMMAR,)),
    Case("32 labels", given={LABELS: {f"example.com/k{i}": "v" for i in range(32)}}),
    Case("33 labels", given={LABELS: {f"k{i}": "v" for i in range(33)}}, refused=((TOO_MANY, LABELS, "at most 32 items"), UNCHECKED)),
    Case("managed-by is the controller's", given=label("app.kubernetes.io/managed-by"), refused=(RESERVED,)),
    Case("nvcre.nvidia.com/job is the controller's", given=label("nvcre.nvidia.com/job"), refused=(RESERVED,)),
    Case("nvcre.nvidia.com/anything is the controller's", given=label("nvcre.nvidia.com/any"), refused=(RESERVED,)),
    Case("a longer domain is not ours", given=label("x.nvcre.nvidia.com/job")),
    Case("another app.kubernetes.io key", given=label("app.kubernetes.io/part-of")),
    Case("malformed and reserved at once", given={LABELS: {"nvcre.nvidia.com/job": "x", "-": "x"}}, refused=(GRAMMAR, RESERVED)),
]  # fmt: skip


def immutable(name: str) -> tuple[tuple[str, str, str], ...]:
    return ((INVALID, f"spec.{name}", f"{name} is immutable"),)


def presence(name: str) -> tuple[tuple[str, str, str], ...]:
    return ((INVALID, "spec", f"{name} cannot be added or removed after creation"),)


IMMUTABILITY_CASES = [
    Case("labels removed", given=labels(a="1"), change={LABELS: ABSENT}, refused=immutable("workloadMetadata")),
    Case("label added", given=labels(a="1"), change=labels(a="1", b="2"), refused=immutable("workloadMetadata")),
    Case("label removed", given=labels(a="1", b="2"), change=labels(a="1"), refused=immutable("workloadMetadata")),
    Case("label changed", given=labels(a="1"), change=labels(a="2"), refused=immutable("workloadMetadata")),
    Case("labels added to empty metadata", given={"spec.workloadMetadata": {}}, change=labels(a="1"), refused=immutable("workloadMetadata")),
    Case("label replaced by a reserved one", given=labels(a="1"), change=label("nvcre.nvidia.com/job"), refused=(*immutable("workloadMetadata"), RESERVED)),
    Case("metadata added", change=labels(a="1"), refused=presence("workloadMetadata")),
    Case("metadata removed", given=labels(a="1"), change={"spec.workloadMetadata": ABSENT}, refused=presence("workloadMetadata")),
    Case("empty metadata added", change={"spec.workloadMetadata": {}}, refused=presence("workloadMetadata")),
    Case("monitor changed", given={"spec.nodeHealthMonitor": CEL}, change={"spec.nodeHealthMonitor.cel.expression": "true"}, refused=immutable("nodeHealthMonitor")),
    Case("agent added to the monitor", given={"spec.nodeHealthMonitor": CEL}, change={"spec.nodeHealthMonitor.agent": {}}, refused=immutable("nodeHealthMonitor")),
    Case("monitor added", change={"spec.nodeHealthMonitor": CEL}, refused=presence("nodeHealthMonitor")),
    Case("monitor removed", given={"spec.nodeHealthMonitor": CEL}, change={"spec.nodeHealthMonitor": ABSENT}, refused=presence("nodeHealthMonitor")),
    *itertools.chain.from_iterable(
        (
            Case(f"{name} changed", given={f"spec.{name}.logProfileRef": "a"}, change={f"spec.{name}.logProfileRef": "b"}, refused=immutable(name)),
            Case(f"{name} gets an interval", given={f"spec.{name}.logProfileRef": "a"}, change={f"spec.{name}.sampleInterval": "30s"}, refused=immutable(name)),
            Case(f"{name} added", change={f"spec.{name}.logProfileRef": "a"}, refused=presence(name)),
            Case(f"{name} removed", given={f"spec.{name}.logProfileRef": "a"}, change={f"spec.{name}": ABSENT}, refused=presence(name)),
        )
        for name in ("goodputMeasurement", "bandwidthMeasurement")
    ),
    Case("two fields appear at once", change={"spec.nodeHealthMonitor": CEL, **labels(a="1")}, refused=(*presence("nodeHealthMonitor"), *presence("workloadMetadata"))),
    Case("runtime changed", change={f"{TRAIN_JOB}.runtimeRef.name": "other"}, refused=immutable("workload")),
    Case("workload field added", change={f"{TRAIN_JOB}.trainer": {"numNodes": 4}}, refused=immutable("workload")),
    Case("argument changed deep inside", given={f"{TRAIN_JOB}.trainer": {"args": ["-b", "8"]}}, change={f"{TRAIN_JOB}.trainer": {"args": ["-b", "16"]}}, refused=immutable("workload")),
    Case("unknown workload field changed", given={f"{TRAIN_JOB}.podTemplateOverrides": [1]}, change={f"{TRAIN_JOB}.podTemplateOverrides": [2]}, refused=immutable("workload")),
    Case("unknown workload field added", change={f"{TRAIN_JOB}.later": {"x": 1}}, refused=immutable("workload")),
    Case("one unknown workload field swapped for another goes unnoticed", given={f"{TRAIN_JOB}.later": 1}, change={f"{TRAIN_JOB}.later": ABSENT, f"{TRAIN_JOB}.sooner": 1}),
    Case("environment in another order is the same", given={f"{TRAIN_JOB}.trainer": {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}}, change={f"{TRAIN_JOB}.trainer": {"env": [{"name": "B", "value": "2"}, {"name": "A", "value": "1"}]}}),
    Case("mutable field edited, metadata absent", change={"spec.stallMultiplier": 3}),
    Case("mutable fields edited, metadata present", given=labels(a="1"), change={
        "spec.stallMultiplier": 3, "spec.startupStallTimeoutSeconds": 60, "spec.schedulingStallGraceSeconds": 60,
        "spec.checkpoint": {"pvcName": "ckpt"}, "spec.thresholds": {"busBandwidthGBps": "value > 1.0"}, "spec.measurementTimeout": "1m"}),
]  # fmt: skip

JOB_CASES = [
    Case("the smallest Job"),
    Case("no spec", given={"spec": ABSENT}, refused=((REQUIRED, "spec", "Required value"), UNCHECKED)),
    Case("no workload", given={"spec.workload": ABSENT}, refused=((REQUIRED, "spec.workload", "Required value"), UNCHECKED)),
    Case("workload without a member", given={"spec.workload": {}}, refused=((INVALID, "spec.workload", "at least 1 properties"),)),
    Case("workload of an unknown kind", given={"spec.workload": {"mpiJob": {}}}, refused=((INVALID, "spec.workload", "at least 1 properties"),)),
    Case("trainJob without a runtime", given={TRAIN_JOB: {}}, refused=((REQUIRED, f"{TRAIN_JOB}.runtimeRef", "Required value"), UNCHECKED)),
    Case("unknown fields of a trainJob are kept", given={f"{TRAIN_JOB}.later": {"deep": [1, {"er": None}]}}),
    Case("numNodes is a string", given={f"{TRAIN_JOB}.trainer": {"numNodes": "4"}}, refused=((TYPE, f"{TRAIN_JOB}.trainer.numNodes", "must be of type integer"), UNCHECKED)),
    Case("command is a string", given={f"{TRAIN_JOB}.trainer": {"command": "ls"}}, refused=((TYPE, f"{TRAIN_JOB}.trainer.command", "must be of type array"), UNCHECKED)),
    Case("an environment variable twice", given={f"{TRAIN_JOB}.trainer": {"env": [{"name": "A"}, {"name": "A"}]}}, refused=((DUPLICATE, f"{TRAIN_JOB}.trainer.env[1]", '{"name":"A"}'),)),
    Case("GPUs as a number and memory as a quantity", given={f"{TRAIN_JOB}.trainer": {"resourcesPerNode": {"limits": {"nvidia.com/gpu": 8, "memory": "64Gi"}}}}),
    Case("GPUs as nonsense", given={f"{TRAIN_JOB}.trainer": {"resourcesPerNode": {"limits": {"nvidia.com/gpu": "eight"}}}}, refused=((INVALID, f"{TRAIN_JOB}.trainer.resourcesPerNode.limits.nvidia.com/gpu", "should match"),)),
    Case("GPUs as a list", given={f"{TRAIN_JOB}.trainer": {"resourcesPerNode": {"limits": {"gpu": []}}}}, refused=((TYPE, f"{TRAIN_JOB}.trainer.resourcesPerNode.limits.gpu", "integer,string"), UNCHECKED)),
    Case("managed by nobody known", given={f"{TRAIN_JOB}.managedBy": "me"}, refused=((UNSUPPORTED, f"{TRAIN_JOB}.managedBy", "kueue.x-k8s.io/multikueue"), UNCHECKED)),
    Case("a runtime patch for a pod", given={f"{TRAIN_JOB}.runtimePatches": [{"manager": "nvcre.nvidia.com/controller", "time": NOW, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": {"metadata": {"labels": {"a": "b"}}, "spec": {"nodeSelector": {"x": "y"}, "tolerations": [{"operator": "Exists"}]}}}}}]}}}}]}),
    Case("two runtime patches of one manager", given={f"{TRAIN_JOB}.runtimePatches": [{"manager": "a"}, {"manager": "a"}]}, refused=((DUPLICATE, f"{TRAIN_JOB}.runtimePatches[1]", '{"manager":"a"}'),)),
    Case("a runtime patch at no time", given={f"{TRAIN_JOB}.runtimePatches": [{"manager": "a", "time": "noon"}]}, refused=((TYPE, f"{TRAIN_JOB}.runtimePatches[0].time", "must be of type date-time"), UNCHECKED)),
    Case("monitor with both detectors", given={"spec.nodeHealthMonitor": {**CEL, "agent": {"mode": "Observe"}}}),
    Case("monitor without a detector", given={"spec.nodeHealthMonitor": {}}, refused=((INVALID, "spec.nodeHealthMonitor", "at least 1 properties"),)),
    Case("monitor of an unknown kind", given={"spec.nodeHealthMonitor": {"dcgm": {}}}, refused=((INVALID, "spec.nodeHealthMonitor", "at least 1 properties"),)),
    Case("agent of an unknown mode", given={"spec.nodeHealthMonitor": {"agent": {"mode": "Ignore"}}}, refused=((UNSUPPORTED, "spec.nodeHealthMonitor.agent.mode", '"Blame", "Observe"'), UNCHECKED)),
    Case("cel without an expression", given={"spec.nodeHealthMonitor": {"cel": {}}}, refused=((REQUIRED, "spec.nodeHealthMonitor.cel.expression", "Required value"), UNCHECKED)),
    Case("empty expression", given={"spec.nodeHealthMonitor": {"cel": {"expression": ""}}}, refused=((INVALID, "spec.nodeHealthMonitor.cel.expression", "at least 1 chars long"),)),
    Case("expression of 2048 characters", given={"spec.nodeHealthMonitor": {"cel": {"expression": "é" * 2048}}}),
    Case("expression of 2049 characters", given={"spec.nodeHealthMonitor": {"cel": {"expression": "x" * 2049}}}, refused=((TOO_LONG, "spec.nodeHealthMonitor.cel.expression", "2048"), UNCHECKED)),
    Case("checkpoint without a claim", given={"spec.checkpoint": {}}, refused=((REQUIRED, "spec.checkpoint.pvcName", "Required value"), UNCHECKED)),
    Case("checkpoint with an empty claim", given={"spec.checkpoint": {"pvcName": ""}}, refused=((INVALID, "spec.checkpoint.pvcName", "at least 1 chars"),)),
    Case("negative restarts", given={"spec.checkpoint": {"pvcName": "a", "maxRestarts": -1}}, refused=((INVALID, "spec.checkpoint.maxRestarts", "greater than or equal to 0"),)),
    Case("stall multiplier 0", given={"spec.stallMultiplier": 0}, refused=((INVALID, "spec.stallMultiplier", "greater than or equal to 1"),)),
    Case("stall multiplier 2.5", given={"spec.stallMultiplier": 2.5}, refused=((TYPE, "spec.stallMultiplier", "must be of type int"), UNCHECKED)),
    Case("bandwidth without a profile", given={"spec.bandwidthMeasurement": {"testType": "all_reduce"}}, refused=((REQUIRED, "spec.bandwidthMeasurement.logProfileRef", "Required value"), UNCHECKED)),
    Case("goodput with an empty profile", given={"spec.goodputMeasurement": {"logProfileRef": ""}}, refused=((INVALID, "spec.goodputMeasurement.logProfileRef", "at least 1 chars"),)),
    *(Case(f"timeout {text}", given={"spec.measurementTimeout": text}) for text in ("5m", "1h30m", "1.5s", ".5s", "0", "100µs")),
    *(Case(f"timeout {text!r}", given={"spec.measurementTimeout": text}, refused=((INVALID, "spec.measurementTimeout", "should match"),)) for text in ("", "5", "-5m", "5 m", "1d", "5m\n")),
    Case("threshold that is a number", given={"spec.thresholds": {"busBandwidthGBps": 400}}, refused=((TYPE, "spec.thresholds.busBandwidthGBps", "must be of type string"), UNCHECKED)),
    Case("33 thresholds", given={"spec.thresholds": {f"k{i}": "true" for i in range(33)}}, refused=((TOO_MANY, "spec.thresholds", "at most 32 items"), UNCHECKED)),
    Case("null means absent", given={"spec.nodeHealthMonitor": None, "spec.thresholds": None}),
    Case("unknown field of the spec is dropped", given={"spec.suspend": True}),
]  # fmt: skip

STATUS_CASES = [
    Case("a failed node with component and evidence", status={"failedNodes": [failed_node(
        message="GPU 5 fell off the bus; drain the node",
        component={"kind": "GPU", "index": 5, "uuid": "GPU-1", "pciBusId": "0000:1b:00.0"},
        evidence=[{"source": "nvml", "code": 79, "message": "Xid 79", "time": NOW}])]}),
    Case("a node that failed for two reasons", status={"failedNodes": [failed_node(), failed_node(reason="WorkloadFailed")]}),
    Case("the same node and reason twice", status={"failedNodes": [failed_node(), failed_node()]}, refused=((DUPLICATE, "status.failedNodes[1]", '{"name":"node-3","reason":"HardwareFailureDetected"}'),)),
    Case("a reason nobody knows", status={"failedNodes": [failed_node(reason="Bored")]}, refused=((UNSUPPORTED, "status.failedNodes[0].reason", "ThresholdViolation"), UNCHECKED)),
    Case("a component nobody knows", status={"failedNodes": [failed_node(component={"kind": "CPU"})]}, refused=((UNSUPPORTED, "status.failedNodes[0].component.kind", '"NVLink"'), UNCHECKED)),
    Case("message of 513 characters", status={"failedNodes": [failed_node(message="x" * 513)]}, refused=((TOO_LONG, "status.failedNodes[0].message", "512"), UNCHECKED)),
    Case("evidence message of 257 characters", status={"failedNodes": [failed_node(evidence=[{"source": "nvml", "message": "x" * 257, "time": NOW}])]}, refused=((TOO_LONG, "status.failedNodes[0].evidence[0].message", "256"), UNCHECKED)),
    Case("17 pieces of evidence", status={"failedNodes": [failed_node(evidence=[{"source": "nvml", "message": "x", "time": NOW}] * 17)]}, refused=((TOO_MANY, "status.failedNodes[0].evidence", "at most 16 items"), UNCHECKED)),
    Case("attribution pending", status={"conditions": [condition(observedGeneration=1)]}),
    Case("a condition type twice", status={"conditions": [condition(), condition()]}, refused=((DUPLICATE, "status.conditions[1]", '{"type":"Attributed"}'),)),
    Case("a condition without a reason", status={"conditions": [condition(reason="")]}, refused=((INVALID, "status.conditions[0].reason", "at least 1 chars"),)),
    Case("times as Kubernetes and Python write them", status={"workloadStartTime": NOW, "schedulingBlockedSince": "2026-03-01T12:00:00.123456+00:00"}),
    Case("a time without a zone", status={"workloadStartTime": "2026-03-01T12:00:00"}, refused=((TYPE, "status.workloadStartTime", "date-time"), UNCHECKED)),
    Case("a failure log", status={"failureLog": {"podName": "p", "nodeName": "node-3", "exitCode": 1, "tail": "x" * 32768}}),
    Case("the last 32 incidents and two cursors", "NodeHealth", status={
        "verdict": "Faulty", "message": "Xid 79 on GPU 5", "inventory": {"driverVersion": "570.133.20", "infiniband": True, "gpus": [{"index": 5, "uuid": "GPU-1"}]},
        "closedIncidents": [{"id": str(i), "kind": "Xid", "code": 79, "faultClass": "FatalHardware", "blame": "Yes", "sources": ["nvml", "kernel-log"], "firstSeen": NOW} for i in range(32)],
        "cursors": [{"outboxID": "a", "seq": 2**53}, {"outboxID": "b", "seq": 1}]}),
    Case("three cursors", "NodeHealth", status={"cursors": [{"outboxID": o, "seq": 1} for o in "abc"]}, refused=((TOO_MANY, "status.cursors", "at most 2 items"),)),
    Case("blame must be a word, not a YAML boolean", "NodeHealth", status={"incidents": [{"id": "1", "kind": "Xid", "blame": True}]}, refused=((TYPE, "status.incidents[0].blame", "string"), (UNSUPPORTED, "status.incidents[0].blame", '"No"'))),
    Case("a probe that was not tested", "NodeHealth", status={"probes": [{"probeID": "p", "kind": "NICLoopback", "state": "NotTested", "verdict": "", "reason": "NoInfiniBand"}]}),
    Case("bandwidth per size", "BandwidthMeasurement", status={"results": [{"sizeBytes": 8, "algBW": "0.00", "busBW": "0.00", "samples": 1}, {"sizeBytes": 1 << 34, "algBW": "476.36", "busBW": "922.94", "samples": 2}], "conditions": [condition(type="Complete", status="True", reason="JobSucceeded")]}),
    Case("one size twice", "BandwidthMeasurement", status={"results": [{"sizeBytes": 8, "algBW": "0", "busBW": "0", "samples": 1}] * 2}, refused=((DUPLICATE, "status.results[1]", '{"sizeBytes":8}'),)),
    Case("bandwidth as a number", "BandwidthMeasurement", status={"results": [{"sizeBytes": 8, "algBW": 0.5, "busBW": "0", "samples": 1}]}, refused=((TYPE, "status.results[0].algBW", "string"),)),
    Case("goodput", "GoodputMeasurement", status={"result": "0.912345", "currentStep": 100, "warmupBaseStep": -1, "pendingInterruption": {"tInterrupt": NOW, "lastStep": 99}}),
]  # fmt: skip

OTHER_CASES = [
    Case("a measurement of a Job", "BandwidthMeasurement", given={"spec.jobRef": {"apiGroup": "nvcre.nvidia.com", "kind": "Job", "name": "my-job"}, "spec.testType": "all_reduce"}),
    Case("a measurement without a profile", "BandwidthMeasurement", given={"spec.logProfileRef": ABSENT}, refused=((REQUIRED, "spec.logProfileRef", "Required value"),)),
    Case("a measurement of nothing", "GoodputMeasurement", given={"spec.jobRef": {"kind": "Job"}}, refused=((REQUIRED, "spec.jobRef.name", "Required value"),)),
    Case("a measurement may be edited", "GoodputMeasurement", change={"spec.logProfileRef": "megatron-bridge"}),
    Case("a profile without a layout", "LogProfile", given={"spec.timestamp": {}}, refused=((REQUIRED, "spec.timestamp.layout", "Required value"),)),
    Case("a profile with an empty regex", "LogProfile", given={"spec.patterns.trainingStep": {"regex": ""}}, refused=((INVALID, "spec.patterns.trainingStep.regex", "at least 1 chars"),)),
    Case("a profile with an unknown unit", "LogProfile", given={"spec.patterns.trainingStep": {"regex": "x", "units": {"elapsedTime": "min"}}}, refused=((UNSUPPORTED, "spec.patterns.trainingStep.units.elapsedTime", '"ms"'),)),
    Case("a profile with an unknown strategy", "LogProfile", given={"spec.workerStrategy": {"type": "All"}}, refused=((UNSUPPORTED, "spec.workerStrategy.type", '"Multi"'),)),
    Case("a TrainJob keeps what it does not know", "TrainJob", given={"spec.later": {"x": 1}}),
    Case("a TrainJob may be resumed", "TrainJob", given={"spec.suspend": True}, change={"spec.suspend": False}),
    Case("a TrainJob keeps its runtime", "TrainJob", change={"spec.runtimeRef.name": "other"}, refused=((INVALID, "spec.runtimeRef", "field is immutable"),)),
    Case("a TrainJob is managed by somebody known", "TrainJob", given={"spec.managedBy": "me"}, refused=((INVALID, "spec.managedBy", '"me": ManagedBy must be'),)),
    Case("a TrainJob's name is a DNS label", "TrainJob", given={"metadata.name": "4-nodes"}, refused=((INVALID, "<nil>", "RFC 1035"),)),
    Case("a runtime with an MPI policy", "ClusterTrainingRuntime", given={"spec.mlPolicy.mpi": {}, "spec.template": {"spec": {"replicatedJobs": [{"name": "node", "template": {"spec": {}}}]}}}),
]  # fmt: skip

CASES = [*LABEL_CASES, *IMMUTABILITY_CASES, *JOB_CASES, *STATUS_CASES, *OTHER_CASES]


def with_fields(obj: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """A copy with values set by dotted path; ABSENT removes."""
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


def judge(server: Any, case: Case, name: str) -> Any:
    group = GROUP.get(case.kind, "nvcre.nvidia.com")
    skeleton = {"apiVersion": f"{group}/v1alpha1", "kind": case.kind, "metadata": {"name": name}}
    created = server.create(with_fields({**skeleton, **BASE[case.kind]}, case.given))
    if case.change is None and case.status is None:
        return created
    assert isinstance(created, dict), created
    if case.status is not None:
        return server.replace_status(created, {**created, "status": case.status})
    return server.replace(created, with_fields(created, case.change))


def matches(found: tuple[str, str, str], expected: tuple[str, str, str]) -> bool:
    return found[:2] == expected[:2] and expected[2] in found[2]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_the_engine_judges_as_the_table_says(engine: Any, case: Case) -> None:
    causes = getattr(judge(engine, case, "case"), "causes", ())

    assert len(causes) == len(case.refused), causes
    for expected in case.refused:
        assert any(matches(found, expected) for found in causes), causes


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: CASES[number].name.replace(" ", "-"))
def test_a_real_server_agrees_in_every_word(engine: Any, real_server: Any, number: int) -> None:
    ours = judge(engine, CASES[number], f"case-{number}")

    theirs = judge(real_server, CASES[number], f"case-{number}")

    if isinstance(theirs, dict):
        assert isinstance(ours, dict), ours
        assert {key: ours.get(key) for key in ("spec", "status")} == {key: theirs.get(key) for key in ("spec", "status")}
    else:
        assert ours == theirs


def test_a_real_server_finds_every_schema_structural_and_every_name_free(real_server: Any, all_crds: Any) -> None:
    for crd in all_crds:
        conditions = real_server.conditions(crd)
        assert conditions["Established"]["status"] == "True"
        assert conditions["NamesAccepted"]["status"] == "True"
        assert "NonStructuralSchema" not in conditions, conditions["NonStructuralSchema"]
