"""Decides a Pod's status from the states of its containers, and whether and when a container starts again.

Pure; the kubelet observes the processes and writes what these rules return.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nvcre_kube.resources import JsonObject
from nvcre_kube.timestamps import rfc3339

from nvcre_local.node.environment import POD_ADDRESS

BACKOFF_FIRST_S = 10.0
BACKOFF_MAX_S = 300.0
BACKOFF_FORGOTTEN_AFTER_S = 600.0
"""The kubelet's restart back-off (kubernetes.io, Pod Lifecycle, "container restart policy")."""

OWN_CONDITIONS = ("PodScheduled", "Initialized", "ContainersReady", "Ready")


@dataclass(frozen=True, slots=True)
class Waiting:
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    started_at: datetime


@dataclass(frozen=True, slots=True)
class Terminated:
    exit_code: int
    reason: str
    started_at: datetime
    finished_at: datetime
    message: str = ""


State = Waiting | Running | Terminated


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    """What is known of one container: its state now, how its last run ended, how often it was started again."""

    name: str
    image: str = ""
    state: State = Waiting("ContainerCreating")
    last: Terminated | None = None
    restarts: int = 0
    container_id: str = ""


@dataclass(frozen=True, slots=True)
class PodFailure:
    """A reason outside the containers why the Pod failed (DeadlineExceeded)."""

    reason: str
    message: str


def exit_reason(exit_code: int) -> str:
    return "Completed" if exit_code == 0 else "Error"


def starts_again(restart_policy: str, exit_code: int) -> bool:
    match restart_policy:
        case "Never":
            return False
        case "OnFailure":
            return exit_code != 0
        case _:
            return True


def backoff_s(failures: int) -> float:
    """Seconds to wait before the next start, after that many ends in a row: the first restart is immediate."""
    if failures <= 1:
        return 0.0
    return float(min(BACKOFF_FIRST_S * 2 ** min(failures - 2, 10), BACKOFF_MAX_S))


def phase(
    restart_policy: str, init: Sequence[ContainerRecord], main: Sequence[ContainerRecord], *, restarting: bool
) -> str:
    """The Pod's phase. `restarting` is false once nothing is started again (deletion, deadline)."""

    def over(record: ContainerRecord) -> bool:
        state = record.state
        return isinstance(state, Terminated) and not (restarting and starts_again(restart_policy, state.exit_code))

    for record in init:
        match record.state:
            case Terminated(exit_code=0):
                continue
            case Terminated() if restart_policy == "Never" or not restarting:
                return "Failed"
            case _:
                return "Pending"
    if all(over(record) for record in main):
        failed = any(isinstance(record.state, Terminated) and record.state.exit_code != 0 for record in main)
        return "Failed" if failed else "Succeeded"
    never_started = all(isinstance(record.state, Waiting) and record.last is None for record in main)
    return "Pending" if never_started else "Running"


def _state(state: State) -> JsonObject:
    match state:
        case Waiting(reason, message):
            return {"waiting": {"reason": reason} | ({"message": message} if message else {})}
        case Running(started_at):
            return {"running": {"startedAt": rfc3339(started_at)}}
        case Terminated():
            ended: JsonObject = {
                "exitCode": state.exit_code,
                "reason": state.reason,
                "startedAt": rfc3339(state.started_at),
                "finishedAt": rfc3339(state.finished_at),
            }
            return {"terminated": ended | ({"message": state.message} if state.message else {})}


def _container_status(record: ContainerRecord, *, is_init: bool) -> JsonObject:
    running = isinstance(record.state, Running)
    completed = isinstance(record.state, Terminated) and record.state.exit_code == 0
    return {
        "name": record.name,
        "image": record.image,
        "imageID": "",
        "containerID": record.container_id,
        "state": _state(record.state),
        "lastState": _state(record.last) if record.last else {},
        "ready": completed if is_init else running,
        "started": running,
        "restartCount": record.restarts,
    }


def _conditions(
    old: Sequence[Mapping[str, Any]],
    pod_phase: str,
    init: Sequence[ContainerRecord],
    main: Sequence[ContainerRecord],
    now: datetime,
) -> list[JsonObject]:
    initialised = pod_phase == "Succeeded" or all(
        isinstance(record.state, Terminated) and record.state.exit_code == 0 for record in init
    )
    unready = [record.name for record in main if not isinstance(record.state, Running)]
    match pod_phase:
        case "Succeeded":
            reason, message = "PodCompleted", ""
        case "Failed":
            reason, message = "PodFailed", ""
        case _:
            reason, message = "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"
    ready = pod_phase == "Running" and not unready
    uninitialised = [r.name for r in init if not (isinstance(r.state, Terminated) and r.state.exit_code == 0)]
    wanted: dict[str, tuple[bool, str, str]] = {
        "PodScheduled": (True, "", ""),
        "Initialized": (
            initialised,
            "ContainersNotInitialized",
            f"containers with incomplete status: [{' '.join(uninitialised)}]",
        ),
        "ContainersReady": (ready, reason, message),
        "Ready": (ready, reason, message),
    }
    before = {condition["type"]: condition for condition in old}
    result: list[JsonObject] = [dict(condition) for condition in old if condition["type"] not in OWN_CONDITIONS]
    for kind, (holds, why, text) in wanted.items():
        status = "True" if holds else "False"
        previous = before.get(kind)
        same = previous is not None and previous.get("status") == status and previous.get("lastTransitionTime")
        condition: JsonObject = {
            "type": kind,
            "status": status,
            "lastProbeTime": None,
            "lastTransitionTime": previous["lastTransitionTime"] if same and previous else rfc3339(now),
        }
        if not holds:
            condition["reason"] = why
            if text:
                condition["message"] = text
        result.append(condition)
    return result


def pod_status(
    pod: JsonObject,
    *,
    init: Sequence[ContainerRecord],
    main: Sequence[ContainerRecord],
    started_at: datetime,
    now: datetime,
    restarting: bool = True,
    failure: PodFailure | None = None,
) -> JsonObject:
    """The whole status that the kubelet owns, ready to be written. Conditions of other writers are kept."""
    policy = pod["spec"].get("restartPolicy", "Always")
    pod_phase = "Failed" if failure else phase(policy, init, main, restarting=restarting)
    old = (pod.get("status") or {}).get("conditions") or ()
    return {
        "phase": pod_phase,
        "reason": failure.reason if failure else None,
        "message": failure.message if failure else None,
        "hostIP": POD_ADDRESS,
        "podIP": POD_ADDRESS,
        "podIPs": [{"ip": POD_ADDRESS}],
        "startTime": rfc3339(started_at),
        "conditions": _conditions(old, pod_phase, init, main, now),
        "initContainerStatuses": [_container_status(record, is_init=True) for record in init] or None,
        "containerStatuses": [_container_status(record, is_init=False) for record in main],
    }
