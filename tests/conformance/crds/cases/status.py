"""What the coordinator may write: conditions, failed nodes with evidence, node health, results."""

from ..case import DUPLICATE, INVALID, NOW, TOO_LONG, TOO_MANY, TYPE, UNSUPPORTED, Case, condition, failed_node

CASES = [
    Case(
        "a failed node with component and evidence",
        status={
            "failedNodes": [
                failed_node(
                    message="GPU 5 fell off the bus; drain the node",
                    component={"kind": "GPU", "index": 5, "uuid": "GPU-1", "pciBusId": "0000:1b:00.0"},
                    evidence=[{"source": "nvml", "code": 79, "message": "Xid 79", "time": NOW}],
                )
            ]
        },
    ),
    Case(
        "a node that failed for two reasons",
        status={"failedNodes": [failed_node(), failed_node(reason="WorkloadFailed")]},
    ),
    Case(
        "the same node and reason twice",
        status={"failedNodes": [failed_node(), failed_node()]},
        refused=((DUPLICATE, "status.failedNodes[1]", '{"name":"node-3","reason":"HardwareFailureDetected"}'),),
    ),
    Case(
        "a reason nobody knows",
        status={"failedNodes": [failed_node(reason="Bored")]},
        refused=((UNSUPPORTED, "status.failedNodes[0].reason", "ThresholdViolation"),),
    ),
    Case(
        "a component nobody knows",
        status={"failedNodes": [failed_node(component={"kind": "CPU"})]},
        refused=((UNSUPPORTED, "status.failedNodes[0].component.kind", '"NVLink"'),),
    ),
    Case(
        "message of 513 characters",
        status={"failedNodes": [failed_node(message="x" * 513)]},
        refused=((TOO_LONG, "status.failedNodes[0].message", "512"),),
    ),
    Case(
        "evidence message of 257 characters",
        status={"failedNodes": [failed_node(evidence=[{"source": "nvml", "message": "x" * 257, "time": NOW}])]},
        refused=((TOO_LONG, "status.failedNodes[0].evidence[0].message", "256"),),
    ),
    Case(
        "17 pieces of evidence",
        status={"failedNodes": [failed_node(evidence=[{"source": "nvml", "message": "x", "time": NOW}] * 17)]},
        refused=((TOO_MANY, "status.failedNodes[0].evidence", "at most 16 items"),),
    ),
    Case("attribution pending", status={"conditions": [condition(observedGeneration=1)]}),
    Case(
        "a condition type twice",
        status={"conditions": [condition(), condition()]},
        refused=((DUPLICATE, "status.conditions[1]", '{"type":"Attributed"}'),),
    ),
    Case(
        "a condition without a reason",
        status={"conditions": [condition(reason="")]},
        refused=((INVALID, "status.conditions[0].reason", "at least 1 chars"),),
    ),
    Case(
        "times as Kubernetes and Python write them",
        status={"workloadStartTime": NOW, "schedulingBlockedSince": "2026-03-01T12:00:00.123456+00:00"},
    ),
    Case(
        "a time without a zone",
        status={"workloadStartTime": "2026-03-01T12:00:00"},
        refused=((TYPE, "status.workloadStartTime", "date-time"),),
    ),
    Case(
        "a failure log",
        status={"failureLog": {"podName": "p", "nodeName": "node-3", "exitCode": 1, "tail": "x" * 32768}},
    ),
    Case(
        "the last 32 incidents and two cursors",
        "NodeHealth",
        status={
            "verdict": "Faulty",
            "message": "Xid 79 on GPU 5",
            "inventory": {"driverVersion": "570.133.20", "infiniband": True, "gpus": [{"index": 5, "uuid": "GPU-1"}]},
            "closedIncidents": [
                {
                    "id": str(i),
                    "kind": "Xid",
                    "code": 79,
                    "faultClass": "FatalHardware",
                    "blame": "Yes",
                    "sources": ["nvml", "kernel-log"],
                    "firstSeen": NOW,
                }
                for i in range(32)
            ],
            "cursors": [{"outboxID": "a", "seq": 2**53}, {"outboxID": "b", "seq": 1}],
        },
    ),
    Case(
        "three cursors",
        "NodeHealth",
        status={"cursors": [{"outboxID": o, "seq": 1} for o in "abc"]},
        refused=((TOO_MANY, "status.cursors", "at most 2 items"),),
    ),
    Case(
        "blame must be a word, not a YAML boolean",
        "NodeHealth",
        status={"incidents": [{"id": "1", "kind": "Xid", "blame": True}]},
        refused=((TYPE, "status.incidents[0].blame", "string"), (UNSUPPORTED, "status.incidents[0].blame", '"No"')),
    ),
    Case(
        "a probe that was not tested",
        "NodeHealth",
        status={
            "probes": [
                {"probeID": "p", "kind": "NICLoopback", "state": "NotTested", "verdict": "", "reason": "NoInfiniBand"}
            ]
        },
    ),
    Case(
        "bandwidth per size",
        "BandwidthMeasurement",
        status={
            "results": [
                {"sizeBytes": 8, "algBW": "0.00", "busBW": "0.00", "samples": 1},
                {"sizeBytes": 1 << 34, "algBW": "476.36", "busBW": "922.94", "samples": 2},
            ],
            "conditions": [condition(type="Complete", status="True", reason="JobSucceeded")],
        },
    ),
    Case(
        "one size twice",
        "BandwidthMeasurement",
        status={"results": [{"sizeBytes": 8, "algBW": "0", "busBW": "0", "samples": 1}] * 2},
        refused=((DUPLICATE, "status.results[1]", '{"sizeBytes":8}'),),
    ),
    Case(
        "bandwidth as a number",
        "BandwidthMeasurement",
        status={"results": [{"sizeBytes": 8, "algBW": 0.5, "busBW": "0", "samples": 1}]},
        refused=((TYPE, "status.results[0].algBW", "string"),),
    ),
    Case(
        "goodput",
        "GoodputMeasurement",
        status={
            "result": "0.912345",
            "currentStep": 100,
            "warmupBaseStep": -1,
            "pendingInterruption": {"tInterrupt": NOW, "lastStep": 99},
        },
    ),
]
