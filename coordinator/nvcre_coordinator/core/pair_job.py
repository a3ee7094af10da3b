"""The Job that tests a pair of nodes: how long it may take, when it gives up, and what its end says of the pair.

Fast where its threshold was satisfied, slow where it was violated. Whatever else became of it, such as no room on the
nodes, a failure, hardware evidence or no figure, is "not tested" with its reason: neither blamed nor cleared. The Job
is built in workloads/pair_job.py; which pairs there are is core/pair_search.py.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from nvcre_coordinator.api import names
from nvcre_coordinator.api.conditions import ConditionStatus, ConditionType, Reason, find, is_true
from nvcre_coordinator.api.job import Job, JobStatus
from nvcre_coordinator.core.durations import go_duration
from nvcre_coordinator.core.limits import clip
from nvcre_coordinator.core.observed import Observed, Workload, WorkloadPhase
from nvcre_coordinator.core.pair_rounds import PairState
from nvcre_coordinator.core.pair_search import MOST_AT_ONCE, PairRun, Round
from nvcre_coordinator.core.pods import with_gpus
from nvcre_coordinator.core.thresholds import BUS_BANDWIDTH

PLACED = timedelta(minutes=2)
AT_LEAST = timedelta(minutes=5)  # for a run, whose programs have to start and whose log has to be read
ROUNDS = 4  # of pairs that wait for one another, where all of a round run at once
BLOCKER_BYTES = 160


def deadline(run_took: timedelta) -> timedelta:
    """Of one pair, from its start: it runs what the slow run ran."""
    return PLACED + AT_LEAST + 2 * max(run_took, timedelta(0))


def search_limit(run_took: timedelta, nodes: int) -> timedelta:
    return (ROUNDS + nodes // 2 // MOST_AT_ONCE) * deadline(run_took)


def gives_up(seen: Observed, workload: Workload | None, now: datetime) -> str | None:
    """Why the Job of a pair ends here: nobody waits for it any more, or its pods have no place or one elsewhere."""
    owner = seen.job.searching_job
    if owner is None:
        return None
    if elsewhere := sorted({pod.node for pod in with_gpus(seen.pods)} - set(_nodes(seen.job))):
        # a webhook or a scheduler may think nothing of an affinity
        return f"its pods are on {', '.join(elsewhere)}, not on {' and '.join(_nodes(seen.job))} as asked for"
    if workload is not None and workload.phase in (WorkloadPhase.SUCCEEDED, WorkloadPhase.FAILED):
        return None
    if seen.search_over:
        return f"the search of Job {owner.name} is over"
    created = seen.job.metadata.creation_timestamp
    if created is None or abs(now - created) < PLACED:
        return None
    why = _unplaced(seen, workload)
    return None if why is None else f"not placed within {go_duration(PLACED)}: {why}"


def _unplaced(seen: Observed, workload: Workload | None) -> str | None:
    if workload is None:
        refused = find(seen.job.status.conditions, ConditionType.IN_PROGRESS)
        return refused.message if refused is not None else "its workload was not created"
    if workload.phase is WorkloadPhase.PENDING:
        return workload.message
    if seen.unschedulable is not None:
        return seen.unschedulable
    return None if seen.pods else workload.message or "no pod was created"


def given_up(status: JobStatus) -> bool:
    """Its workload, if there is one, has to go."""
    failed = find(status.conditions, ConditionType.FAILED)
    return failed is not None and failed.status is ConditionStatus.TRUE and failed.reason == Reason.PAIR_GIVEN_UP


def _nodes(job: Job) -> tuple[str, ...]:
    return tuple(job.metadata.annotations.get(names.ANNOTATION_GROUP_NODES, "").split(","))


def pair_run(job: Job, busbw_gbps: float | None, demanded: str | None) -> PairRun | None:
    """None for a Job that is no pair of ours. It has ended when all evidence about it is in.

    `demanded`: the threshold of the Job that searches. Either may be edited; what two say does not add up.
    """
    pair = _nodes(job)
    number = job.metadata.labels.get(names.LABEL_PAIR_ROUND, "")
    if len(pair) != 2 or number not in set(Round):
        return None
    attributed = find(job.status.conditions, ConditionType.ATTRIBUTED)
    if attributed is None or attributed.status is ConditionStatus.UNKNOWN:
        return PairRun(Round(number), pair)
    state, why = _judged(job.status)
    if state is not PairState.NOT_TESTED and job.spec.thresholds != {BUS_BANDWIDTH: demanded}:
        state, why = PairState.NOT_TESTED, "it was judged by another threshold than the slow Job has now"
    blocker = f"{clip(why, BLOCKER_BYTES).rstrip('.')} (Job {job.metadata.name})" if why else ""
    return PairRun(Round(number), pair, state, busbw_gbps, blocker, attributed.last_transition_time)


def _judged(status: JobStatus) -> tuple[PairState, str]:
    for kind in (ConditionType.HARDWARE_FAILED, ConditionType.FAILED):
        condition = find(status.conditions, kind)
        if condition is not None and condition.status is ConditionStatus.TRUE:
            return PairState.NOT_TESTED, condition.message
    validation = find(status.conditions, ConditionType.VALIDATION_FAILED)
    if validation is None:
        return PairState.NOT_TESTED, "it was not judged"
    if not is_true(status.conditions, ConditionType.VALIDATION_FAILED):
        return PairState.FAST, ""
    if validation.reason == Reason.THRESHOLD_VIOLATED:
        return PairState.SLOW, ""
    return PairState.NOT_TESTED, validation.message
