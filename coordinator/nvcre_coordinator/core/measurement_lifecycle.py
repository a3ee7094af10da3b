"""A BandwidthMeasurement's life: provisional results while its Job runs, final ones from the finished pod's whole log.

Final results replace provisional ones.  A read that fails is tried again for max(2 minutes, measurementTimeout) after a
Job that succeeded, once after a Job that failed; then LogsUnavailable, and provisional rows stay but are never judged
(spec/reference-behaviour.md 4.4).  Also: which pod's log is read (case 53), and what thresholds may use (2.7).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from nvcre_coordinator.api.conditions import ConditionStatus, ConditionType, Reason, find
from nvcre_coordinator.api.measurement import BandwidthMeasurement, BandwidthMeasurementStatus, BandwidthResult, LogGap
from nvcre_coordinator.api.meta import second
from nvcre_coordinator.core import log_gaps
from nvcre_coordinator.core.bandwidth import peak
from nvcre_coordinator.core.conditions import Stamp, log_answers, measuring, not_measuring
from nvcre_coordinator.core.observed import Measured
from nvcre_coordinator.core.pods import FINISHED_PHASES, PodRecord
from nvcre_coordinator.core.thresholds import ALG_BANDWIDTH, BUS_BANDWIDTH

RETRY = timedelta(seconds=15)
FIRST_RETRY = timedelta(seconds=1)
LEAST_PATIENCE = timedelta(minutes=2)

_PHASE_ORDER = {"Succeeded": 0, "Running": 1, "Failed": 2}


class Ended(StrEnum):
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    GONE = "Gone"  # deleted, or replaced by another Job of the same name; confirmed by the server


@dataclass(frozen=True, slots=True)
class RunEnd:
    how: Ended
    at: datetime


@dataclass(frozen=True, slots=True)
class LogRead:
    """What reading a pod's whole log gave; `error` when it could not be read."""

    results: tuple[BandwidthResult, ...] = ()
    transport: tuple[str, ...] = ()
    rows: int = 0
    skipped_lines: int = 0
    error: str | None = None
    gaps: tuple[LogGap, ...] = ()

    @property
    def samples(self) -> int:
        return sum(result.samples for result in self.results)


def choose_pod(pods: Iterable[PodRecord], replicated_job: str) -> PodRecord | None:
    """Lowest completion index, then Succeeded before Running before Failed, higher restart attempt, newest, name."""
    mine = [pod for pod in pods if pod.replicated_job == replicated_job]
    return min(
        mine,
        key=lambda pod: (
            pod.rank or 0,
            _PHASE_ORDER.get(pod.phase, 3),
            -pod.restart_attempt,
            -(pod.created_at.timestamp() if pod.created_at else 0.0),
            pod.name,
        ),
        default=None,
    )


def readable(pod: PodRecord) -> bool:
    return pod.phase in FINISHED_PHASES


def running(measurement: BandwidthMeasurement, sample: LogRead | None, stamp: Stamp) -> BandwidthMeasurementStatus:
    """Provisional: Measuring becomes True with the first row."""
    status = measurement.status
    if sample is None or not sample.results:
        return msgspec.structs.replace(status, conditions=log_answers(status.conditions))
    conditions = measuring(status.conditions, "Reading the log of the running Job; results are provisional", stamp)
    return msgspec.structs.replace(
        status,
        conditions=conditions,
        results=sample.results,
        transport=_merged(status.transport, sample.transport),
        log_gaps=sample.gaps,
        start_time=status.start_time or second(stamp.now),
    )


def unmeasurable(
    measurement: BandwidthMeasurement, reason: Reason, message: str, stamp: Stamp
) -> BandwidthMeasurementStatus:
    return _measuring_false(measurement.status, reason, message, stamp)


@dataclass(frozen=True, slots=True)
class FinalDecision:
    status: BandwidthMeasurementStatus
    retry_after: timedelta | None = None
    warning: str | None = None  # the first failed read is worth an Event


