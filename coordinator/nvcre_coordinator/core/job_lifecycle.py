"""A Job's life: what its status becomes and what is done next, from what is observed and the time.

Create the workload, follow it, note hardware evidence at once, end in Succeeded or Failed at once, then conclude
(core/job_conclusion.py): thresholds and attribution, when the agents have confirmed everything up to the end.  A
terminal Job never leaves its state; entries of failedNodes are only ever added.  Deletion is core/job_deletion.py.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from nvcre_coordinator.api import names
from nvcre_coordinator.api.conditions import ConditionStatus, ConditionType, Reason, find, is_true
from nvcre_coordinator.api.job import FailedNode, FailedNodeReason, Job, JobStatus, WorkloadRef
from nvcre_coordinator.api.meta import second
from nvcre_coordinator.core import job_conclusion, job_deletion, limits, thresholds
from nvcre_coordinator.core.conditions import Stamp, execution, put
from nvcre_coordinator.core.naming import blamed_config_map_name
from nvcre_coordinator.core.observed import Action, Decision, Gone, Observed, Workload, WorkloadPhase

SAFETY_NET = timedelta(seconds=15)


def decide(seen: Observed, now: datetime) -> Decision:
    if seen.job.metadata.deletion_timestamp is not None:
        return job_deletion.decide(seen, now)
    if names.JOB_FINALIZER not in seen.job.metadata.finalizers:
        return Decision(seen.job.status, (Action.ADD_FINALIZER,))
    stamp = Stamp(now, seen.job.metadata.generation)
    decision = Decision(seen.job.status)
    if not decision.status.terminal:
        decision = _progress(seen, stamp)
    status = with_hardware(decision.status, seen.hardware, stamp)
    actions = (*decision.actions, *_missing_measurements(seen, status))
    if not status.terminal:
        return _bounded(seen, Decision(status, actions, decision.requeue_after))
    concluded = job_conclusion.conclude(seen, status, stamp)
    return _bounded(
        seen, Decision(concluded.status, (*actions, *concluded.actions), concluded.requeue_after, concluded.unconfirmed)
    )


def created(job: Job, ref: WorkloadRef, now: datetime, *, adopted: bool) -> JobStatus:
    """After the workload was created, or an own one was found that a lost status write had forgotten."""
    title = f"{ref.kind}/{ref.name}"
    reason, message = (
        (Reason.WORKLOAD_ADOPTED, f"Workload {title} of this Job was found and taken back")
        if adopted
        else (Reason.WORKLOAD_CREATED, f"Workload {title} created and is starting")
    )
    stamp = Stamp(now, job.metadata.generation)
    conditions = execution(job.status.conditions, ConditionType.IN_PROGRESS, reason, message, stamp)
    return msgspec.structs.replace(job.status, conditions=conditions, workload_ref=ref)


def _progress(seen: Observed, stamp: Stamp) -> Decision:
    status = seen.job.status
    if status.workload_ref is None:
        mistaken = _refuse(seen, stamp)
        return Decision(mistaken) if mistaken is not None else Decision(status, (Action.CREATE_WORKLOAD,))
    if seen.workload is None:
        return Decision(status, requeue_after=SAFETY_NET)
    followed = _follow(status, seen.workload, stamp)
    return Decision(followed, requeue_after=None if followed.terminal else SAFETY_NET)


def _follow(status: JobStatus, workload: Workload | Gone, stamp: Stamp) -> JobStatus:
    match workload:
        case Gone(sentence=sentence):
            kind, reason, text = ConditionType.FAILED, Reason.WORKLOAD_FAILED, sentence
        case Workload(phase=WorkloadPhase.FAILED, title=title, message=message):
            text = f"Workload {title} failed: {message}" if message else f"Workload {title} has failed"
            kind, reason = ConditionType.FAILED, Reason.WORKLOAD_FAILED
        case Workload(phase=WorkloadPhase.SUCCEEDED, title=title, message=message):
            text = f"Workload {title} completed: {message}" if message else f"Workload {title} completed successfully"
            kind, reason = ConditionType.SUCCEEDED, Reason.WORKLOAD_COMPLETED
        case Workload(phase=WorkloadPhase.PENDING, title=title, message=message):
            text = f"Workload {title} is pending: {message}"
            kind, reason = ConditionType.IN_PROGRESS, Reason.WORKLOAD_PENDING
        case Workload(title=title, message=message):
            text = f"Workload {title} is held up: {message}" if message else f"Workload {title} is running"
            kind, reason = ConditionType.IN_PROGRESS, Reason.WORKLOAD_RUNNING
            if status.workload_start_time is None:
                status = msgspec.structs.replace(status, workload_start_time=second(stamp.now))
    return _execution(status, kind, reason, text, stamp)


def _refuse(seen: Observed, stamp: Stamp) -> JobStatus | None:
    """Mistakes that are found before anything is created: node expression first, then thresholds."""
    status = seen.job.status
    if seen.job.spec.workload.train_job is None:
        return _refused(status, "Workload was not created: spec.workload has no supported type (trainJob)", stamp)
    if seen.node_expression_error is not None:
        message = f"Workload was not created: spec.nodeHealthMonitor.cel.expression: {seen.node_expression_error}"
        return _refused(status, message, stamp)
    problem = thresholds.check(seen.job.spec.thresholds)
    if problem is None:
        return None
    conditions = put(
        status.conditions,
        ConditionType.VALIDATION_FAILED,
        ConditionStatus.TRUE,
        reason=problem.reason,
        message=problem.message,
        stamp=stamp,
    )
    status = msgspec.structs.replace(status, conditions=conditions)
    return _refused(status, f"Workload was not created: spec.thresholds: {problem.message}", stamp)


def _refused(status: JobStatus, message: str, stamp: Stamp) -> JobStatus:
    return _execution(status, ConditionType.FAILED, Reason.WORKLOAD_CREATION_ERROR, message, stamp)


def _execution(status: JobStatus, chosen: ConditionType, reason: Reason, message: str, stamp: Stamp) -> JobStatus:
    clipped = limits.clip(message, limits.CONDITION_MESSAGE_BYTES)
    return msgspec.structs.replace(status, conditions=execution(status.conditions, chosen, reason, clipped, stamp))


def with_hardware(status: JobStatus, found: tuple[FailedNode, ...], stamp: Stamp) -> JobStatus:
    """Evidence and condition in one write; an entry gains evidence, and neither is ever taken back."""
    if not found:
        return status
    entries = {(entry.name, entry.reason): entry for entry in status.failed_nodes}
    for entry in found:
        key = (entry.name, entry.reason)
        entries[key] = _joined(entries[key], entry) if key in entries else entry
    ordered = tuple(entries[key] for key in sorted(entries))
    if ordered == status.failed_nodes and is_true(status.conditions, ConditionType.HARDWARE_FAILED):
        return status
    hardware = [entry.name for entry in ordered if entry.reason is FailedNodeReason.HARDWARE_FAILURE_DETECTED]
    message = f"Hardware failure detected on node(s): [{', '.join(hardware)}]"
    conditions = put(
        status.conditions,
        ConditionType.HARDWARE_FAILED,
        ConditionStatus.TRUE,
        reason=Reason.HARDWARE_FAILURE_DETECTED,
        message=limits.clip(message, limits.CONDITION_MESSAGE_BYTES),
        stamp=stamp,
    )
    attributed = find(conditions, ConditionType.ATTRIBUTED)
    if attributed is not None and attributed.status is not ConditionStatus.UNKNOWN:
        conditions = job_conclusion.attributed(
            conditions, True, Reason.NODES_NAMED, f"Hardware evidence names {', '.join(hardware)}", stamp
        )
    return msgspec.structs.replace(status, conditions=conditions, failed_nodes=ordered)


def _joined(known: FailedNode, found: FailedNode) -> FailedNode:
    """The known entry with evidence it does not have yet: same code, time and text is the same evidence."""
    have = {(item.code, second(item.time), item.message) for item in known.evidence}
    new = tuple(item for item in found.evidence if (item.code, second(item.time), item.message) not in have)
    if not new or len(known.evidence) >= limits.EVIDENCE_ENTRIES:
        return known
    evidence = (*known.evidence, *new)[: limits.EVIDENCE_ENTRIES]
    return msgspec.structs.replace(known, evidence=evidence)


def _missing_measurements(seen: Observed, status: JobStatus) -> tuple[Action, ...]:
    """They need a workload to read, and are not made again for a Job that is concluded."""
    attributed = find(status.conditions, ConditionType.ATTRIBUTED)
    concluded = attributed is not None and attributed.status is not ConditionStatus.UNKNOWN
    if status.workload_ref is None or concluded:
        return ()
    missing: list[Action] = []
    if seen.job.spec.bandwidth_measurement is not None and not seen.bandwidth_exists:
        missing.append(Action.CREATE_BANDWIDTH_MEASUREMENT)
    if seen.job.spec.goodput_measurement is not None and not seen.goodput_exists:
        missing.append(Action.CREATE_GOODPUT_MEASUREMENT)
    return tuple(missing)


def _bounded(seen: Observed, decision: Decision) -> Decision:
    status, overflow = limits.fit(decision.status)
    known = find(status.conditions, ConditionType.ATTRIBUTED)
    if overflow and known is not None:
        place = f"{len(overflow)} more in ConfigMap {blamed_config_map_name(seen.job.metadata.name)}"
        told = msgspec.structs.replace(known, message=f"{limits.clip(known.message, 1024)}; {place}")
        conditions = tuple(told if condition is known else condition for condition in status.conditions)
        status = msgspec.structs.replace(status, conditions=conditions)
    return Decision(status, decision.actions, decision.requeue_after, decision.unconfirmed, overflow)
