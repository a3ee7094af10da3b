"""The shell around the agent's rules: what both sources say goes through folding into the outbox, in one order.

Owns the kernel log reader, the consumer of the NVML monitor, the checks with their baseline, and the clock tick.
Everything runs in the event loop; a signal is folded and queued for the disk before the next one is read. It neither
talks to the coordinator (link.py) nor decides (incidents/, checks/, xid/).
"""

import asyncio
import contextlib
import json
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from nvcre_protos import nvcre_agent_v1_pb2 as pb

from nvcre_agent.checks import baseline as baselines
from nvcre_agent.checks import limits as check_limits
from nvcre_agent.checks import rules, tracker
from nvcre_agent.checks.limits import Limits
from nvcre_agent.checks.model import Finding
from nvcre_agent.host.model import Host
from nvcre_agent.host.reading import HostReader
from nvcre_agent.incidents import signals
from nvcre_agent.incidents.escalation import History
from nvcre_agent.incidents.folding import Folding
from nvcre_agent.incidents.model import Change, ChangeKind, Incident, Signal
from nvcre_agent.incidents.reset_signs import ResetSigns
from nvcre_agent.incidents.signals import Moment
from nvcre_agent.kernel.kmsg import KernelLog, Position
from nvcre_agent.kernel.model import KernelEvent, KernelEventKind
from nvcre_agent.kernel.parsers import RecordParser
from nvcre_agent.kernel.record import Record
from nvcre_agent.liveness import Progress
from nvcre_agent.metrics import Metrics
from nvcre_agent.nvml.monitor import NvmlMonitor
from nvcre_agent.nvml.snapshot import Inventory, MonitorState, NvmlEvent, Sight, Snapshot
from nvcre_agent.outbox import Outbox
from nvcre_agent.process_owner import NOBODY, ProcessOwners

log = logging.getLogger(__name__)

_T = TypeVar("_T")
TICK_S = 1.0
OPEN_TICK_S = 5.0  # while an incident is open and nothing of it is due
KEEP_POSITION_S = 30.0  # how often the position is written when the log grows without events


