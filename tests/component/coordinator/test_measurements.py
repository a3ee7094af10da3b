"""Bandwidth measurements through the real process: real logs, logs that come late, pods that vanish, a slow run."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from nvcre_kube.resources import LOG_PROFILES, PODS
from support.eventually import eventually

CORPUS = Path(__file__).parents[2] / "corpus"
MEASURED = {"bandwidthMeasurement": {"logProfileRef": "nccl-bandwidth", "sampleInterval": "1s"}}


async def launched(cluster: Any, name: str, spec: dict[str, Any]) -> str:
    await cluster.start()
    await cluster.add_node("node-0")
    await cluster.create_job(name, spec)
    await cluster.until(name, "InProgress", "True", "WorkloadRunning")
    pod: str = await cluster.add_pod(name, "launcher", "node-0")
    return pod


async def complete(cluster: Any, name: str) -> dict[str, Any]:
    async def done() -> dict[str, Any] | None:
        measurement: dict[str, Any] = await cluster.measurement(name)
        conditions = measurement.get("status", {}).get("conditions", [])
        return measurement if any(c["type"] == "Complete" for c in conditions) else None

    found: dict[str, Any] = await eventually(done)
    return found


def reason(measurement: dict[str, Any]) -> str:
    return next(c["reason"] for c in measurement["status"]["conditions"] if c["type"] == "Complete")


@pytest.mark.parametrize(
    ("case", "exit_code", "ends_as"),
    [
        ("ns03-allgather-b200-two-nodes-2.19", 0, "JobSucceeded"),
        ("ns07-wrong-elements", 1, "JobFailed"),
        ("ns08-nccl-failure-no-rows", 3, "JobFailed"),
        ("ns09-truncated-after-four-rows", 0, "JobSucceeded"),
    ],
)
async def test_a_real_log_gives_its_rows(cluster: Any, case: str, exit_code: int, ends_as: str) -> None:
    launcher = await launched(cluster, "real", MEASURED)
    cluster.kubelet.logs[launcher] = (CORPUS / f"{case}.log").read_bytes()
    await cluster.end_pod(launcher, exit_code)
    await cluster.finish_workload("real", "Failed" if exit_code else "Complete", "over")
    measurement = await complete(cluster, "real")
    assert reason(measurement) == ends_as
    expected = json.loads((CORPUS / f"{case}.expected.json").read_text())
    rows = [row for test in expected["tests"] for row in test["rows"]]
    assert [(r["sizeBytes"], float(r["busBW"])) for r in measurement["status"].get("results", [])] == [
        (row["size_bytes"], row["out_of_place"]["busbw"]) for row in rows
    ]


async def test_results_are_there_while_the_job_runs_and_outlive_an_early_pod(cluster: Any) -> None:
    launcher = await launched(cluster, "live", MEASURED)
    text = (CORPUS / "ns01-allreduce-h100-clean.log").read_bytes()
    cluster.kubelet.logs[launcher] = text[: text.index(b"4194304")]

    async def two_rows() -> bool:
        status = (await cluster.measurement("live")).get("status", {})
        return len(status.get("results", [])) == 2

    await eventually(two_rows)
    cluster.kubelet.logs[launcher] = text
    await cluster.end_pod(launcher, 0)

    async def all_rows() -> bool:
        return len((await cluster.measurement("live"))["status"]["results"]) > 5

    await eventually(all_rows)
    await cluster.client.delete(PODS, launcher, "default", grace_period_s=0)
    await cluster.finish_workload("live", "Complete", "done")
    measurement = await complete(cluster, "live")
    assert reason(measurement) == "JobSucceeded"
    assert all(row["samples"] == 1 for row in measurement["status"]["results"])


def stamped(second: int, text: bytes) -> bytes:
    """As a kubelet gives a line with time stamps."""
    return f"2026-02-05T10:00:{second:02d}.000000001Z ".encode() + text + b"\n"


def row(second: int, size: int) -> bytes:
    return stamped(second, f"{size} 1 float sum -1 58.31 {size}.00 {2 * size}.00 0 58.40 1.00 2.00 0".encode())


async def test_each_row_counts_once_over_a_rotation_and_a_coordinator_that_dies_and_what_is_lost_is_said(
    cluster: Any,
) -> None:
    launcher = await launched(cluster, "turned", MEASURED)

    async def sizes(*wanted: int) -> dict[str, Any]:
        async def there() -> dict[str, Any] | None:
            status: dict[str, Any] = (await cluster.measurement("turned")).get("status", {})
            return status if [one["sizeBytes"] for one in status.get("results", [])] == list(wanted) else None

        found: dict[str, Any] = await eventually(there)
        return found

    cluster.kubelet.logs[launcher] = row(1, 8) + row(2, 16)
    assert "logGaps" not in await sizes(8, 16)
    cluster.kubelet.down = True  # meanwhile 32 is written, and the log is rotated behind it
    await asyncio.sleep(0.2)
    cluster.kubelet.logs[launcher] = row(4, 64)
    cluster.kubelet.down = False
    gap = {"pod": launcher, "reason": "Rotated", "after": "2026-02-05T10:00:02Z", "before": "2026-02-05T10:00:04Z"}
    assert (await sizes(8, 16, 64))["logGaps"] == [gap]

    await cluster.kill()
    cluster.kubelet.logs[launcher] += row(5, 128)
    await cluster.start()
    await sizes(8, 16, 64, 128)
    await cluster.end_pod(launcher, 0)
    await cluster.finish_workload("turned", "Complete", "done")
    status = (await complete(cluster, "turned"))["status"]
    assert [(one["sizeBytes"], one["samples"]) for one in status["results"]] == [(8, 1), (16, 1), (64, 1), (128, 1)]
    assert status["logGaps"] == [gap]
    (told,) = (one["message"] for one in status["conditions"] if one["type"] == "Complete")
    assert f"lines of pod {launcher} after 2026-02-05T10:00:02Z were rotated away while nobody was connected" in told


async def test_a_missing_profile_is_told_and_the_threshold_fails_closed(cluster: Any) -> None:
    spec = {
        "bandwidthMeasurement": {"logProfileRef": "nowhere"},
        "thresholds": {"busBandwidthGBps": "value > 1"},
        "measurementTimeout": "3s",
    }
    launcher = await launched(cluster, "blind", spec)

    async def told() -> bool:
        return ("Warning", "LogProfileNotFound") in await cluster.events("blind-bandwidth")

    await eventually(told)
    await cluster.end_pod(launcher, 0)
    await cluster.finish_workload("blind", "Complete", "done")
    violated = await cluster.until("blind", "ValidationFailed", "True", "MeasurementTimeout")
    assert "[busBandwidthGBps]" in violated["message"]
    await cluster.until("blind", "Attributed", "True", "NothingToAttribute")


async def test_a_slow_run_asks_for_probes_before_anybody_is_named(cluster: Any) -> None:
    launcher = await launched(cluster, "slow", MEASURED | {"thresholds": {"busBandwidthGBps": "value >= 900"}})
    cluster.kubelet.logs[launcher] = (CORPUS / "ns01-allreduce-h100-clean.log").read_bytes()
    await cluster.end_pod(launcher, 0)
    await cluster.finish_workload("slow", "Complete", "done")
    violated = await cluster.until("slow", "ValidationFailed", "True", "ThresholdViolated")
    assert violated["message"].startswith('Threshold "busBandwidthGBps" violated: measured 481.9300')

    async def probing() -> bool:
        return "probes" in (await cluster.condition("slow", "Attributed")).get("message", "")

    await eventually(probing)
    assert "failedNodes" not in (await cluster.job("slow"))["status"]


async def test_a_log_profile_says_on_itself_whether_it_can_be_used(cluster: Any) -> None:
    await cluster.start()
    row = {"regex": r"(?P<size>\d+) (?P<algBW>\S+) (?P<busBW>\S+)", "example": "no row"}
    spec = {"timestamp": {"layout": "2006-01-02"}, "patterns": {"bandwidthResult": row, "trainingStep": {"regex": "("}}}
    await cluster.client.create(
        LOG_PROFILES,
        {"apiVersion": "nvcre.nvidia.com/v1alpha1", "kind": "LogProfile", "metadata": {"name": "mine"}, "spec": spec},
    )

    async def ready(status: str) -> dict[str, Any] | None:
        profile = await cluster.client.get(LOG_PROFILES, "mine")
        found = (one for one in profile.get("status", {}).get("conditions", []) if one["type"] == "Ready")
        return next((one for one in found if one["status"] == status), None)

    told = await eventually(lambda: ready("False"))
    assert told["reason"] == "InvalidLogProfile"
    assert "spec.patterns.bandwidthResult.example does not match spec.patterns.bandwidthResult.regex" in told["message"]
    assert "spec.patterns.trainingStep.regex does not compile as RE2" in told["message"]
    mended = {"bandwidthResult": {**row, "example": "8 1.0 2.0"}, "trainingStep": None}
    await cluster.client.merge_patch(LOG_PROFILES, "mine", {"spec": {"patterns": mended}})
    assert (await eventually(lambda: ready("True")))["reason"] == "Compiled"
