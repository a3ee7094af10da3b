from datetime import UTC, datetime, timedelta

from nvcre_coordinator.api.conditions import ConditionStatus, ConditionType, Reason
from nvcre_coordinator.core.conditions import Conditions, Stamp, execution, flips, put

NOW = datetime(2026, 12, 1, 12, 0, 0, 900_000, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)


def in_progress(
    reason: Reason = Reason.WORKLOAD_CREATED, conditions: Conditions = (), at: datetime = NOW
) -> Conditions:
    return execution(conditions, ConditionType.IN_PROGRESS, reason, reason.value, Stamp(at, 7))


def test_one_of_the_trio_is_true_and_the_others_are_not_applicable() -> None:
    assert [(c.type, c.status.value, c.reason) for c in in_progress()] == [
        ("InProgress", "True", "WorkloadCreated"),
        ("Succeeded", "False", "NotApplicable"),
        ("Failed", "False", "NotApplicable"),
    ]
    assert {c.observed_generation for c in in_progress()} == {7}


def test_the_transition_time_moves_only_when_the_status_flips() -> None:
    running = in_progress(Reason.WORKLOAD_RUNNING, in_progress(), LATER)
    assert running[0].last_transition_time == NOW.replace(microsecond=0)
    failed = execution(running, ConditionType.FAILED, Reason.WORKLOAD_FAILED, "it failed", Stamp(LATER, 7))
    assert [c.last_transition_time for c in failed] == [
        LATER.replace(microsecond=0),
        NOW.replace(microsecond=0),
        LATER.replace(microsecond=0),
    ]


def test_a_terminal_state_is_never_left() -> None:
    failed = execution((), ConditionType.FAILED, Reason.WORKLOAD_FAILED, "it failed", Stamp(NOW, 1))
    assert execution(failed, ConditionType.SUCCEEDED, Reason.WORKLOAD_COMPLETED, "no", Stamp(LATER, 1)) is failed


def test_one_event_a_flip_and_none_for_a_change_of_reason() -> None:
    created = in_progress()
    running = in_progress(Reason.WORKLOAD_RUNNING, created)
    failed = execution(running, ConditionType.FAILED, Reason.WORKLOAD_FAILED, "it failed", Stamp(LATER, 7))
    assert [(e.type, e.reason) for e in flips((), created)] == [("Normal", "WorkloadCreated")]
    assert flips(created, running) == ()
    assert [(e.type, e.reason, e.note) for e in flips(running, failed)] == [("Warning", "WorkloadFailed", "it failed")]
    assert flips(failed, failed) == ()


def test_a_refusal_is_told_in_each_of_its_words_and_so_is_its_end() -> None:
    """Case 22: a Warning, whatever the state was; the same words again are no event."""

    def refused(words: str, before: Conditions = ()) -> Conditions:
        chosen = ConditionType.IN_PROGRESS, Reason.WORKLOAD_CREATION_ERROR
        return execution(before, *chosen, words, Stamp(LATER, 7))

    def told(before: Conditions, after: Conditions) -> list[tuple[str, str, str]]:
        return [(event.type, event.reason, event.note) for event in flips(before, after)]

    first = refused("no such runtime")
    assert told((), first) == [("Warning", "WorkloadCreationError", "no such runtime")]
    assert told(first, refused("no such runtime", first)) == []
    assert told(first, refused("quota", first)) == [("Warning", "WorkloadCreationError", "quota")]
    assert told(first, in_progress(conditions=first)) == [("Normal", "WorkloadCreated", "WorkloadCreated")]
    restarting = in_progress(Reason.WORKLOAD_RESTARTING)
    assert told(restarting, refused("quota", restarting)) == [("Warning", "WorkloadCreationError", "quota")]


def test_met_thresholds_are_told_once_although_the_condition_is_false() -> None:
    met = put((), ConditionType.VALIDATION_FAILED, ConditionStatus.FALSE,
              reason=Reason.THRESHOLDS_MET, message="all met", stamp=Stamp(NOW, 1))  # fmt: skip
    assert [(e.type, e.reason) for e in flips((), met)] == [("Normal", "ThresholdsMet")]
    assert flips(met, met) == ()