class Watch:
    """`on_state` is called when a monitor or the inventory changed."""

    def __init__(
        self,
        *,
        boot_id: str,
        kernel_log: Path,
        nvml: NvmlMonitor,
        host: HostReader,
        outbox: Outbox,
        metrics: Metrics,
        simulated: bool,
        limits: Limits | None = None,
    ) -> None:
        self._boot_id = boot_id
        self._nvml = nvml
        self._host = host
        self._outbox = outbox
        self._metrics = metrics
        self._parser = RecordParser()
        self._kernel = KernelLog(
            kernel_log,
            after=outbox.position,
            boot_id=boot_id,
            on_record=self._on_record,
            on_blind=self._on_kernel_blind,
        )
        self._kernel_blind_message = ""
        self._position: int | None = None
        self._position_kept_s = 0.0
        self._nvml_state: MonitorState = nvml.state
        metrics.monitor_changed("nvml", _blind_reason(nvml.state))
        self.inventory: Inventory | None = None
        self._identities = signals.NO_GPUS  # with the GPUs of earlier days that NVML cannot name any more
        self._owners = ProcessOwners()
        self._observed_through_s = 0.0
        self._happened = asyncio.Event()
        self._ticked_s = time.monotonic()
        self._ticks = 0
        self._nvml_items = 0
        self._own_limits = limits
        empty = baselines.Baseline()
        self._baseline = _remembered(outbox, "baseline", lambda raw: baselines.Baseline.from_json(raw, boot_id), empty)
        self._signs = _remembered(outbox, "reset_signs", lambda raw: ResetSigns.from_json(raw, boot_id), ResetSigns())
        history = _remembered(outbox, "fault_history", History.from_json, History())
        self._folding = Folding(boot_id=boot_id, simulated=simulated, new_id=lambda: uuid.uuid4().hex, history=history)
        self._folding.restore(outbox.kept, now_s=time.time(), monotonic_s=time.monotonic())
        self._tracker = tracker.Tracker.resume(self._folding.open_findings, time.monotonic())
        self.on_state: Callable[[], None] = lambda: None

    # --- what others ask

    @property
    def folding(self) -> Folding:
        return self._folding

    @property
    def waiting(self) -> tuple[Finding, ...]:
        """What checks see and what is not a fault yet."""
        return self._tracker.waiting

    @property
    def kernel_counts(self) -> dict[str, int]:
        counts = self._kernel.counts
        return {"overruns": counts.overruns, "gaps": counts.gaps, "skipped": counts.skipped, "records": counts.records}

    @property
    def last_sequence(self) -> int | None:
        """Of the newest record of the kernel log that was read."""
        return self._kernel.last_sequence

    def progress(self) -> Iterator[Progress]:
        yield Progress("kernel-log", *self._kernel.progress)
        yield Progress("nvml", self._nvml.backlog > 0, self._nvml_items)
        yield Progress("clock", not self._folding.is_empty, self._ticks)

    def monitors(self) -> list[pb.Monitor]:
        """State of the three sources of trouble; a slow or volatile outbox is watching with a reason."""
        nvml = self._nvml_state
        kernel = self._kernel.blind
        outbox = self._outbox.trouble
        return [
            _monitor("nvml", _blind_reason(nvml), nvml.message),
            _monitor("kernel-log", kernel or "", self._kernel_blind_message),
            pb.Monitor(
                name="outbox", state=pb.MONITOR_STATE_WATCHING, reason=outbox.reason, message=outbox.message[:256]
            ),
        ]

    async def observe(self, deadline_s: float) -> float:
        """Read both sources up to now; the wall-clock time through which both were read (0: never)."""
        now_s = time.time()
        nvml_read = await self._nvml.drain(deadline_s)
        if await self._kernel.drain(deadline_s) and nvml_read:
            self._observed_through_s = now_s
        return self._observed_through_s

    async def settle(self, deadline_s: float) -> float:
        """`observe`, and put into the outbox also the growth that is not due yet."""
        through_s = await self.observe(deadline_s)
        self._store(self._folding.flush(time.time(), time.monotonic()))
        return through_s

    def set_healthy(self, ids: Iterable[str], devices: Iterable[str] | None, *, said: str) -> tuple[Incident, ...]:
        """A person vouches for these incidents, `said` is who and why; what a check still finds opens again."""
        changes, findings = self._folding.set_healthy(
            ids, devices, said=said, now_s=time.time(), monotonic_s=time.monotonic()
        )
        self._tracker = self._tracker.forget(findings)
        self._store(changes)
        return tuple(change.incident for change in changes if change.kind is ChangeKind.RECOVERED)

    def close(self) -> None:
        """The last words before the process ends: untold growth and the position in the kernel log."""
        self._store(self._folding.flush(time.time(), time.monotonic()), keep_position=True)

    # --- tasks

    async def run_kernel_log(self) -> None:
        await self._kernel.run()

    async def run_nvml(self) -> None:
        async for item in self._nvml.events():
            self._nvml_items += 1
            match item:
                case NvmlEvent():
                    self._on_nvml_event(item)
                case Snapshot():
                    self._on_snapshot(item, await self._host.read(manager_seen=self._baseline.fabric_manager_seen))
                case MonitorState():
                    self._on_nvml_state(item)
        log.info("nvml monitor ended")

    async def run_clock(self) -> None:
        """Ticks when growth has to be told, every few seconds while an incident is open; else keeps the position."""
        while True:
            self._happened.clear()
            if (left_s := self._until_tick_s()) > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await self._happened.wait()
            else:
                self._ticked_s = time.monotonic()
                self._ticks += 1
                self._store(self._folding.tick(time.time(), self._ticked_s))
            if self._position is not None and time.monotonic() - self._position_kept_s > KEEP_POSITION_S:
                self._store((), keep_position=True)

    def _until_tick_s(self) -> float:
        """At most once a second, however much happens."""
        longest_s = KEEP_POSITION_S if self._folding.is_empty else OPEN_TICK_S
        due_s = min(self._ticked_s + longest_s, self._folding.due_s)
        return max(self._ticked_s + TICK_S, due_s) - time.monotonic()

    # --- the kernel log

    def _on_record(self, record: Record, backlog: bool) -> None:
        self._position = record.sequence
        for event in self._parser.feed(record):
            at = _moment(record, backlog)
            self._on_kernel_event(event, record, at if self._kernel.is_device else replace(at, age_s=0.0))

    def _on_kernel_event(self, event: KernelEvent, record: Record, at: Moment) -> None:
        if event.kind is KernelEventKind.IB_LINK:
            event = self._baseline.ports.located(event)
        alive = event.pid and not at.uncertain and record.from_kernel
        signal = signals.from_kernel(
            event,
            self._identities,
            at,
            injected=not record.from_kernel,
            origin=f"{self._boot_id}/{record.sequence}/{record.microseconds}",
            owner=self._owners.owner(event.pid) if event.pid and alive else NOBODY,
        )
        now = {"now_s": at.time_s, "monotonic_s": at.monotonic_s}
        changes: tuple[Change, ...] = ()
        learned: dict[str, str] = {}
        match event:
            case KernelEvent(kind=KernelEventKind.IB_LINK, state="ACTIVE"):
                # A process may say that a link is up again; the link stays as the kernel left it.
                if not signal.injected:
                    learned = self._learn(self._baseline.link_told(signal.subject, up=True, at_s=at.monotonic_s))
                    changes = self._folding.link_active(signal.subject, **now)
            case KernelEvent(kind=KernelEventKind.IB_LINK, state="DOWN") if not signal.injected:
                learned = self._learn(self._baseline.link_told(signal.subject, up=False, at_s=at.monotonic_s))
                # A check that watches this port already says what the line would say again.
                watched = any(found.component.pci_bus_id == signal.subject for found in self._tracker.open)
                changes = () if watched else self._fold(signal)
            case KernelEvent(recovery_action=0) if not signal.injected:
                changes = self._folding.reset_seen(signal.subject, **now)
            case _:
                changes = self._fold(signal)
        self._store(changes, state=learned)

    def _on_kernel_blind(self, reason: str, message: str) -> None:
        if reason:
            log.warning("monitor blind name=kernel-log reason=%s message=%r", reason, message)
        self._kernel_blind_message = message
        self._metrics.monitor_changed("kernel-log", reason)
        self.on_state()

    # --- NVML

    def _on_nvml_event(self, event: NvmlEvent) -> None:
        if (signal := signals.from_nvml(event)) is not None:
            self._store(self._fold(signal))
        else:
            log.debug("nvml event type=%s data=%d gpu=%s", event.event_type, event.data, event.gpu and event.gpu.uuid)

    def _on_snapshot(self, snapshot: Snapshot, host: Host) -> None:
        now_s, monotonic_s = time.time(), time.monotonic()
        self._metrics.snapshot_seen(snapshot)
        changes: list[Change] = []
        self._learn_inventory()
        limits = self._own_limits or check_limits.in_use()
        learned = self._learn(self._baseline.advance(snapshot, host))
        said = rules.evaluate(snapshot, self._baseline, limits, host)
        self._tracker, found = self._tracker.step(said, monotonic_s, limits, replaced=self._baseline.replaced)
        changes += self._on_working_gpus(snapshot, now_s, monotonic_s)
        for one in found:
            changes += self._on_finding(one, now_s, monotonic_s)
        signs_before, (self._signs, reset) = self._signs, self._signs.step(snapshot)
        if signs_before != self._signs:
            learned["reset_signs"] = json.dumps(self._signs.to_json(self._boot_id))
        for gpu_uuid in reset:
            if (gpu := snapshot.gpu(gpu_uuid)) is not None:
                changes += self._folding.reset_seen(str(gpu.identity.pci), now_s=now_s, monotonic_s=monotonic_s)
        self._store(tuple(changes), state=learned)

    def _on_working_gpus(self, snapshot: Snapshot, now_s: float, monotonic_s: float) -> tuple[Change, ...]:
        answering = [gpu.identity for gpu in snapshot.gpus if gpu.access is None]
        expected = self._baseline.gpus
        return self._folding.answering(answering, expected=expected, now_s=now_s, monotonic_s=monotonic_s)

    def _learn(self, baseline: baselines.Baseline) -> dict[str, str]:
        """What has to be written of the new baseline."""
        before, self._baseline = self._baseline, baseline
        return {} if before == baseline else {"baseline": json.dumps(baseline.to_json(self._boot_id))}

    def _on_finding(self, found: tracker.Change, now_s: float, monotonic_s: float) -> tuple[Change, ...]:
        finding = found.finding
        match found:
            case tracker.Opened():
                return self._folding.finding_opened(finding, now_s=now_s, monotonic_s=monotonic_s)
            case tracker.Updated():
                return self._folding.finding_updated(finding, now_s=now_s, monotonic_s=monotonic_s)
        return self._folding.finding_recovered(finding, now_s=now_s, monotonic_s=monotonic_s)

    def _on_nvml_state(self, state: MonitorState) -> None:
        if self._nvml_state == state:
            return
        self._nvml_state = state
        self._metrics.monitor_changed("nvml", _blind_reason(state))
        if not self._learn_inventory():
            self.on_state()

    def _learn_inventory(self) -> bool:
        if self._nvml.inventory == self.inventory or self._nvml.inventory is None:
            return False
        self.inventory = self._nvml.inventory
        self._metrics.inventory_seen(self.inventory)
        self._identities = self.inventory.remembering(_inventory_of(self._baseline))
        self._store(self._folding.identify(self._identities, now_s=time.time(), monotonic_s=time.monotonic()))
        self.on_state()
        return True

    # --- one way into the outbox

    def _fold(self, signal: Signal) -> tuple[Change, ...]:
        self._metrics.signal_seen(signal)
        changes = self._folding.fold(signal)
        if not changes:
            self._happened.set()  # growth, which is told later
        return changes

    def _store(
        self, changes: tuple[Change, ...], *, state: dict[str, str] | None = None, keep_position: bool = False
    ) -> None:
        if (history := self._folding.take_history()) is not None:
            state = {**(state or {}), "fault_history": json.dumps(history.to_json())}
        if not changes and not state and not keep_position:
            return
        self._metrics.changes_told(changes)
        for change in changes:
            incident = change.incident
            log.info(
                "incident %s id=%s kind=%s code=%d gpu=%s blame=%s count=%d message=%r",
                change.kind.value,
                incident.id,
                incident.kind.value,
                incident.code,
                incident.component.pci_bus_id or "-",
                incident.blame.name,
                incident.count,
                incident.message,
            )
        self._happened.set()
        keep, forget = self._folding.take_dirty()
        position = None if self._position is None else Position(self._boot_id, self._position)
        self._position = None
        self._position_kept_s = time.monotonic()
        self._outbox.append(changes, boot_id=self._boot_id, keep=keep, forget=forget, position=position, state=state)


