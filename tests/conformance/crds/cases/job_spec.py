"""The rest of a Job's spec: required fields, types, limits, defaults."""

from ..case import (
    ABSENT,
    CEL,
    DUPLICATE,
    INVALID,
    NOW,
    REQUIRED,
    TOO_LONG,
    TOO_MANY,
    TRAIN_JOB,
    TYPE,
    UNSUPPORTED,
    Case,
)

JUDGED = {
    "spec.bandwidthMeasurement": {"logProfileRef": "nccl-bandwidth"},
    "spec.thresholds": {"busBandwidthGBps": "value >= 300"},
}

CASES = [
    Case("the smallest Job"),
    Case("no spec", given={"spec": ABSENT}, refused=((REQUIRED, "spec", "Required value"),)),
    Case("no workload", given={"spec.workload": ABSENT}, refused=((REQUIRED, "spec.workload", "Required value"),)),
    Case(
        "workload without a member",
        given={"spec.workload": {}},
        refused=((INVALID, "spec.workload", "at least 1 properties"),),
    ),
    Case(
        "workload of an unknown kind",
        given={"spec.workload": {"mpiJob": {}}},
        refused=((INVALID, "spec.workload", "at least 1 properties"),),
    ),
    Case(
        "trainJob without a runtime",
        given={TRAIN_JOB: {}},
        refused=((REQUIRED, f"{TRAIN_JOB}.runtimeRef", "Required value"),),
    ),
    Case("unknown fields of a trainJob are kept", given={f"{TRAIN_JOB}.later": {"deep": [1, {"er": None}]}}),
    Case(
        "numNodes is a string",
        given={f"{TRAIN_JOB}.trainer": {"numNodes": "4"}},
        refused=((TYPE, f"{TRAIN_JOB}.trainer.numNodes", "must be of type integer"),),
    ),
    Case(
        "command is a string",
        given={f"{TRAIN_JOB}.trainer": {"command": "ls"}},
        refused=((TYPE, f"{TRAIN_JOB}.trainer.command", "must be of type array"),),
    ),
    Case(
        "an environment variable twice",
        given={f"{TRAIN_JOB}.trainer": {"env": [{"name": "A"}, {"name": "A"}]}},
        refused=((DUPLICATE, f"{TRAIN_JOB}.trainer.env[1]", '{"name":"A"}'),),
    ),
    Case(
        "GPUs as a number and memory as a quantity",
        given={f"{TRAIN_JOB}.trainer": {"resourcesPerNode": {"limits": {"nvidia.com/gpu": 8, "memory": "64Gi"}}}},
    ),
    Case(
        "GPUs as nonsense",
        given={f"{TRAIN_JOB}.trainer": {"resourcesPerNode": {"limits": {"nvidia.com/gpu": "eight"}}}},
        refused=((INVALID, f"{TRAIN_JOB}.trainer.resourcesPerNode.limits.nvidia.com/gpu", "should match"),),
    ),
    Case(
        "GPUs as a list",
        given={f"{TRAIN_JOB}.trainer": {"resourcesPerNode": {"limits": {"gpu": []}}}},
        refused=((TYPE, f"{TRAIN_JOB}.trainer.resourcesPerNode.limits.gpu", "integer,string"),),
    ),
    Case(
        "managed by nobody known",
        given={f"{TRAIN_JOB}.managedBy": "me"},
        refused=((UNSUPPORTED, f"{TRAIN_JOB}.managedBy", "kueue.x-k8s.io/multikueue"),),
    ),
    Case(
        "a runtime patch for a pod",
        given={
            f"{TRAIN_JOB}.runtimePatches": [
                {
                    "manager": "nvcre.nvidia.com/controller",
                    "time": NOW,
                    "trainingRuntimeSpec": {
                        "template": {
                            "spec": {
                                "replicatedJobs": [
                                    {
                                        "name": "node",
                                        "template": {
                                            "spec": {
                                                "template": {
                                                    "metadata": {"labels": {"a": "b"}},
                                                    "spec": {
                                                        "nodeSelector": {"x": "y"},
                                                        "tolerations": [{"operator": "Exists"}],
                                                    },
                                                }
                                            }
                                        },
                                    }
                                ]
                            }
                        }
                    },
                }
            ]
        },
    ),
    Case(
        "two runtime patches of one manager",
        given={f"{TRAIN_JOB}.runtimePatches": [{"manager": "a"}, {"manager": "a"}]},
        refused=((DUPLICATE, f"{TRAIN_JOB}.runtimePatches[1]", '{"manager":"a"}'),),
    ),
    Case(
        "a runtime patch at no time",
        given={f"{TRAIN_JOB}.runtimePatches": [{"manager": "a", "time": "noon"}]},
        refused=((TYPE, f"{TRAIN_JOB}.runtimePatches[0].time", "must be of type date-time"),),
    ),
    Case("monitor with both detectors", given={"spec.nodeHealthMonitor": {**CEL, "agent": {"mode": "Observe"}}}),
    Case(
        "monitor without a detector",
        given={"spec.nodeHealthMonitor": {}},
        refused=((INVALID, "spec.nodeHealthMonitor", "at least 1 properties"),),
    ),
    Case(
        "monitor of an unknown kind",
        given={"spec.nodeHealthMonitor": {"dcgm": {}}},
        refused=((INVALID, "spec.nodeHealthMonitor", "at least 1 properties"),),
    ),
    Case(
        "agent of an unknown mode",
        given={"spec.nodeHealthMonitor": {"agent": {"mode": "Ignore"}}},
        refused=((UNSUPPORTED, "spec.nodeHealthMonitor.agent.mode", '"Blame", "Observe"'),),
    ),
    Case(
        "cel without an expression",
        given={"spec.nodeHealthMonitor": {"cel": {}}},
        refused=((REQUIRED, "spec.nodeHealthMonitor.cel.expression", "Required value"),),
    ),
    Case(
        "empty expression",
        given={"spec.nodeHealthMonitor": {"cel": {"expression": ""}}},
        refused=((INVALID, "spec.nodeHealthMonitor.cel.expression", "at least 1 chars long"),),
    ),
    Case("expression of 2048 characters", given={"spec.nodeHealthMonitor": {"cel": {"expression": "é" * 2048}}}),
    Case(
        "expression of 2049 characters",
        given={"spec.nodeHealthMonitor": {"cel": {"expression": "x" * 2049}}},
        refused=((TOO_LONG, "spec.nodeHealthMonitor.cel.expression", "2048"),),
    ),
    Case(
        "checkpoint without a claim",
        given={"spec.checkpoint": {}},
        refused=((REQUIRED, "spec.checkpoint.pvcName", "Required value"),),
    ),
    Case(
        "checkpoint with an empty claim",
        given={"spec.checkpoint": {"pvcName": ""}},
        refused=((INVALID, "spec.checkpoint.pvcName", "at least 1 chars"),),
    ),
    Case(
        "negative restarts",
        given={"spec.checkpoint": {"pvcName": "a", "maxRestarts": -1}},
        refused=((INVALID, "spec.checkpoint.maxRestarts", "greater than or equal to 0"),),
    ),
    Case(
        "stall multiplier 0",
        given={"spec.stallMultiplier": 0},
        refused=((INVALID, "spec.stallMultiplier", "greater than or equal to 1"),),
    ),
    Case(
        "stall multiplier 2.5",
        given={"spec.stallMultiplier": 2.5},
        refused=(
            (TYPE, "spec.stallMultiplier", "must be of type int32"),
            (INVALID, "<nil>", "integer with format int32"),
        ),
    ),
    Case(
        "stall multiplier beyond int32",
        given={"spec.stallMultiplier": 2**31},
        refused=((INVALID, "<nil>", "integer with format int32 in spec.stallMultiplier"),),
    ),
    Case(
        "stall multiplier true",
        given={"spec.stallMultiplier": True},
        refused=((TYPE, "spec.stallMultiplier", 'must be of type int32: ""'),),
    ),
    Case(
        "stall multiplier as a list",
        given={"spec.stallMultiplier": [1]},
        refused=((TYPE, "spec.stallMultiplier", 'must be of type integer: "array"'),),
    ),
    Case("a spec that is a list", given={"spec": []}, refused=((TYPE, "spec", 'must be of type object: "array"'),)),
    Case(
        "bandwidth without a profile",
        given={"spec.bandwidthMeasurement": {"testType": "all_reduce"}},
        refused=((REQUIRED, "spec.bandwidthMeasurement.logProfileRef", "Required value"),),
    ),
    Case(
        "goodput with an empty profile",
        given={"spec.goodputMeasurement": {"logProfileRef": ""}},
        refused=((INVALID, "spec.goodputMeasurement.logProfileRef", "at least 1 chars"),),
    ),
    *(
        Case(f"timeout {text}", given={"spec.measurementTimeout": text})
        for text in ("5m", "1h30m", "1.5s", ".5s", "0", "100µs")
    ),
    *(
        Case(
            f"timeout {text!r}",
            given={"spec.measurementTimeout": text},
            refused=((INVALID, "spec.measurementTimeout", "should match"),),
        )
        for text in ("", "5", "-5m", "5 m", "1d", "5m\n")
    ),
    Case(
        "threshold that is a number",
        given={"spec.thresholds": {"busBandwidthGBps": 400}},
        refused=((TYPE, "spec.thresholds.busBandwidthGBps", "must be of type string"),),
    ),
    Case(
        "33 thresholds",
        given={"spec.thresholds": {f"k{i}": "true" for i in range(33)}},
        refused=((TOO_MANY, "spec.thresholds", "at most 32 items"),),
    ),
    Case("null means absent", given={"spec.nodeHealthMonitor": None, "spec.thresholds": None}),
    *(Case(f"slowNodeSearch {how}", given={"spec.slowNodeSearch": how}) for how in ("Off", "NodeProbes")),
    Case("slowNodeSearch NodePairs", given={"spec.slowNodeSearch": "NodePairs", **JUDGED}),
    Case(
        "slowNodeSearch is none that exists",
        given={"spec.slowNodeSearch": "Pairs"},
        refused=((UNSUPPORTED, "spec.slowNodeSearch", '"NodePairs"'),),
    ),
    *(
        Case(
            f"slowNodeSearch NodePairs without {missing}",
            given={"spec.slowNodeSearch": "NodePairs", **JUDGED, missing: ABSENT},
            refused=((INVALID, "spec", "it needs bandwidthMeasurement and the threshold busBandwidthGBps"),),
        )
        for missing in JUDGED
    ),
    Case(
        "the threshold of slowNodeSearch NodePairs goes",
        given={"spec.slowNodeSearch": "NodePairs", **JUDGED},
        change={"spec.thresholds": {"algBandwidthGBps": "value > 1"}},
        refused=((INVALID, "spec", "it needs bandwidthMeasurement and the threshold busBandwidthGBps"),),
    ),
    Case("unknown field of the spec is dropped", given={"spec.suspend": True}),
]
