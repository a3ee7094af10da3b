"""Decides what a TrainJob needs next, from its Pods: which to create, which to delete, and its conditions.

Pure: `decide(observed, now)`. Conditions, reasons and counts are those of Trainer v2.2.0 over JobSet v0.12; what the
messages say more (pod, node, exit code) is ours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from nvcre_kube.resources import JsonObject
from nvcre_kube.timestamps import rfc3339

from nvcre_local.node.placement import COMPLETION_INDEX, REPLICATED_JOB
from nvcre_local.node.trainjob_pods import ReplicatedJob, Slot, Workload

Key = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why there is no workload yet. A final one fails the TrainJob, another is waited for."""

    reason: str
    message: str
    final: bool


@dataclass(frozen=True, slots=True)
class Observed:
    trainjob: JsonObject
    pods: Sequence[JsonObject]
    """The Pods that this very TrainJob owns."""
    workload: Workload | Obstacle


@dataclass(frozen=True, slots=True)
class Announcement:
    type: str
    reason: str
    note: str


@dataclass(frozen=True, slots=True)
class Decision:
    status: JsonObject
    create: tuple[JsonObject, ...] = ()
    delete: tuple[JsonObject, ...] = ()
    config_map: JsonObject | None = None
    announce: Announcement | None = None
    look_again_s: float | None = None


@dataclass(frozen=True, slots=True)
class _PodFailure:
    job: str
    message: str
    at: str = ""


@dataclass(slots=True)
class _Board:
    """The Pods sorted into their slots."""

    by_slot: dict[Key, list[JsonObject]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, pods: Iterable[JsonObject]) -> _Board:
        board = cls()
        for pod in pods:
            labels = pod["metadata"].get("labels") or {}
            key = (
                labels.get(REPLICATED_JOB, ""),
                int(labels.get("jobset.sigs.k8s.io/job-index", 0)),
                int(labels.get(COMPLETION_INDEX, 0)),
            )
            board.by_slot[key].append(pod)
        return board

    def succeeded(self, slot: Slot) -> bool:
        return any(pod_phase(pod) == "Succeeded" for pod in self.by_slot.get(slot.key, ()))

    def failed(self, slot: Slot) -> list[JsonObject]:
        """A Pod that is being deleted did not fail, it was stopped."""
        return [pod for pod in self.by_slot.get(slot.key, ()) if pod_phase(pod) == "Failed" and not is_deleting(pod)]

    def active(self, slot: Slot) -> bool:
        return any(is_active(pod) for pod in self.by_slot.get(slot.key, ()))

    def ready(self, slot: Slot) -> bool:
        return self.succeeded(slot) or any(is_ready(pod) for pod in self.by_slot.get(slot.key, ()))

    def vacant(self, slot: Slot) -> bool:
        """Nothing runs, ends or has succeeded in it."""
        return all(pod_phase(pod) == "Failed" and not is_deleting(pod) for pod in self.by_slot.get(slot.key, ()))


def pod_phase(pod: JsonObject) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def is_deleting(pod: JsonObject) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def is_active(pod: JsonObject) -> bool:
    return pod_phase(pod) not in ("Succeeded", "Failed")


def is_ready(pod: JsonObject) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def decide(seen: Observed, now: datetime) -> Decision:
    """The order matters: what is over stays over, a suspended TrainJob starts nothing, then failure before success."""
    trainjob, spec = seen.trainjob, seen.trainjob["spec"]
    status: JsonObject = {**(trainjob.get("status") or {})}
    conditions = [dict(condition) for condition in status.get("conditions") or ()]
    status["conditions"] = conditions
    running = tuple(pod for pod in seen.pods if is_active(pod) and not is_deleting(pod))
    if is_over(trainjob) or is_deleting(trainjob):
        return Decision(status, delete=running)
    _clear_failed(conditions)
    if spec.get("suspend"):
        _set(conditions, "Suspended", "True", "Suspended", "TrainJob is suspended", now)
        if isinstance(seen.workload, Workload):
            status["jobsStatus"] = _jobs_status(seen.workload, _Board.of(seen.pods), over=True, suspended=True)
        return Decision(status, delete=running)
    if any(condition["type"] == "Suspended" for condition in conditions):
        _set(conditions, "Suspended", "False", "Resumed", "TrainJob is resumed", now)
    if isinstance(seen.workload, Obstacle):
        return _obstructed(seen.workload, status, running, now)
    return _run(seen, seen.workload, status, running, now)


