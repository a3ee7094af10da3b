"""A Job's life: what its status becomes and what is done next, from what is observed and the time.

Create the workload, follow it (core/scheduling_block.py, core/stall.py), note hardware evidence at once, restart from a
checkpoint (core/restart.py) or end in Succeeded or Failed at once, then conclude (core/job_conclusion.py): thresholds
and attribution, when the agents have confirmed everything up to the end.  A terminal Job never leaves its state;
entries of failedNodes are only ever added.  Deletion is core/job_deletion.py.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import msgspec

from nvcre_coordinator.api import names
from nvcre_coordinator.api.conditions import ConditionStatus, ConditionType, Reason, find, is_true
from nvcre_coordinator.api.job import FailedNode, FailedNodeReason, Job, JobStatus, WorkloadRef
from nvcre_coordinator.api.meta import second
from nvcre_coordinator.core import (
    job_conclusion,
    job_deletion,
    limits,
    pair_job,
    restart,
    scheduling_block,
    stall,
    thresholds,
)
from nvcre_coordinator.core.conditions import Stamp, execution, put
from nvcre_coordinator.core.naming import blamed_config_map_name
from nvcre_coordinator.core.observed import Action, Decision, Gone, Observed, Workload, WorkloadPhase

SAFETY_NET = timedelta(seconds=15)
JUST_AFTER = timedelta(milliseconds=10)


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
        return _bounded(seen, replace(decision, status=status, actions=actions))
    concluded = job_conclusion.conclude(seen, status, stamp)
    if pair_job.given_up(status) and isinstance(seen.workload, Workload):
        concluded = replace(concluded, actions=(*concluded.actions, Action.DELETE_WORKLOAD), doomed=seen.workload.uid)
    return _bounded(seen, replace(concluded, actions=(*actions, *concluded.actions)))


def created(job: Job, ref: WorkloadRef, now: datetime, *, adopted: bool) -> JobStatus:
    """After the workload was created, or an own one was found that a lost status write had forgotten."""
    title = f"{ref.kind}/{ref.name}"
    reason, message = (
        (Reason.WORKLOAD_ADOPTED, f"Workload {title} of this Job was found and taken back")
        if adopted
        else (Reason.WORKLOAD_CREATED, f"Workload {title} created and is starting")
    )
    stamp = Stamp(now, job.metadata.generation)
    status = _execution(job.status, ConditionType.IN_PROGRESS, reason, message, stamp)
    return msgspec.structs.replace(status, workload_ref=ref)


def not_created(job: Job, title: str, refusal: str, now: datetime) -> JobStatus:
    """The server refused the workload, in its words: a webhook may do so until the runtime exists, so it is no end."""
    message = f"Workload {title} could not be created, trying again: {refusal}"
    stamp = Stamp(now, job.metadata.generation)
    return _execution(job.status, ConditionType.IN_PROGRESS, Reason.WORKLOAD_CREATION_ERROR, message, stamp)


def _progress(seen: Observed, stamp: Stamp) -> Decision:
    status = seen.job.status
    if status.workload_ref is None:
        if (mistaken := _refuse(seen, stamp)) is not None:
            return Decision(mistaken)
        if restart.number(status):
            return restart.proceed(seen, stamp.now)
        if (why := pair_job.gives_up(seen, None, stamp.now)) is not None:
            return _failed(seen, Reason.PAIR_GIVEN_UP, why, stamp)
        return Decision(status, (Action.CREATE_WORKLOAD,))
    if seen.workload is None:
        return Decision(status, requeue_after=SAFETY_NET)
    return _follow(seen, seen.workload, stamp)


def _follow(seen: Observed, workload: Workload | Gone, stamp: Stamp) -> Decision:
    match workload:
        case Gone(sentence=sentence):
            return _failed(seen, Reason.WORKLOAD_FAILED, sentence, stamp)
        case Workload() if (why := pair_job.gives_up(seen, workload, stamp.now)) is not None:
            return _failed(seen, Reason.PAIR_GIVEN_UP, why, stamp)
        case Workload(phase=WorkloadPhase.FAILED, title=title, message=message):
            text = f"Workload {title} failed: {message}" if message else f"Workload {title} has failed"
            return _failed(seen, Reason.WORKLOAD_FAILED, text, stamp)
        case Workload(phase=WorkloadPhase.SUCCEEDED, title=title, message=message):
            text = f"Workload {title} completed: {message}" if message else f"Workload {title} completed successfully"
            succeeded = ConditionType.SUCCEEDED, Reason.WORKLOAD_COMPLETED
            return Decision(_execution(seen.job.status, *succeeded, text, stamp))
        case Workload(phase=WorkloadPhase.PENDING):
            return _pending(seen, workload, stamp)
        case Workload():
            return _running(seen, workload, stamp)


def _failed(seen: Observed, reason: Reason, message: str, stamp: Stamp) -> Decision:
    """Failed, or the first step of a restart: then nobody is blamed, and the log is not kept."""
    status, checkpoint = seen.job.status, seen.job.spec.checkpoint
    if checkpoint is None or not restart.allowed(seen.job, seen.goodputs):
        return Decision(_execution(status, ConditionType.FAILED, reason, message, stamp))
    status = restart.begun(status, stamp.now)
    budget = f"restart {restart.number(status)}/{checkpoint.max_restarts}"
    text = f"Restarting workload from checkpoint ({budget}): {message}"
    status = _execution(status, ConditionType.IN_PROGRESS, Reason.WORKLOAD_RESTARTING, text, stamp)
    return restart.proceed(replace(seen, job=msgspec.structs.replace(seen.job, status=status)), stamp.now)


def _pending(seen: Observed, workload: Workload, stamp: Stamp) -> Decision:
    """Held back: no clock runs.  A running workload that is suspended again was preempted, which is no failure.

    All of its pods are killed for that.  Later the workload may have been admitted without our knowing it yet.
    """
    aside = Action.DROP_ENDED_PODS if seen.job.status.workload_start_time is None else Action.END_ATTEMPT
    text = f"Workload {workload.title} is pending: {workload.message}"
    status = msgspec.structs.replace(
        seen.job.status, workload_start_time=None, scheduling_blocked_since=None, scheduling_resumed_time=None
    )
    status = _execution(status, ConditionType.IN_PROGRESS, Reason.WORKLOAD_PENDING, text, stamp)
    reset = restart.progress_reset(seen.goodputs, None)
    return Decision(status, (aside,), SAFETY_NET, progress_reset=reset)


def _running(seen: Observed, workload: Workload, stamp: Stamp) -> Decision:
    if seen.unschedulable is not None:
        return _scheduling_blocked(seen, workload, seen.unschedulable, stamp)
    status = scheduling_block.resumed(seen.job.status, stamp.now)
    if status.workload_start_time is None:
        status = msgspec.structs.replace(status, workload_start_time=second(stamp.now))
    job = msgspec.structs.replace(seen.job, status=status)
    clock = stall.clock(job, next(iter(seen.goodputs), None))
    if clock is not None and clock.stalled(stamp.now):
        message = f"Workload {workload.title} stalled: {clock.sentence(stamp.now)}"
        return _failed(replace(seen, job=job), Reason.WORKLOAD_STALLED, message, stamp)
    status = _execution(status, ConditionType.IN_PROGRESS, Reason.WORKLOAD_RUNNING, _running_text(workload), stamp)
    return Decision(status, requeue_after=SAFETY_NET if clock is None else _no_later_than(clock.left_s(stamp.now)))


def _scheduling_blocked(seen: Observed, workload: Workload, diagnosis: str, stamp: Stamp) -> Decision:
    """No stall, and no clock that starts, until every pod has a node; within the grace only the message says so."""
    status = scheduling_block.blocked(seen.job.status, stamp.now)
    left = scheduling_block.grace_left(status, seen.job.spec.scheduling_stall_grace_seconds, stamp.now).total_seconds()
    current = find(status.conditions, ConditionType.IN_PROGRESS)
    if left <= 0:
        reason, text = Reason.WORKLOAD_SCHEDULING_BLOCKED, diagnosis
        status = _execution(status, ConditionType.IN_PROGRESS, reason, text, stamp)
    elif current is not None and current.reason in (Reason.WORKLOAD_RUNNING, Reason.WORKLOAD_PENDING):
        text = f"Workload {workload.title} is admitted; not every pod has a node yet"
        status = _execution(status, ConditionType.IN_PROGRESS, Reason.WORKLOAD_RUNNING, text, stamp)
    return Decision(status, requeue_after=_no_later_than(left) if left > 0 else SAFETY_NET)


def _running_text(workload: Workload) -> str:
    return f"Workload {workload.title} " + (f"is held up: {workload.message}" if workload.message else "is running")


def _no_later_than(seconds: float) -> timedelta:
    """When the moment has just passed, or the safety net."""
    return min(SAFETY_NET, timedelta(seconds=min(seconds, SAFETY_NET.total_seconds())) + JUST_AFTER)


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
    return replace(decision, status=status, overflow=overflow)
