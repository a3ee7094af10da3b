"""Deleting a Job: its workload goes first, and the finalizer stays until the pods are gone, at most 5 minutes.

Without that barrier whatever cleans up after the Job (a ComputeDomain, a claim) is torn away under running processes
(spec/reference-behaviour.md 2.9, its issue 121).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from nvcre_coordinator.api import names
from nvcre_coordinator.api.conditions import ConditionType, find, is_true
from nvcre_coordinator.core.observed import Action, Decision, Observed, Workload

DRAIN_BARRIER = timedelta(minutes=5)
LOOK_AGAIN = timedelta(seconds=2)

_ENDINGS = (ConditionType.SUCCEEDED, ConditionType.FAILED, ConditionType.HARDWARE_FAILED)


def decide(seen: Observed, now: datetime) -> Decision:
    status = seen.job.status
    if names.JOB_FINALIZER not in seen.job.metadata.finalizers:
        return Decision(status)
    remaining = barrier_ends(seen) - now
    waiting = isinstance(seen.workload, Workload) or seen.live_pods > 0
    delete, doomed = ((Action.DELETE_WORKLOAD,), seen.workload.uid) if isinstance(seen.workload, Workload) else ((), "")
    if waiting and remaining > timedelta(0):
        return Decision(status, delete, min(remaining, LOOK_AGAIN), doomed=doomed)
    return Decision(status, (*delete, Action.REMOVE_FINALIZER), doomed=doomed)


def barrier_ends(seen: Observed) -> datetime:
    """5 minutes after the latest of the Job's end, its first hardware failure and its deletion."""
    job = seen.job
    if job.metadata.deletion_timestamp is None:
        raise ValueError(f"Job {job.metadata.namespace}/{job.metadata.name} is not being deleted")
    moments = [job.metadata.deletion_timestamp]
    for kind in _ENDINGS:
        condition = find(job.status.conditions, kind)
        if condition is not None and is_true(job.status.conditions, kind):
            moments.append(condition.last_transition_time)
    return max(moments) + DRAIN_BARRIER
