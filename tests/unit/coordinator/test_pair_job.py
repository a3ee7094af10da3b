"""The Job that tests a pair of nodes: how it is built, when it gives up, and what its end says."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from nvcre_coordinator.api.job import Job, SlowNodeSearch
from nvcre_coordinator.api.meta import from_json
from nvcre_coordinator.api.workload import node_from_json
from nvcre_coordinator.controllers.caches import Cached, Caches
from nvcre_coordinator.controllers.job_actions import JobActions
from nvcre_coordinator.controllers.pair_observation import PairObserver
from nvcre_coordinator.core.job_conclusion import wants_pairs
from nvcre_coordinator.core.job_lifecycle import decide
from nvcre_coordinator.core.localisation import ProbeKind, ProbeResult, ProbeState, ProbeVerdict
from nvcre_coordinator.core.node_health import NodeHealth
from nvcre_coordinator.core.observed import Action, Decision, Gone, Measured, Observed, ProbeProgress, WorkloadPhase
from nvcre_coordinator.core.pair_job import PLACED, deadline, pair_run
from nvcre_coordinator.core.pair_rounds import PairState
from nvcre_coordinator.core.pair_search import PairSearch, PlannedPair, Round
from nvcre_coordinator.workloads.pair_job import pair_job
from nvcre_coordinator.workloads.trainjob import TrainJobAdapter
from nvcre_kube.client import ApiError

BUS = "busBandwidthGBps"
SPEC: dict[str, Any] = {
    "thresholds": {BUS: "value >= 300", "algBandwidthGBps": "value > 1"},
    "bandwidthMeasurement": {"logProfileRef": "nccl-bandwidth"},
    "slowNodeSearch": "NodePairs",
}
PLANNED = PlannedPair(Round.SECOND, ("n1", "n2"))


def built(build: Any, **train_job: Any) -> dict[str, Any]:
    spec = {"workload": {"trainJob": {"runtimeRef": {"name": "any"}, **train_job}}}
    job = build.job(**SPEC, **spec, workloadMetadata={"labels": {"kueue.x-k8s.io/queue-name": "q"}})
    return pair_job(job, PLANNED, ("node",), timedelta(minutes=9))


def child(build: Any, *conditions: tuple[str, str, str, str]) -> Job:
    obj = built(build)
    at = build.at(0).isoformat()
    obj["metadata"] |= {"uid": "child-uid", "creationTimestamp": at, "finalizers": ["nvcre.nvidia.com/finalizer"]}
    obj["status"] = {
        "conditions": [
            {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}
            for kind, status, reason, message in conditions
        ]
    }
    return from_json(obj, Job)


# How it is built


def test_a_pair_is_the_run_s_own_workload_on_two_nodes_judged_by_its_bus_bandwidth_alone(build: Any) -> None:
    theirs = {"manager": "team", "trainingRuntimeSpec": {}}
    obj = built(build, trainer={"numNodes": 8, "image": "nccl"}, runtimePatches=[theirs], activeDeadlineSeconds=60)
    job = from_json(obj, Job)
    train_job = obj["spec"]["workload"]["trainJob"]
    assert train_job["trainer"] == {"numNodes": 2, "image": "nccl"}
    assert train_job["activeDeadlineSeconds"] == 60
    assert train_job["runtimePatches"][0] == theirs
    assert job.spec.thresholds == {BUS: "value >= 300"}
    assert job.spec.slow_node_search is SlowNodeSearch.OFF
    assert obj["spec"]["workloadMetadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "q"}
    assert job.searching_job is not None
    assert (job.searching_job.name, job.searching_job.uid) == ("run", "job-uid")
    assert pair_run(job, None, "value >= 300") is not None
    assert pair_job(build.job(**SPEC), PLANNED, ("node",), timedelta(1))["metadata"]["name"] == job.metadata.name


def test_its_pods_with_gpus_are_pinned_one_on_each_of_the_nodes(build: Any) -> None:
    patch = built(build)["spec"]["workload"]["trainJob"]["runtimePatches"][-1]
    (pinned,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    affinity = pinned["template"]["spec"]["template"]["spec"]["affinity"]
    terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [term["matchFields"][0]["values"] for term in terms] == [["n1"], ["n2"]]  # a real server takes one a term
    (apart,) = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"


@pytest.mark.parametrize(("reason", "told"), [("AlreadyExists", []), ("Forbidden", ["PairCreationError"])])
async def test_a_pair_that_the_server_refuses_is_told_and_tried_again(build: Any, reason: str, told: list[str]) -> None:
    class Server:
        async def create(self, *args: Any) -> None:
            raise ApiError(409 if reason == "AlreadyExists" else 403, reason, "exceeded quota: gpu")

    heard: list[str] = []
    events = SimpleNamespace(record=lambda job, **event: heard.append(event["reason"]))
    actions = JobActions(Server(), TrainJobAdapter(), events, None, None)  # type: ignore[arg-type]
    job = build.job(**SPEC)
    decision = Decision(job.status, start_pairs=(PLANNED,), pair_gpu_jobs=("node",))
    with pytest.raises(ApiError) if told else nullcontext():
        await actions.carry_out(Cached({"metadata": {"name": "run", "namespace": "team"}}, job), decision)
    assert heard == told


# When it gives up


def observed(build: Any, phase: WorkloadPhase = WorkloadPhase.RUNNING, **seen: Any) -> Observed:
    job = child(build)
    job = msgspec.structs.replace(
        job, status=msgspec.structs.replace(job.status, workload_ref=TrainJobAdapter().reference(job))
    )
    return Observed(job, workload=build.workload(phase, "queued"), **seen)


@pytest.mark.parametrize(
    ("phase", "seen", "message"),
    [
        (WorkloadPhase.RUNNING, {"unschedulable": "0/4 nodes"}, "not placed within 2m0s: 0/4 nodes"),
        (WorkloadPhase.PENDING, {}, "not placed within 2m0s: queued"),
        (WorkloadPhase.RUNNING, {}, "not placed within 2m0s: queued"),  # no pod was ever made
    ],
)
def test_a_pair_that_finds_no_place_gives_up_and_takes_its_workload_with_it(
    build: Any, conditions: Any, phase: WorkloadPhase, seen: dict[str, Any], message: str
) -> None:
    here = observed(build, phase, **seen)
    early = decide(here, build.at(PLACED.total_seconds() - 1))
    assert "PairGivenUp" not in str(early.status)
    late = decide(here, build.at(PLACED.total_seconds()))
    assert conditions(late.status)["Failed"] == ("True", "PairGivenUp")
    assert next(one for one in late.status.conditions if one.type == "Failed").message == message
    assert (Action.DELETE_WORKLOAD in late.actions, late.doomed) == (True, "workload-uid-0")
    again = decide(
        Observed(build.then(here.job, late), workload=build.workload()), build.at(130)
    )  # the write came, the deletion did not
    assert Action.DELETE_WORKLOAD in again.actions
    gone = decide(Observed(build.then(here.job, late), workload=Gone(build.title)), build.at(130))
    assert Action.DELETE_WORKLOAD not in gone.actions


def test_a_pair_that_runs_goes_on_until_nobody_waits_for_it(build: Any, conditions: Any) -> None:
    pods = (build.pod("p", node="n1"),)
    assert conditions(decide(observed(build, pods=pods), build.at(600)).status)["InProgress"][0] == "True"
    over = decide(observed(build, pods=pods, search_over=True), build.at(1))
    assert conditions(over.status)["Failed"] == ("True", "PairGivenUp")
    assert Action.DELETE_WORKLOAD in over.actions


def test_another_job_waits_for_its_place_as_long_as_it_takes(build: Any, conditions: Any) -> None:
    here = Observed(build.started(), workload=build.workload(), unschedulable="0/4 nodes")
    assert conditions(decide(here, build.at(100_000)).status)["InProgress"][0] == "True"


def test_a_pair_gets_the_time_that_the_run_took_twice_over(build: Any) -> None:
    assert deadline(timedelta(minutes=10)) == timedelta(minutes=27)
    assert deadline(timedelta(minutes=-10)) == timedelta(minutes=7)  # a clock was set back


def test_a_pair_whose_pods_came_to_another_node_says_nothing_about_its_own(build: Any, conditions: Any) -> None:
    pods = (build.pod("p", node="n1"), build.pod("q", node="n9", rank=1), build.pod("l", node="n7", role="launcher"))
    ended = decide(observed(build, WorkloadPhase.SUCCEEDED, pods=pods, measured=Measured({BUS: 48.0})), build.at(30))
    assert conditions(ended.status)["Failed"] == ("True", "PairGivenUp")
    message = next(one for one in ended.status.conditions if one.type == "Failed").message
    assert message == "its pods are on n9, not on n1 and n2 as asked for"


# What its end says

DONE = ("Attributed", "True", "NothingToAttribute", "")


@pytest.mark.parametrize(
    ("conditions", "state", "blocker"),
    [
        ([], None, ""),
        ([("Attributed", "Unknown", "Pending", "")], None, ""),
        ([("ValidationFailed", "False", "ThresholdsMet", ""), DONE], PairState.FAST, ""),
        ([("ValidationFailed", "True", "ThresholdViolated", "too low"), DONE], PairState.SLOW, ""),
        ([("ValidationFailed", "True", "MeasurementTimeout", "no log"), DONE], PairState.NOT_TESTED, "no log"),
        ([("Failed", "True", "PairGivenUp", "not placed"), DONE], PairState.NOT_TESTED, "not placed"),
        ([("ValidationFailed", "False", "ThresholdsMet", ""), ("HardwareFailed", "True", "X", "GPU 3 of n1"), DONE],
         PairState.NOT_TESTED, "GPU 3 of n1"),
        ([("Succeeded", "True", "WorkloadCompleted", ""), DONE], PairState.NOT_TESTED, "it was not judged"),
    ],
)  # fmt: skip
def test_only_a_judged_threshold_makes_a_pair_fast_or_slow(
    build: Any, conditions: list[tuple[str, str, str, str]], state: PairState | None, blocker: str
) -> None:
    job = child(build, *conditions)
    run = pair_run(job, 48.0, "value >= 300")
    assert run is not None
    assert (run.round, run.pair, run.state) == (Round.SECOND, ("n1", "n2"), state)
    assert run.blocker == (f"{blocker} (Job {job.metadata.name})" if blocker else "")


@pytest.mark.parametrize("edited", ["pair", "slow Job"])
def test_a_pair_that_was_judged_by_another_threshold_is_neither_fast_nor_slow(build: Any, edited: str) -> None:
    job = child(build, ("ValidationFailed", "True", "ThresholdViolated", "too low"), DONE)
    if edited == "pair":
        thresholds = {BUS: "value >= 300", "algBandwidthGBps": "value > 1000"}
        job = msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, thresholds=thresholds))
    run = pair_run(job, 48.0, "value >= 300" if edited == "pair" else "value >= 10")
    assert run is not None
    assert (run.state, "judged by another threshold" in run.blocker) == (PairState.NOT_TESTED, True)


def test_a_slow_or_failed_pair_names_neither_of_its_nodes(build: Any, conditions: Any) -> None:
    here = observed(build, WorkloadPhase.SUCCEEDED, measured=Measured({BUS: 48.0}), group=("n1", "n2"))
    slow = decide(here, build.at(30))
    assert conditions(slow.status)["ValidationFailed"] == ("True", "ThresholdViolated")
    assert (conditions(slow.status)["Attributed"], slow.status.failed_nodes) == (("False", "NotNarrowed"), ())
    pods = (build.pod("p", node="n1", code=1),)
    failed = decide(observed(build, WorkloadPhase.FAILED, pods=pods, group=("n1", "n2")), build.at(30))
    ended = decide(Observed(build.then(observed(build).job, failed), pods=pods, group=("n1", "n2")), build.at(60))
    assert (conditions(ended.status)["Attributed"], ended.status.failed_nodes) == (("False", "NotNarrowed"), ())


# The Job that searches

PASS = ProbeProgress(
    True,
    {
        node: (ProbeResult(probe_id="p", kind=ProbeKind.NVLINK_ALL_REDUCE, state=ProbeState.MEASURED,
                           verdict=ProbeVerdict.PASS),)
        for node in ("n1", "n2", "n3", "n4")
    },
)  # fmt: skip


class TestASlowRun:
    def judged(self, build: Any, **spec: Any) -> Job:
        job = build.started(**{**SPEC, **spec})
        seen = Observed(
            job, workload=build.workload(WorkloadPhase.SUCCEEDED), group=("n1", "n2"),
            measured=Measured({BUS: 48.0, "algBandwidthGBps": 25.0}),
        )  # fmt: skip
        return build.then(job, decide(seen, build.at(60)))  # type: ignore[no-any-return]

    def decided(self, build: Any, job: Job, pairs: PairSearch | None, at: float = 90) -> Any:
        return decide(Observed(job, group=("n1", "n2", "n3", "n4"), probes=PASS, pairs=pairs), build.at(at))

    def test_asks_for_pairs_when_the_probes_name_nobody_and_waits_for_them(self, build: Any, conditions: Any) -> None:
        search = PairSearch(("n1", "n2", "n3", "n4"), gpu_jobs=("node",))
        decision = self.decided(build, self.judged(build), search)
        assert [planned.pair for planned in decision.start_pairs] == [("n1", "n2"), ("n3", "n4")]
        assert decision.pair_gpu_jobs == ("node",)
        assert conditions(decision.status)["Attributed"] == ("Unknown", "Pending")
        message = next(one for one in decision.status.conditions if one.type == "Attributed").message
        assert message == "Waiting for Jobs that test pairs of nodes; they have the label nvcre.nvidia.com/pair-of=run"

    def test_does_not_wait_for_ever(self, build: Any, conditions: Any) -> None:
        decision = self.decided(build, self.judged(build), PairSearch(("n1", "n2", "n3", "n4")), at=60 + 3600)
        assert (conditions(decision.status)["Attributed"], decision.start_pairs) == (("False", "NotNarrowed"), ())
        message = next(one for one in decision.status.conditions if one.type == "Attributed").message
        assert "n1 and n2: the search ran out of time" in message

    def test_waits_longer_where_not_all_pairs_run_at_once(self, build: Any, conditions: Any) -> None:
        search = PairSearch(tuple(f"n{number:04d}" for number in range(1000)))
        decision = self.decided(build, self.judged(build), search, at=60 + 3600)
        assert conditions(decision.status)["Attributed"] == ("Unknown", "Pending")

    def test_that_tests_a_pair_itself_is_not_searched(self, build: Any) -> None:
        job, measured = self.judged(build), Measured({BUS: 48.0})
        assert wants_pairs(job, measured)
        meta = child(build).metadata
        assert not wants_pairs(msgspec.structs.replace(job, metadata=meta), measured)
        of_workflow = tuple(msgspec.structs.replace(owner, kind="Workflow") for owner in meta.owner_references)
        meta = msgspec.structs.replace(meta, owner_references=of_workflow)
        assert msgspec.structs.replace(job, metadata=meta).searching_job is None

    def test_says_why_its_nodes_cannot_be_paired(self, build: Any) -> None:
        decision = self.decided(build, self.judged(build), PairSearch(("n1",), obstacle="there is one node only"))
        message = next(one for one in decision.status.conditions if one.type == "Attributed").message
        assert message.startswith("Could not be narrowed: there is one node only. ")
        assert decision.status.failed_nodes == ()

    def test_is_not_searched_where_nobody_asks_for_it(self, build: Any, conditions: Any) -> None:
        decision = self.decided(build, self.judged(build, slowNodeSearch="NodeProbes"), None)
        assert conditions(decision.status)["Attributed"] == ("False", "NotNarrowed")
        off = self.judged(build, slowNodeSearch="Off")
        assert conditions(off.status)["Attributed"] == ("False", "NotNarrowed")  # at once: nobody is probed

    def test_looks_for_pairs_before_it_concludes_where_the_probes_came_first(self, build: Any, conditions: Any) -> None:
        """A threshold on the slowest node has probes run before anything is judged."""
        job = build.started(**SPEC)
        seen = Observed(
            job, workload=build.workload(WorkloadPhase.SUCCEEDED), group=("n1", "n2"), probes=PASS,
            measured=Measured({BUS: 48.0, "algBandwidthGBps": 25.0}),
        )  # fmt: skip
        decision = decide(seen, build.at(60))
        assert conditions(decision.status)["ValidationFailed"] == ("True", "ThresholdViolated")
        assert conditions(decision.status)["Attributed"] == ("Unknown", "Pending")


# What is known of it


def node(name: str, **spec: Any) -> Any:
    clique = "other-rack.1" if name == "rack" else "one-rack.1"
    return node_from_json({"metadata": {"name": name, "labels": {"nvidia.com/gpu.clique": clique}}, "spec": spec})


def like(name: str, verdict: str = "Healthy", product: str = "H100", gpus: int = 8) -> NodeHealth:
    return NodeHealth(name, verdict=verdict, hardware=(product, gpus))


def test_only_idle_healthy_uncordoned_nodes_of_the_same_kind_with_an_agent_can_prove_anything(build: Any) -> None:
    healths = [
        like("n1"), like("n2"), like("other", product="A100"), like("fewer", gpus=7), like("sick", verdict="Suspect"),
        like("cordoned"), like("busy"), like("silent"), like("unknown"), like("rack"), like("y"), like("x"),
    ]  # fmt: skip
    nodes = {each.node: node(each.node, unschedulable=each.node == "cordoned") for each in healths}
    del nodes["unknown"]
    pods = [build.pod("p", node="busy"), build.pod("q", node="x", code=0)]
    taken = [SimpleNamespace(record=msgspec.structs.replace(pod, gpus=True)) for pod in pods]
    caches = SimpleNamespace(
        healths=SimpleNamespace(all=lambda: healths, get=lambda name: next(h for h in healths if h.node == name)),
        nodes=SimpleNamespace(get=nodes.get),
        pods=SimpleNamespace(all=lambda: taken),
        pairs_of=lambda job: (),
        bandwidth_of=lambda job: None,
    )
    agents = SimpleNamespace(confirmed_cursor=lambda name: None if name == "silent" else object())
    run = [build.pod("w0", node="n1"), build.pod("w1", node="n2", rank=1), build.pod("l", node="n9", role="launcher")]
    found = PairObserver(caches, agents).search(build.job(**SPEC), run, Measured({BUS: 48.0}))  # type: ignore[arg-type]
    assert (found.nodes, found.gpu_jobs, found.outsiders) == (("n1", "n2"), ("node",), ("x", "y"))
    assert found.domains == {"n1": "one-rack.1", "n2": "one-rack.1"}
    assert found.whole is not None
    assert (found.whole.state, found.whole.busbw_gbps) == (PairState.SLOW, 48.0)


def test_a_run_with_several_pods_on_a_node_is_not_paired(build: Any) -> None:
    caches = SimpleNamespace(pairs_of=lambda job: (), nodes=SimpleNamespace(get=lambda name: None))
    run = [build.pod(f"w{index}", node=f"n{index // 2}", rank=index) for index in range(6)]
    found = PairObserver(caches, SimpleNamespace()).search(build.job(**SPEC), run, Measured())  # type: ignore[arg-type]
    assert found.obstacle == "pairs of nodes need a run with one Pod a node; this one had several"


def test_what_loads_a_data_set_is_no_worker_where_the_workers_ask_for_gpus(build: Any) -> None:
    caches = SimpleNamespace(pairs_of=lambda job: (), nodes=SimpleNamespace(get=lambda name: None))
    workers = [msgspec.structs.replace(build.pod(f"w{n}", node=f"n{n}", rank=n), gpus=True) for n in range(4)]
    run = [*workers, build.pod("i", node="n0", role="dataset-initializer")]
    found = PairObserver(caches, SimpleNamespace()).search(build.job(**SPEC), run, Measured())  # type: ignore[arg-type]
    assert (found.nodes, found.gpu_jobs, found.obstacle) == (("n0", "n1", "n2", "n3"), ("node",), "")


def test_a_run_with_a_checkpoint_is_not_run_again_over_it(build: Any) -> None:
    caches = SimpleNamespace(pairs_of=lambda job: (), nodes=SimpleNamespace(get=lambda name: None))
    run = [build.pod(f"w{index}", node=f"n{index}", rank=index) for index in range(4)]
    job = build.job(**SPEC, checkpoint={"pvcName": "model"})
    found = PairObserver(caches, SimpleNamespace()).search(job, run, Measured())  # type: ignore[arg-type]
    assert "checkpoint" in found.obstacle


def test_a_job_of_another_namespace_is_no_pair_of_this_one_whatever_it_says(build: Any) -> None:
    caches = Caches(None, node_selector="")  # type: ignore[arg-type]
    pair = built(build)
    pair["metadata"]["uid"] = "child-uid"
    for namespace in ("team", "other"):
        caches.jobs._put({**pair, "metadata": {**pair["metadata"], "namespace": namespace}})
    assert [job.metadata.namespace for job in caches.pairs_of(build.job())] == ["team"]


@pytest.mark.parametrize(("uid", "verdict", "over"), [("job-uid", "False", True), ("job-uid", "Unknown", False),
                                                      ("another", "False", False)])  # fmt: skip
def test_a_search_is_over_when_its_job_has_its_verdict(build: Any, uid: str, verdict: str, over: bool) -> None:
    condition = {"type": "Attributed", "status": verdict, "reason": "Any", "message": ""}
    parent = build.job({"conditions": [{**condition, "lastTransitionTime": build.at(0).isoformat()}]})
    parent = msgspec.structs.replace(parent, metadata=msgspec.structs.replace(parent.metadata, uid=uid))
    held = SimpleNamespace(get=lambda name, namespace: Cached({}, parent) if name == "run" else None)
    observer = PairObserver(SimpleNamespace(jobs=held), SimpleNamespace())  # type: ignore[arg-type]
    assert observer.is_over(child(build)) is over
    assert not observer.is_over(build.job())
