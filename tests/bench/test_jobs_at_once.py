"""Many Jobs at one time on a real control plane: what the coordinator costs, and how soon a Job is Succeeded.

All Jobs are created at once, run together on kwok's nodes, and then all their Pods exit. Beside the coordinator's
latency (TrainJob Complete -> Job Succeeded) stands Kubeflow Trainer's own (JobSet Completed -> TrainJob Complete), seen
by the same client in the same run: conditions have times in whole seconds, so this client takes the time when it sees
each object change.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from nvcre_kube.informer import Informer
from nvcre_kube.resources import CONFIG_MAPS, EVENTS, JOBS, PODS, TRAIN_JOBS, JsonObject, Resource
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from support.eventually import eventually
from support.figures import in_ms, report, setting
from support.kwok_cluster import GPUS, NAMESPACE, RUNTIME, SCRAPE_EVERY_S, KwokCluster, at_once, kwok_cluster
from support.process_usage import cpu_s, rss_mib

COUNT = setting("NVCRE_BENCH_JOBS", 1000)
QUIET_S = 30
PATIENCE_S = 1800.0
JOB_SET_NAME = "jobset.sigs.k8s.io/jobset-name"
JOB_SETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")


@dataclass(frozen=True, slots=True)
class Sight:
    """What is kept of an object: whose it is, and which conditions are True; of a Pod its phase."""

    job: str
    true: frozenset[str]


@dataclass
class Watching:
    """(kind, condition) -> Job -> when its object was first seen so, in seconds of the monotonic clock."""

    seen: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)

    def count(self, kind: str, condition: str) -> int:
        return len(self.seen.get((kind, condition), ()))

    def between(self, start: tuple[str, str], end: tuple[str, str]) -> list[float]:
        began, ended = self.seen[start], self.seen[end]
        return [ended[job] - began[job] for job in ended]

    def note(self, kind: str) -> Callable[[Sight | None, Sight | None], None]:
        def changed(old: Sight | None, new: Sight | None) -> None:
            now = time.monotonic()
            if new is None:
                return
            for condition in new.true:
                self.seen.setdefault((kind, condition), {}).setdefault(new.job, now)

        return changed


def sight(obj: JsonObject) -> Sight:
    metadata, status = obj["metadata"], obj.get("status") or {}
    true = {one["type"] for one in status.get("conditions") or () if one["status"] == "True"}
    if obj["kind"] == PODS.kind:
        true = {status["phase"]}
    workload = (metadata.get("labels") or {}).get(JOB_SET_NAME, metadata["name"])
    return Sight(workload.removesuffix("-workload"), frozenset(true))


@contextlib.asynccontextmanager
async def watching(one: KwokCluster) -> AsyncIterator[Watching]:
    found = Watching()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for resource in (JOB_SETS, TRAIN_JOBS, JOBS, PODS):
            informer = Informer(one.client, resource, convert=sight, namespace=NAMESPACE)
            informer.add_handler(found.note(resource.kind))
            tasks.append(group.create_task(informer.run()))
        tasks.append(group.create_task(one.scrape_for_ever()))
        yield found
        for task in tasks:
            task.cancel()


@dataclass(frozen=True, slots=True)
class Usage:
    """What the coordinator had used at a moment."""

    at_s: float
    cpu_s: float
    reconciles: float
    requests: dict[str, float]

    @classmethod
    async def now(cls, one: KwokCluster) -> Usage:
        ours, servers = list(text_string_to_metric_families(await one.scrape())), await one.api_server_metrics()
        return cls(time.monotonic(), cpu_s([one.coordinator]), total(ours, "nvcre_reconcile_total"), requests(servers))

    def since(self, before: Usage) -> str:
        seconds, cpu = self.at_s - before.at_s, self.cpu_s - before.cpu_s
        reconciles = self.reconciles - before.reconciles
        made = {name: (count - before.requests[name]) / COUNT for name, count in self.requests.items()}
        often = ", ".join(f"{name} {count:.1f}" for name, count in made.items() if count >= 0.05)
        return (
            f"{seconds:.0f} s, {cpu / seconds:.3f} core, {reconciles / seconds:.0f} reconciles/s, "
            f"{cpu / max(reconciles, 1) * 1000:.2f} ms CPU each; a Job: {reconciles / COUNT:.1f} reconciles, "
            f"{sum(made.values()):.1f} requests{f' ({often})' if often else ''}"
        )


def total(metrics: Iterable[Metric], name: str, **labels: str) -> float:
    return sum(
        sample.value
        for metric in metrics
        for sample in metric.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def requests(servers: list[Metric]) -> dict[str, float]:
    """Those that the coordinator alone makes in quantity; Jobs are created by us and read by garbage collection too."""
    wanted = {JOBS: ("PUT", "PATCH"), TRAIN_JOBS: ("POST",), CONFIG_MAPS: ("GET", "POST", "PUT", "PATCH")}
    return {
        f"{verb} {resource.plural}": total(
            servers, "apiserver_request_total", group=resource.group, resource=resource.plural, verb=verb
        )
        for resource, verbs in wanted.items()
        for verb in verbs
    }


def job(name: str) -> JsonObject:
    reference = {"apiGroup": TRAIN_JOBS.group, "kind": "ClusterTrainingRuntime", "name": RUNTIME}
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"workload": {"trainJob": {"runtimeRef": reference}}},
    }


@pytest.mark.bench
@pytest.mark.timeout(3600)
async def test_many_jobs_at_once(tmp_path: Path) -> None:
    async with kwok_cluster(tmp_path, nodes=-(-COUNT // GPUS)) as one, watching(one) as seen:

        async def all_are(kind: str, condition: str) -> None:
            async def reached() -> bool:
                await asyncio.sleep(0.5)
                return seen.count(kind, condition) == COUNT

            await eventually(reached, within_s=PATIENCE_S, what=f"{COUNT} {kind}s are {condition}")

        idle_mib = rss_mib(one.coordinator)
        start = await Usage.now(one)
        await at_once(lambda obj: one.client.create(JOBS, obj), [job(f"job-{index:05d}") for index in range(COUNT)])
        await all_are("Pod", "Running")
        running = await Usage.now(one)
        await asyncio.sleep(QUIET_S)
        quiet = await Usage.now(one)
        mib = rss_mib(one.coordinator)
        await one.end_pods()
        await all_are("Job", "Succeeded")
        ended = await Usage.now(one)
        ended_mib = rss_mib(one.coordinator)
        events = await one.client.list(EVENTS, NAMESPACE)
        ours = sum(
            int(event.get("count") or 1)
            for event in events
            if event["involvedObject"]["kind"] == "Job" and event["involvedObject"]["apiVersion"] == JOBS.api_version
        )

    succeeded = seen.between(("TrainJob", "Complete"), ("Job", "Succeeded"))
    trainer = seen.between(("JobSet", "Completed"), ("TrainJob", "Complete"))
    on = (
        f"{COUNT} Jobs of one Pod at one time on a real control plane, {-(-COUNT // GPUS)} kwok nodes, Trainer as "
        f"installed but for 500 requests/s, metrics read every {SCRAPE_EVERY_S:.0f} s"
    )
    report(
        "TrainJob Complete -> Job Succeeded",
        f"{in_ms(succeeded)}; Trainer, JobSet Completed -> TrainJob Complete: {in_ms(trainer)}",
        target="p99 <= 1 s and no longer than Trainer's",
        on=on,
    )
    report(
        "coordinator with Jobs at once",
        f"start {running.since(start)} | all running {quiet.since(running)} | end {ended.since(quiet)} | "
        f"{ours / COUNT:.1f} events a Job | RSS {idle_mib:.0f} -> {mib:.0f} -> {ended_mib:.0f} MiB",
        target="none",
        on=on,
    )
