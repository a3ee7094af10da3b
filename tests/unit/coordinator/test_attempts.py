"""One Job over all its workloads: a small API server, a hostile world, and a coordinator that may die at any point.

The world does what it likes with the one workload and its pods; the coordinator observes, decides, writes and acts as
controllers/job.py does.  Writes get lost, actions are never carried out, creations are refused or not recorded, clocks
jump.  Never are there two workloads, nor one beside the pods of its predecessor.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from nvcre_coordinator.api.conditions import ConditionStatus, ConditionType, find
from nvcre_coordinator.api.job import Job, JobStatus
from nvcre_coordinator.core.conditions import TRIO, flips
from nvcre_coordinator.core.job_lifecycle import created, decide, not_created
from nvcre_coordinator.core.observed import Action, Decision, Gone, Observed, Workload, WorkloadPhase
from nvcre_coordinator.core.pods import PodRecord, RunRecord, end_attempt, remember
from nvcre_coordinator.core.restart import DRAIN_LIMIT
from nvcre_coordinator.workloads.trainjob import TrainJobAdapter

from .conftest import TITLE, Builders

MOST_RESTARTS = 2
build = Builders()


@dataclass
class ApiServer:
    """The stored objects: the Job's status, at most one workload of its name, its pods, its measurement."""

    status: JobStatus = field(default_factory=JobStatus)
    workload: Workload | None = None
    pods: dict[str, PodRecord] = field(default_factory=dict)
    attempts: dict[str, set[int]] = field(default_factory=dict)  # node -> numbers of the restarts that ran on it
    measured: dict[str, Any] = field(default_factory=lambda: {"lastCheckpointStep": 5})
    made: int = 0

    @property
    def living(self) -> list[str]:
        return [uid for uid, pod in self.pods.items() if not pod.finished]


