"""What `kubectl get` prints of our kinds, by the embedded API server and by a real one."""

from typing import Any

from .case import NOW, base, condition, failed_node
from .judges import ServerJudge


def printed(
    server_judge: ServerJudge, kind: str, name: str, spec: dict[str, Any], status: dict[str, Any]
) -> dict[str, Any]:
    """Column to cell, without Age."""
    obj = base(kind)
    created = server_judge.create(
        {**obj, **({"spec": {**obj["spec"], **spec}} if spec else {}), "metadata": {"name": name}}
    )
    assert isinstance(created, dict), created
    assert isinstance(server_judge.replace_status(created, {**created, "status": status}), dict)
    table = server_judge.table(kind, name)
    names = [column["name"] for column in table["columnDefinitions"]]
    return {column: cell for column, cell in zip(names, table["rows"][0]["cells"], strict=True) if column != "Age"}


def true(kind: str, reason: str) -> dict[str, Any]:
    return condition(type=kind, status="True", reason=reason)


def false(kind: str) -> dict[str, Any]:
    return condition(type=kind, status="False", reason="NotApplicable")


def test_a_job_names_its_state_and_the_node_that_failed(server_judge: ServerJudge) -> None:
    status = {
        "conditions": [
            false("InProgress"), true("Succeeded", "WorkloadCompleted"), false("Failed"),
            true("HardwareFailed", "HardwareFailureDetected"), true("Attributed", "Evidence"),
            true("ValidationFailed", "ThresholdViolated"),
        ],
        "failedNodes": [failed_node()],
        "workloadRef": {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "name": "burn-in-workload"},
    }  # fmt: skip

    assert printed(server_judge, "Job", "columns", {}, status) == {
        "Name": "columns",
        "State": "Succeeded",
        "Reason": "WorkloadCompleted",
        "Failed-Node": "node-3",
        "Hardware-Failed": "True",
        "Validation": "ThresholdViolated",
        "Attributed": "Evidence",
        "Workload": "burn-in-workload",
    }


def test_a_new_job_prints_blanks(server_judge: ServerJudge) -> None:
    cells = printed(server_judge, "Job", "new", {}, {})

    assert {cells[column] for column in ("State", "Reason", "Failed-Node", "Hardware-Failed")} <= {None, ""}


def test_node_health_prints_verdict_gpus_driver_and_the_newest_incident(server_judge: ServerJudge) -> None:
    status = {
        "verdict": "Faulty",
        "message": "drain node-3",
        "gpuCount": 8,
        "inventory": {"driverVersion": "570.133.20"},
        "faultClass": "NeedsReboot",
        "badGPUs": "5",
        "incidents": [
            {
                "id": "1", "kind": "Xid", "code": 79, "mnemonic": "GPU_LOST", "firstSeen": NOW,
                "component": {"kind": "GPU", "index": 5},
            }
        ],
    }  # fmt: skip

    assert printed(server_judge, "NodeHealth", "node-3", {}, status) == {
        "Name": "node-3",
        "Verdict": "Faulty",
        "GPUs": 8,
        "Driver": "570.133.20",
        "Incident": "GPU_LOST",
        "Fault": "NeedsReboot",
        "Bad": "5",
        "Component": "GPU",
        "Index": 5,
        "Message": "drain node-3",
    }


def test_the_nodes_with_a_verdict_can_be_asked_for(server_judge: ServerJudge) -> None:
    for name, verdict in (("asked-1", "Healthy"), ("asked-2", "Suspect"), ("asked-3", "Faulty")):
        printed(server_judge, "NodeHealth", name, {}, {"verdict": verdict})

    assert server_judge.names("NodeHealth", "status.verdict=Suspect") == ["asked-2"]
    assert {"asked-2", "asked-3"} <= {*server_judge.names("NodeHealth", "status.verdict!=Healthy")}


def test_a_bandwidth_measurement_prints_the_largest_size(server_judge: ServerJudge) -> None:
    rows = [
        {"sizeBytes": size, "algBW": "1.00", "busBW": bus, "samples": 1} for size, bus in ((8, "0.01"), (16, "480.12"))
    ]
    spec = {"jobRef": {"kind": "Job", "name": "burn-in"}, "testType": "all_reduce"}

    cells = printed(server_judge, "BandwidthMeasurement", "columns", spec, {"results": rows})

    assert (cells["Job"], cells["Test"], cells["BusBW"]) == ("burn-in", "all_reduce", "480.12")