def is_over(trainjob: JsonObject) -> bool:
    conditions = (trainjob.get("status") or {}).get("conditions") or ()
    return any(c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in conditions)


def _obstructed(obstacle: Obstacle, status: JsonObject, running: tuple[JsonObject, ...], now: datetime) -> Decision:
    failed = "True" if obstacle.final else "False"
    _set(status["conditions"], "Failed", failed, obstacle.reason, obstacle.message, now)
    note = Announcement("Warning", obstacle.reason, obstacle.message)
    return Decision(status, delete=running if obstacle.final else (), announce=note)


def _run(
    seen: Observed, workload: Workload, status: JsonObject, running: tuple[JsonObject, ...], now: datetime
) -> Decision:
    board = _Board.of(seen.pods)
    left_s = _time_left_s(seen.trainjob, now)
    if (end := _end(workload, board, left_s)) is not None:
        condition, reason, message = end
        _set(status["conditions"], condition, "True", reason, message, now)
        status["jobsStatus"] = _jobs_status(workload, board, over=True, suspended=False)
        note = Announcement("Normal" if condition == "Complete" else "Warning", reason, message)
        return Decision(status, delete=running, announce=note)  # finished Pods stay, for their logs
    create = tuple(
        slot.pod(attempt=len(board.failed(slot)))
        for job in workload.replicated_jobs
        if _may_start(job, workload, board)
        for slot in job.slots
        if board.vacant(slot)
    )
    status["jobsStatus"] = _jobs_status(workload, board, over=False, suspended=False)
    return Decision(status, create=create, config_map=workload.hostfile, look_again_s=left_s)


def _end(workload: Workload, board: _Board, left_s: float | None) -> tuple[str, str, str] | None:
    """The terminal condition, its reason and message; None while it runs."""
    if failure := _failure(workload, board):
        message = f"jobset failed due to one or more job failures (first failed job: {failure.job}): {failure.message}"
        return "Failed", "FailedJobs", message
    if _complete(workload, board):
        return "Complete", "AllJobsCompleted", "jobset completed successfully"
    if left_s is not None and left_s <= 0:
        return "Failed", "DeadlineExceeded", "TrainJob exceeded its active deadline"
    return None


def _time_left_s(trainjob: JsonObject, now: datetime) -> float | None:
    limit_s = trainjob["spec"].get("activeDeadlineSeconds")
    if not limit_s:
        return None
    started = trainjob["metadata"].get("creationTimestamp") or rfc3339(now)
    for condition in (trainjob.get("status") or {}).get("conditions") or ():
        if condition["type"] == "Suspended" and condition["status"] == "False":
            started = condition["lastTransitionTime"]
    return (datetime.fromisoformat(started) + timedelta(seconds=limit_s) - now).total_seconds()


def _jobs(job: ReplicatedJob) -> list[list[Slot]]:
    return [[slot for slot in job.slots if slot.job_index == index] for index in range(job.replicas)]


def _failure(workload: Workload, board: _Board) -> _PodFailure | None:
    """The first Pod, by the time its container ended, of the jobs that have failed for good."""
    failures: list[_PodFailure] = []
    for job in workload.replicated_jobs:
        for slots in _jobs(job):
            failed = [pod for slot in slots for pod in board.failed(slot)]
            if len(failed) > job.backoff_limit:
                failures += [_explain(pod) for pod in failed]
            failures += [
                blocked for slot in slots for pod in board.by_slot.get(slot.key, ()) if (blocked := _blocked(pod))
            ]
    return min(failures, key=lambda failure: failure.at, default=None)


