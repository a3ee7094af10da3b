"""Which incident does a signal belong to, and when is an incident over?

    changes = folding.fold(signal)          a source said something
    changes = folding.tick(now, monotonic)  time passed: growth to tell, quiet incidents to close

Rules (DESIGN 6.1): both sources telling the same (GPU, code) are one incident; repeats are counted; effects attach to
their root but never below a root that accuses less; errors of one process are one incident; a bus loss joins the Xid
79; injected signals never mix with real ones (matching.py). What comes back after its remedy grows (escalation.py).
An incident closes on a healthy sign only: its finding is gone, a reset or a reboot was seen and it stayed quiet,
another GPU stands in the slot, the link is active again, a person says so; application errors and notes, which leave
nothing broken, after a quiet time. What is older than ACT_WITHIN_S when it is first read is told and accuses nobody.
Memory is bounded by MAX_OPEN incidents.

It neither reads a source nor writes the outbox; `take_dirty` and `take_history` say what has to be persisted.
"""

from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from hashlib import blake2b

from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, IncidentKind, RecoveredBy

from nvcre_agent.checks.baseline import CONFIRMED_AFTER
from nvcre_agent.checks.model import Finding
from nvcre_agent.incidents import matching
from nvcre_agent.incidents.escalation import History
from nvcre_agent.incidents.model import Change, ChangeKind, Incident, Kept, Signal, shortened
from nvcre_agent.incidents.opened import LONGEST_UPDATE_S, Opened, accuses, fault_name
from nvcre_agent.nvml.snapshot import GpuIdentity, Inventory, PciAddress
from nvcre_agent.xid.model import Classification, Clears

MAX_OPEN = 512
QUIET_S = 300.0  # an application error or a note is over when it was not repeated for this long
REMEDY_QUIET_S = 60.0  # after a reset or reboot: no repeat for this long
ACT_WITHIN_S = 3 * 24 * 3600.0  # GPUd keeps events for 3 days
_TOO_OLD = "shown because it was not known before; older than 3 days, so what NVML says today counts"
_CURABLE = frozenset({FaultClass.NEEDS_RESET, FaultClass.NEEDS_REBOOT})


