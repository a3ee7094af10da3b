"""Jobs whose status a person has filled by hand with what nobody can count with."""

from typing import Any

import pytest
from nvcre_coordinator.controllers.caches import cached_job
from nvcre_coordinator.core.job_deletion import decide
from nvcre_coordinator.core.observed import Action, Observed

WITHOUT_ZONE = "2026-12-01T12:00:00"


def condition(time: str) -> dict[str, Any]:
    return {"type": "Failed", "status": "True", "reason": "R", "message": "m", "lastTransitionTime": time}


UNREADABLE = [
    {"conditions": None},
    {"restartCount": 1.5},
    {"workloadStartTime": WITHOUT_ZONE},
    {"schedulingBlockedSince": "0001-01-01T00:00:00Z"},
    {"schedulingResumedTime": "9999-12-31T23:59:59Z"},
    {"lastRestartTime": "9999-12-31T23:59:59Z"},
    {"conditions": [condition(WITHOUT_ZONE)]},
    {"conditions": [condition("9999-12-31T23:59:59Z")]},
    {"failedNodes": [{"name": "n", "reason": "WorkloadFailed", "evidence": [
        {"source": "nvml", "message": "m", "time": WITHOUT_ZONE}]}]},
]  # fmt: skip


def job(status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    metadata |= {"name": "run", "namespace": "team", "uid": "u", "finalizers": ["nvcre.nvidia.com/finalizer"]}
    spec = {"workload": {"trainJob": {"runtimeRef": {"name": "any"}}}}
    return {"kind": "Job", "metadata": metadata, "spec": spec, "status": status}


@pytest.mark.parametrize("status", UNREADABLE)
def test_a_status_that_cannot_be_counted_with_leaves_the_job_alone_and_says_why(
    status: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert cached_job(job(status)).view is None
    assert "object does not fit its view kind=Job namespace=team name=run error=" in caplog.text


@pytest.mark.parametrize("status", UNREADABLE)
def test_such_a_job_can_be_deleted_and_its_workload_goes_first(build: Any, status: dict[str, Any]) -> None:
    held = cached_job(job(status, deletionTimestamp="2026-12-01T12:00:00Z"))
    assert held.view is not None
    assert held.raw["status"] == status
    draining = decide(Observed(held.view, workload=build.workload()), build.at(1))
    assert draining.actions == (Action.DELETE_WORKLOAD,)
    assert decide(Observed(held.view), build.at(2)).actions == (Action.REMOVE_FINALIZER,)