def _moment(record: Record, backlog: bool) -> Moment:
    """Live records take the clock of the reader; the backlog takes boot-derived time, marked uncertain."""
    now_s, monotonic_s = time.time(), time.monotonic()
    if not backlog:
        return Moment(now_s, monotonic_s)
    at_s = min(record.microseconds / 1e6, monotonic_s)
    age_s = monotonic_s - at_s
    return Moment(now_s - age_s, at_s, uncertain=True, age_s=age_s)


def _remembered(outbox: Outbox, key: str, parse: Callable[[Any], _T], empty: _T) -> _T:
    text = outbox.state(key)
    if text is None:
        return empty
    try:
        return parse(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        log.warning("remembered state unreadable key=%s error=%r; learning it anew", key, error)
        return empty


def _inventory_of(baseline: baselines.Baseline) -> Inventory:
    return Inventory(tuple(known.identity for known in baseline.gpus.values()), "", "")


def _blind_reason(state: MonitorState) -> str:
    return "" if state.sight is Sight.WATCHING else state.reason or "Unknown"


def _monitor(name: str, blind_reason: str, message: str) -> pb.Monitor:
    state = pb.MONITOR_STATE_BLIND if blind_reason else pb.MONITOR_STATE_WATCHING
    return pb.Monitor(name=name, state=state, reason=blind_reason, message=message[:256])
