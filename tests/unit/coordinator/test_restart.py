"""Starting again from a checkpoint (cases 3-7): when, how often, in which order, and what is forgotten."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from nvcre_coordinator.core.job_lifecycle import created, decide, not_created
from nvcre_coordinator.core.observed import Action, Gone, Observed, WorkloadPhase
from nvcre_coordinator.core.pods import RunRecord, end_attempt, remember
from nvcre_coordinator.workloads.trainjob import TrainJobAdapter

CHECKPOINT = {"pvcName": "data", "maxRestarts": 3}
TEN_SECONDS = {"logProfileRef": "p", "sampleInterval": "5s"}


def endings(build: Any) -> dict[str, Any]:
    return {
        "failed": build.workload(WorkloadPhase.FAILED, "Worker crashed"),
        "gone": Gone(build.title),
        "stalled": build.workload(),
    }


def seen(build: Any, job: Any, workload: Any, *, checkpoint_step: int = 100, **observed: Any) -> Observed:
    measured = build.goodput("5s", lastStepTimestamp=0, avgStepTimeSec="0.1", lastCheckpointStep=checkpoint_step)
    return Observed(job, workload=workload, **{"goodputs": (measured,), "goodput_exists": True, **observed})


def restarting(build: Any, how: str = "failed", **spec: Any) -> Any:
    job = build.started(checkpoint=CHECKPOINT, stallMultiplier=2, **spec)
    decision = decide(seen(build, job, endings(build)[how]), build.at(600))
    return build.then(job, decision), decision


@pytest.mark.parametrize("how", ["failed", "gone", "stalled"])
def test_cases_4_and_5_whatever_ended_the_run_it_starts_again(build: Any, conditions: Any, how: str) -> None:
    job, decision = restarting(build, how)
    status = job.status
    assert conditions(status)["InProgress"] == ("True", "WorkloadRestarting")
    assert status.conditions[0].message.startswith("Restarting workload from checkpoint (restart 1/3): Workload ")
    assert (status.restart_count, status.last_restart_time) == (1, build.at(600))
    assert (status.workload_ref, status.workload_start_time, status.failure_log) == (None, None, None)
    assert status.failed_nodes == ()
    assert Action.CREATE_WORKLOAD not in decision.actions
    assert (Action.DELETE_WORKLOAD in decision.actions) is (how != "gone")
    assert decision.doomed == ("" if how == "gone" else "workload-uid-0")


def test_the_scheduling_markers_are_cleared_too(build: Any) -> None:
    job = build.started(checkpoint=CHECKPOINT)
    status = msgspec.structs.replace(
        job.status, scheduling_blocked_since=build.at(1), scheduling_resumed_time=build.at(2)
    )
    job = msgspec.structs.replace(job, status=status)
    after = decide(seen(build, job, Gone(build.title)), build.at(600)).status
    assert (after.scheduling_blocked_since, after.scheduling_resumed_time) == (None, None)


@pytest.mark.parametrize(
    ("spec", "restarts", "step"),
    [
        ({}, None, 100),  # case 6: no checkpoint configured
        ({"checkpoint": CHECKPOINT}, None, 0),  # case 3: none was written yet
        ({"checkpoint": {"pvcName": "data"}}, None, 100),  # no budget
        ({"checkpoint": CHECKPOINT}, 3, 100),  # case 7: the budget is used up
    ],
)
def test_cases_3_6_and_7_without_checkpoint_or_budget_the_job_fails(
    build: Any, conditions: Any, spec: dict[str, Any], restarts: int | None, step: int
) -> None:
    job = build.started(**spec)
    job = msgspec.structs.replace(job, status=msgspec.structs.replace(job.status, restart_count=restarts))
    failed = build.workload(WorkloadPhase.FAILED, "Worker crashed", restart=restarts or 0)
    decision = decide(seen(build, job, failed, checkpoint_step=step, group=("n1", "n2")), build.at(600))
    assert conditions(decision.status)["Failed"] == ("True", "WorkloadFailed")
    assert decision.status.workload_ref is not None
    assert decision.status.restart_count == restarts
    settled = decide(seen(build, build.then(job, decision), None, group=("n1", "n2")), build.at(700)).status
    assert [entry.name for entry in settled.failed_nodes] == ["n1", "n2"]  # without evidence the group, and it says so
    assert all("could not be narrowed" in entry.message for entry in settled.failed_nodes)


def test_case_8_a_stall_without_a_checkpoint_fails_the_job(build: Any, conditions: Any) -> None:
    job = build.started(stallMultiplier=2)
    decision = decide(seen(build, job, build.workload()), build.at(600))
    assert conditions(decision.status)["Failed"] == ("True", "WorkloadStalled")
    assert (
        "no training step for 600 s since the last step; the limit is 10.2 s" in decision.status.conditions[2].message
    )
    assert decision.actions == ()  # what stalled is left for a look into it
    settled = decide(seen(build, build.then(job, decision), None), build.at(700)).status
    assert conditions(settled)["Attributed"] == ("False", "NotNarrowed")


def test_a_job_looks_again_when_the_stall_would_be_true(build: Any) -> None:
    job = build.started(stallMultiplier=2)
    measured = (build.goodput("5s", lastStepTimestamp=0, avgStepTimeSec="0.1"),)
    decision = decide(Observed(job, workload=build.workload(), goodputs=measured), build.at(4))
    assert decision.requeue_after == timedelta(seconds=6.21)


def test_hardware_evidence_alone_restarts_nothing(build: Any) -> None:
    job = build.started(checkpoint=CHECKPOINT)
    decision = decide(seen(build, job, build.workload()), build.at(60))
    assert (decision.status.restart_count, decision.actions) == (None, ())


def test_the_old_workload_is_deleted_until_it_is_gone(build: Any) -> None:
    """The write of the status came through, and the coordinator died before it deleted anything."""
    job, _ = restarting(build)
    decision = decide(seen(build, job, build.workload(WorkloadPhase.FAILED)), build.at(5000))
    assert Action.DELETE_WORKLOAD in decision.actions
    assert Action.CREATE_WORKLOAD not in decision.actions
    assert decision.status == job.status


@pytest.mark.parametrize(("spec", "grace"), [({}, 30), ({"goodputMeasurement": TEN_SECONDS}, 10)])
def test_case_4_the_next_one_is_created_after_the_grace(build: Any, spec: dict[str, Any], grace: float) -> None:
    """The grace counts from the status, not from when this coordinator began."""
    job, _ = restarting(build, **spec)
    early = decide(seen(build, job, Gone(build.title)), build.at(599 + grace))
    assert Action.CREATE_WORKLOAD not in early.actions
    assert early.requeue_after == timedelta(seconds=1)
    late = decide(seen(build, job, Gone(build.title)), build.at(600 + grace))
    assert late.actions == (Action.END_ATTEMPT, Action.CREATE_WORKLOAD)


def test_two_workloads_never_write_one_checkpoint(build: Any) -> None:
    """Pods outlive their workload while they end; one on a dead node never ends, and is not waited for for ever."""
    job, _ = restarting(build)
    for at, ready in ((700, False), (899, False), (900, True)):
        decision = decide(seen(build, job, Gone(build.title), live_pods=1), build.at(at))
        assert (Action.CREATE_WORKLOAD in decision.actions) is ready


def test_a_clock_that_was_set_back_delays_no_restart(build: Any) -> None:
    job, _ = restarting(build)
    assert Action.CREATE_WORKLOAD in decide(seen(build, job, Gone(build.title)), build.at(-86_400)).actions


def test_an_unknown_workload_is_not_a_gone_one(build: Any) -> None:
    job, _ = restarting(build)
    assert Action.CREATE_WORKLOAD not in decide(seen(build, job, None), build.at(700)).actions


def test_a_next_workload_that_was_not_recorded_is_taken_back(build: Any) -> None:
    job, _ = restarting(build)
    decision = decide(seen(build, job, build.workload(restart=1)), build.at(601))
    assert decision.actions == (Action.CREATE_WORKLOAD,)  # which finds it and adopts it


def test_the_next_workload_carries_its_number(build: Any) -> None:
    adapter = TrainJobAdapter()
    assert "annotations" not in adapter.build(build.job())["metadata"]
    job, _ = restarting(build)
    built = adapter.build(job)
    assert adapter.read({**built, "status": {}}).restart == 1
    assert built["metadata"]["name"] == "run-workload"


def test_measured_progress_is_set_back_until_it_is(build: Any) -> None:
    job, decision = restarting(build)
    assert decision.progress_reset is not None
    assert (decision.progress_reset.measurements, decision.progress_reset.start) == (("run-goodput",), build.at(600))
    reset = build.goodput("5s", lastCheckpointStep=100, startTime=600)
    after = decide(seen(build, job, Gone(build.title), goodputs=(reset,)), build.at(601))
    assert after.progress_reset is None


def test_case_22_a_refused_workload_is_told_in_the_server_s_words_and_is_no_end(build: Any, conditions: Any) -> None:
    job = build.job()
    refused = not_created(job, build.title, "admission webhook denied the request: no such runtime", build.at(1))
    assert conditions(refused)["InProgress"] == ("True", "WorkloadCreationError")
    assert "admission webhook denied the request: no such runtime" in refused.conditions[0].message
    job = msgspec.structs.replace(job, status=refused)
    assert decide(Observed(job), build.at(2)).actions == (Action.CREATE_WORKLOAD,)
    again = not_created(job, build.title, "admission webhook denied the request: no such runtime", build.at(60))
    assert again == refused  # the same words are written once
    accepted = created(job, TrainJobAdapter().reference(job), build.at(61), adopted=False)
    assert conditions(accepted)["InProgress"] == ("True", "WorkloadCreated")


def test_a_preempted_workload_is_pending_again_and_forgets_its_clocks(build: Any, conditions: Any) -> None:
    """Case 11, after it ran: no failure, and what was measured is no stall of what comes."""
    job = build.started(stallMultiplier=2)
    status = msgspec.structs.replace(
        job.status, scheduling_blocked_since=build.at(1), scheduling_resumed_time=build.at(2)
    )
    job = msgspec.structs.replace(job, status=status)
    pods = (build.pod("a", node="n1", code=137), build.pod("b", node="n2", rank=1, code=143))
    measured = build.goodput("5s", lastStepTimestamp=0, avgStepTimeSec="0.1", applicationStartTime=0, startTime=0)
    pending = build.workload(WorkloadPhase.PENDING, "held")
    decision = decide(Observed(job, workload=pending, pods=pods, goodputs=(measured,)), build.at(600))
    assert conditions(decision.status)["InProgress"] == ("True", "WorkloadPending")
    cleared = decision.status
    assert (cleared.workload_start_time, cleared.scheduling_blocked_since, cleared.scheduling_resumed_time) == (
        None,
    ) * 3
    assert decision.actions == (Action.END_ATTEMPT,)
    assert decision.progress_reset is not None
    assert decision.progress_reset.start is None
    assert (cleared.failed_nodes, cleared.restart_count) == ((), None)

    held = decide(Observed(build.then(job, decision), workload=pending), build.at(601))
    assert held.actions == (Action.DROP_ENDED_PODS,)  # a living pod may be of an admission that we do not know of yet

    stale = build.goodput("5s", applicationStartTime=0, startTime=0)  # the reset is not in our cache yet
    early = decide(Observed(build.then(job, decision), workload=build.workload(), goodputs=(stale,)), build.at(9000))
    assert conditions(early.status)["InProgress"] == ("True", "WorkloadRunning")

    again = decide(
        Observed(build.then(job, decision), workload=build.workload(), goodputs=(build.goodput("5s"),)), build.at(9000)
    )
    assert conditions(again.status)["InProgress"] == ("True", "WorkloadRunning")
    assert again.status.workload_start_time == build.at(9000)


def test_pods_of_an_attempt_that_was_given_up_are_told_from_the_next_one_s(build: Any) -> None:
    run = remember(RunRecord(), [build.pod(name) for name in ("gone", "dying", "new")], {"node-of-gone": "boot-1"})
    run = end_attempt(run, kept={"uid-new"}, dropped={"uid-dying"})
    assert {pod.name: pod.over for pod in run.pods.values()} == {"dying": True, "new": False}
    assert run.boot_ids == {}
    late = remember(run, [build.pod("dying", code=137)], {})
    assert late.pods["uid-dying"].over
