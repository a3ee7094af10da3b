"""The clocks of a Job stand still while the scheduler cannot place one of its pods.

The moment is kept as soon as it is seen; the condition says so after schedulingStallGraceSeconds; when every pod has a
node again, the time of the block is given back (spec/reference-behaviour.md 2.8, case 14).
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from nvcre_coordinator.api.job import JobStatus
from nvcre_coordinator.api.meta import second


def blocked(status: JobStatus, now: datetime) -> JobStatus:
    """Some pod is unschedulable: since now, if not longer."""
    if status.scheduling_blocked_since is not None:
        return status
    return msgspec.structs.replace(status, scheduling_blocked_since=second(now))


def resumed(status: JobStatus, now: datetime) -> JobStatus:
    """No pod is unschedulable: a start time moves forward by as much of the block as came after it."""
    since = status.scheduling_blocked_since
    if since is None:
        return status
    start = status.workload_start_time
    if start is not None:
        start = second(start + max(now - max(since, start), timedelta(0)))
    return msgspec.structs.replace(
        status, workload_start_time=start, scheduling_resumed_time=second(now), scheduling_blocked_since=None
    )


def grace_left(status: JobStatus, grace_s: int, now: datetime) -> timedelta:
    """How long a blocked workload is not called so yet; zero or less when it is."""
    if status.scheduling_blocked_since is None:
        return timedelta(seconds=grace_s)
    return status.scheduling_blocked_since + timedelta(seconds=grace_s) - now
