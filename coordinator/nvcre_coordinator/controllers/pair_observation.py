"""Gathers what core/pair_search.py decides on: the pairs of a slow run that exist, and idle nodes outside of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from nvcre_coordinator.api.job import Job
from nvcre_coordinator.controllers.caches import Caches
from nvcre_coordinator.controllers.ports import Confirmations
from nvcre_coordinator.core.job_conclusion import concluded, ended_at
from nvcre_coordinator.core.measurement_lifecycle import measured_bandwidth
from nvcre_coordinator.core.naming import pair_job_name
from nvcre_coordinator.core.node_verdict import Verdict
from nvcre_coordinator.core.observed import Measured
from nvcre_coordinator.core.pair_job import pair_run
from nvcre_coordinator.core.pair_rounds import PairState
from nvcre_coordinator.core.pair_search import PairRun, PairSearch, PlannedPair, Round, wants_outsiders
from nvcre_coordinator.core.pods import PodRecord, with_gpus
from nvcre_coordinator.core.thresholds import BUS_BANDWIDTH


class PairObserver:
    def __init__(self, caches: Caches, confirmations: Confirmations) -> None:
        self._caches = caches
        self._confirmations = confirmations

    def is_over(self, job: Job) -> bool:
        """Of the Job of a pair: has the Job that searches come to its verdict?"""
        owner = job.searching_job
        if owner is None:
            return False
        held = self._caches.jobs.get(owner.name, job.metadata.namespace)
        found = held.view if held is not None else None
        return found is not None and found.metadata.uid == owner.uid and concluded(found.status)

    def search(self, job: Job, pods: Iterable[PodRecord], measured: Measured) -> PairSearch:
        workers = with_gpus(pods)
        pods_of = Counter(pod.node for pod in workers)
        nodes = tuple(sorted(pods_of))
        runs = {PlannedPair(run.round, run.pair): run for run in self._runs(job)}
        search = PairSearch(
            nodes,
            whole=_whole(job, nodes, measured),
            runs=runs,
            domains=self._domains({*nodes, *(node for planned in runs for node in planned.pair)}),
            gpu_jobs=tuple(sorted({pod.replicated_job for pod in workers})),
            obstacle=_obstacle(job, pods_of),
        )
        return replace(search, outsiders=self._outsiders(nodes)) if wants_outsiders(search) else search

    def _runs(self, job: Job) -> Iterator[PairRun]:
        for child in self._caches.pairs_of(job):
            figure = measured_bandwidth(self._caches.bandwidth_of(child)).values.get(BUS_BANDWIDTH)
            run = pair_run(child, figure, job.spec.thresholds.get(BUS_BANDWIDTH))
            if run is not None and child.metadata.name == pair_job_name(
                job.metadata.name, job.metadata.uid, run.round, run.pair
            ):
                yield run

    def _domains(self, names: Iterable[str]) -> dict[str, str]:
        return {name: node.nvlink_domain for name in names if (node := self._caches.nodes.get(name)) is not None}

    def _outsiders(self, nodes: tuple[str, ...]) -> tuple[str, ...]:
        """Like nodes of the run, in their NVLink domains, healthy, told of by an agent now, and free as we see it."""
        like = next((health.hardware for node in nodes if (health := self._caches.healths.get(node))), ("", 0))
        domains = set(self._domains(nodes).values())
        taken = {pod.record.node for pod in self._caches.pods.all() if pod.record.gpus and not pod.record.finished}
        return tuple(
            health.node
            for health in sorted(self._caches.healths.all(), key=lambda health: health.node)
            if health.node not in nodes
            and health.node not in taken
            and health.verdict == Verdict.HEALTHY
            and health.hardware == like != ("", 0)
            and self._confirmations.confirmed_cursor(health.node) is not None
            and self._is_open(health.node, domains)
        )

    def _is_open(self, name: str, domains: set[str]) -> bool:
        node = self._caches.nodes.get(name)
        if node is None or node.nvlink_domain not in domains:
            return False
        return not (node.decoded().get("spec") or {}).get("unschedulable")


def _whole(job: Job, nodes: tuple[str, ...], measured: Measured) -> PairRun | None:
    """The slow run itself, where it ran on two nodes."""
    if len(nodes) != 2:
        return None
    figure = measured.values.get(BUS_BANDWIDTH)
    return PairRun(Round.FIRST, (nodes[0], nodes[1]), PairState.SLOW, figure, ended_at=ended_at(job.status))


def _obstacle(job: Job, pods_of: Counter[str]) -> str:
    if job.spec.checkpoint is not None:
        return "the run has a checkpoint, which runs on pairs of its nodes would write over"
    if len(pods_of) < 2:
        return f"a run on {len(pods_of)} node(s) cannot be tested in pairs"
    if max(pods_of.values()) > 1:
        return "pairs of nodes need a run with one Pod a node; this one had several"
    return ""