def _explain(pod: JsonObject) -> _PodFailure:
    metadata, status = pod["metadata"], pod.get("status") or {}
    where = f"pod {metadata['name']} on node {pod['spec'].get('nodeName', '?')}"
    if status.get("reason"):
        return _PodFailure(_job_name(pod), f"{where}: {status['reason']}: {status.get('message') or ''}".rstrip(": "))
    containers = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    ends = [
        (container["name"], container["state"]["terminated"])
        for container in containers
        if (container.get("state") or {}).get("terminated", {}).get("exitCode", 0) != 0
    ]
    if not ends:
        return _PodFailure(_job_name(pod), f"{where} failed")
    name, end = min(ends, key=lambda one: str(one[1].get("finishedAt") or ""))
    text = f"{where}: container {name} exited with code {end['exitCode']}"
    if end.get("message"):
        text += f" ({end.get('reason', 'Error')}: {end['message']})"
    return _PodFailure(_job_name(pod), text, str(end.get("finishedAt") or ""))


def _blocked(pod: JsonObject) -> _PodFailure | None:
    """A container that the kubelet refused for good: a Pod cannot be changed, so waiting would be for ever."""
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") == "CreateContainerConfigError" and not is_deleting(pod):
            where = f"pod {pod['metadata']['name']} on node {pod['spec'].get('nodeName', '?')}"
            message = f"{where} cannot start: {waiting.get('message', '')}"
            return _PodFailure(_job_name(pod), message, str((pod.get("status") or {}).get("startTime") or ""))
    return None


def _job_name(pod: JsonObject) -> str:
    return str(pod["metadata"]["labels"].get("batch.kubernetes.io/job-name", ""))


def _job_complete(slots: Sequence[Slot], board: _Board) -> bool:
    return all(board.succeeded(slot) for slot in slots)


def _complete(workload: Workload, board: _Board) -> bool:
    ends = [
        _job_complete(slots, board)
        for job in workload.replicated_jobs
        if job.name in workload.success_targets
        for slots in _jobs(job)
    ]
    return any(ends) if workload.success_operator == "Any" else bool(ends) and all(ends)


def _may_start(job: ReplicatedJob, workload: Workload, board: _Board) -> bool:
    others = {other.name: other for other in workload.replicated_jobs}
    for name, wanted in job.depends_on:
        slots = others[name].slots if name in others else ()
        reached = board.succeeded if wanted == "Complete" else board.ready
        if not all(reached(slot) for slot in slots):
            return False
    return True


def _jobs_status(workload: Workload, board: _Board, *, over: bool, suspended: bool) -> list[JsonObject]:
    """Counts of jobs, not of Pods, as JobSet's. Once it is over or suspended nothing is active any more."""
    result: list[JsonObject] = []
    for job in workload.replicated_jobs:
        counts = {"ready": 0, "succeeded": 0, "failed": 0, "active": 0, "suspended": 0}
        for slots in _jobs(job):
            if _job_complete(slots, board):
                counts["succeeded"] += 1
            elif sum(len(board.failed(slot)) for slot in slots) > job.backoff_limit:
                counts["failed"] += 1
            elif suspended:
                counts["suspended"] += 1
            elif not over:
                counts["active"] += any(board.active(slot) for slot in slots)
                counts["ready"] += all(board.ready(slot) for slot in slots)
        result.append({"name": job.name, **counts})
    return result


def _clear_failed(conditions: list[JsonObject]) -> None:
    conditions[:] = [condition for condition in conditions if condition["type"] != "Failed"]


def _set(  # noqa: PLR0917 (the fields of a condition, in their usual order)
    conditions: list[JsonObject], kind: str, status: str, reason: str, message: str, now: datetime
) -> None:
    old = next((condition for condition in conditions if condition["type"] == kind), None)
    condition = {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": old["lastTransitionTime"] if old and old["status"] == status else rfc3339(now),
    }
    if old is None:
        conditions.append(condition)
    else:
        conditions[conditions.index(old)] = condition
