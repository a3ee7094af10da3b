"""Writing conditions: the exclusive trio InProgress/Succeeded/Failed, the additive ones, and the events of a change.

lastTransitionTime moves only when the status flips; observedGeneration is the generation at the time of writing.  Once
Succeeded or Failed is True, the trio does not change any more (spec/reference-behaviour.md 2.3).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from nvcre_coordinator.api.conditions import Condition, ConditionStatus, ConditionType, Reason, find, is_true
from nvcre_coordinator.api.meta import second
from nvcre_coordinator.core.limits import MEASUREMENT_MESSAGE_BYTES, clip

Conditions = tuple[Condition, ...]

TRIO = (ConditionType.IN_PROGRESS, ConditionType.SUCCEEDED, ConditionType.FAILED)


@dataclass(frozen=True, slots=True)
class Stamp:
    """When, and for which generation of the object, a condition is written."""

    now: datetime
    generation: int


def put(
    conditions: Conditions,
    kind: ConditionType,
    status: ConditionStatus,
    *,
    reason: Reason,
    message: str,
    stamp: Stamp,
) -> Conditions:
    """The list with one condition set; unchanged conditions keep their place and their transition time."""
    old = find(conditions, kind)
    since = old.last_transition_time if old is not None and old.status is status else second(stamp.now)
    new = Condition(kind.value, status, reason.value, message, since, stamp.generation or None)
    if old is None:
        return (*conditions, new)
    return tuple(new if condition.type == kind else condition for condition in conditions)


def execution(conditions: Conditions, chosen: ConditionType, reason: Reason, message: str, stamp: Stamp) -> Conditions:
    """One of the trio True, the other two False/NotApplicable; a terminal list is returned as it is."""
    if is_true(conditions, ConditionType.SUCCEEDED) or is_true(conditions, ConditionType.FAILED):
        return conditions
    for kind in TRIO:
        if kind is chosen:
            conditions = put(conditions, kind, ConditionStatus.TRUE, reason=reason, message=message, stamp=stamp)
        else:
            conditions = put(
                conditions,
                kind,
                ConditionStatus.FALSE,
                reason=Reason.NOT_APPLICABLE,
                message="Not the current state",
                stamp=stamp,
            )
    return conditions


def measuring(conditions: Conditions, message: str, stamp: Stamp) -> Conditions:
    """Of a measurement whose Job runs."""
    return put(
        conditions,
        ConditionType.MEASURING,
        ConditionStatus.TRUE,
        reason=Reason.JOB_RUNNING,
        message=message,
        stamp=stamp,
    )


def not_measuring(
    conditions: Conditions, reason: Reason, message: str, stamp: Stamp, *, complete: bool = False
) -> Conditions:
    """Of a measurement: nothing is read now; `complete`: nothing will be."""
    text = clip(message, MEASUREMENT_MESSAGE_BYTES)
    conditions = put(
        conditions, ConditionType.MEASURING, ConditionStatus.FALSE, reason=reason, message=text, stamp=stamp
    )
    if not complete:
        return conditions
    return put(conditions, ConditionType.COMPLETE, ConditionStatus.TRUE, reason=reason, message=text, stamp=stamp)


def log_answers(conditions: Conditions) -> Conditions:
    """Of a measurement that could not read its log and has nothing to say yet now that it can."""
    told = find(conditions, ConditionType.MEASURING)
    if told is None or told.reason != Reason.LOGS_UNAVAILABLE:
        return conditions
    return tuple(condition for condition in conditions if condition.type != ConditionType.MEASURING)


@dataclass(frozen=True, slots=True)
class Event:
    type: Literal["Normal", "Warning"]
    reason: str
    note: str


_ANNOUNCED = {
    ConditionType.IN_PROGRESS: "Normal",
    ConditionType.SUCCEEDED: "Normal",
    ConditionType.FAILED: "Warning",
    ConditionType.HARDWARE_FAILED: "Warning",
    ConditionType.VALIDATION_FAILED: "Warning",
}


def flips(before: Iterable[Condition], after: Iterable[Condition]) -> tuple[Event, ...]:
    """One Event a flip to True, and one the first time the thresholds are met; changes of a reason alone make none.

    Except that a refused workload is told in the words of each refusal, and when it could be created after all.
    """
    before = tuple(before)
    events: list[Event] = []
    for condition in after:
        if condition.type not in _ANNOUNCED:
            continue
        old = find(before, condition.type)
        if condition.status is ConditionStatus.TRUE and (
            old is None or old.status is not ConditionStatus.TRUE or _other_refusal(old, condition)
        ):
            refused = condition.reason == Reason.WORKLOAD_CREATION_ERROR
            warning = refused or _ANNOUNCED[ConditionType(condition.type)] == "Warning"
            events.append(Event("Warning" if warning else "Normal", condition.reason, condition.message))
        elif condition.reason == Reason.THRESHOLDS_MET and (old is None or old.reason != condition.reason):
            events.append(Event("Normal", condition.reason, condition.message))
    return tuple(events)


def _other_refusal(old: Condition, new: Condition) -> bool:
    refusals = Reason.WORKLOAD_CREATION_ERROR in (old.reason, new.reason)
    return refusals and (old.reason, old.message) != (new.reason, new.message)
