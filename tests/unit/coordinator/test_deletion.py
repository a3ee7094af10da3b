"""Deleting a Job (case 21): the workload first, then the pods, and never longer than five minutes."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from nvcre_coordinator.core.job_lifecycle import decide
from nvcre_coordinator.core.observed import Action, Gone, Observed, WorkloadPhase


def deleted(build: Any, job: Any, at: float) -> Any:
    return msgspec.structs.replace(job, metadata=msgspec.structs.replace(job.metadata, deletion_timestamp=build.at(at)))


def test_the_workload_is_deleted_first_and_the_finalizer_stays(build: Any) -> None:
    seen = Observed(deleted(build, build.started(), 60), workload=build.workload(), live_pods=2)
    decision = decide(seen, build.at(61))
    assert decision.actions == (Action.DELETE_WORKLOAD,)
    assert decision.requeue_after == timedelta(seconds=2)


def test_live_pods_hold_the_finalizer(build: Any) -> None:
    job = deleted(build, build.started(), 60)
    assert decide(Observed(job, workload=Gone(build.title), live_pods=1), build.at(100)).actions == ()
    assert decide(Observed(job, workload=Gone(build.title)), build.at(100)).actions == (Action.REMOVE_FINALIZER,)


@pytest.mark.parametrize(("ended", "deleted_at", "opens"), [(None, 60, 360), (600, 60, 900), (600, 700, 1000)])
def test_the_barrier_opens_five_minutes_after_the_latest_moment(
    build: Any, ended: float | None, deleted_at: float, opens: float
) -> None:
    job = build.started()
    if ended is not None:
        failed = Observed(job, workload=build.workload(WorkloadPhase.FAILED))
        job = build.then(job, decide(failed, build.at(ended)))
    seen = Observed(deleted(build, job, deleted_at), workload=Gone(build.title), live_pods=1)
    assert decide(seen, build.at(opens - 1)).actions == ()
    assert decide(seen, build.at(opens)).actions == (Action.REMOVE_FINALIZER,)


def test_a_job_without_our_finalizer_is_not_touched(build: Any) -> None:
    job = deleted(build, build.started(), 60)
    job = msgspec.structs.replace(job, metadata=msgspec.structs.replace(job.metadata, finalizers=("other",)))
    assert decide(Observed(job, workload=build.workload(), live_pods=1), build.at(61)).actions == ()
