"""One open incident while it lives: the mutable middle between signals and the frozen `Incident` that is told.

Counts repeats and effects, joins sources, takes over better details, and knows when its growth is worth telling (at
once for a new source or a new effect, else after 1 s, 2 s, 4 s ... 300 s, so that a storm costs few records).
"""

from dataclasses import replace

from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, IncidentKind, RecoveredBy, Source

from nvcre_agent.checks.model import Component, Finding
from nvcre_agent.incidents.model import Incident, Kept, Signal, shortened
from nvcre_agent.xid.classify import UNKNOWN
from nvcre_agent.xid.model import Classification, Clears

JOIN_WINDOW_S = 30.0  # both sources tell the same fault within this time (DESIGN 6.1)
FIRST_UPDATE_S = 1.0
LONGEST_UPDATE_S = 300.0
MAX_EFFECTS = 64
MAX_UNIT = 64
UNITS_JOINED_BY = "; "

_SEVERITY = {
    FaultClass.UNKNOWN: 0,
    FaultClass.INFORMATIONAL: 1,
    FaultClass.APPLICATION: 2,
    FaultClass.NEEDS_RESET: 3,
    FaultClass.NEEDS_REBOOT: 4,
    FaultClass.FATAL_HARDWARE: 5,
}
_ACCUSES = {Blame.NO: 0, Blame.CONDITIONAL: 1, Blame.YES: 2}


def accuses(blame: Blame) -> int:
    """How much a verdict accuses: No 0, Conditional 1, Yes 2."""
    return _ACCUSES[blame]