class Folding:
    """`new_id` makes incident ids; `simulated` marks all incidents of a simulated run."""

    def __init__(
        self, *, boot_id: str, simulated: bool, new_id: Callable[[], str], history: History | None = None
    ) -> None:
        self._boot_id = boot_id
        self._simulated = simulated
        self._new_id = new_id
        self._open: dict[str, Opened] = {}
        self._by_subject: dict[str, list[Opened]] = {}
        self._present: frozenset[str] = frozenset()  # UUIDs of the GPUs that answered last
        self._newcomers: dict[str, int] = {}  # UUID seen in the slot of another with a fault -> how often in a row
        self._history = self._history_kept = history or History()
        self._dirty: set[str] = set()
        self.evicted = 0

    @property
    def is_empty(self) -> bool:
        return not self._open

    @property
    def due_s(self) -> float:
        """Monotonic time at which growth has to be told; infinity while there is none."""
        return min((one.due_s for one in self._open.values() if one.dirty), default=float("inf"))

    @property
    def open_incidents(self) -> tuple[Incident, ...]:
        return tuple(opened.told() for opened in self._open.values())

    def restore(self, kept: Iterable[Kept], *, now_s: float, monotonic_s: float) -> None:
        """Go on with what was open before the restart; a new boot counts as the remedy of what a reboot cures."""
        for one in kept:
            opened = Opened.restored(one, boot_id=self._boot_id, now_monotonic_s=monotonic_s)
            self._keep(opened)
            if one.boot_id != self._boot_id:
                self._dirty.add(opened.facts.id)
                if opened.remedied_by is not None and not one.remedied:
                    self._remember_remedy(opened, now_s)

    @property
    def open_findings(self) -> tuple[Finding, ...]:
        """What the checks had open before the restart."""
        return tuple(
            Finding(
                key=one.finding_key,
                check=one.facts.check,
                component=one.facts.component,
                fault_class=one.facts.fault_class,
                blame=one.facts.blame,
                message=one.facts.message,
                remedy=one.facts.remedy,
                blame_condition=one.facts.blame_condition,
                source=one.sources[-1],
            )
            for one in self._open.values()
            if one.finding_key
        )

    def take_dirty(self) -> tuple[tuple[Kept, ...], tuple[str, ...]]:
        """(incidents to write, ids to delete) since the last call."""
        dirty, self._dirty = self._dirty, set()
        alive = tuple(self._open[key].kept() for key in dirty if key in self._open)
        return alive, tuple(key for key in dirty if key not in self._open)

    def take_history(self) -> History | None:
        """The history to write, when it changed since the last call."""
        changed = None if self._history == self._history_kept else self._history
        self._history_kept = self._history
        return changed

    # --- signals

    def fold(self, signal: Signal) -> tuple[Change, ...]:
        signal = self._judged(signal)
        candidates = [one for one in self._by_subject.get(signal.subject, ()) if one.facts.injected == signal.injected]
        if (same := matching.same(signal, candidates)) is not None:
            return self._grown(same, signal, urgent=same.repeat(signal))
        if (root := matching.root(signal, candidates)) is not None:
            return self._grown(root, signal, urgent=root.attach(signal))
        return self._opened(signal)

    def _judged(self, signal: Signal) -> Signal:
        """The signal with the verdict that fits its age and what its GPU went through before."""
        verdict = signal.verdict
        if signal.injected:
            return signal
        if signal.age_s > ACT_WITHIN_S:
            quiet = replace(verdict, blame=Blame.NO, condition="", clears=Clears.QUIET, remedy=_TOO_OLD)
            return replace(signal, verdict=quiet)
        fault = fault_name(signal.subject, signal.component, signal.kind, signal.code, "")
        if fault:
            verdict = self._history.escalated(verdict, fault, signal.code, signal.pid, signal.time_s)
            self._history = self._history.seen(fault, signal.code, signal.pid, signal.time_s)
        return signal if verdict is signal.verdict else replace(signal, verdict=verdict)

    def link_active(self, subject: str, *, now_s: float, monotonic_s: float) -> tuple[Change, ...]:
        """The NIC's port is up again."""
        siblings = self._by_subject.get(subject, ())
        down = [one for one in siblings if one.facts.mnemonic == "LINK_DOWN" and not one.finding_key]
        return tuple(self._recover(one, RecoveredBy.LINK_ACTIVE, now_s, monotonic_s) for one in down)

    def reset_seen(self, subject: str, *, now_s: float, monotonic_s: float) -> tuple[Change, ...]:
        """A GPU was reset: what a reset cures is over once it stays quiet."""
        changes = []
        for one in list(self._by_subject.get(subject, ())):
            if one.facts.kind is IncidentKind.XID and one.facts.code == 154:
                changes.append(self._recover(one, RecoveredBy.RESET, now_s, monotonic_s))
            elif one.clears is Clears.RESET and one.remedied_by is None:
                one.remedied_by = RecoveredBy.RESET
                one.last_monotonic_s = max(one.last_monotonic_s, monotonic_s)
                self._dirty.add(one.facts.id)
                self._remember_remedy(one, now_s)
        return tuple(changes)

    def set_healthy(
        self, ids: Iterable[str], devices: Iterable[str] | None, *, said: str, now_s: float, monotonic_s: float
    ) -> tuple[tuple[Change, ...], frozenset[str]]:
        """A person vouches for these incidents and for the past of these devices (UUID or slot; None: the whole node).

        `said` is who and why. What such an incident explained is a fault of its own again, and the keys of findings
        that are returned may be raised anew by their check.
        """
        changes: list[Change] = []
        findings: set[str] = set()
        for one in [self._open[known] for known in dict.fromkeys(ids) if known in self._open]:
            one.facts = replace(one.facts, message=shortened(f"{said}; it was: {one.facts.message}"))
            changes.append(self._recover(one, RecoveredBy.SET_HEALTHY, now_s, monotonic_s))
            changes += self._let_go(one, now_s, monotonic_s)
            if one.finding_key:
                findings.add(one.finding_key)
        if devices is None:
            self._history = History()
        for device in devices or ():
            self._history = self._history.without(device)
        return tuple(changes), frozenset(findings)

    def identify(self, inventory: Inventory, *, now_s: float, monotonic_s: float) -> tuple[Change, ...]:
        """Who the GPUs are is known now: name those that were known by slot only."""
        changes = []
        for gpu in inventory.gpus:
            for one in self._by_subject.get(str(gpu.pci), ()):
                component = one.facts.component
                if not component.uuid and component.kind in (ComponentKind.GPU, ComponentKind.NVLINK):
                    link = component.kind is ComponentKind.NVLINK
                    one.identify(gpu.uuid, None if link else gpu.index)
                    if not one.facts.injected:
                        one.escalate(self._history.escalated(one.verdict, one.fault, one.facts.code, 0, now_s))
                    changes.append(self._tell(one, ChangeKind.UPDATED, now_s, monotonic_s))
        return tuple(changes)

    def answering(
        self, gpus: Iterable[GpuIdentity], *, now_s: float, monotonic_s: float, expected: Container[str] = ()
    ) -> tuple[Change, ...]:
        """These GPUs answer. One in a slot where another one had a fault has replaced it, once that is confirmed.

        Before the findings of the same snapshot: that another GPU has no fault is no recovery of the old one. Nor is
        one replaced that the inventory still expects (`expected`: UUIDs): a reboot may have given the address of a lost
        GPU to its neighbour.
        """
        by_uuid = {gpu.uuid: gpu for gpu in gpus}
        self._present = frozenset(by_uuid)
        changes = [
            self._moved(one, gpu, now_s, monotonic_s)
            for one in list(self._open.values())
            if (gpu := by_uuid.get(one.facts.component.uuid)) is not None and not one.is_at(str(gpu.pci), gpu.index)
        ]
        newcomers: dict[str, int] = {}
        for gpu in by_uuid.values():
            slot = str(gpu.pci)
            for one in list(self._by_subject.get(slot, ())):
                old = one.facts.component.uuid
                if old in ("", gpu.uuid) or one.facts.component.kind is ComponentKind.NIC:
                    continue
                newcomers[gpu.uuid] = self._newcomers.get(gpu.uuid, 0) + 1
                if newcomers[gpu.uuid] >= CONFIRMED_AFTER and old not in expected:
                    changes.append(self._recover(one, RecoveredBy.REPLACED, now_s, monotonic_s))
                    self._history = self._history.without(old)
        self._newcomers = newcomers
        return tuple(changes)

    # --- findings of checks

    def finding_opened(self, finding: Finding, *, now_s: float, monotonic_s: float) -> tuple[Change, ...]:
        if (known := self._by_finding(finding.key)) is not None:
            return self._finding_changed(known, finding, now_s, monotonic_s)
        subject = _subject_of(finding)
        if (line := self._kernels_word(subject, finding)) is not None:
            line.finding_key = finding.key
            line.sources.append(finding.source)
            return self._finding_changed(line, finding, now_s, monotonic_s)
        cause = next((one for one in self._by_subject.get(subject, ()) if matching.explains(one, finding)), None)
        if cause is not None:
            return self._held(cause, finding, now_s, monotonic_s)
        return self._found(finding, subject, now_s, monotonic_s)

    def _held(self, cause: Opened, finding: Finding, now_s: float, monotonic_s: float) -> tuple[Change, ...]:
        """The incident says it already; the finding keeps it open, and may say that it is worse than that."""
        cause.held[finding.key] = finding
        verdict = cause.verdict
        if cause.remedied_by is not None and finding.fault_class in _CURABLE:  # the remedy did not help
            verdict = self._history.escalated(verdict, cause.fault, cause.root_code, 0, now_s)
        elif finding.check == "recovery_action":
            clears = Clears.REBOOT if finding.fault_class is FaultClass.NEEDS_REBOOT else Clears.RESET
            verdict = Classification(finding.fault_class, cause.facts.blame, clears, remedy=finding.remedy)
        return (self._tell(cause, ChangeKind.UPDATED, now_s, monotonic_s),) if cause.escalate(verdict) else ()

    def _found(self, finding: Finding, subject: str, now_s: float, monotonic_s: float) -> tuple[Change, ...]:
        verdict = Classification(finding.fault_class, finding.blame, Clears.RESET, "", finding.blame_condition)
        verdict = replace(verdict, remedy=finding.remedy)
        fault = fault_name(subject, finding.component, IncidentKind.HEALTH_CHECK, 0, finding.check)
        if fault:
            verdict = self._history.escalated(verdict, fault, 0, 0, now_s)
        facts = Incident(
            id=self._new_id(),
            kind=IncidentKind.HEALTH_CHECK,
            code=0,
            fault_class=verdict.fault_class,
            blame=verdict.blame,
            blame_condition=verdict.condition,
            component=finding.component,
            message=shortened(finding.message),
            remedy=shortened(verdict.remedy),
            sources=(finding.source,),
            first_seen_s=now_s,
            last_seen_s=now_s,
            simulated=self._simulated,
            check=finding.check,
        )
        opened = Opened(facts, subject=subject, clears=Clears.RESET, boot_id=self._boot_id, monotonic_s=monotonic_s)
        opened.finding_key = finding.key
        self._keep(opened)
        return (self._tell(opened, ChangeKind.OPENED, now_s, monotonic_s), *self._evict(now_s, monotonic_s))

    def _kernels_word(self, subject: str, finding: Finding) -> Opened | None:
        """The line about a link that is down, once the check of its port finds that it stays so: one incident."""
        if finding.component.kind is not ComponentKind.NIC:
            return None
        siblings = self._by_subject.get(subject, ())
        return next(
            (
                one
                for one in siblings
                if one.facts.mnemonic == "LINK_DOWN" and not one.facts.injected and not one.finding_key
            ),
            None,
        )

    def finding_updated(self, finding: Finding, *, now_s: float, monotonic_s: float) -> tuple[Change, ...]:
        return self.finding_opened(finding, now_s=now_s, monotonic_s=monotonic_s)

    def finding_recovered(self, finding: Finding, *, now_s: float, monotonic_s: float) -> tuple[Change, ...]:
        for one in self._open.values():
            one.held.pop(finding.key, None)
        known = self._by_finding(finding.key)
        if known is None:
            return ()
        return (self._recover(known, known.remedied_by or RecoveredBy.CONDITION_GONE, now_s, monotonic_s),)

    def _by_finding(self, key: str) -> Opened | None:
        return next((one for one in self._open.values() if one.finding_key == key), None)

    def _let_go(self, one: Opened, now_s: float, monotonic_s: float) -> tuple[Change, ...]:
        """What an incident explained that was closed without a cure is a fault of its own again."""
        return tuple(
            change
            for finding in one.held.values()
            for change in self.finding_opened(finding, now_s=now_s, monotonic_s=monotonic_s)
        )

    # --- time

    def tick(self, now_s: float, monotonic_s: float) -> tuple[Change, ...]:
        """Tell growth that is due and close what is over."""
        changes = []
        for one in list(self._open.values()):
            if (by := self._over(one, monotonic_s)) is not None:
                changes.append(self._recover(one, by, now_s, monotonic_s))
            elif one.dirty and monotonic_s >= one.due_s:
                changes.append(self._tell(one, ChangeKind.UPDATED, now_s, monotonic_s))
        return tuple(changes)

    def flush(self, now_s: float, monotonic_s: float) -> tuple[Change, ...]:
        """Tell all growth now (a Sync wants everything that happened before it)."""
        dirty = [one for one in self._open.values() if one.dirty]
        return tuple(self._tell(one, ChangeKind.UPDATED, now_s, monotonic_s) for one in dirty)

    # --- opening, growing, closing

    def _opened(self, signal: Signal) -> tuple[Change, ...]:
        verdict = signal.verdict
        facts = Incident(
            id=self._id_of(signal),
            kind=signal.kind,
            code=signal.code,
            fault_class=verdict.fault_class,
            blame=Blame.NO if signal.injected else verdict.blame,
            blame_condition="" if signal.injected else verdict.condition,
            component=signal.component,
            mnemonic=verdict.mnemonic,
            message=shortened(signal.message),
            remedy=shortened(verdict.remedy),
            sources=(signal.source,),
            first_seen_s=signal.time_s,
            last_seen_s=signal.time_s,
            injected=signal.injected,
            simulated=self._simulated,
            pid=signal.pid,
            process=shortened(signal.process, 64),
            caused_by=signal.caused_by,
            unit=signal.unit,
            pod_uid=signal.pod_uid,
            container_id=signal.container_id,
            raw=shortened(signal.raw),
        )
        clears = Clears.QUIET if signal.injected else verdict.clears
        opened = Opened(
            facts, subject=signal.subject, clears=clears, boot_id=self._boot_id, monotonic_s=signal.monotonic_s
        )
        self._keep(opened)
        told = self._tell(opened, ChangeKind.OPENED, signal.time_s, signal.monotonic_s, signal.time_uncertain)
        return (told, *self._evict(signal.time_s, signal.monotonic_s))

    def _id_of(self, signal: Signal) -> str:
        """An event may be sent while its late commit is lost: its record, read again, must not be a new incident."""
        if signal.origin:
            known = blake2b(signal.origin.encode("utf-8", "replace"), digest_size=16).hexdigest()
            if known not in self._open:
                return known
        return self._new_id()

    def _grown(self, one: Opened, signal: Signal, *, urgent: bool) -> tuple[Change, ...]:
        if one.facts.injected and one.facts.blame is not Blame.NO:
            one.facts = replace(one.facts, blame=Blame.NO, blame_condition="")
        self._dirty.add(one.facts.id)
        if urgent or signal.monotonic_s >= one.due_s:
            return (self._tell(one, ChangeKind.UPDATED, signal.time_s, signal.monotonic_s, signal.time_uncertain),)
        return ()

    def _finding_changed(self, known: Opened, finding: Finding, now_s: float, monotonic_s: float) -> tuple[Change, ...]:
        known.facts = replace(
            known.facts,
            check=finding.check,
            fault_class=finding.fault_class,
            blame=finding.blame,
            blame_condition=finding.blame_condition,
            component=finding.component,
            message=shortened(finding.message),
            remedy=shortened(finding.remedy),
        )
        known.last_s = now_s
        return (self._tell(known, ChangeKind.UPDATED, now_s, monotonic_s),)

    def _over(self, one: Opened, monotonic_s: float) -> RecoveredBy | None:
        quiet_s = monotonic_s - one.last_monotonic_s
        if one.finding_key or one.held:
            return None
        match one.clears:
            case Clears.QUIET if quiet_s >= QUIET_S:
                return RecoveredBy.QUIET
            case Clears.RESET | Clears.REBOOT if quiet_s >= REMEDY_QUIET_S:
                uuid = one.facts.component.uuid
                return one.remedied_by if not uuid or uuid in self._present else None
            case _:
                return None

    def _remember_remedy(self, one: Opened, now_s: float) -> None:
        if one.fault and one.facts.fault_class in _CURABLE and not one.facts.injected:
            self._history = self._history.remedied(one.fault, now_s)

    def _moved(self, one: Opened, gpu: GpuIdentity, now_s: float, monotonic_s: float) -> Change:
        self._forget_place(one)
        one.move(str(gpu.pci), gpu.index)
        self._by_subject.setdefault(one.subject, []).append(one)
        return self._tell(one, ChangeKind.UPDATED, now_s, monotonic_s)

    def _tell(self, one: Opened, kind: ChangeKind, now_s: float, monotonic_s: float, uncertain: bool = False) -> Change:
        if kind is ChangeKind.UPDATED:
            one.interval_s = min(one.interval_s * 2, LONGEST_UPDATE_S)
        one.dirty = False
        one.due_s = monotonic_s + one.interval_s
        self._dirty.add(one.facts.id)
        return Change(kind, one.told(), now_s, monotonic_s, uncertain)

    def _recover(self, one: Opened, by: RecoveredBy, now_s: float, monotonic_s: float) -> Change:
        del self._open[one.facts.id]
        self._forget_place(one)
        self._dirty.add(one.facts.id)
        # What was quiet was over that long after its last sign, however late that is noticed.
        at_s = min(now_s, one.last_s + QUIET_S) if by is RecoveredBy.QUIET else now_s
        recovered_at_s = max(at_s, one.last_s, one.facts.first_seen_s)  # the wall clock may have gone back
        return Change(ChangeKind.RECOVERED, one.told(recovered_at_s, by), now_s, monotonic_s)

    def _forget_place(self, one: Opened) -> None:
        siblings = self._by_subject[one.subject]
        siblings.remove(one)
        if not siblings:
            del self._by_subject[one.subject]

    def _keep(self, one: Opened) -> None:
        self._open[one.facts.id] = one
        self._by_subject.setdefault(one.subject, []).append(one)

    def _evict(self, now_s: float, monotonic_s: float) -> tuple[Change, ...]:
        """Over the limit the oldest of those that accuse least is closed, and counted."""
        if len(self._open) <= MAX_OPEN:
            return ()
        least = min(self._open.values(), key=lambda one: (accuses(one.facts.blame), one.last_monotonic_s))
        self.evicted += 1
        over = self._recover(least, RecoveredBy.EVICTED, now_s, monotonic_s)
        return (over, *self._let_go(least, now_s, monotonic_s))


def _subject_of(finding: Finding) -> str:
    if finding.component.kind is ComponentKind.NIC:
        return finding.component.pci_bus_id  # with its function: the ports of a NIC differ in nothing else
    try:
        return str(PciAddress.parse(finding.component.pci_bus_id))
    except ValueError:
        return ""
