"""Starting a workload again from its checkpoint: when it may be done, and in which order.

The decision is one status write (restartCount, lastRestartTime, no workloadRef); everything else follows from that
status, so a coordinator that dies in between goes on where it was: delete the old workload, set its measured progress
back, wait until it and its pods are gone and the grace for reading their last logs is over, create the next one.  A
workload carries the number of its restart, which tells the old one from the new.  Never two at one time.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from nvcre_coordinator.api.job import Job, JobStatus
from nvcre_coordinator.api.measurement import GoodputMeasurement
from nvcre_coordinator.api.meta import second
from nvcre_coordinator.core.durations import sample_interval
from nvcre_coordinator.core.observed import Action, Decision, Observed, ProgressReset, Workload

DEFAULT_GRACE = timedelta(seconds=30)
DRAIN_LIMIT = timedelta(minutes=5)
"""A pod on a dead node never ends; then the run goes on without its goodbye (as in core/job_deletion.py)."""
LOOK_AGAIN = timedelta(seconds=2)


def allowed(job: Job, measurements: tuple[GoodputMeasurement, ...]) -> bool:
    """There is a budget left and something to start from; why the run ended does not matter."""
    if job.spec.checkpoint is None or number(job.status) >= job.spec.checkpoint.max_restarts:
        return False
    return any((measurement.status.last_checkpoint_step or 0) > 0 for measurement in measurements)


def number(status: JobStatus) -> int:
    return status.restart_count or 0


def begun(status: JobStatus, now: datetime) -> JobStatus:
    """The status of a Job that gives its workload up; the condition is the caller's."""
    return msgspec.structs.replace(
        status,
        workload_ref=None,
        workload_start_time=None,
        scheduling_blocked_since=None,
        scheduling_resumed_time=None,
        restart_count=number(status) + 1,
        last_restart_time=second(now),
    )


def proceed(seen: Observed, now: datetime) -> Decision:
    """The next step of a Job that has given up one workload and not yet recorded the next."""
    status = seen.job.status
    restarted_at = status.last_restart_time or now
    reset = progress_reset(seen.goodputs, restarted_at)
    if isinstance(seen.workload, Workload):
        if seen.workload.restart >= number(status):  # created, and the write that records it was lost
            return Decision(status, (Action.CREATE_WORKLOAD,))
        return Decision(
            status,
            (Action.DELETE_WORKLOAD, Action.END_ATTEMPT),
            LOOK_AGAIN,
            doomed=seen.workload.uid,
            progress_reset=reset,
        )
    elapsed = now - restarted_at
    # By amount: a clock that was set back by a day does not make the Job wait for a day.
    if abs(elapsed) < grace(seen.job):
        return Decision(status, (Action.END_ATTEMPT,), grace(seen.job) - elapsed, progress_reset=reset)
    if seen.workload is None or (seen.live_pods and abs(elapsed) < DRAIN_LIMIT):
        return Decision(status, (Action.END_ATTEMPT,), LOOK_AGAIN, progress_reset=reset)
    return Decision(status, (Action.END_ATTEMPT, Action.CREATE_WORKLOAD), progress_reset=reset)


def grace(job: Job) -> timedelta:
    """Twice the interval at which a measurement reads the logs that are still being written."""
    template = job.spec.goodput_measurement
    return DEFAULT_GRACE if template is None else 2 * sample_interval(template.sample_interval)


def progress_reset(measurements: tuple[GoodputMeasurement, ...], start: datetime | None) -> ProgressReset | None:
    """Which measurements still tell of progress before `start`, a restart; None: of any (it waits in a queue)."""
    names = tuple(item.metadata.name for item in measurements if _tells_of_progress(item, start))
    return ProgressReset(names, start) if names else None


def _tells_of_progress(measurement: GoodputMeasurement, start: datetime | None) -> bool:
    status = measurement.status
    if status.last_step_timestamp or status.avg_step_time_sec or status.application_start_time:
        return True
    if start is None:
        return status.start_time is not None
    return status.start_time is None or status.start_time < start
