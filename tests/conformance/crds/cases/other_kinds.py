"""Measurements, log profiles, and the Trainer kinds of clusters without Trainer."""

from ..case import ABSENT, INVALID, REQUIRED, UNSUPPORTED, Case

CASES = [
    Case(
        "a measurement of a Job",
        "BandwidthMeasurement",
        given={
            "spec.jobRef": {"apiGroup": "nvcre.nvidia.com", "kind": "Job", "name": "my-job"},
            "spec.testType": "all_reduce",
        },
    ),
    Case(
        "a measurement without a profile",
        "BandwidthMeasurement",
        given={"spec.logProfileRef": ABSENT},
        refused=((REQUIRED, "spec.logProfileRef", "Required value"),),
    ),
    Case(
        "a measurement of nothing",
        "GoodputMeasurement",
        given={"spec.jobRef": {"kind": "Job"}},
        refused=((REQUIRED, "spec.jobRef.name", "Required value"),),
    ),
    Case("a measurement may be edited", "GoodputMeasurement", change={"spec.logProfileRef": "megatron-bridge"}),
    Case(
        "a profile without a layout",
        "LogProfile",
        given={"spec.timestamp": {}},
        refused=((REQUIRED, "spec.timestamp.layout", "Required value"),),
    ),
    Case(
        "a profile with an empty regex",
        "LogProfile",
        given={"spec.patterns.trainingStep": {"regex": ""}},
        refused=((INVALID, "spec.patterns.trainingStep.regex", "at least 1 chars"),),
    ),
    Case(
        "a profile with an unknown unit",
        "LogProfile",
        given={"spec.patterns.trainingStep": {"regex": "x", "units": {"elapsedTime": "min"}}},
        refused=((UNSUPPORTED, "spec.patterns.trainingStep.units.elapsedTime", '"ms"'),),
    ),
    Case(
        "a profile with an unknown strategy",
        "LogProfile",
        given={"spec.workerStrategy": {"type": "All"}},
        refused=((UNSUPPORTED, "spec.workerStrategy.type", '"Multi"'),),
    ),
    Case("a TrainJob keeps what it does not know", "TrainJob", given={"spec.later": {"x": 1}}),
    Case("a TrainJob may be resumed", "TrainJob", given={"spec.suspend": True}, change={"spec.suspend": False}),
    Case(
        "a TrainJob keeps its runtime",
        "TrainJob",
        change={"spec.runtimeRef.name": "other"},
        refused=((INVALID, "spec.runtimeRef", "field is immutable"),),
    ),
    Case(
        "a TrainJob is managed by somebody known",
        "TrainJob",
        given={"spec.managedBy": "me"},
        refused=((INVALID, "spec.managedBy", '"me": ManagedBy must be'),),
    ),
    Case(
        "a TrainJob's name is a DNS label",
        "TrainJob",
        given={"metadata.name": "4-nodes"},
        refused=((INVALID, "<nil>", "RFC 1035"),),
    ),
    Case(
        "a runtime with an MPI policy",
        "ClusterTrainingRuntime",
        given={
            "spec.mlPolicy.mpi": {},
            "spec.template": {"spec": {"replicatedJobs": [{"name": "node", "template": {"spec": {}}}]}},
        },
    ),
]
