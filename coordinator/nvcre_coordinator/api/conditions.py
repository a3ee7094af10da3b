"""Condition types and reasons of our resources, the condition struct itself, and the reading of a condition list.

Writing conditions (the exclusive trio, transition times) is core/conditions.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from nvcre_coordinator.api.meta import Moment, check_year


class ConditionStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class ConditionType(StrEnum):
    IN_PROGRESS = "InProgress"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    HARDWARE_FAILED = "HardwareFailed"
    VALIDATION_FAILED = "ValidationFailed"
    ATTRIBUTED = "Attributed"
    MEASURING = "Measuring"  # measurements
    COMPLETE = "Complete"  # measurements, TrainJob
    READY = "Ready"  # LogProfile


class Reason(StrEnum):
    NOT_APPLICABLE = "NotApplicable"
    WORKLOAD_CREATED = "WorkloadCreated"
    WORKLOAD_ADOPTED = "WorkloadAdopted"
    WORKLOAD_PENDING = "WorkloadPending"
    WORKLOAD_RUNNING = "WorkloadRunning"
    WORKLOAD_SCHEDULING_BLOCKED = "WorkloadSchedulingBlocked"
    WORKLOAD_RESTARTING = "WorkloadRestarting"
    WORKLOAD_COMPLETED = "WorkloadCompleted"
    WORKLOAD_FAILED = "WorkloadFailed"
    WORKLOAD_STALLED = "WorkloadStalled"
    PAIR_GIVEN_UP = "PairGivenUp"  # of a Job that tests a pair of nodes
    WORKLOAD_CREATION_ERROR = "WorkloadCreationError"
    HARDWARE_FAILURE_DETECTED = "HardwareFailureDetected"
    THRESHOLD_VIOLATED = "ThresholdViolated"
    INVALID_THRESHOLD_EXPRESSION = "InvalidThresholdExpression"
    UNKNOWN_THRESHOLD_KEY = "UnknownThresholdKey"
    MEASUREMENT_TIMEOUT = "MeasurementTimeout"
    THRESHOLDS_MET = "ThresholdsMet"
    # Attributed
    PENDING = "Pending"
    NODES_NAMED = "NodesNamed"
    NOTHING_TO_ATTRIBUTE = "NothingToAttribute"
    NOT_NARROWED = "NotNarrowed"
    # measurements
    JOB_RUNNING = "JobRunning"
    JOB_SUCCEEDED = "JobSucceeded"
    JOB_FAILED = "JobFailed"
    NO_DATA_COLLECTED = "NoDataCollected"
    LOGS_UNAVAILABLE = "LogsUnavailable"
    FINAL_READ_PENDING = "FinalReadPending"
    LOG_PROFILE_NOT_FOUND = "LogProfileNotFound"
    INVALID_LOG_PROFILE = "InvalidLogProfile"
    COMPILED = "Compiled"
    # events only
    MEASUREMENT_CREATION_ERROR = "MeasurementCreationError"
    LATE_EVIDENCE = "LateHardwareEvidence"
    MAINTENANCE_EVIDENCE = "HardwareEvidenceInMaintenance"
    APPLICATION_ERROR = "ApplicationError"
    DETECTOR_ERROR = "DetectorError"
    PAIR_CREATED = "PairCreated"
    PAIR_CREATION_ERROR = "PairCreationError"
    PAIRS_TESTED = "PairsTested"


class Condition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    type: str
    status: ConditionStatus
    reason: str
    message: str
    last_transition_time: Moment
    observed_generation: int | None = None

    def __post_init__(self) -> None:
        check_year(self.last_transition_time, "lastTransitionTime")


def find(conditions: Iterable[Condition], wanted: str) -> Condition | None:
    return next((condition for condition in conditions if condition.type == wanted), None)


def is_true(conditions: Iterable[Condition], wanted: str) -> bool:
    condition = find(conditions, wanted)
    return condition is not None and condition.status is ConditionStatus.TRUE
