"""One open incident while it lives: the mutable middle between signals and the frozen `Incident` that is told.

Counts repeats and effects, joins sources, takes over better details, and knows when its growth is worth telling (at
once for a new source or a new effect, else after 1 s, 2 s, 4 s ... 300 s, so that a storm costs few records).
"""

from dataclasses import replace

from nvcre_protos.vocabulary import Blame, FaultClass, IncidentKind, Source

from nvcre_agent.incidents.model import Incident, Kept, Signal, shortened
from nvcre_agent.xid.classify import UNKNOWN
from nvcre_agent.xid.model import Clears

JOIN_WINDOW_S = 30.0  # both sources tell the same fault within this time (DESIGN 6.1)
FIRST_UPDATE_S = 1.0
LONGEST_UPDATE_S = 300.0
MAX_EFFECTS = 64

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
        "held_by",
        "interval_s",
        "last_monotonic_s",
        "last_s",
        "remedied",
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
        self.remedied = False
        self.finding_key = ""
        self.held_by: set[str] = set()
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
        opened.remedied = kept.remedied or (not same_boot and kept.clears in (Clears.REBOOT, Clears.RESET))
        if not same_boot and opened.remedied:
            opened.last_monotonic_s = now_monotonic_s  # the quiet time after the reboot counts from here
        opened.finding_key = kept.finding_key
        return opened

    def told(self, recovered_at_s: float | None = None) -> Incident:
        return replace(
            self.facts,
            count=self.count,
            sources=tuple(self.sources),
            effects=dict(self.effects),
            last_seen_s=max(self.last_s, self.facts.first_seen_s),
            recovered_at_s=recovered_at_s,
        )

    def kept(self) -> Kept:
        return Kept(
            self.told(), self.subject, self.clears, self.boot_id, self.last_monotonic_s, self.remedied, self.finding_key
        )

    @property
    def root_code(self) -> int:
        """A bus loss is an Xid 79 without its line."""
        return 79 if self.facts.kind is IncidentKind.BUS_DROP else self.facts.code

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
        """A later event that follows this fault; True when it is the first of its code."""
        first = signal.code not in self.effects
        if first and len(self.effects) >= MAX_EFFECTS:
            return False
        source = self._effect_sources.setdefault(signal.code, signal.source)
        if first or source is signal.source:
            self.effects[signal.code] = self.effects.get(signal.code, 0) + 1
        self._seen(signal)
        if signal.code == 154:
            first |= self._raise(signal)
        return first

    def identify(self, component_uuid: str, index: int | None) -> None:
        component = replace(self.facts.component, uuid=component_uuid)
        if index is not None:
            component = replace(component, index=index)
        self.facts = replace(self.facts, component=component)

    def _seen(self, signal: Signal) -> None:
        self.last_s = max(self.last_s, signal.time_s)
        self.last_monotonic_s = max(self.last_monotonic_s, signal.monotonic_s)
        self.remedied = False
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
                component=signal.component if signal.component.uuid else facts.component,
            )
        if not facts.pid and signal.pid:
            facts = replace(facts, pid=signal.pid, process=signal.process)
        undecided = facts.fault_class is FaultClass.UNKNOWN and signal.verdict is not UNKNOWN
        worse = (accuses(signal.verdict.blame), _SEVERITY[signal.verdict.fault_class]) > (
            accuses(facts.blame),
            _SEVERITY[facts.fault_class],
        )
        changed = (undecided and signal.verdict.fault_class is not FaultClass.UNKNOWN) or worse
        if changed:
            facts = _with_verdict(facts, signal)
            self.clears = signal.verdict.clears
        self.facts = facts
        return changed

    def _raise(self, signal: Signal) -> bool:
        """A recovery action raises the verdict at once and never lowers it; only its remedy is taken over always."""
        if _SEVERITY[signal.verdict.fault_class] < _SEVERITY[FaultClass.NEEDS_RESET]:
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


def _with_verdict(facts: Incident, signal: Signal) -> Incident:
    verdict = signal.verdict
    return replace(
        facts,
        fault_class=verdict.fault_class,
        blame=verdict.blame,
        blame_condition=verdict.condition,
        remedy=verdict.remedy,
        mnemonic=verdict.mnemonic or facts.mnemonic,
    )
