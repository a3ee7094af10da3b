"""Whatever happens in whatever order, and wherever the coordinator dies: the promises of a Job's status hold.

A run is a list of observations; a crash forgets everything but the stored status.  Writes may be lost too.
"""

from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nvcre_coordinator.api.conditions import ConditionStatus, ConditionType, find, is_true
from nvcre_coordinator.api.job import Component, Evidence, FailedNode, FailedNodeReason, Job, JobStatus
from nvcre_coordinator.core import limits
from nvcre_coordinator.core.attribution import AgentState, LeaseWatch, NodeFacts
from nvcre_coordinator.core.conditions import TRIO, flips
from nvcre_coordinator.core.failure_lines import Origin
from nvcre_coordinator.core.job_lifecycle import created, decide
from nvcre_coordinator.core.localisation import ProbeKind, ProbeResult, ProbeState, ProbeVerdict
from nvcre_coordinator.core.observed import Action, Gone, Measured, Observed, ProbeProgress, Workload, WorkloadPhase
from nvcre_coordinator.workloads.trainjob import TrainJobAdapter
from nvcre_protos.vocabulary import ComponentKind

TITLE = "TrainJob/run-workload"
NODES = ("n0", "n1", "n2")
MOST_RESTARTS = 2
RESTARTS: dict[str, Any] = {"stallMultiplier": 2, "checkpoint": {"pvcName": "data", "maxRestarts": MOST_RESTARTS}}

workloads = st.one_of(
    st.none(),
    st.just(Gone(TITLE)),
    st.builds(Workload, st.just(TITLE), st.sampled_from(WorkloadPhase), st.text(max_size=5)),
)
step = st.fixed_dictionaries(
    {
        "workload": workloads,
        "passes": st.floats(-100, 400),  # clocks are set back, too
        "unschedulable": st.one_of(st.none(), st.just("0/3 nodes are available")),
        "progress": st.one_of(st.none(), st.floats(-10_000, 10_000)),
        "hardware": st.sets(st.sampled_from(NODES), max_size=2),
        "crashed": st.sets(st.sampled_from(NODES)),
        "confirmed": st.booleans(),
        "agent": st.sampled_from(AgentState),
        "measured": st.one_of(st.none(), st.floats(0, 1000)),
        "probed": st.one_of(st.none(), st.booleans()),
        "slow": st.sampled_from(NODES),
        "write_lost": st.booleans(),
        "created": st.booleans(),
    }
)


def observe(build: Any, job: Job, taken: dict[str, Any], at: float) -> Observed:
    evidence = (Evidence("nvml", "Xid 79", build.at(at), 79),)
    probes = {
        node: (
            ProbeResult(probe_id=node, kind=ProbeKind.NVLINK_ALL_REDUCE, state=ProbeState.MEASURED,
                        verdict=ProbeVerdict.SLOW if node == taken["slow"] else ProbeVerdict.PASS),
        )
        for node in NODES
    }  # fmt: skip
    return Observed(
        job,
        workload=taken["workload"],
        pods=tuple(
            build.pod(f"p{index}", node=node, rank=index, code=1 if node in taken["crashed"] else None, log=Origin.OWN)
            for index, node in enumerate(NODES)
        ),
        group=NODES,
        nodes={
            node: NodeFacts(taken["agent"], build.at(at + 5) if taken["confirmed"] else None)
            if taken["agent"] is AgentState.CONNECTED
            else NodeFacts(taken["agent"], lease=LeaseWatch(build.at(at), build.at(at), build.at(at)))
            for node in NODES
        },
        hardware=tuple(
            FailedNode(
                node, FailedNodeReason.HARDWARE_FAILURE_DETECTED, "Xid 79", Component(ComponentKind.GPU, 1), evidence
            )
            for node in sorted(taken["hardware"])
        ),
        measured=Measured({} if taken["measured"] is None else {"busBandwidthGBps": taken["measured"]}),
        unschedulable=taken["unschedulable"],
        goodputs=()
        if taken["progress"] is None
        else (build.goodput(lastStepTimestamp=taken["progress"], avgStepTimeSec="1", lastCheckpointStep=7),),
        probes=None if taken["probed"] is None else ProbeProgress(taken["probed"], probes if taken["probed"] else {}),
    )


def check(before: JobStatus, after: JobStatus) -> None:
    if after.conditions:
        trio = [c for c in after.conditions if c.type in TRIO]
        if trio:
            assert [c.status for c in trio].count(ConditionStatus.TRUE) == 1
    if before.terminal:
        assert [find(after.conditions, kind) for kind in TRIO] == [find(before.conditions, kind) for kind in TRIO]
    assert {(e.name, e.reason) for e in before.failed_nodes} <= {(e.name, e.reason) for e in after.failed_nodes}
    keys = [(e.name, e.reason) for e in after.failed_nodes]
    assert keys == sorted(set(keys))
    if is_true(before.conditions, ConditionType.HARDWARE_FAILED):
        assert is_true(after.conditions, ConditionType.HARDWARE_FAILED)
    old = find(before.conditions, ConditionType.ATTRIBUTED)
    new = find(after.conditions, ConditionType.ATTRIBUTED)
    if old is not None and old.status is not ConditionStatus.UNKNOWN:
        assert new is not None
        assert new.status is not ConditionStatus.UNKNOWN
        reasons = {FailedNodeReason.WORKLOAD_FAILED, FailedNodeReason.THRESHOLD_VIOLATION}
        assert [e for e in after.failed_nodes if e.reason in reasons] == [
            e for e in before.failed_nodes if e.reason in reasons
        ]
    for condition in after.conditions:
        known = find(before.conditions, condition.type)
        if known is not None and known.status is condition.status:
            assert condition.last_transition_time == known.last_transition_time
    assert (before.restart_count or 0) <= (after.restart_count or 0) <= MOST_RESTARTS
    assert limits.status_bytes(after) <= limits.STATUS_BYTES
    kinds = [event.reason for event in flips(before.conditions, after.conditions)]
    assert len(kinds) == len(set(kinds))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(step, max_size=12))
def test_promises_hold_in_any_order_of_events_and_over_any_crash(build: Any, steps: list[dict[str, Any]]) -> None:
    job, at = build.job(thresholds={"busBandwidthGBps": "value >= 300"}, **RESTARTS), 0.0
    for taken in steps:
        at += taken["passes"]
        decision = decide(observe(build, job, taken, at), build.at(at))
        check(job.status, decision.status)
        if taken["write_lost"]:
            continue  # a conflict or a crash: decided anew from what is stored
        job = build.then(job, decision)
        if Action.CREATE_WORKLOAD in decision.actions and taken["created"]:
            status = created(job, TrainJobAdapter().reference(job), build.at(at), adopted=False)
            check(job.status, status)
            job = msgspec.structs.replace(job, status=status)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(step, min_size=1, max_size=8))
def test_deciding_twice_on_the_same_observation_changes_nothing_more(build: Any, steps: list[dict[str, Any]]) -> None:
    job, at = build.started(**RESTARTS), 0.0
    for taken in steps:
        at += taken["passes"]
        decision = decide(observe(build, job, taken, at), build.at(at))
        job = build.then(job, decision)
        assert decide(observe(build, job, taken, at), build.at(at)).status == decision.status