class Opened:
    __slots__ = (
        "_effect_sources",
        "_first_source_at",
        "boot_id",
        "clears",
        "count",
        "dirty",
        "due_s",
        "effects",
        "facts",
        "finding_key",
        "held",
        "interval_s",
        "last_monotonic_s",
        "last_s",
        "remedied_by",
        "sources",
        "subject",
    )

    def __init__(self, facts: Incident, *, subject: str, clears: Clears, boot_id: str, monotonic_s: float) -> None:
        self.facts = facts
        self.subject = subject
        self.clears = clears
        self.boot_id = boot_id
        self.count = facts.count
        self.sources = list(facts.sources)
        self.effects = dict(facts.effects)
        self.last_s = facts.last_seen_s
        self.last_monotonic_s = monotonic_s
        self.remedied_by: RecoveredBy | None = None  # a remedy was seen, and the fault not since
        self.finding_key = ""
        self.held: dict[str, Finding] = {}  # what checks find and this incident explains, by key
        self.dirty = False
        self.interval_s = FIRST_UPDATE_S
        self.due_s = monotonic_s + FIRST_UPDATE_S
        self._first_source_at = monotonic_s
        self._effect_sources: dict[int, Source] = {}

    @classmethod
    def restored(cls, kept: Kept, *, boot_id: str, now_monotonic_s: float) -> "Opened":
        same_boot = kept.boot_id == boot_id
        opened = cls(
            kept.incident,
            subject=kept.subject,
            clears=kept.clears,
            boot_id=boot_id,
            # The monotonic clock of another boot says nothing; "long ago" is what is known.
            monotonic_s=kept.last_monotonic_s if same_boot else now_monotonic_s - 1e6,
        )
        if not same_boot and kept.clears in (Clears.REBOOT, Clears.RESET):
            opened.remedied_by = RecoveredBy.REBOOT
            opened.last_monotonic_s = now_monotonic_s  # the quiet time after the reboot counts from here
        elif kept.remedied:
            opened.remedied_by = RecoveredBy.RESET if kept.clears is Clears.RESET else RecoveredBy.REBOOT
        opened.finding_key = kept.finding_key
        return opened

    def told(self, recovered_at_s: float | None = None, by: RecoveredBy | None = None) -> Incident:
        return replace(
            self.facts,
            count=self.count,
            sources=tuple(self.sources),
            effects=dict(self.effects),
            last_seen_s=max(self.last_s, self.facts.first_seen_s),
            recovered_at_s=recovered_at_s,
            recovered_by=by,
        )

    def kept(self) -> Kept:
        return Kept(
            self.told(),
            self.subject,
            self.clears,
            self.boot_id,
            self.last_monotonic_s,
            self.remedied_by is not None,
            self.finding_key,
        )

    @property
    def root_code(self) -> int:
        """A bus loss is an Xid 79 without its line."""
        return 79 if self.facts.kind is IncidentKind.BUS_DROP else self.facts.code

    @property
    def fault(self) -> str:
        """What escalation.py calls the fault; empty while nobody knows which GPU it is."""
        facts = self.facts
        return fault_name(self.subject, facts.component, facts.kind, facts.code, facts.check)

    def age_s(self, monotonic_s: float) -> float:
        return abs(monotonic_s - self.last_monotonic_s)

    def repeat(self, signal: Signal) -> bool:
        """The same fault again; True when it must be told at once (a source joined or the verdict grew)."""
        urgent = False
        first = self.sources[0] if self.sources else signal.source
        other_words = signal.kind is not self.facts.kind  # a bus loss beside its Xid 79 is the same loss, not a repeat
        late = abs(signal.monotonic_s - self._first_source_at) > JOIN_WINDOW_S
        if signal.source not in self.sources:
            self.sources.append(signal.source)
            urgent = True
            self.count += 1 if late else 0
        elif not other_words and (signal.source is first or late):
            self.count += 1
        if signal.source is first:
            self._first_source_at = signal.monotonic_s
        self._seen(signal)
        return self._refine(signal) or urgent

    def attach(self, signal: Signal) -> bool:
        """A later event that follows this fault; True when it is the first Xid of its code."""
        self._seen(signal)
        if signal.kind is not IncidentKind.XID:
            return False
        first = signal.code not in self.effects
        if first and len(self.effects) >= MAX_EFFECTS:
            return False
        source = self._effect_sources.setdefault(signal.code, signal.source)
        if first or source is signal.source:
            self.effects[signal.code] = self.effects.get(signal.code, 0) + 1
        if signal.code == 154:
            first |= self._raise(signal)
        return first

    def escalate(self, verdict: Classification) -> bool:
        """Take over what the fault became because it came back; True when that is news."""
        facts = self.facts
        if _SEVERITY[verdict.fault_class] <= _SEVERITY[facts.fault_class] and facts.blame is verdict.blame:
            return False
        self.facts = _with_verdict(facts, verdict)
        self.clears = verdict.clears
        return True

    @property
    def verdict(self) -> Classification:
        facts = self.facts
        return Classification(
            facts.fault_class, facts.blame, self.clears, facts.mnemonic, facts.blame_condition, facts.remedy
        )

    def is_at(self, subject: str, index: int | None) -> bool:
        component = self.facts.component
        return self.subject == subject and (component.kind is not ComponentKind.GPU or component.index == index)

    def move(self, subject: str, index: int | None) -> None:
        """The GPU is known by another address since a reboot, or by another index since the driver was loaded anew."""
        self.subject = subject
        component = replace(self.facts.component, pci_bus_id=subject)
        self.facts = replace(self.facts, component=component)
        if component.kind is ComponentKind.GPU:
            self.facts = replace(self.facts, component=replace(component, index=index))

    def identify(self, component_uuid: str, index: int | None) -> None:
        component = replace(self.facts.component, uuid=component_uuid)
        if index is not None:
            component = replace(component, index=index)
        self.facts = replace(self.facts, component=component)

    def _seen(self, signal: Signal) -> None:
        self.last_s = max(self.last_s, signal.time_s)
        self.last_monotonic_s = max(self.last_monotonic_s, signal.monotonic_s)
        self.remedied_by = None
        self.dirty = True

    def _refine(self, signal: Signal) -> bool:
        """Take over what the kernel line knows better than the NVML event; the verdict never gets milder."""
        facts = self.facts
        if signal.kind is IncidentKind.XID and facts.kind is IncidentKind.BUS_DROP:
            facts = replace(facts, kind=IncidentKind.XID, code=signal.code, mnemonic=signal.verdict.mnemonic)
        if signal.source is Source.KERNEL_LOG and not facts.raw:
            facts = replace(
                facts,
                message=shortened(signal.message),
                raw=shortened(signal.raw),
                caused_by=signal.caused_by,
                component=_narrower(facts.component, signal.component),
            )
        elif facts.component.gpu_instance is None and signal.component.gpu_instance is not None:
            facts = replace(facts, component=_with_instance(facts.component, signal.component))
        if not facts.pid and signal.pid:
            facts = replace(
                facts,
                pid=signal.pid,
                process=signal.process,
                pod_uid=signal.pod_uid,
                container_id=signal.container_id,
            )
        if signal.unit and signal.unit not in facts.unit.split(UNITS_JOINED_BY):
            units = f"{facts.unit}{UNITS_JOINED_BY}{signal.unit}" if facts.unit else signal.unit
            facts = replace(facts, unit=units if len(units) <= MAX_UNIT else facts.unit)
        undecided = facts.fault_class is FaultClass.UNKNOWN and signal.verdict is not UNKNOWN
        worse = (accuses(signal.verdict.blame), _SEVERITY[signal.verdict.fault_class]) > (
            accuses(facts.blame),
            _SEVERITY[facts.fault_class],
        )
        # An Xid 154 on its own is the driver's present word: another action replaces it, only none (0) does not.
        action = facts.kind is IncidentKind.XID and facts.code == 154 and facts.remedy != signal.verdict.remedy
        driver_asks = _SEVERITY[signal.verdict.fault_class] >= _SEVERITY[FaultClass.NEEDS_RESET]
        changed = (undecided and signal.verdict.fault_class is not FaultClass.UNKNOWN) or worse
        changed = changed or (action and driver_asks)
        if changed:
            facts = _with_verdict(facts, signal.verdict)
            self.clears = signal.verdict.clears
        self.facts = facts
        return changed

    def _raise(self, signal: Signal) -> bool:
        """A recovery action raises the verdict at once and never lowers it; of a milder one nothing is taken over."""
        needed = max(_SEVERITY[FaultClass.NEEDS_RESET], _SEVERITY[self.facts.fault_class])
        if _SEVERITY[signal.verdict.fault_class] < needed:
            return False
        worse = _SEVERITY[signal.verdict.fault_class] > _SEVERITY[self.facts.fault_class]
        blame = max(self.facts.blame, signal.verdict.blame, key=accuses)
        condition = "" if blame is Blame.YES else self.facts.blame_condition or signal.verdict.condition
        changed = worse or blame is not self.facts.blame or self.facts.remedy != signal.verdict.remedy
        self.facts = replace(self.facts, blame=blame, blame_condition=condition, remedy=signal.verdict.remedy)
        if worse:
            self.facts = replace(self.facts, fault_class=signal.verdict.fault_class)
            self.clears = signal.verdict.clears
        return changed


