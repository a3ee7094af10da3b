"""The life of a Job: what is observed, and what becomes of its status (cases 1, 2, 3, 6, 11, 17-19)."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from nvcre_coordinator.api.conditions import ConditionType, find
from nvcre_coordinator.api.job import Component, Evidence, FailedNode, FailedNodeReason
from nvcre_coordinator.core.attribution import AgentState, NodeFacts
from nvcre_coordinator.core.job_lifecycle import created, decide
from nvcre_coordinator.core.observed import Action, Gone, Observed, WorkloadPhase
from nvcre_coordinator.workloads.trainjob import TrainJobAdapter
from nvcre_protos.vocabulary import ComponentKind


def hardware(node: str, at: Any, code: int = 79) -> FailedNode:
    return FailedNode(
        node,
        FailedNodeReason.HARDWARE_FAILURE_DETECTED,
        f"Xid {code}",
        Component(ComponentKind.GPU, 5),
        (Evidence("kernel-log", f"Xid {code} on GPU 5", at, code),),
    )


def test_the_finalizer_comes_first_and_ends_the_pass(build: Any) -> None:
    job = build.job()
    bare = msgspec.structs.replace(job, metadata=msgspec.structs.replace(job.metadata, finalizers=()))
    assert decide(Observed(bare), build.start).actions == (Action.ADD_FINALIZER,)


def test_a_fresh_job_creates_its_workload(build: Any) -> None:
    """Case 1."""
    decision = decide(Observed(build.job()), build.start)
    assert decision.actions == (Action.CREATE_WORKLOAD,)
    assert decision.status == build.job().status


@pytest.mark.parametrize(("adopted", "reason"), [(False, "WorkloadCreated"), (True, "WorkloadAdopted")])
def test_reference_and_condition_are_one_write(build: Any, conditions: Any, adopted: bool, reason: str) -> None:
    job = build.job()
    status = created(job, TrainJobAdapter().reference(job), build.start, adopted=adopted)
    assert conditions(status)["InProgress"] == ("True", reason)
    assert status.workload_ref is not None
    assert (status.workload_ref.kind, status.workload_ref.name) == ("TrainJob", "run-workload")


@pytest.mark.parametrize(
    ("workload", "kind", "reason", "message"),
    [
        (("Running", ""), "InProgress", "WorkloadRunning", "Workload TrainJob/run-workload is running"),
        (
            ("Running", "no such runtime"), "InProgress", "WorkloadRunning",
            "Workload TrainJob/run-workload is held up: no such runtime",
        ),
        (("Pending", "held"), "InProgress", "WorkloadPending", "Workload TrainJob/run-workload is pending: held"),
        (("Succeeded", "M"), "Succeeded", "WorkloadCompleted", "Workload TrainJob/run-workload completed: M"),
        (
            ("Succeeded", ""), "Succeeded", "WorkloadCompleted",
            "Workload TrainJob/run-workload completed successfully",
        ),
        (("Failed", "boom"), "Failed", "WorkloadFailed", "Workload TrainJob/run-workload failed: boom"),
        (("Failed", ""), "Failed", "WorkloadFailed", "Workload TrainJob/run-workload has failed"),
        (None, "Failed", "WorkloadFailed", "Workload TrainJob/run-workload was deleted"),
    ],
)  # fmt: skip
def test_the_workload_s_phase_becomes_the_trio(
    build: Any, workload: tuple[str, str] | None, kind: str, reason: str, message: str
) -> None:
    """Cases 1, 2, 3 and 6."""
    seen_workload = Gone(build.title) if workload is None else build.workload(WorkloadPhase(workload[0]), workload[1])
    decision = decide(Observed(build.started(), workload=seen_workload), build.at(60))
    condition = find(decision.status.conditions, kind)
    assert condition is not None
    assert (condition.status.value, condition.reason, condition.message) == ("True", reason, message)
    assert condition.observed_generation == 3


def test_a_workload_that_is_held_back_starts_no_clock(build: Any) -> None:
    """Case 11."""
    job = build.job()
    job = build.then(job, decide(Observed(job), build.start))
    status = created(job, TrainJobAdapter().reference(job), build.start, adopted=False)
    job = msgspec.structs.replace(job, status=status)
    held = decide(Observed(job, workload=build.workload(WorkloadPhase.PENDING, "held")), build.at(7200))
    assert held.status.workload_start_time is None
    assert held.requeue_after == timedelta(seconds=15)
    running = decide(Observed(build.then(job, held), workload=build.workload()), build.at(7300))
    assert running.status.workload_start_time == build.at(7300)


def test_nothing_known_of_the_workload_changes_nothing(build: Any) -> None:
    job = build.started()
    assert decide(Observed(job, workload=None), build.at(60)).status == job.status


@pytest.mark.parametrize(
    ("spec", "expression_error", "validation", "told"),
    [
        ({}, "Syntax error", None, "spec.nodeHealthMonitor.cel.expression: Syntax error"),
        ({"thresholds": {"speed": "value > 1"}}, None, "UnknownThresholdKey", "speed"),
        ({"thresholds": {"goodputRatio": "value >"}}, None, "InvalidThresholdExpression", "goodputRatio"),
    ],
)
def test_a_mistake_ends_the_job_before_anything_is_created(
    build: Any, conditions: Any, spec: dict[str, Any], expression_error: str | None, validation: str | None, told: str
) -> None:
    """Case 19 as DESIGN 1 has it: bad CEL is found, not overlooked."""
    decision = decide(Observed(build.job(**spec), node_expression_error=expression_error), build.start)
    assert Action.CREATE_WORKLOAD not in decision.actions
    found = conditions(decision.status)
    assert found["Failed"] == ("True", "WorkloadCreationError")
    assert found.get("ValidationFailed", (None, None))[1] == validation
    assert found["Attributed"] == ("True", "NothingToAttribute")
    failed = find(decision.status.conditions, ConditionType.FAILED)
    assert failed is not None
    assert told in failed.message


def test_hardware_evidence_is_written_at_once_and_the_run_goes_on(build: Any, conditions: Any) -> None:
    """Case 17."""
    job = build.started()
    decision = decide(Observed(job, workload=build.workload(), hardware=(hardware("n2", build.at(30)),)), build.at(30))
    found = conditions(decision.status)
    assert found["HardwareFailed"] == ("True", "HardwareFailureDetected")
    assert found["InProgress"] == ("True", "WorkloadRunning")
    condition = find(decision.status.conditions, "HardwareFailed")
    assert condition is not None
    assert condition.message == "Hardware failure detected on node(s): [n2]"
    assert [entry.name for entry in decision.status.failed_nodes] == ["n2"]


def test_a_second_node_is_added_and_nothing_is_ever_taken_back(build: Any) -> None:
    """Cases 17 and 18."""
    first = decide(Observed(build.started(), workload=build.workload(), hardware=(hardware("n2", build.at(30)),)),
                   build.at(30))  # fmt: skip
    job = build.then(build.started(), first)
    second = decide(Observed(job, workload=build.workload(), hardware=(hardware("n1", build.at(40)),)), build.at(40))
    assert [entry.name for entry in second.status.failed_nodes] == ["n1", "n2"]
    flipped = find(second.status.conditions, "HardwareFailed")
    assert flipped is not None
    assert flipped.last_transition_time == build.at(30)
    healthy = decide(Observed(build.then(job, second), workload=build.workload()), build.at(50))
    assert healthy.status == second.status


def test_the_same_evidence_is_not_counted_twice_and_new_evidence_joins_the_entry(build: Any) -> None:
    once = decide(Observed(build.started(), workload=build.workload(), hardware=(hardware("n2", build.at(30)),)),
                  build.at(30))  # fmt: skip
    job = build.then(build.started(), once)
    again = decide(Observed(job, workload=build.workload(), hardware=(hardware("n2", build.at(30)),)), build.at(35))
    assert again.status == once.status
    more = decide(Observed(job, workload=build.workload(), hardware=(hardware("n2", build.at(40), 48),)), build.at(40))
    assert [item.code for item in more.status.failed_nodes[0].evidence] == [79, 48]


def test_a_failure_that_hardware_explains_adds_no_second_reason(build: Any, conditions: Any) -> None:
    """Case 17: failedNodes is unchanged when the workload fails after its node was named."""
    job = build.started()
    job = build.then(job, decide(Observed(job, workload=build.workload(), hardware=(hardware("n2", build.at(30)),)),
                                 build.at(30)))  # fmt: skip
    pods = (build.pod("a", node="n1", code=1), build.pod("b", node="n2", rank=1, code=1))
    seen = Observed(job, workload=build.workload(WorkloadPhase.FAILED), pods=pods, group=("n1", "n2"))
    decision = decide(seen, build.at(61))
    assert [(e.name, e.reason.value) for e in decision.status.failed_nodes] == [("n2", "HardwareFailureDetected")]
    assert conditions(decision.status)["Attributed"] == ("True", "NodesNamed")
    assert conditions(decision.status)["Failed"] == ("True", "WorkloadFailed")


def test_measurements_are_made_once_there_is_a_workload_to_read(build: Any) -> None:
    spec = {"bandwidthMeasurement": {"logProfileRef": "p"}, "goodputMeasurement": {"logProfileRef": "q"}}
    assert decide(Observed(build.job(**spec)), build.start).actions == (Action.CREATE_WORKLOAD,)
    job = build.started(**spec)
    assert decide(Observed(job, workload=build.workload()), build.at(1)).actions == (
        Action.CREATE_BANDWIDTH_MEASUREMENT,
        Action.CREATE_GOODPUT_MEASUREMENT,
    )
    there = Observed(job, workload=build.workload(), bandwidth_exists=True, goodput_exists=True)
    assert decide(there, build.at(1)).actions == ()


def test_a_concluded_job_is_left_alone_except_for_late_evidence(build: Any, conditions: Any) -> None:
    job = build.started()
    seen = Observed(job, workload=build.workload(WorkloadPhase.SUCCEEDED), nodes={"n1": NodeFacts(AgentState.ABSENT)})
    job = build.then(job, decide(seen, build.at(60)))
    assert conditions(job.status)["Attributed"] == ("True", "NothingToAttribute")
    assert decide(Observed(job), build.at(600)).status == job.status
    late = decide(Observed(job, hardware=(hardware("n1", build.at(70)),)), build.at(75))
    assert conditions(late.status)["Succeeded"] == ("True", "WorkloadCompleted")
    assert conditions(late.status)["HardwareFailed"][0] == "True"
    assert conditions(late.status)["Attributed"] == ("True", "NodesNamed")
