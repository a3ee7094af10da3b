"""What is put together for one decision must belong to one moment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from nvcre_coordinator.controllers.caches import Cached, Caches, cached_pod
from nvcre_coordinator.controllers.job_observation import JobObserver
from nvcre_coordinator.controllers.run_memory import RunMemory
from nvcre_coordinator.core.attribution import AgentState
from nvcre_coordinator.core.incidents import Cursor
from nvcre_coordinator.core.job_lifecycle import decide
from nvcre_coordinator.core.naming import workload_name
from nvcre_coordinator.core.node_health import NodeHealth, node_health
from nvcre_coordinator.core.observed import Observed, WorkloadPhase
from nvcre_coordinator.workloads.trainjob import TrainJobAdapter
from nvcre_kube.client import ApiError
from nvcre_kube.resources import PODS, TRAIN_JOBS
from support.owners import batch_job


class World:
    """One node, its NodeHealth as the cache has it, what its agent has confirmed, and a server that takes its time."""

    def __init__(self) -> None:
        self.health: NodeHealth | None = NodeHealth("n1", cursors=(Cursor(outbox_id="o", seq=7),))
        self.through: datetime | None = None
        self.cursor: Cursor | None = Cursor(outbox_id="o", seq=7)
        self.meanwhile: Any = lambda: None
        self.pods: list[dict[str, Any]] = []
        self.listed: list[tuple[str, str]] = []

    def confirmed_through(self, node: str) -> datetime | None:
        return self.through

    def confirmed_cursor(self, node: str) -> Cursor | None:
        return self.cursor

    def clock_offset(self, node: str) -> None:
        return None

    async def get(self, resource: Any, name: str, namespace: str) -> Any:
        if resource is TRAIN_JOBS:
            self.meanwhile()
        raise ApiError(404, "NotFound", "gone")

    async def list(self, resource: Any, namespace: str, *, label_selector: str) -> list[dict[str, Any]]:
        assert resource is PODS
        self.listed.append((namespace, label_selector))
        return self.pods

    async def pod_log(self, *_: Any, **__: Any) -> AsyncIterator[bytes]:
        yield b""

    async def facts(self, build: Any) -> Any:
        job = build.started()
        job.metadata.annotations["nvcre.nvidia.com/group-nodes"] = "n1"
        seen, _ = await self.observer().observe(job, build.at(60), build.at(0))
        return seen.nodes["n1"]

    def observer(self) -> JobObserver:
        cached_nothing = SimpleNamespace(get=lambda *_: None, by_index=lambda *_: [])
        caches = SimpleNamespace(
            healths=SimpleNamespace(get=lambda _: self.health),
            nodes=cached_nothing,
            train_jobs=cached_nothing,
            pods=cached_nothing,
            bandwidth_of=lambda _: None,
            has_goodput=lambda _: False,
            goodputs_of=lambda _: (),
        )
        return JobObserver(
            self,  # type: ignore[arg-type]
            caches,  # type: ignore[arg-type]
            RunMemory(self, lambda _: None),  # type: ignore[arg-type]
            adapter=TrainJobAdapter(),
            detectors=(),
            confirmations=self,  # type: ignore[arg-type]
            probes=SimpleNamespace(),  # type: ignore[arg-type]
            on_look=lambda *_: None,
        )


@pytest.fixture
def world() -> World:
    return World()


async def test_what_the_cache_holds_is_confirmed(build: Any, world: World) -> None:
    world.through = build.at(61)
    facts = await world.facts(build)
    assert (facts.agent, facts.confirmed_through) == (AgentState.CONNECTED, build.at(61))


async def test_a_confirmation_that_comes_during_the_look_is_for_the_next_one(build: Any, world: World) -> None:
    world.meanwhile = lambda: setattr(world, "through", build.at(61))
    assert (await world.facts(build)).confirmed_through is None


@pytest.mark.parametrize("cursors", [(), (Cursor(outbox_id="o", seq=6),), (Cursor(outbox_id="other", seq=9),)])
async def test_a_cache_that_lags_behind_the_stored_evidence_confirms_nothing(
    build: Any, world: World, cursors: tuple[Cursor, ...]
) -> None:
    world.through = build.at(61)
    world.health = NodeHealth("n1", cursors=cursors)
    assert (await world.facts(build)).confirmed_through is None


async def test_an_agent_that_is_connected_and_blind_is_not_silent(build: Any, world: World) -> None:
    facts = await world.facts(build)
    assert (facts.agent, facts.confirmed_through) == (AgentState.CONNECTED, None)
    world.cursor = None
    assert (await world.facts(build)).agent is AgentState.SILENT
    world.health = None
    assert (await world.facts(build)).agent is AgentState.ABSENT


def test_the_cursors_of_a_stored_node_health_are_read() -> None:
    stored = {"metadata": {"name": "n1"}, "status": {"cursors": [{"outboxID": "o", "seq": 7}]}}
    held = node_health(stored)
    assert held.holds(Cursor(outbox_id="o", seq=7))
    assert held.holds(Cursor(outbox_id="new", seq=0))
    assert not held.holds(Cursor(outbox_id="o", seq=8))


async def test_the_pods_of_a_failed_run_are_asked_for_once_where_no_cache_has_seen_one_that_failed(
    build: Any, world: World
) -> None:
    job = build.started()
    ended = build.then(job, decide(Observed(job, workload=build.workload(WorkloadPhase.FAILED)), build.at(60)))
    labels = {"jobset.sigs.k8s.io/jobset-name": "run-workload", "jobset.sigs.k8s.io/replicatedjob-name": "node"}
    created = build.at(1).isoformat()
    terminated = {"exitCode": 1, "reason": "Error", "finishedAt": build.at(59).isoformat()}
    world.pods = [
        {
            "metadata": {
                "name": "p", "namespace": "team", "uid": "p", "labels": labels, "creationTimestamp": created,
                "ownerReferences": [batch_job("run-workload-node-0")],
            },
            "spec": {"nodeName": "n7"},
            "status": {"phase": "Failed", "containerStatuses": [{"name": "c", "state": {"terminated": terminated}}]},
        }
    ]  # fmt: skip
    observer = world.observer()
    assert (await observer.observe(job, build.at(59), build.at(0)))[0].pods == ()
    for _ in range(2):
        seen, _ = await observer.observe(ended, build.at(62), build.at(0))
        assert [(pod.node, pod.failed) for pod in seen.pods] == [("n7", True)]
        assert seen.group == ("n7",)
    assert world.listed == [("team", "jobset.sigs.k8s.io/jobset-name=run-workload")]


async def test_a_pod_that_nothing_controls_is_not_the_run_s_whatever_its_labels_say(build: Any, world: World) -> None:
    """Its attempt would be taken for the last one, and hide the pods that failed."""
    job = build.started()
    ended = build.then(job, decide(Observed(job, workload=build.workload(WorkloadPhase.FAILED)), build.at(60)))
    terminated = {"exitCode": 1, "reason": "Error", "finishedAt": build.at(59).isoformat()}

    def pod(name: str, attempt: int, **more: Any) -> dict[str, Any]:
        labels = {"jobset.sigs.k8s.io/jobset-name": "run-workload", "jobset.sigs.k8s.io/restart-attempt": str(attempt)}
        created = build.at(1).isoformat()
        metadata = {"name": name, "namespace": "team", "uid": name, "labels": labels, "creationTimestamp": created}
        status = {"phase": "Failed", "containerStatuses": [{"name": "c", "state": {"terminated": terminated}}]}
        return {"metadata": metadata | more, "spec": {"nodeName": "n7"}, "status": status}

    world.pods = [pod("ours", 0, ownerReferences=[batch_job("run-workload-node-0")]), pod("copied", 9)]
    seen, _ = await world.observer().observe(ended, build.at(62), build.at(0))
    assert [record.name for record in seen.pods] == ["ours"]


async def test_a_pair_that_was_given_up_is_looked_at_until_its_workload_is_gone(build: Any, world: World) -> None:
    failed = {"type": "Failed", "status": "True", "message": "", "lastTransitionTime": build.at(1).isoformat()}
    reference = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "name": "run-workload"}
    for reason, looked_at in (("PairGivenUp", True), ("WorkloadFailed", False)):
        job = build.job({"conditions": [{**failed, "reason": reason}], "workloadRef": reference})
        seen, _ = await world.observer().observe(job, build.at(60), build.at(0))
        assert (seen.workload is not None) is looked_at


LONG = "experiment-with-a-name-longer-than-a-workload-s-may-be-{}"
COLLIDING = (LONG.format(160), LONG.format(178))


def cached_object(uid: str, **metadata: Any) -> Any:
    return Cached({"metadata": {"name": f"name-of-{uid}", "namespace": "team", "uid": uid, **metadata}}, None)


def test_of_two_jobs_whose_long_names_are_cut_to_one_the_run_is_the_one_s_that_has_got_the_workload() -> None:
    assert workload_name(COLLIDING[0]) == workload_name(COLLIDING[1])
    owner = {"uid": "second", "controller": True}
    held = cached_object("workload", ownerReferences=[owner])
    jobs = SimpleNamespace(by_index=lambda *_: [cached_object("first"), cached_object("second")])
    caches = SimpleNamespace(jobs=jobs, train_jobs=SimpleNamespace(get=lambda *_: held))
    assert Caches.job_of_run(caches, ("team", "run")) == ("team", "name-of-second")  # type: ignore[arg-type]


async def test_pods_from_before_the_workload_was_created_are_another_job_s(build: Any, world: World) -> None:
    """That had the same name, and for whose end this Job's waited."""
    job = build.started()
    memory = RunMemory(world, lambda _: None)  # type: ignore[arg-type]
    labels = {"jobset.sigs.k8s.io/jobset-name": "run-workload"}
    for name, created in (("theirs", 10), ("ours", 20)):
        metadata = {
            "name": name, "namespace": "team", "uid": name, "labels": labels,
            "creationTimestamp": build.at(created).isoformat(), "ownerReferences": [batch_job("run-workload-node-0")],
        }  # fmt: skip
        memory.note(cached_pod({"metadata": metadata, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}))
    run = ("team", "run-workload")
    assert [pod.name for pod in memory.pods(run, job)] == ["theirs", "ours"]
    assert [pod.name for pod in memory.pods(run, job, build.at(19))] == ["ours"]