def fault_name(subject: str, component: Component, kind: IncidentKind, code: int, check: str) -> str:
    """`<device>/<code>`: by UUID for a GPU and its links, else by address. A GPU that is gone is an Xid 79."""
    of_gpu = component.kind in (ComponentKind.GPU, ComponentKind.NVLINK) and kind is not IncidentKind.SXID
    device = component.uuid if of_gpu else subject or "node"
    if not device:
        return ""
    if kind is IncidentKind.BUS_DROP or check in ("gpu_lost", "gpu_missing"):
        kind, code, check = IncidentKind.XID, 79, ""
    return f"{device}/{check or f'{kind.value} {code}'}"


def _narrower(known: Component, said: Component) -> Component:
    """What the kernel line names (a link), with the MIG instance that only NVML told."""
    if not said.uuid:
        return _with_instance(known, said) if known.gpu_instance is None else known
    return said if said.gpu_instance is not None else _with_instance(said, known)


def _with_instance(component: Component, of: Component) -> Component:
    return replace(component, gpu_instance=of.gpu_instance, compute_instance=of.compute_instance)


def _with_verdict(facts: Incident, verdict: Classification) -> Incident:
    return replace(
        facts,
        fault_class=verdict.fault_class,
        blame=verdict.blame,
        blame_condition=verdict.condition,
        remedy=verdict.remedy,
        mnemonic=verdict.mnemonic or facts.mnemonic,
    )
