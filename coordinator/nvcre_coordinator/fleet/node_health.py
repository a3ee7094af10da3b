"""The only writer of NodeHealth: folds what agents report, stores incidents, cursor and verdict in one status write.

Reports are folded in memory at once (core/incidents.py) and the node is queued. A worker compares what should stand in
the status with what does and writes only a difference: heartbeats and equal snapshots write nothing. What a person or a
Job waits for (an incident, a verdict, a probe) is written at once, within a small budget per node; counts and cursors
alone wait for up to ten seconds, unless somebody asks whether everything is stored (`flush`). So a million repeats cost
a handful of writes. Subscribers hear when a node's memory and status agree; only then are events acked.

Optimistic concurrency: a conflict is answered by reading again. If somebody else changed the *status*, there was
another leader: what it stored is taken as the truth, and the agent's stream is ended, so that it resends what is
missing.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

import msgspec
from nvcre_kube.client import CONNECTION_ERRORS, ApiError, KubeClient
from nvcre_kube.resources import NODE_HEALTHS, NODES, JsonObject
from nvcre_kube.workqueue import WorkQueue, run_workers
from nvcre_protos.vocabulary import FaultClass, RecoveredBy

from nvcre_coordinator.core.breaker import held
from nvcre_coordinator.core.incidents import Event, Incident, Snapshot, fold_events, fold_snapshot, told_by
from nvcre_coordinator.core.link_faults import without_victims
from nvcre_coordinator.core.localisation import ProbeResult
from nvcre_coordinator.core.node_verdict import Monitor, Rules, Verdict, assess, assess_gpus
from nvcre_coordinator.fleet.crowd import Crowd
from nvcre_coordinator.fleet.metrics import FleetMetrics
from nvcre_coordinator.fleet.node_record import DELETED, NodeRecord
from nvcre_coordinator.fleet.nodes import NodeFacts, node_facts
from nvcre_coordinator.fleet.server import LoadFailed
from nvcre_coordinator.fleet.status import MAX_PROBES, Inventory, NodeHealthStatus, another_machine
from nvcre_coordinator.fleet.wire import cut

logger = logging.getLogger(__name__)

WORKERS = 16
NODE_GONE_S = 30.0
OUTAGE_RETRY_S = 2.0
CONFLICTS = 5
WORKLOAD_BYTES = 192  # core/occupants.py keeps below
BACKLOG = 256  # events an agent waits to be acked for; it stops sending at some point (512 for ours)


class NodeHealthStore:
    """`run` while leading, `reset` when leadership is lost. Every method but `load` and `run` returns at once."""

    def __init__(
        self,
        client: KubeClient,
        *,
        metrics: FleetMetrics,
        clock: Callable[[], datetime],
        facts: Callable[[str], NodeFacts | None],
        fleet_size: Callable[[], int],
        on_rival: Callable[[str], None],
        on_node_gone: Callable[[str], None],
        on_alarm: Callable[[str, str], None],
        on_verdict: Callable[[JsonObject, Verdict, str], None],
        workload_of: Callable[[str, Incident], str] = lambda node, incident: "",
        rules: Rules | None = None,
    ) -> None:
        """`on_node_gone(node)` hears that there is no Node to write for, `on_alarm(reason, sentence)` tells what
        concerns many nodes at once; `workload_of(node, incident)` whose program an incident hit, empty where nobody
        knows."""
        self._client = client
        self._metrics = metrics
        self._clock = clock
        self._facts = facts
        self._on_rival = on_rival
        self._on_node_gone = on_node_gone
        self._workload_of = workload_of
        self._on_verdict = on_verdict
        self._rules = rules or Rules()
        self._nodes: dict[str, NodeRecord] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._queue: WorkQueue[str] = WorkQueue()
        self._crowd = Crowd(
            rules=self._rules,
            fleet_size=fleet_size,
            on_alarm=on_alarm,
            on_held=metrics.verdicts_held.inc,
            look_again=self.look_again,
        )
        self._outage = False
        self._subscribers: list[Callable[[str], None]] = []

    async def run(self) -> None:
        await run_workers(self._queue, self._reconcile, workers=WORKERS, name="node-health")

    def reset(self) -> None:
        """Leadership is lost: what is stored is the truth, what is not will be sent again."""
        for state in self._nodes.values():
            self._count_verdict(state.stored.verdict, None)
        self._nodes.clear()
        self._locks.clear()
        self._queue = WorkQueue()
        self._crowd.reset()

    def subscribe(self, callback: Callable[[str], None]) -> None:
        """`callback(node)` whenever everything known of the node is stored."""
        self._subscribers.append(callback)

    # Reading

    async def load(self, node: str) -> None:
        """Reads the NodeHealth from the API server, once per leadership. Raises LoadFailed."""
        lock = self._locks.setdefault(node, asyncio.Lock())
        async with lock:
            state = self._nodes.setdefault(node, NodeRecord(node))
            if state.loaded:
                return
            try:
                await self._read(state)
            except (*CONNECTION_ERRORS, ApiError) as error:
                raise LoadFailed(f"NodeHealth {node} cannot be read: {error}") from error
            state.take_over(state.stored)
            state.loaded = True
            self._count_verdict(None, state.stored.verdict)

    def stored_cursor(self, node: str, outbox_id: str) -> int:
        state = self._nodes.get(node)
        cursors = state.stored.cursors if state is not None else ()
        return next((cursor.seq for cursor in cursors if cursor.outbox_id == outbox_id), 0)

    def stored(self, node: str) -> NodeHealthStatus | None:
        """The status as it is on the API server; None while it has not been read."""
        state = self._nodes.get(node)
        return state.stored if state is not None and state.loaded else None

    def probes(self, node: str) -> tuple[ProbeResult, ...]:
        """As known, stored or about to be; newest first."""
        state = self._nodes.get(node)
        return state.probes if state is not None else ()

    def inventory(self, node: str) -> Inventory | None:
        state = self._nodes.get(node)
        return state.inventory if state is not None else None

    def _loaded(self, node: str) -> NodeRecord:
        state = self._nodes.get(node)
        if state is None or not state.loaded:
            raise LoadFailed(f"NodeHealth {node} is not loaded: the Node was deleted meanwhile, or leadership was lost")
        return state

    # Reports

    def hello(self, node: str, *, boot_id: str, agent_version: str, simulated: bool) -> None:
        state = self._loaded(node)
        state.booted(boot_id)
        state.agent_version, state.simulated = agent_version, simulated
        state.lost_since = None
        # Written with the snapshot that follows: half a status is no news.

    def events(self, node: str, outbox_id: str, events: list[Event]) -> None:
        state = self._loaded(node)
        self._maintained(state)
        now = self._clock()
        told = [
            replace(event, incident=self._with_context(state, event.incident, now), time=min(event.time, now))
            for event in events
        ]
        state.ledger = fold_events(state.ledger, outbox_id, told)
        self._queue.add(node)

    def snapshot(
        self, node: str, snapshot: Snapshot, *, boot_id: str, inventory: Inventory, monitors: tuple[Monitor, ...]
    ) -> None:
        state = self._loaded(node)
        self._maintained(state)
        now = self._clock()
        snapshot = replace(snapshot, time=min(snapshot.time, now))
        told = tuple(self._with_context(state, incident, now) for incident in snapshot.open)
        ended_by = RecoveredBy.REBOOT if state.rebooted else ""
        if state.rebooted and another_machine(state.inventory, inventory):
            ended_by = RecoveredBy.REPLACED
            state.probes = ()
        state.ledger = fold_snapshot(state.ledger, replace(snapshot, open=told, ended_by=ended_by))
        state.rebooted = False
        state.boot_id, state.inventory, state.monitors = boot_id or state.boot_id, inventory, monitors
        state.reported = True
        self._queue.add(node)

    def _maintained(self, state: NodeRecord) -> bool:
        facts = self._facts(state.name)
        return state.maintained(None if facts is None else facts.maintenance, self._clock())

    def _with_context(self, state: NodeRecord, incident: Incident, now: datetime) -> Incident:
        """What the agent cannot know: whose program was hit, that the node was in maintenance, what time it is."""
        incident = told_by(incident, now)
        application = incident.fault_class is FaultClass.APPLICATION
        return msgspec.structs.replace(
            without_victims(incident),
            workload=cut(self._workload_of(state.name, incident), WORKLOAD_BYTES) if application else "",
            during_maintenance=state.in_maintenance(incident.first_seen),
        )

    def monitors(self, node: str, monitors: tuple[Monitor, ...]) -> None:
        state = self._loaded(node)
        if state.monitors != monitors and state.reported:
            state.monitors = monitors
            self._queue.add(node)

    def take_cost(self, node: str) -> float:
        """What the node has cost beside the reports' own folding, in seconds of this thread; counted once."""
        state = self._nodes.get(node)
        if state is None:
            return 0.0
        cost_s, state.cost_s = state.cost_s, 0.0
        return cost_s

    def probe(self, node: str, result: ProbeResult) -> None:
        """Adds a result, or replaces the one of the same probe and kind (its verdict came). The node is loaded."""
        state = self._loaded(node)
        key = (result.probe_id, result.kind)
        if any((old.probe_id, old.kind) == key for old in state.probes):
            state.probes = tuple(result if (old.probe_id, old.kind) == key else old for old in state.probes)
        else:
            state.probes = (result, *state.probes)[:MAX_PROBES]
        self._queue.add(node)

    def lost(self, silent: Mapping[str, datetime]) -> None:
        """These nodes have been silent long enough to say so; all others have not."""
        for name, since in silent.items():
            state = self._nodes.setdefault(name, NodeRecord(name))
            if state.lost_since != since:
                state.lost_since = since
                self._queue.add(name)

    def look_again(self, node: str) -> None:
        """Something outside of the reports changed: the Node object."""
        if node in self._nodes:
            self._queue.add(node)

    def seen(self, node: str, resource_version: str | None) -> None:
        """A watch saw this version of the NodeHealth, or (None) that it was deleted. Who else than us did that?"""
        state = self._nodes.get(node)
        if state is None or not state.loaded or resource_version in state.versions:
            return
        # Perhaps a write of ours whose answer is still on its way: looked at after it.
        state.doubted = DELETED if resource_version is None else resource_version
        self._queue.add(node)

    def flush(self, node: str) -> None:
        """Somebody waits until everything is stored."""
        state = self._nodes.get(node)
        if state is not None:
            state.flush = True
            self._queue.add(node)

    def forget(self, node: str) -> None:
        """The Node is gone and no agent speaks for it; garbage collection removes the NodeHealth."""
        state = self._nodes.pop(node, None)
        self._locks.pop(node, None)
        self._crowd.forget(node)
        if state is not None and state.loaded:
            self._count_verdict(state.stored.verdict, None)

    # Writing

    async def _reconcile(self, name: str) -> float | None:
        state = self._nodes.get(name)
        if state is None:
            return None
        try:
            again = await self._bring_up_to_date(state)
        except (*CONNECTION_ERRORS, LoadFailed) as error:
            # One line an outage, not one a node and try: with the API server gone every node comes by here.
            level = logging.DEBUG if self._outage else logging.WARNING
            self._outage = True
            logger.log(level, "NodeHealth not written, trying again node=%s error=%r", name, str(error))
            return random.uniform(0.5, 1.0) * OUTAGE_RETRY_S  # noqa: S311 - jitter
        self._outage = False
        return again

    async def _bring_up_to_date(self, state: NodeRecord) -> float | None:
        name = state.name
        if not state.loaded:
            await self.load(name)
        doubted, state.doubted = state.doubted, ""
        if doubted and doubted not in state.versions:
            await self._read_again(state)
        for _ in range(CONFLICTS):
            began_s = time.thread_time()
            desired, again = self._desired(state)
            state.cost_s += time.thread_time() - began_s
            if desired == state.stored:
                state.flush = False
                self._tell(name)
                return again
            urgent = (
                state.flush
                or state.attempted is not None
                or state.unacked() >= BACKLOG
                or desired.news() != state.stored.news()
            )
            wait = state.budget.spend(asyncio.get_running_loop().time(), urgent=urgent)
            if wait > 0:
                return wait
            if state.metadata is None and not await self._create(state):
                return NODE_GONE_S
            if await self._write(state, desired):
                self._tell(name)
                return again
        raise ApiError(409, "Conflict", f"NodeHealth {name} changes faster than it can be read")

    def _desired(self, state: NodeRecord) -> tuple[NodeHealthStatus, float | None]:
        now = self._clock()
        name, told = state.name, state.ledger.open
        facts = self._facts(name)
        maintenance = self._maintained(state)
        witnessed = self._crowd.witnessed(name, facts.nvlink_domain if facts is not None else "", told, now)
        if not maintenance:
            self._crowd.heat(name, told, now)
        seen = state.observed(maintenance=maintenance, link_event=witnessed)
        assessment = assess(seen, now, self._rules)
        gpus = assess_gpus(seen, now, self._rules)
        why, wait = self._crowd.held_back(name, assessment.verdict, state.stored.verdict, now)
        if why:
            assessment, gpus = held(assessment, gpus, why=why, wait=wait)
        again = assessment.look_again
        return state.desired(seen, assessment, gpus, now), None if again is None else max(0.1, again.total_seconds())

    def breaker_open(self) -> bool:
        return self._crowd.is_open(self._clock())

    async def _create(self, state: NodeRecord) -> bool:
        """An empty NodeHealth owned by its Node; False when there is no such Node (any more)."""
        facts = self._facts(state.name)
        if facts is None:
            try:
                facts = node_facts(await self._client.get(NODES, state.name))
            except ApiError as error:
                if not error.not_found:
                    raise
                logger.warning("no NodeHealth written, the Node does not exist node=%s", state.name)
                self._on_node_gone(state.name)
                return False
        owner = {"apiVersion": "v1", "kind": "Node", "name": facts.name, "uid": facts.uid}
        obj = {
            "apiVersion": NODE_HEALTHS.api_version,
            "kind": NODE_HEALTHS.kind,
            "metadata": {
                "name": state.name,
                "labels": {"app.kubernetes.io/managed-by": "nvcre"},
                "ownerReferences": [owner],
            },
        }
        try:
            created = await self._client.create(NODE_HEALTHS, obj)
        except ApiError as error:
            if not error.already_exists:
                raise
            await self._read_again(state)
        else:
            state.now_at(created["metadata"])
            state.stored = NodeHealthStatus()
        return True

    async def _write(self, state: NodeRecord, desired: NodeHealthStatus) -> bool:
        """One status write; False when it must be computed again from what is there."""
        obj = {
            "apiVersion": NODE_HEALTHS.api_version,
            "kind": NODE_HEALTHS.kind,
            "metadata": state.metadata,
            "status": desired.to_json(),
        }
        began_s = time.thread_time()
        state.budget.wrote(len(msgspec.json.encode(obj["status"])))
        state.cost_s += time.thread_time() - began_s
        state.attempted = desired
        flush, state.flush = state.flush, False
        try:
            with self._metrics.node_health_write_seconds.time():
                answer = await self._client.update_status(NODE_HEALTHS, obj)
        except ApiError as error:
            state.flush = flush or state.flush
            if error.conflict or error.not_found:
                self._metrics.node_health_writes.labels(result="conflict").inc()
                await self._read_again(state)
                return False
            state.attempted = None
            self._metrics.node_health_writes.labels(result="refused").inc()
            raise
        except CONNECTION_ERRORS:
            state.flush = flush or state.flush
            self._metrics.node_health_writes.labels(result="unanswered").inc()
            raise
        self._metrics.node_health_writes.labels(result="written").inc()
        self._stored(state, desired, answer["metadata"])
        return True

    def _stored(self, state: NodeRecord, status: NodeHealthStatus, metadata: JsonObject) -> None:
        before = state.stored
        state.attempted = None
        state.now_at(metadata)
        state.stored = status
        if before.verdict != status.verdict:
            self._count_verdict(before.verdict, status.verdict)
            assert status.verdict is not None
            kind = {"apiVersion": NODE_HEALTHS.api_version, "kind": NODE_HEALTHS.kind}
            self._on_verdict({**kind, "metadata": metadata}, status.verdict, status.message)
            level = logging.WARNING if status.verdict in {Verdict.FAULTY, Verdict.SUSPECT} else logging.INFO
            logger.log(
                level, "verdict node=%s from=%s to=%s message=%r",
                state.name, before.verdict, status.verdict, status.message,
            )  # fmt: skip

    async def _read_again(self, state: NodeRecord) -> None:
        """After a conflict: whose write was it?"""
        before, attempted = state.stored, state.attempted
        await self._read(state)
        state.attempted = None
        if state.metadata is None:  # deleted: written anew from memory
            return
        if attempted is not None and state.stored == attempted:
            state.stored = before
            self._stored(state, attempted, state.metadata)
        elif state.stored != before:
            logger.warning("NodeHealth was written by another coordinator, taking it over node=%s", state.name)
            state.take_over(state.stored)
            self._count_verdict(before.verdict, state.stored.verdict)
            self._on_rival(state.name)

    async def _read(self, state: NodeRecord) -> None:
        try:
            found = await self._client.get(NODE_HEALTHS, state.name)
        except ApiError as error:
            if not error.not_found:
                raise
            state.metadata, state.stored = None, NodeHealthStatus()
            return
        state.now_at(found["metadata"])
        try:
            state.stored = NodeHealthStatus.from_json(found.get("status"))
        except msgspec.ValidationError as error:
            # Agents resend what they still hold, and every stream begins with a snapshot.
            text = "stored status is not usable, starting anew node=%s error=%r"
            logger.warning(text, state.name, str(error))
            state.stored = NodeHealthStatus()

    def _tell(self, name: str) -> None:
        """Told even if reports came during the write: what counts for an ack is the stored cursor."""
        for callback in self._subscribers:
            callback(name)

    def _count_verdict(self, before: Verdict | None, now: Verdict | None) -> None:
        if before is not None:
            self._metrics.node_verdicts.labels(verdict=before).dec()
        if now is not None:
            self._metrics.node_verdicts.labels(verdict=now).inc()
