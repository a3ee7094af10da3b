"""A Pod's status from the states of its containers; restarts."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from nvcre_local.node.pod_status import (
    ContainerRecord,
    PodFailure,
    Running,
    State,
    Terminated,
    Waiting,
    backoff_s,
    phase,
    pod_status,
    starts_again,
)

T = datetime(2026, 1, 1, 12, 0, 0, 500_000, tzinfo=UTC)
WAITING, RUNNING = Waiting("ContainerCreating"), Running(T)
CRASHED_BEFORE = Waiting("CrashLoopBackOff")


def ended(code: int) -> Terminated:
    return Terminated(code, "Completed" if code == 0 else "Error", T, T)


def records(*states: State) -> list[ContainerRecord]:
    last = ended(1)
    return [ContainerRecord(f"c{i}", state=s, last=last if s is CRASHED_BEFORE else None) for i, s in enumerate(states)]


@pytest.mark.parametrize(
    ("policy", "init", "main", "restarting", "expected"),
    [
        ("Never", [], [WAITING], True, "Pending"),
        ("Never", [], [RUNNING], True, "Running"),
        ("Never", [], [RUNNING, WAITING], True, "Running"),
        ("Never", [], [ended(0), RUNNING], True, "Running"),
        ("Never", [], [ended(0), ended(0)], True, "Succeeded"),
        ("Never", [], [ended(0), ended(3)], True, "Failed"),
        ("OnFailure", [], [ended(0)], True, "Succeeded"),
        ("OnFailure", [], [ended(3)], True, "Running"),
        ("OnFailure", [], [CRASHED_BEFORE], True, "Running"),
        ("Always", [], [ended(0)], True, "Running"),
        ("Always", [], [ended(0)], False, "Succeeded"),
        ("Always", [], [ended(143)], False, "Failed"),
        ("Never", [WAITING], [WAITING], True, "Pending"),
        ("Never", [ended(0), RUNNING], [WAITING], True, "Pending"),
        ("Never", [ended(1)], [WAITING], True, "Failed"),
        ("OnFailure", [ended(1)], [WAITING], True, "Pending"),
        ("OnFailure", [ended(1)], [WAITING], False, "Failed"),
        ("Never", [ended(0)], [RUNNING], True, "Running"),
    ],
)
def test_phase(policy: str, init: list[State], main: list[State], restarting: bool, expected: str) -> None:
    assert phase(policy, records(*init), records(*main), restarting=restarting) == expected


@pytest.mark.parametrize(
    ("policy", "code", "expected"),
    [
        ("Never", 0, False), ("Never", 1, False),
        ("OnFailure", 0, False), ("OnFailure", 1, True),
        ("Always", 0, True), ("Always", 1, True),
    ],
)  # fmt: skip
def test_restart_policy(policy: str, code: int, expected: bool) -> None:
    assert starts_again(policy, code) is expected


@pytest.mark.parametrize(("failures", "seconds"), [(1, 0), (2, 10), (3, 20), (4, 40), (6, 160), (7, 300), (99, 300)])
def test_back_off_doubles_to_five_minutes_after_an_immediate_first_restart(failures: int, seconds: float) -> None:
    assert backoff_s(failures) == seconds


def status(main: list[State], old: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    pod = {"spec": {"restartPolicy": "Never"}, "status": {"conditions": old or []}}
    return pod_status(pod, init=[], main=records(*main), started_at=T, now=T + timedelta(minutes=1), **more)


def condition(result: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(c for c in result["conditions"] if c["type"] == kind)


def test_a_running_pod_is_ready() -> None:
    result = status([RUNNING])
    assert result["phase"] == "Running"
    assert {c["type"]: c["status"] for c in result["conditions"]} == {
        "PodScheduled": "True", "Initialized": "True", "ContainersReady": "True", "Ready": "True",
    }  # fmt: skip
    assert result["containerStatuses"][0]["state"] == {"running": {"startedAt": "2026-01-01T12:00:00Z"}}


def test_a_finished_pod_is_not_ready_and_says_why() -> None:
    assert condition(status([ended(0)]), "Ready")["reason"] == "PodCompleted"
    assert condition(status([ended(1)]), "Ready")["reason"] == "PodFailed"
    assert condition(status([WAITING]), "Ready")["message"] == "containers with unready status: [c0]"


def test_exit_code_reason_and_times_are_kept() -> None:
    state = Terminated(139, "Error", T, T + timedelta(seconds=2), "boom")
    assert status([state])["containerStatuses"][0]["state"]["terminated"] == {
        "exitCode": 139,
        "reason": "Error",
        "message": "boom",
        "startedAt": "2026-01-01T12:00:00Z",
        "finishedAt": "2026-01-01T12:00:02Z",
    }


def test_transition_times_change_with_the_status_only_and_foreign_conditions_stay() -> None:
    before = "2026-01-01T11:00:00Z"
    old = [
        {"type": "Ready", "status": "True", "lastTransitionTime": before},
        {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": before},
    ]
    assert condition(status([RUNNING], old), "Ready")["lastTransitionTime"] == before
    assert condition(status([ended(0)], old), "Ready")["lastTransitionTime"] == "2026-01-01T12:01:00Z"
    assert condition(status([RUNNING], old), "DisruptionTarget") == old[1]


def test_a_pod_over_its_deadline_failed_even_if_its_containers_ended_well() -> None:
    result = status([ended(0)], restarting=False, failure=PodFailure("DeadlineExceeded", "too long"))
    assert (result["phase"], result["reason"], result["message"]) == ("Failed", "DeadlineExceeded", "too long")