def finish(
    measurement: BandwidthMeasurement,
    end: RunEnd,
    read: LogRead,
    patience: timedelta,
    stamp: Stamp,
) -> FinalDecision:
    """`patience` is the Job's measurementTimeout."""
    if read.error is not None:
        return _unread(measurement, end, read.error, patience, stamp)
    status = msgspec.structs.replace(
        measurement.status,
        results=read.results,
        transport=_merged((), read.transport) if read.results else measurement.status.transport,
        log_gaps=read.gaps,
    )
    skipped = f"; {read.skipped_lines} line(s) longer than 1 MiB skipped" if read.skipped_lines else ""
    skipped += log_gaps.sentence(read.gaps)
    if end.how is Ended.FAILED:
        reason = Reason.JOB_FAILED
        message = f"The Job failed; its log has {read.rows} result row(s){skipped}"
    elif read.results:
        reason = Reason.JOB_SUCCEEDED
        message = f"{len(read.results)} message sizes from {read.rows} result row(s){skipped}"
    else:
        reason = Reason.NO_DATA_COLLECTED
        message = (
            f"The log was read and has no result row: spec.logProfileRef {measurement.spec.log_profile_ref!r} "
            f"matches no line of it{skipped}"
        )
    return FinalDecision(_complete(status, reason, message, end.at, stamp))


def _unread(
    measurement: BandwidthMeasurement,
    end: RunEnd,
    error: str,
    patience: timedelta,
    stamp: Stamp,
) -> FinalDecision:
    status = measurement.status
    pending = find(status.conditions, ConditionType.MEASURING)
    waiting = pending is not None and pending.reason == Reason.FINAL_READ_PENDING
    if end.how is Ended.SUCCEEDED:
        # Measuring=False may be older than the end (a profile that was missing): the end is the floor.
        since = max(pending.last_transition_time, end.at) if waiting and pending is not None else stamp.now
        left = max(LEAST_PATIENCE, patience) - (stamp.now - since)
        if left > timedelta(0):
            message = f"The log could not be read yet: {error}"
            if waiting:
                return FinalDecision(status, min(RETRY, left))
            return FinalDecision(
                _measuring_false(status, Reason.FINAL_READ_PENDING, message, stamp), FIRST_RETRY, message
            )
    at = stamp.now if end.how is Ended.GONE else end.at
    message = f"The log could not be read: {error}"
    return FinalDecision(_complete(status, Reason.LOGS_UNAVAILABLE, message, at, stamp), None, message)


def _measuring_false(
    status: BandwidthMeasurementStatus, reason: Reason, message: str, stamp: Stamp
) -> BandwidthMeasurementStatus:
    return msgspec.structs.replace(status, conditions=not_measuring(status.conditions, reason, message, stamp))


def _complete(
    status: BandwidthMeasurementStatus, reason: Reason, message: str, at: datetime, stamp: Stamp
) -> BandwidthMeasurementStatus:
    conditions = not_measuring(status.conditions, reason, message, stamp, complete=True)
    return msgspec.structs.replace(status, conditions=conditions, completion_time=second(at))


def measured_bandwidth(measurement: BandwidthMeasurement | None) -> Measured:
    """Final values only; a measurement that ended without them says that they are lost."""
    if measurement is None:
        return Measured()
    complete = find(measurement.status.conditions, ConditionType.COMPLETE)
    if complete is None or complete.status is not ConditionStatus.TRUE:
        return Measured(pending=_pending(measurement))
    best = peak(measurement.status.results)
    if complete.reason != Reason.JOB_SUCCEEDED or best is None:
        why = f"BandwidthMeasurement {measurement.metadata.name} ended with {complete.reason}"
        return Measured(lost={BUS_BANDWIDTH: why, ALG_BANDWIDTH: why})
    return Measured(values={BUS_BANDWIDTH: best.busbw_gbps, ALG_BANDWIDTH: best.algbw_gbps})


def _pending(measurement: BandwidthMeasurement) -> dict[str, str]:
    measuring = find(measurement.status.conditions, ConditionType.MEASURING)
    if measuring is None or measuring.status is not ConditionStatus.FALSE:
        return {}
    why = f"BandwidthMeasurement {measurement.metadata.name}: {measuring.message}"
    return {BUS_BANDWIDTH: why, ALG_BANDWIDTH: why}


def _merged(known: tuple[str, ...], seen: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({*known, *seen}))[:32]
