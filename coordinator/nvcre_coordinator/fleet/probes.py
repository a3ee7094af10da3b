"""Probes the nodes of a Job after a slow run: implements fleet/interface.py: Probes.

One work queue key per (round, node). Each pass observes the reservation Pod, the agent's stream and what is stored, and
carries out what core/probe_rounds.py decides; nodes of a round go in parallel up to a bound. When every node of a round
has an answer, the measured ones are judged together (core/localisation.py). Progress is in NodeHealth and in the
reservation Pods, so a new leader goes on where the job side asks for the round again; reservations that nobody asks
for are collected after a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec
from google.protobuf.duration_pb2 import Duration
from nvcre_kube.client import CONNECTION_ERRORS, ApiError, KubeClient
from nvcre_kube.informer import Informer
from nvcre_kube.resources import PODS
from nvcre_kube.workqueue import WorkQueue, run_workers
from nvcre_protos import nvcre_agent_v1_pb2 as pb

from nvcre_coordinator.core import probe_rounds as rounds
from nvcre_coordinator.core.localisation import ProbeKind, ProbeResult, ProbeState, judge
from nvcre_coordinator.fleet import wire
from nvcre_coordinator.fleet.interface import ProbeRequest, ProbeRound
from nvcre_coordinator.fleet.metrics import FleetMetrics
from nvcre_coordinator.fleet.node_health import NodeHealthStore
from nvcre_coordinator.fleet.nodes import NodeFacts
from nvcre_coordinator.fleet.probe_progress import (
    Key,
    NodeProgress,
    ProbeSettings,
    RunningRound,
    SentOrder,
    of_round,
    probe_id,
    split_probe_id,
    unjudged,
    with_job,
)
from nvcre_coordinator.fleet.registry import AgentRegistry, ConnectedAgent
from nvcre_coordinator.fleet.reservation import (
    PROBE_LABEL,
    ReservationPod,
    manifest,
    pod_name,
    probe_hash,
    reservation_pod,
)
from nvcre_coordinator.fleet.server import LoadFailed

logger = logging.getLogger(__name__)

WORKERS = 8
RETRY_S = 2.0
COLLECT_EVERY_S = 15.0
LEFTOVER_AFTER = timedelta(minutes=2)  # a new leader's job side asks again within seconds
FORGET_AFTER = timedelta(minutes=10)
RESERVATION_MARGIN = timedelta(minutes=2)


class ProbeScheduler:
    def __init__(
        self,
        client: KubeClient,
        settings: ProbeSettings,
        *,
        namespace: str,
        store: NodeHealthStore,
        registry: AgentRegistry,
        facts: Callable[[str], NodeFacts | None],
        metrics: FleetMetrics,
        clock: Callable[[], datetime],
    ) -> None:
        self._client = client
        self._settings = settings
        self._namespace = namespace
        self._store = store
        self._registry = registry
        self._facts = facts
        self._metrics = metrics
        self._clock = clock
        self._subscribers: list[Callable[[str, str], None]] = []
        self._reset()
        store.subscribe(self._node_changed)
        registry.subscribe(self._node_changed)

    def _reset(self) -> None:
        self._rounds: dict[str, RunningRound] = {}
        self._keys_of_node: dict[str, set[Key]] = {}
        self._key_of_probe: dict[str, Key] = {}
        self._holding: set[Key] = set()
        self._first_seen: dict[str, datetime] = {}
        self._queue: WorkQueue[Key] = WorkQueue()
        self._pods: Informer[ReservationPod] = Informer(
            self._client, PODS, convert=reservation_pod, namespace=self._namespace, label_selector=PROBE_LABEL
        )
        self._pods.add_handler(self._pod_changed)

    # Probes

    def ensure(self, request: ProbeRequest) -> ProbeRound:
        now = self._clock()
        known = self._rounds.get(request.job_uid)
        if known is None:
            known = self._rounds[request.job_uid] = RunningRound(request, now)
            logger.info("probe round job=%s/%s nodes=%d", request.job_namespace, request.job_name, len(request.nodes))
        known.asked_at = now
        known.request = request
        for node in request.nodes:
            if node not in known.nodes:
                key = (request.job_uid, node)
                known.nodes[node] = NodeProgress(now)
                self._keys_of_node.setdefault(node, set()).add(key)
                self._key_of_probe[probe_hash(*key)] = key
                self._queue.add(key)
        return self._state_of(known)

    def subscribe(self, callback: Callable[[str, str], None]) -> None:
        self._subscribers.append(callback)

    def _state_of(self, known: RunningRound) -> ProbeRound:
        request = known.request
        results: dict[str, tuple[ProbeResult, ...]] = {}
        waiting = []
        for node in request.nodes:
            stored = self._store.stored(node)
            mine = of_round(stored.probes if stored is not None else (), request)
            results[node] = tuple(mine[kind] for kind in request.kinds if kind in mine)
            if any(kind not in mine or unjudged(mine[kind]) for kind in request.kinds):
                waiting.append(node)
        return ProbeRound(done=not waiting, waiting=tuple(waiting), results=results)

    # Running

    async def run(self) -> None:
        """While this replica leads. Rounds are forgotten at its end; the next leader's job side asks again."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pods.run())
                group.create_task(self._collect_leftovers())
                group.create_task(self._work())
        finally:
            self._reset()

    async def _work(self) -> None:
        await self._pods.wait_synced()
        await run_workers(self._queue, self._reconcile, workers=WORKERS, name="probes")

    def answered(self, agent: ConnectedAgent, update: pb.ProbeUpdate) -> None:
        """A ProbeUpdate from the stream of `agent`, which speaks for its own node only. Raises wire.BadMessage."""
        probe, kind = split_probe_id(update.probe_id)
        key = self._key_of_probe.get(probe)
        if key is None or kind is None or key[1] != agent.node:
            logger.debug("answer to no order of ours node=%s probe=%s", agent.node, wire.cut(update.probe_id, 80))
            return
        known = self._rounds[key[0]]
        order = known.nodes[agent.node].orders.get(kind)
        result = wire.probe_result(update, kind, agent.clock)
        if order is None or order.answer is not None or result is None:
            return
        order.answer = with_job(result, known.request)
        self._queue.add(key)

    async def _reconcile(self, key: Key) -> float | None:
        uid, node = key
        known = self._rounds.get(uid)
        if known is None:
            return None
        progress = known.nodes[node]
        try:
            await self._store.load(node)
            seen = self._observe(key, known, progress)
            decision = rounds.decide(seen, self._clock(), self._settings.patience)
            for action in decision.actions:
                await self._carry_out(action, key, known, progress)
        except (*CONNECTION_ERRORS, LoadFailed) as error:
            logger.debug("probe waits for the API server node=%s error=%r", node, str(error))
            return RETRY_S
        self._judge(known)
        if decision.done and not progress.finished:
            progress.finished = True
            self._tell(known)
        return None if decision.look_again is None else max(0.1, decision.look_again.total_seconds())

    def _observe(self, key: Key, known: RunningRound, progress: NodeProgress) -> rounds.Observed:
        now = self._clock()
        node = key[1]
        agent = self._registry.get(node)
        inventory = self._store.inventory(node)
        pod = self._pods.get(pod_name(probe_hash(*key)), self._namespace)
        if pod is None:
            self._holding.discard(key)
            progress.running_since = None
        else:
            self._holding.add(key)
            progress.reserved_at = progress.reserved_at or now
            if pod.phase is rounds.PodPhase.RUNNING:
                progress.running_since = progress.running_since or now
        self._metrics.reservations.set(len(self._holding))
        slot_free = len(self._holding) < self._settings.parallel
        if pod is None and not slot_free:
            progress.started_at = now  # its patience begins when its turn comes
        reservation = None
        if pod is not None:
            reservation = rounds.Reservation(
                pod.phase, progress.reserved_at or now, progress.running_since, pod.message
            )
        fresh = (
            agent is not None
            and agent.heard_at is not None
            and progress.running_since is not None
            and agent.heard_at > progress.running_since
        )
        return rounds.Observed(
            kinds=known.request.kinds,
            started_at=progress.started_at,
            gpus=self._gpus(node),
            gpus_of_peers=self._gpus_of_peers(node, known) if pod is None and slot_free else 0,  # it decides a Reserve
            stored=frozenset(of_round(self._store.probes(node), known.request)),
            reservation=reservation,
            slot_free=slot_free,
            connected=agent is not None,
            lost_since=self._registry.lost_since().get(node),
            infiniband=inventory.infiniband if inventory is not None else None,
            foreign_processes=agent.foreign_processes if fresh and agent is not None else None,
            ordered={
                kind: rounds.Ordered(order.at, order.answer, order.agent is agent)
                for kind, order in progress.orders.items()
            },
        )

    def _gpus(self, node: str) -> int:
        """What the node offers and its agent sees: the device plugin may still offer a GPU that is gone."""
        facts, inventory = self._facts(node), self._store.inventory(node)
        offered = facts.gpus if facts is not None else 0
        return min(offered, len(inventory.gpus)) if inventory is not None and inventory.gpus else offered

    def _gpus_of_peers(self, node: str, known: RunningRound) -> int:
        product = self._product(node)
        return max(self._gpus(other) for other in known.nodes if self._product(other) == product)

    def _product(self, node: str) -> str:
        inventory = self._store.inventory(node)
        return inventory.gpus[0].product if inventory is not None and inventory.gpus else ""

    async def _carry_out(self, action: rounds.Action, key: Key, known: RunningRound, progress: NodeProgress) -> None:
        node = key[1]
        now = self._clock()
        match action:
            case rounds.Reserve():
                await self._reserve(key, known, progress)
            case rounds.Release():
                await self._release(pod_name(probe_hash(*key)), None)
            case rounds.AskAgent():
                self._registry.request([node])
            case rounds.Order(kind=kind):
                self._order(key, kind, progress)
            case rounds.Cancel(kind=kind, reason=reason):
                agent = self._registry.get(node)
                if agent is not None:
                    cancel = pb.ProbeCancel(probe_id=probe_id(key, kind), reason=reason)
                    agent.send(pb.CoordinatorMessage(probe_cancel=cancel))
            case rounds.Store(result=result):
                self._store_result(node, result)
            case rounds.GiveUp(kind=kind, reason=why, message=message):
                result = ProbeResult(
                    probe_id=probe_id(key, kind),
                    kind=kind,
                    state=ProbeState.NOT_TESTED,
                    reason=why,
                    message=wire.cut(message, 512),
                    started_at=progress.started_at.replace(microsecond=0),
                    finished_at=now.replace(microsecond=0),
                )
                self._store_result(node, with_job(result, known.request))

    def _store_result(self, node: str, result: ProbeResult) -> None:
        logger.info(
            "probe result node=%s kind=%s state=%s reason=%s busbw_gbps=%s job=%s/%s",
            node, result.kind, result.state, result.reason or "-", result.bus_bandwidth_gbps or "-",
            result.job_namespace, result.job_name,
        )  # fmt: skip
        self._metrics.probe_results.labels(kind=result.kind, state=result.state).inc()
        self._store.probe(node, result)

    def _order(self, key: Key, kind: ProbeKind, progress: NodeProgress) -> None:
        agent = self._registry.get(key[1])
        if agent is None:
            return
        order = progress.orders.get(kind)
        if order is None:
            progress.orders[kind] = SentOrder(self._clock(), agent)
        else:
            order.agent = agent  # after a reconnect; its time runs on
        timeout = Duration()
        timeout.FromTimedelta(self._settings.patience.probe)
        message = pb.ProbeOrder(
            probe_id=probe_id(key, kind),
            kind=wire.PROBE_KINDS[kind],
            min_bytes=self._settings.min_bytes,
            max_bytes=self._settings.max_bytes,
            step_factor=self._settings.step_factor,
            iterations=self._settings.iterations,
            runs=self._settings.runs,
            timeout=timeout,
        )
        agent.send(pb.CoordinatorMessage(probe_order=message))

    async def _reserve(self, key: Key, known: RunningRound, progress: NodeProgress) -> None:
        facts = self._facts(key[1])
        if facts is None:
            return
        patience = self._settings.patience
        deadline = patience.placed + len(known.request.kinds) * patience.probe + RESERVATION_MARGIN
        pod = manifest(
            known.request,
            facts,
            namespace=self._namespace,
            image=self._settings.image,
            deadline=deadline,
        )
        self._holding.add(key)
        progress.reserved_at = self._clock()
        try:
            await self._client.create(PODS, pod, self._namespace)
        except ApiError as error:
            if error.already_exists:
                return  # ours, of an earlier pass or leader
            self._holding.discard(key)
            if error.status not in {403, 422}:
                raise
            text = f"the reservation Pod is refused: {error}"
            for kind in known.request.kinds:
                if kind not in of_round(self._store.probes(key[1]), known.request):
                    give_up = rounds.GiveUp(kind, rounds.NotTested.NOT_PLACED, text)
                    await self._carry_out(give_up, key, known, progress)

    async def _release(self, name: str, uid: str | None) -> None:
        try:
            await self._client.delete(PODS, name, self._namespace, uid=uid, grace_period_s=0)
        except ApiError as error:
            if not (error.not_found or error.conflict):
                raise

    def _judge(self, known: RunningRound) -> None:
        """Compares the nodes once all of them have answered."""
        request = known.request
        found = {node: of_round(self._store.probes(node), request) for node in request.nodes}
        for kind in request.kinds:
            of_kind = {node: mine[kind] for node, mine in found.items() if kind in mine}
            if len(of_kind) < len(request.nodes):
                continue
            pending = {node for node, result in of_kind.items() if unjudged(result)}
            if not pending:
                continue
            for node, judgement in judge(of_kind, self._settings.limits).items():
                if node in pending:
                    judged = msgspec.structs.replace(
                        of_kind[node], verdict=judgement.verdict, comparison=wire.cut(judgement.comparison, 512)
                    )
                    self._store.probe(node, judged)

    async def _collect_leftovers(self) -> None:
        await self._pods.wait_synced()
        while True:
            await asyncio.sleep(COLLECT_EVERY_S)
            now = self._clock()
            for uid, known in list(self._rounds.items()):
                if now - known.asked_at > FORGET_AFTER and all(node.finished for node in known.nodes.values()):
                    self._forget(uid, known)
            for pod in self._pods.all():
                first_seen = self._first_seen.setdefault(pod.uid, now)
                if pod.probe not in self._key_of_probe and now - first_seen > LEFTOVER_AFTER:
                    logger.info("leftover reservation collected pod=%s", pod.name)
                    try:
                        await self._release(pod.name, pod.uid)
                    except (*CONNECTION_ERRORS, ApiError) as error:
                        logger.debug("leftover not collected yet pod=%s error=%r", pod.name, str(error))

    def _forget(self, uid: str, known: RunningRound) -> None:
        del self._rounds[uid]
        for node in known.nodes:
            key = (uid, node)
            self._key_of_probe.pop(probe_hash(*key), None)
            self._keys_of_node[node].discard(key)
            if not self._keys_of_node[node]:
                del self._keys_of_node[node]

    # Changes elsewhere

    def _node_changed(self, node: str) -> None:
        for key in tuple(self._keys_of_node.get(node, ())):
            known = self._rounds[key[0]]
            self._tell(known)
            if not known.nodes[node].finished:
                self._queue.add(key)

    def _pod_changed(self, old: ReservationPod | None, new: ReservationPod | None) -> None:
        if new is None and old is not None:
            self._first_seen.pop(old.uid, None)
            for uid, known in self._rounds.items():  # a slot is free
                for node, progress in known.nodes.items():
                    if not progress.finished:
                        self._queue.add((uid, node))
        pod = new or old
        if pod is not None and (key := self._key_of_probe.get(pod.probe)) is not None:
            self._queue.add(key)

    def _tell(self, known: RunningRound) -> None:
        for callback in self._subscribers:
            callback(known.request.job_namespace, known.request.job_name)
