"""Which Pods are the tiny scheduler's, and what it writes on those that fit nowhere."""

from datetime import UTC, datetime
from typing import Any

import pytest
from nvcre_local.scheduler import is_waiting, unschedulable_patch

T = datetime(2026, 1, 1, 12, tzinfo=UTC)


def pod(*, metadata: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": metadata or {}, "spec": spec, "status": status or {}}


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        (pod(), True),
        (pod(schedulerName="default-scheduler"), True),
        (pod(status={"phase": "Pending"}), True),
        (pod(nodeName="node-0"), False),
        (pod(schedulerName="kai-scheduler"), False),
        (pod(schedulingGates=[{"name": "g"}]), False),
        (pod(metadata={"deletionTimestamp": "x"}), False),
        (pod(status={"phase": "Failed"}), False),
    ],
)
def test_which_pods_are_placed(candidate: dict[str, Any], expected: bool) -> None:
    assert is_waiting(candidate) is expected


def test_a_pod_that_fits_nowhere_says_so_once() -> None:
    patch = unschedulable_patch(pod(), "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", T)
    assert patch is not None
    assert patch["status"]["conditions"] == [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
            "lastTransitionTime": "2026-01-01T12:00:00Z",
        }
    ]
    told = pod(status=patch["status"])
    assert unschedulable_patch(told, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", T) is None
    changed = unschedulable_patch(told, "no nodes available to schedule pods", datetime(2027, 1, 1, tzinfo=UTC))
    assert changed is not None
    assert changed["status"]["conditions"][0]["lastTransitionTime"] == "2026-01-01T12:00:00Z"