class Attempts(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.api = ApiServer()
        self.run = RunRecord()
        self.at = 0.0
        self.events: Counter[str] = Counter()
        self.unschedulable = False

    # What the world does

    @rule(seconds=st.floats(-20, 100))
    def time_passes(self, seconds: float) -> None:
        self.at += seconds

    @precondition(lambda self: self.api.workload is not None)
    @rule(phase=st.sampled_from([*WorkloadPhase, WorkloadPhase.RUNNING, WorkloadPhase.FAILED]))
    def workload_changes(self, phase: WorkloadPhase) -> None:
        """Suspended and resumed by a queue, failed, complete: the latter two are for good."""
        assert self.api.workload is not None
        if self.api.workload.phase not in (WorkloadPhase.FAILED, WorkloadPhase.SUCCEEDED):
            self.api.workload = replace(self.api.workload, phase=phase)

    @precondition(lambda self: self.api.workload is not None)
    @rule()
    def workload_vanishes(self) -> None:
        self.api.workload = None

    @precondition(lambda self: self.api.workload is not None and self.api.workload.phase is WorkloadPhase.RUNNING)
    @rule()
    def pod_starts(self) -> None:
        assert self.api.workload is not None
        self.api.made += 1
        pod = build.pod(f"p{self.api.made}", node=f"n{self.api.made % 5}", rank=self.api.made)
        self.api.pods[pod.uid] = pod
        self.api.attempts.setdefault(pod.node, set()).add(self.api.workload.restart)

    @precondition(lambda self: self.api.living)
    @rule(data=st.data(), code=st.sampled_from([0, 1, 137, 143]))
    def pod_ends(self, data: st.DataObject, code: int) -> None:
        uid = data.draw(st.sampled_from(self.api.living))
        old = self.api.pods[uid]
        self.api.pods[uid] = build.pod(old.name, node=old.node, rank=old.rank, code=code, ended=self.at)

    @rule(measured=st.fixed_dictionaries({}, optional={
        "lastStepTimestamp": st.floats(-1000, 1000), "avgStepTimeSec": st.sampled_from(["1", "nan", ""]),
        "startTime": st.floats(-1000, 1000),
    }))  # fmt: skip
    def progress_is_measured(self, measured: dict[str, Any]) -> None:
        self.api.measured = {**measured, "lastCheckpointStep": self.api.measured["lastCheckpointStep"] + 1}

    @rule(unschedulable=st.booleans())
    def scheduler_speaks(self, unschedulable: bool) -> None:
        self.unschedulable = unschedulable

    # What the coordinator does

    @rule(times=st.integers(1, 3))
    def coordinator_reconciles(self, times: int) -> None:
        for _ in range(times):
            self.reconcile("all", knows=True)

    @rule(
        acts=st.sampled_from(["write lost", "dies before acting", "creation not recorded", "creation refused"]),
        knows=st.booleans(),
    )
    def coordinator_is_hit(self, acts: str, knows: bool) -> None:
        self.reconcile(acts, knows)

    def reconcile(self, acts: str, knows: bool) -> None:
        self.run = remember(self.run, self.api.pods.values(), {})
        decision = decide(self.observe(knows), build.at(self.at))
        if acts == "write lost":
            return
        self.store(decision.status)
        if acts != "dies before acting":
            self.act(decision, acts)

    @property
    def job(self) -> Job:
        spec = {"stallMultiplier": 2, "checkpoint": {"pvcName": "data", "maxRestarts": MOST_RESTARTS}}
        return msgspec.structs.replace(build.job(**spec), status=self.api.status)

    def observe(self, knows: bool) -> Observed:
        status = self.api.status
        looks = knows and not status.terminal and (status.workload_ref is not None or bool(status.restart_count))
        pods = tuple(pod for pod in self.run.pods.values() if not pod.over)
        return Observed(
            self.job,
            workload=(self.api.workload or Gone(TITLE)) if looks else None,
            pods=pods,
            live_pods=len(self.api.living),
            unschedulable="0/3 nodes are available" if self.unschedulable else None,
            group=tuple(sorted({pod.node for pod in pods})),
            goodputs=(build.goodput("1s", **self.api.measured),),
        )

    def store(self, status: JobStatus) -> None:
        before, self.api.status = self.api.status, status
        self.events.update(event.reason for event in flips(before.conditions, status.conditions))
        if before.terminal:
            assert [find(status.conditions, kind) for kind in TRIO] == [find(before.conditions, kind) for kind in TRIO]
        known = {(entry.name, entry.reason) for entry in before.failed_nodes}
        assert known <= {(entry.name, entry.reason) for entry in status.failed_nodes}
        assert (before.restart_count or 0) <= (status.restart_count or 0)

    def act(self, decision: Decision, how: str) -> None:
        if {Action.END_ATTEMPT, Action.DROP_ENDED_PODS} & set(decision.actions):
            kept = set(self.api.living) if Action.DROP_ENDED_PODS in decision.actions else set()
            self.run = end_attempt(self.run, kept=kept, dropped=set(self.api.pods) - kept)
        if decision.progress_reset is not None:
            self.api.measured = {"lastCheckpointStep": self.api.measured["lastCheckpointStep"]}
        if Action.DELETE_WORKLOAD in decision.actions and self.api.workload is not None:
            assert self.api.workload.uid == decision.doomed
            self.api.workload = None
        if Action.CREATE_WORKLOAD in decision.actions:
            self.create(how)

    def create(self, how: str) -> None:
        job, now = self.job, build.at(self.at)
        restarts = job.status.restart_count or 0
        adopted = self.api.workload is not None
        if self.api.workload is not None:
            assert self.api.workload.restart == restarts, "the workload of an earlier attempt is still there"
        elif how == "creation refused":
            self.store(not_created(job, TITLE, "denied by a webhook", now))
            return
        else:
            waited = now - (job.status.last_restart_time or now)
            assert not restarts or not self.api.living or waited >= DRAIN_LIMIT, "pods of an earlier attempt still run"
            self.api.made += 1
            self.api.workload = Workload(TITLE, WorkloadPhase.RUNNING, uid=f"w{self.api.made}", restart=restarts)
        if how != "creation not recorded":
            self.store(created(job, TrainJobAdapter().reference(job), now, adopted=adopted))

    # What always holds

    @invariant()
    def one_of_the_trio_is_true(self) -> None:
        trio = [condition.status for condition in self.api.status.conditions if condition.type in TRIO]
        assert not trio or trio.count(ConditionStatus.TRUE) == 1

    @invariant()
    def the_budget_of_restarts_is_kept(self) -> None:
        assert (self.api.status.restart_count or 0) <= MOST_RESTARTS

    @invariant()
    def a_flip_is_told_once(self) -> None:
        ends = ("WorkloadCompleted", "WorkloadFailed", "WorkloadStalled")
        assert sum(self.events[reason] for reason in ends) <= 1

    @invariant()
    def nobody_is_blamed_before_the_end_nor_for_an_earlier_attempt(self) -> None:
        status = self.api.status
        failed = find(status.conditions, ConditionType.FAILED)
        if failed is None or failed.status is not ConditionStatus.TRUE:
            assert (status.failed_nodes, status.failure_log) == ((), None)
        for entry in status.failed_nodes:
            assert (status.restart_count or 0) in self.api.attempts[entry.name]

    @invariant()
    def a_job_without_a_workload_has_no_clock(self) -> None:
        status = self.api.status
        if status.workload_ref is None:
            assert (status.workload_start_time, status.scheduling_blocked_since, status.scheduling_resumed_time) == (
                None, None, None,
            )  # fmt: skip


TestAttempts = Attempts.TestCase
TestAttempts.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
