"""When a finished Job gets its verdict: thresholds (cases 23-30), confirmations, probes."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from nvcre_coordinator.api.conditions import ConditionType, Reason, find
from nvcre_coordinator.api.job import FailedNode, FailedNodeReason, Job
from nvcre_coordinator.core.attribution import AgentState, LeaseWatch, NodeFacts
from nvcre_coordinator.core.conditions import Stamp, execution
from nvcre_coordinator.core.failure_lines import Origin
from nvcre_coordinator.core.job_conclusion import wants_probes
from nvcre_coordinator.core.job_lifecycle import decide
from nvcre_coordinator.core.last_steps import LogEnd
from nvcre_coordinator.core.localisation import ProbeKind, ProbeResult, ProbeState, ProbeVerdict
from nvcre_coordinator.core.observed import Action, Gone, Measured, Observed, ProbeProgress, WorkloadPhase

BUS = "busBandwidthGBps"
NOTHING = Measured()


def probe(verdict: ProbeVerdict, gbps: str = "480.00", state: ProbeState = ProbeState.MEASURED) -> ProbeResult:
    return ProbeResult(probe_id="p", kind=ProbeKind.NVLINK_ALL_REDUCE, state=state, verdict=verdict,
                       bus_bandwidth_gbps=gbps, comparison="median of 3 peers 480.00 GB/s")  # fmt: skip


def succeeded(build: Any, measured: Measured = NOTHING, at: float = 60, job: Job | None = None, **spec: Any) -> Any:
    job = job or build.started(**spec)
    return decide(
        Observed(job, workload=build.workload(WorkloadPhase.SUCCEEDED), measured=measured, group=("n1", "n2")),
        build.at(at),
    )


def test_met_thresholds(build: Any, conditions: Any) -> None:
    decision = succeeded(build, Measured({BUS: 480.0}), thresholds={BUS: "value >= 300"})
    assert conditions(decision.status)["ValidationFailed"] == ("False", "ThresholdsMet")
    assert conditions(decision.status)["Attributed"] == ("True", "NothingToAttribute")


def test_a_value_that_has_not_come_is_waited_for(build: Any, conditions: Any) -> None:
    decision = succeeded(build, thresholds={BUS: "value >= 300"})  # case 27
    assert "ValidationFailed" not in conditions(decision.status)
    assert conditions(decision.status)["Succeeded"][0] == "True"
    assert conditions(decision.status)["Attributed"] == ("Unknown", "Pending")
    assert decision.requeue_after == timedelta(seconds=15)


@pytest.mark.parametrize(
    ("waited", "measured", "timeout", "message"),
    [
        (3.5, Measured(), "3s", "Measurement data not available within 3s for keys: [busBandwidthGBps]"),  # case 28
        (301, Measured(), None, "Measurement data not available within 5m0s for keys: [busBandwidthGBps]"),
        (
            0, Measured(lost={BUS: "BandwidthMeasurement x ended with NoDataCollected"}), None,
            "Measurement data not available for keys: [busBandwidthGBps]: "
            "BandwidthMeasurement x ended with NoDataCollected",
        ),
        (
            301, Measured(pending={BUS: "LogProfile 'nope' does not exist"}), None,
            "Measurement data not available within 5m0s for keys: [busBandwidthGBps]: LogProfile 'nope' does not exist",
        ),
    ],
)  # fmt: skip
def test_values_that_do_not_come_fail_closed(
    build: Any, conditions: Any, waited: float, measured: Measured, timeout: str | None, message: str
) -> None:
    spec = {"thresholds": {BUS: "value >= 300"}, "bandwidthMeasurement": {"logProfileRef": "p"}}
    spec |= {"measurementTimeout": timeout} if timeout else {}
    job = build.then(build.started(**spec), succeeded(build, **spec))
    decision = succeeded(build, measured, at=60 + waited, job=job)
    assert conditions(decision.status)["ValidationFailed"] == ("True", "MeasurementTimeout")
    condition = find(decision.status.conditions, "ValidationFailed")
    assert condition is not None
    assert condition.message == message
    assert decision.status.failed_nodes == ()


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        (Measured(), "Waiting for measured values: spec.bandwidthMeasurement is absent, so nothing measures " + BUS),
        (Measured(pending={BUS: "no such LogProfile"}), "Waiting for measured values: no such LogProfile"),
    ],
)
def test_what_keeps_a_value_away_is_told_while_it_is_waited_for(build: Any, measured: Measured, message: str) -> None:
    pending = find(
        succeeded(build, measured, thresholds={BUS: "value >= 300"}).status.conditions, ConditionType.ATTRIBUTED
    )
    assert pending is not None
    assert pending.message == message


def test_a_key_that_nothing_measures_is_said_to_be_one(build: Any) -> None:
    status = succeeded(build, thresholds={"goodputRatio": "value > 0.9"}).status
    pending = find(status.conditions, ConditionType.ATTRIBUTED)
    assert pending is not None
    assert pending.message.endswith("spec.goodputMeasurement is absent, so nothing measures goodputRatio")


def test_a_threshold_on_the_slowest_node_has_the_nodes_of_a_run_that_ended_well_probed(build: Any) -> None:
    key = "minNodeBusBandwidthGBps"
    running = build.started(thresholds={key: "value >= 300"})
    assert not wants_probes(running)
    assert wants_probes(msgspec.structs.replace(running, status=succeeded(build, job=running).status))
    slow = succeeded(build, Measured({key: 211.0}), thresholds={key: "value >= 300"})
    assert find(slow.status.conditions, ConditionType.VALIDATION_FAILED).message.startswith(
        f'Threshold "{key}" violated'
    )


def test_hardware_evidence_is_not_said_to_explain_a_violated_threshold_that_nobody_probed(
    build: Any, conditions: Any
) -> None:
    job, slow = build.started(thresholds={BUS: "value >= 400"}), Measured({BUS: 48.0})
    broken = FailedNode(name="n2", reason=FailedNodeReason.HARDWARE_FAILURE_DETECTED)
    seen = Observed(
        job, workload=build.workload(WorkloadPhase.SUCCEEDED), measured=slow, hardware=(broken,), group=("n1", "n2")
    )
    status = decide(seen, build.at(60)).status
    assert conditions(status)["Attributed"] == ("True", "NodesNamed")
    verdict = find(status.conditions, ConditionType.ATTRIBUTED)
    assert verdict is not None
    assert verdict.message == (
        "Hardware evidence names n2; whether it also explains the violated threshold was not tested "
        "(no node was probed): run again without the named nodes"
    )


def test_a_threshold_edited_into_nonsense_during_the_run_does_not_undo_the_success(build: Any, conditions: Any) -> None:
    decision = succeeded(build, Measured({BUS: 1.0}), thresholds={BUS: "value >"})
    assert conditions(decision.status)["ValidationFailed"] == ("True", "InvalidThresholdExpression")
    assert conditions(decision.status)["Succeeded"] == ("True", "WorkloadCompleted")


class TestASlowRun:
    def violated(self, build: Any) -> Job:
        spec = {"thresholds": {BUS: "value >= 400"}}
        decision = succeeded(build, Measured({BUS: 370.14}), **spec)
        job: Job = build.then(build.started(**spec), decision)
        return job

    def concluded(self, build: Any, progress: ProbeProgress | None, at: float = 120) -> Any:
        seen = Observed(self.violated(build), group=("n1", "n2", "n3"), probes=progress)
        return decide(seen, build.at(at))

    def test_asks_for_probes_and_waits(self, build: Any, conditions: Any) -> None:
        job = self.violated(build)
        assert conditions(job.status)["ValidationFailed"] == ("True", "ThresholdViolated")
        assert conditions(job.status)["Attributed"] == ("Unknown", "Pending")
        assert wants_probes(job)
        assert job.status.failed_nodes == ()
        condition = find(job.status.conditions, "ValidationFailed")
        assert condition is not None
        assert condition.message == 'Threshold "busBandwidthGBps" violated: measured 370.1400, expression: value >= 400'

    def test_names_the_node_that_is_slow_alone(self, build: Any, conditions: Any) -> None:
        results = {"n1": (probe(ProbeVerdict.PASS),), "n2": (probe(ProbeVerdict.SLOW, "241.00"),),
                   "n3": (probe(ProbeVerdict.PASS),)}  # fmt: skip
        decision = self.concluded(build, ProbeProgress(True, results))
        (entry,) = decision.status.failed_nodes
        assert (entry.name, entry.reason.value) == ("n2", "ThresholdViolation")
        assert entry.component is not None
        assert entry.component.kind.value == "NVLink"
        assert entry.evidence[0].source == "probe"
        assert "241.00 GB/s" in entry.message
        assert "Cordon the node; look at nvidia-smi nvlink" in entry.message
        assert conditions(decision.status)["Attributed"] == ("True", "NodesNamed")
        assert not wants_probes(build.then(self.violated(build), decision))

    def test_suspects_the_fabric_when_all_pass_alone(self, build: Any, conditions: Any) -> None:
        results = {name: (probe(ProbeVerdict.PASS),) for name in ("n1", "n2", "n3")}
        decision = self.concluded(build, ProbeProgress(True, results))
        assert conditions(decision.status)["Attributed"] == ("False", "NotNarrowed")
        assert [entry.name for entry in decision.status.failed_nodes] == ["n1", "n2", "n3"]
        assert all("fabric" in entry.message for entry in decision.status.failed_nodes)

    def test_never_calls_an_untested_node_slow(self, build: Any, conditions: Any) -> None:
        busy = probe(ProbeVerdict.NONE, "", ProbeState.NOT_TESTED)
        decision = self.concluded(build, ProbeProgress(True, {"n1": (busy,), "n2": (probe(ProbeVerdict.PASS),)}))
        assert conditions(decision.status)["Attributed"] == ("False", "NotNarrowed")
        assert "not tested: n1" in decision.status.failed_nodes[0].message

    def test_gives_up_waiting_for_probes_after_five_minutes(self, build: Any, conditions: Any) -> None:
        waiting = self.concluded(build, ProbeProgress(False), at=60 + 299)
        assert conditions(waiting.status)["Attributed"] == ("Unknown", "Pending")
        assert waiting.requeue_after <= timedelta(seconds=1)
        given_up = self.concluded(build, ProbeProgress(False), at=60 + 300)
        assert conditions(given_up.status)["Attributed"] == ("False", "NotNarrowed")


def failed_with(build: Any, nodes: dict[str, NodeFacts], at: float, *, log: Origin | None = Origin.NONE) -> Any:
    job = build.started()
    pods = (build.pod("a", node="n1", code=1, log=log),)
    ended = decide(Observed(job, workload=build.workload(WorkloadPhase.FAILED)), build.at(60))
    job = build.then(job, ended)
    return decide(Observed(job, pods=pods, group=("n1", "n2"), nodes=nodes), build.at(at))


class TestTheVerdictOfAFailureWaits:
    def test_for_the_agents_to_confirm_everything_up_to_the_end(self, build: Any, conditions: Any) -> None:
        behind = {"n1": NodeFacts(AgentState.CONNECTED, build.at(50)), "n2": NodeFacts(AgentState.CONNECTED)}
        decision = failed_with(build, behind, 65)
        assert conditions(decision.status)["Attributed"] == ("Unknown", "Pending")
        assert decision.status.failed_nodes == ()
        assert decision.actions == (Action.REQUEST_CONFIRMATIONS,)
        assert decision.unconfirmed == ("n1", "n2")
        done = {name: NodeFacts(AgentState.CONNECTED, build.at(61)) for name in ("n1", "n2")}
        assert conditions(failed_with(build, done, 65).status)["Attributed"] == ("True", "NodesNamed")

    def test_at_most_15_seconds(self, build: Any, conditions: Any) -> None:
        behind = {"n1": NodeFacts(AgentState.CONNECTED, build.at(50))}
        assert conditions(failed_with(build, behind, 74.9).status)["Attributed"][0] == "Unknown"
        assert conditions(failed_with(build, behind, 75).status)["Attributed"][0] == "True"

    def test_not_for_nodes_that_never_had_an_agent(self, build: Any, conditions: Any) -> None:
        decision = failed_with(build, {"n1": NodeFacts(), "n2": NodeFacts()}, 62)
        assert conditions(decision.status)["Attributed"] == ("True", "NodesNamed")

    def test_two_seconds_for_exits_that_belong_together_and_for_their_logs(self, build: Any, conditions: Any) -> None:
        assert conditions(failed_with(build, {}, 61.9).status)["Attributed"][0] == "Unknown"
        assert conditions(failed_with(build, {}, 62, log=None).status)["Attributed"][0] == "Unknown"
        assert conditions(failed_with(build, {}, 75, log=None).status)["Attributed"][0] == "True"

    def test_for_agents_to_come_back_after_a_restart_of_the_coordinator(self, build: Any, conditions: Any) -> None:
        job = build.started()
        job = build.then(job, decide(Observed(job, workload=build.workload(WorkloadPhase.FAILED)), build.at(60)))
        nodes = {"n1": NodeFacts(AgentState.SILENT)}
        soon = Observed(job, group=("n1",), nodes=nodes, observing_since=build.at(1000))
        assert conditions(decide(soon, build.at(1010)).status)["Attributed"][0] == "Unknown"
        assert conditions(decide(soon, build.at(1015)).status)["Attributed"][0] == "True"

    def test_until_a_silent_node_s_lease_can_be_judged(self, build: Any, conditions: Any) -> None:
        watched = LeaseWatch(build.at(58), build.at(60), build.at(60))
        silent = {"n2": NodeFacts(AgentState.SILENT, lease=watched.seen(build.at(58), build.at(76)))}
        assert conditions(failed_with(build, silent, 76).status)["Attributed"][0] == "Unknown"
        silent = {"n2": NodeFacts(AgentState.SILENT, lease=watched.seen(build.at(58), build.at(80)))}
        dead = failed_with(build, silent, 80)
        assert [(e.name, e.component.kind.value) for e in dead.status.failed_nodes] == [("n2", "Node")]
        alive = {"n2": NodeFacts(AgentState.SILENT, lease=watched.seen(build.at(64), build.at(78)))}
        assert [e.name for e in failed_with(build, alive, 78).status.failed_nodes] == ["n1"]


class TestAStalledRun:
    """Its pods still run: the ends of their logs are read after it was found to have stalled."""

    def concluded(self, build: Any, ends: dict[str, LogEnd] | None, at: float, **seen: Any) -> Any:
        job = build.started()
        stamp = Stamp(build.at(60), 3)
        failed = execution(job.status.conditions, ConditionType.FAILED, Reason.WORKLOAD_STALLED, "no step", stamp)
        job = msgspec.structs.replace(job, status=msgspec.structs.replace(job.status, conditions=failed))
        pods = tuple(build.pod(f"r{rank}", node=f"n{rank}", rank=rank) for rank in range(3))
        group = ("n0", "n1", "n2")
        return decide(Observed(job, pods=pods, group=group, live_pods=3, log_ends=ends, **seen), build.at(at))

    def test_is_not_judged_before_its_logs_are_read(self, build: Any, conditions: Any) -> None:
        pending = self.concluded(build, None, 70)
        assert conditions(pending.status)["Attributed"] == ("Unknown", "Pending")
        assert pending.requeue_after is not None

    def test_names_the_rank_that_stopped_first_and_has_no_log_of_a_failure(self, build: Any, conditions: Any) -> None:
        ends = {f"uid-r{rank}": LogEnd(step, build.at(50)) for rank, step in enumerate((9, 8, 9))}
        found = self.concluded(build, ends, 70).status
        assert conditions(found)["Attributed"] == ("True", "NodesNamed")
        assert [entry.name for entry in found.failed_nodes] == ["n1"]
        assert found.failure_log is not None
        assert found.failure_log.reason == "NoTerminatedContainer"

    def test_whose_logs_never_come_is_the_whole_group_s(self, build: Any, conditions: Any) -> None:
        found = self.concluded(build, None, 105)
        assert conditions(found.status)["Attributed"] == ("False", "NotNarrowed")
        assert [entry.name for entry in found.status.failed_nodes] == ["n0", "n1", "n2"]

    def test_a_new_coordinator_gets_the_time_to_read_them_again(self, build: Any, conditions: Any) -> None:
        again = self.concluded(build, None, 1010, observing_since=build.at(1000))
        assert conditions(again.status)["Attributed"] == ("Unknown", "Pending")


def test_a_deleted_workload_blames_nobody(build: Any, conditions: Any) -> None:
    job = build.started()
    pods = (build.pod("a", node="n1", code=143), build.pod("b", node="n2", code=137))
    job = build.then(job, decide(Observed(job, workload=Gone(build.title)), build.at(60)))
    # The workload of a terminal Job is not looked at any more.
    decision = decide(Observed(job, workload=None, pods=pods, group=("n1", "n2")), build.at(63))
    assert conditions(decision.status)["Attributed"] == ("True", "NothingToAttribute")
    assert decision.status.failed_nodes == ()


DAY = 86_400


def test_a_clock_that_was_set_back_by_a_day_makes_nobody_wait_for_a_day(build: Any, conditions: Any) -> None:
    failed = failed_with(build, {"n1": NodeFacts(AgentState.SILENT)}, 60)
    job = build.then(build.started(), failed)
    seen = Observed(
        job, group=("n1", "n2"), nodes={"n1": NodeFacts(AgentState.SILENT)}, observing_since=build.at(61 - DAY)
    )
    decision = decide(seen, build.at(61 - DAY))  # the next leader, whose clock is right
    assert conditions(decision.status)["Attributed"] == ("Unknown", "Pending")
    assert decision.requeue_after <= timedelta(seconds=1)
    assert conditions(decide(seen, build.at(95 - DAY)).status)["Attributed"][0] == "False"


def test_values_are_not_waited_for_until_a_clock_that_was_set_back_comes_round(build: Any, conditions: Any) -> None:
    job = build.started(thresholds={BUS: "value >= 300"})
    job = build.then(job, succeeded(build, job=job))
    lost = succeeded(build, job=job, at=60 - DAY)
    assert conditions(lost.status)["ValidationFailed"] == ("True", "MeasurementTimeout")
