"""Does a run make no progress any more?  Judged from its GoodputMeasurement (core/goodput_status.py).

Before the first step the clock runs from the start of the application (or of the measurement) and the limit is
startupStallTimeoutSeconds; afterwards from the last step, and the limit is stallMultiplier usual steps.  Both get twice
the sampling interval on top, because the measurement is that late at most (spec/reference-behaviour.md 2.8).  A status
that makes no sense is no progress report: it never stalls a run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

from nvcre_coordinator.api.job import Job
from nvcre_coordinator.api.measurement import GoodputMeasurement, GoodputMeasurementStatus
from nvcre_coordinator.core.durations import sample_interval


@dataclass(frozen=True, slots=True)
class Clock:
    """What a run is measured against: since when, how long at most, and the words for both."""

    since: datetime
    limit_s: float
    event: str  # what happened at `since`
    rule: str  # where the limit comes from

    def left_s(self, now: datetime) -> float:
        return self.limit_s - (now - self.since).total_seconds()

    def stalled(self, now: datetime) -> bool:
        return self.left_s(now) < 0

    def sentence(self, now: datetime) -> str:
        elapsed = (now - self.since).total_seconds()
        return f"no training step for {elapsed:.0f} s since {self.event}; the limit is {self.limit_s:g} s = {self.rule}"


def clock(job: Job, measurement: GoodputMeasurement | None) -> Clock | None:
    """None where stalls are not watched, or nothing sensible was measured yet."""
    if job.spec.stall_multiplier is None or measurement is None:
        return None
    late_s = 2 * sample_interval(measurement.spec.sample_interval).total_seconds()
    seen = of_this_attempt(measurement.status, job.status.last_restart_time)
    if seen.last_step_timestamp is None or not seen.avg_step_time_sec:
        return _startup(job, seen, late_s)
    step_s = _positive(seen.avg_step_time_sec)
    if step_s is None:
        return None
    interval = max(seen.log_interval or 1, 1)
    limit_s = job.spec.stall_multiplier * step_s * interval + late_s
    anchor, event = _resumed(job, seen.last_step_timestamp, "the last step")
    rule = f"stallMultiplier {job.spec.stall_multiplier} x {step_s:g} s a step x log interval {interval} + {late_s:g} s"
    return Clock(anchor, limit_s, event, rule)


def _startup(job: Job, seen: GoodputMeasurementStatus, late_s: float) -> Clock | None:
    """workloadStartTime moves the clock on and never starts it: pulling an image is no stall."""
    if seen.application_start_time is not None:
        anchor, event = seen.application_start_time, "the application started"
    elif seen.start_time is not None:
        anchor, event = seen.start_time, "measuring began"
    else:
        return None
    if job.status.workload_start_time is not None and job.status.workload_start_time > anchor:
        anchor, event = job.status.workload_start_time, "the workload started"
    anchor, event = _resumed(job, anchor, event)
    timeout_s = job.spec.startup_stall_timeout_seconds
    return Clock(anchor, timeout_s + late_s, event, f"startupStallTimeoutSeconds {timeout_s} + {late_s:g} s")


def _resumed(job: Job, anchor: datetime, event: str) -> tuple[datetime, str]:
    resumed = job.status.scheduling_resumed_time
    return (
        (resumed, "all pods could be scheduled again") if resumed is not None and resumed > anchor else (anchor, event)
    )


def of_this_attempt(status: GoodputMeasurementStatus, restarted_at: datetime | None) -> GoodputMeasurementStatus:
    """Without the times of before the last restart: they are cleared there, and our copy may be older than that."""
    if restarted_at is None:
        return status

    def kept(moment: datetime | None) -> datetime | None:
        return moment if moment is not None and moment >= restarted_at else None

    return GoodputMeasurementStatus(
        start_time=kept(status.start_time),
        application_start_time=kept(status.application_start_time),
        last_step_timestamp=kept(status.last_step_timestamp),
        avg_step_time_sec=status.avg_step_time_sec,
        log_interval=status.log_interval,
        last_checkpoint_step=status.last_checkpoint_step,
    )


def _positive(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None
