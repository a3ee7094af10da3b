"""Which incident does a signal belong to, and when is an incident over?

    changes = folding.fold(signal)          a source said something
    changes = folding.tick(now, monotonic)  time passed: growth to tell, quiet incidents to close

Rules (DESIGN 6.1): both sources telling the same (GPU, code) are one incident; repeats are counted; effects attach to
their root but never below a root that accuses less; errors of one process are one incident; a bus loss joins the Xid
79; injected signals never mix with real ones. An incident closes on a healthy sign only: its finding is gone, a reset
or a reboot was seen and it stayed quiet, another GPU stands in the slot, the link is active again; application errors
and notes, which leave nothing broken, after a quiet time. Memory is bounded by MAX_OPEN incidents.

It neither reads a source nor writes the outbox; `take_dirty` says what has to be persisted.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from hashlib import blake2b

from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, IncidentKind, Source

from nvcre_agent.checks.model import Finding
from nvcre_agent.incidents.model import Change, ChangeKind, Incident, Kept, Signal, shortened
from nvcre_agent.incidents.opened import LONGEST_UPDATE_S, Opened, accuses
from nvcre_agent.nvml.snapshot import Inventory, PciAddress
from nvcre_agent.xid.catalogue import catalogue
from nvcre_agent.xid.model import Clears

MAX_OPEN = 512
QUIET_S = 300.0  # an application error or a note is over when it was not repeated for this long
REMEDY_QUIET_S = 60.0  # after a reset or reboot: no repeat for this long
BUS_DROP_WINDOW_S = 300.0  # an Xid 79 and a bus loss without Xid on one address are one (NVSentinel)
RECOVERY_ACTION_WINDOW_S = 300.0  # the driver sets the action after the fault, sometimes minutes later

# Findings of checks that only repeat what an open incident of the GPU says already.
_EXPLAINED_BY_BUS_LOSS = frozenset({"gpu_lost", "gpu_missing", "recovery_action"})
_EXPLAINED_BY_FAULT = frozenset({"recovery_action"})


class Folding:
    """`new_id` makes incident ids; `simulated` marks all incidents of a simulated run."""

    def __init__(self, *, boot_id: str, simulated: bool, new_id: Callable[[], str]) -> None:
        self._boot_id = boot_id
        self._simulated = simulated
        self._new_id = new_id
        self._open: dict[str, Opened] = {}
        self._by_subject: dict[str, list[Opened]] = {}
        self._present: set[str] = set()  # UUIDs that NVML knows in this boot
        self._dirty: set[str] = set()
        self.evicted = 0

    @property
    def is_empty(self) -> bool:
        return not self._open

    @property
    def open_incidents(self) -> tuple[Incident, ...]:
        return tuple(opened.told() for opened in self._open.values())

    def restore(self, kept: Iterable[Kept], *, monotonic_s: float) -> None:
        """Go on with what was open before the restart; a new boot counts as the remedy of what a reboot cures."""
        for one in kept:
            self._keep(Opened.restored(one, boot_id=self._boot_id, now_monotonic_s=monotonic_s))

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
            )
            for one in self._open.values()
            if one.finding_key
        )

    def take_dirty(self) -> tuple[tuple[Kept, ...], tuple[str, ...]]:
        """(incidents to write, ids to delete) since the last call."""
        dirty, self._dirty = self._dirty, set()
        alive = tuple(self._open[key].kept() for key in dirty if key in self._open)
        return alive, tuple(key for key in dirty if key not in self._open)

    # --- signals

    def fold(self, signal: Signal) -> tuple[Change, ...]:
        if (same := self._same(signal)) is not None:
            return self._grown(same, signal, urgent=same.repeat(signal))
        if (root := self._root_of(signal)) is not None:
            return self._grown(root, signal, urgent=root.attach(signal))
        return self._opened(signal)

    def link_active(self, subject: str, *, now_s: float, monotonic_s: float) -> tuple[Change, ...]:
        """The NIC's port is up again."""
        down = [one for one in self._by_subject.get(subject, ()) if one.facts.mnemonic == "LINK_DOWN"]
        return tuple(self._recover(one, now_s, monotonic_s) for one in down)

    def reset_seen(self, subject: str, *, now_s: float, monotonic_s: float) -> tuple[Change, ...]:
        """The recovery action of a GPU went back to none: what a reset cures is over once it stays quiet."""
        changes = []
        for one in list(self._by_subject.get(subject, ())):
            if one.facts.kind is IncidentKind.XID and one.facts.code == 154:
                changes.append(self._recover(one, now_s, monotonic_s))
            elif one.clears is Clears.RESET and not one.finding_key:
                one.remedied = True
                one.last_monotonic_s = max(one.last_monotonic_s, monotonic_s)
                self._dirty.add(one.facts.id)
        return tuple(changes)

    def identify(self, inventory: Inventory, *, now_s: float, monotonic_s: float) -> tuple[Change, ...]:
        """NVML knows the GPUs now: name those that were known by slot only, and close what a replacement cures."""
        self._present.update(gpu.uuid for gpu in inventory.gpus)
        changes = []
        for gpu in inventory.gpus:
            for one in list(self._by_subject.get(str(gpu.pci), ())):
                component = one.facts.component
                if not component.uuid:
                    link = component.kind is ComponentKind.NVLINK
                    one.identify(gpu.uuid, None if link else gpu.index)
                    changes.append(self._tell(one, ChangeKind.UPDATED, now_s, monotonic_s))
                elif component.uuid != gpu.uuid and not one.finding_key:
                    changes.append(self._recover(one, now_s, monotonic_s))
        return tuple(changes)

    # --- findings of checks

    def finding_opened(self, finding: Finding, *, now_s: float, monotonic_s: float) -> tuple[Change, ...]:
        if (known := self._by_finding(finding.key)) is not None:
            return self._finding_changed(known, finding, now_s, monotonic_s)
        subject = _subject_of(finding)
        if (cause := self._explains(subject, finding)) is not None:
            cause.held_by.add(finding.key)
            return ()
        facts = Incident(
            id=self._new_id(),
            kind=IncidentKind.HEALTH_CHECK,
            code=0,
            fault_class=finding.fault_class,
            blame=finding.blame,
            blame_condition=finding.blame_condition,
            component=finding.component,
            message=shortened(finding.message),
            remedy=shortened(finding.remedy),
            sources=(Source.NVML,),
            first_seen_s=now_s,
            last_seen_s=now_s,
            simulated=self._simulated,
            check=finding.check,
        )
        opened = Opened(facts, subject=subject, clears=Clears.RESET, boot_id=self._boot_id, monotonic_s=monotonic_s)
        opened.finding_key = finding.key
        self._keep(opened)
        return (*self._evict(now_s, monotonic_s), self._tell(opened, ChangeKind.OPENED, now_s, monotonic_s))

    def finding_updated(self, finding: Finding, *, now_s: float, monotonic_s: float) -> tuple[Change, ...]:
        return self.finding_opened(finding, now_s=now_s, monotonic_s=monotonic_s)

    def finding_recovered(self, finding: Finding, *, now_s: float, monotonic_s: float) -> tuple[Change, ...]:
        for one in self._open.values():
            one.held_by.discard(finding.key)
        known = self._by_finding(finding.key)
        return () if known is None else (self._recover(known, now_s, monotonic_s),)

    # --- time

    def tick(self, now_s: float, monotonic_s: float) -> tuple[Change, ...]:
        """Tell growth that is due and close what is over."""
        changes = []
        for one in list(self._open.values()):
            if self._is_over(one, monotonic_s):
                changes.append(self._recover(one, now_s, monotonic_s))
            elif one.dirty and monotonic_s >= one.due_s:
                changes.append(self._tell(one, ChangeKind.UPDATED, now_s, monotonic_s))
        return tuple(changes)

    def flush(self, now_s: float, monotonic_s: float) -> tuple[Change, ...]:
        """Tell all growth now (a Sync wants everything that happened before it)."""
        dirty = [one for one in self._open.values() if one.dirty]
        return tuple(self._tell(one, ChangeKind.UPDATED, now_s, monotonic_s) for one in dirty)

    # --- which incident

    def _same(self, signal: Signal) -> Opened | None:
        for one in self._candidates(signal):
            facts = one.facts
            if facts.kind is signal.kind and facts.code == signal.code:
                if facts.mnemonic != signal.verdict.mnemonic and signal.kind is not IncidentKind.XID:
                    continue  # an AER Corrected is not an AER Fatal
                processes = {facts.pid, signal.pid} - {0}
                if len(processes) > 1 and facts.fault_class is FaultClass.APPLICATION:
                    continue
                return one
            bus_loss = {(facts.kind, facts.code), (signal.kind, signal.code)}
            if bus_loss == {(IncidentKind.BUS_DROP, 0), (IncidentKind.XID, 79)} and (
                one.age_s(signal.monotonic_s) <= BUS_DROP_WINDOW_S
            ):
                return one
        return None

    def _root_of(self, signal: Signal) -> Opened | None:
        if signal.kind is not IncidentKind.XID:
            return None
        rules = catalogue()
        window = RECOVERY_ACTION_WINDOW_S if signal.code == 154 else rules.effect_window_s
        newest_first = sorted(self._candidates(signal), key=lambda one: one.last_monotonic_s, reverse=True)
        for one in newest_first:
            if one.facts.kind not in (IncidentKind.XID, IncidentKind.BUS_DROP):
                continue
            if signal.caused_by:
                if one.root_code == signal.caused_by or signal.caused_by in one.effects:
                    return one
                continue
            if one.age_s(signal.monotonic_s) <= window and _follows(signal, one):
                return one
        return None

    def _candidates(self, signal: Signal) -> Iterator[Opened]:
        return (one for one in self._by_subject.get(signal.subject, ()) if one.facts.injected == signal.injected)

    def _explains(self, subject: str, finding: Finding) -> Opened | None:
        for one in self._by_subject.get(subject, ()):
            if one.facts.injected or one.facts.blame is not Blame.YES:
                continue
            if one.root_code == 79 and finding.check in _EXPLAINED_BY_BUS_LOSS:
                return one
            if one.facts.kind is IncidentKind.XID and finding.check in _EXPLAINED_BY_FAULT:
                return one
        return None

    def _by_finding(self, key: str) -> Opened | None:
        return next((one for one in self._open.values() if one.finding_key == key), None)

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
            fault_class=finding.fault_class,
            blame=finding.blame,
            blame_condition=finding.blame_condition,
            component=finding.component,
            message=shortened(finding.message),
            remedy=shortened(finding.remedy),
        )
        known.last_s = now_s
        return (self._tell(known, ChangeKind.UPDATED, now_s, monotonic_s),)

    def _is_over(self, one: Opened, monotonic_s: float) -> bool:
        quiet_s = monotonic_s - one.last_monotonic_s
        if one.finding_key or one.held_by:
            return False
        match one.clears:
            case Clears.QUIET:
                return quiet_s >= QUIET_S
            case Clears.RESET | Clears.REBOOT:
                uuid = one.facts.component.uuid
                return one.remedied and quiet_s >= REMEDY_QUIET_S and (not uuid or uuid in self._present)
            case _:
                return False

    def _tell(self, one: Opened, kind: ChangeKind, now_s: float, monotonic_s: float, uncertain: bool = False) -> Change:
        if kind is ChangeKind.UPDATED:
            one.interval_s = min(one.interval_s * 2, LONGEST_UPDATE_S)
        one.dirty = False
        one.due_s = monotonic_s + one.interval_s
        self._dirty.add(one.facts.id)
        return Change(kind, one.told(), now_s, monotonic_s, uncertain)

    def _recover(self, one: Opened, now_s: float, monotonic_s: float) -> Change:
        del self._open[one.facts.id]
        siblings = self._by_subject[one.subject]
        siblings.remove(one)
        if not siblings:
            del self._by_subject[one.subject]
        self._dirty.add(one.facts.id)
        recovered_at_s = max(now_s, one.facts.first_seen_s)
        return Change(ChangeKind.RECOVERED, one.told(recovered_at_s), now_s, monotonic_s)

    def _keep(self, one: Opened) -> None:
        self._open[one.facts.id] = one
        self._by_subject.setdefault(one.subject, []).append(one)

    def _evict(self, now_s: float, monotonic_s: float) -> tuple[Change, ...]:
        """Over the limit the oldest of those that accuse least is closed, and counted."""
        if len(self._open) <= MAX_OPEN:
            return ()
        least = min(self._open.values(), key=lambda one: (accuses(one.facts.blame), one.last_monotonic_s))
        self.evicted += 1
        return (self._recover(least, now_s, monotonic_s),)


def _follows(signal: Signal, root: Opened) -> bool:
    """Is this Xid an effect of that incident?"""
    rules = catalogue()
    facts = root.facts
    if signal.code != 154 and accuses(signal.verdict.blame) > accuses(facts.blame):
        return False
    other_process = bool(signal.pid and facts.pid and signal.pid != facts.pid)
    if facts.fault_class is FaultClass.APPLICATION and other_process:
        return False
    if signal.code in rules.effects.get(root.root_code, frozenset()) or signal.code in root.effects:
        return True
    if signal.code in rules.effects_of_any:
        return root.root_code not in rules.effects_of_any
    same_process = bool(signal.pid) and signal.pid == facts.pid
    return (
        same_process
        and signal.verdict.fault_class is FaultClass.APPLICATION
        and facts.fault_class is FaultClass.APPLICATION
    )


def _subject_of(finding: Finding) -> str:
    try:
        return str(PciAddress.parse(finding.component.pci_bus_id))
    except ValueError:
        return ""
