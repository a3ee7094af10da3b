"""Which open incident does a signal or a finding belong to? Pure functions over the open incidents of one device.

`same`: the signal is a repeat, or the other source's word. `root`: it is an effect. `explains`: the finding of a check
only repeats what an incident says already. Signals that were injected are kept apart from real ones by the caller.
"""

from collections.abc import Iterable

from nvcre_protos.vocabulary import Blame, FaultClass, IncidentKind

from nvcre_agent.checks.model import Finding
from nvcre_agent.incidents.model import Signal
from nvcre_agent.incidents.opened import JOIN_WINDOW_S, Opened, accuses
from nvcre_agent.xid.catalogue import catalogue

BUS_DROP_WINDOW_S = 300.0  # an Xid 79 and a bus loss without Xid on one address are one (NVSentinel)
RECOVERY_ACTION_WINDOW_S = 300.0  # the driver sets the action after the fault, sometimes minutes later

# Findings of checks that only repeat what an open incident of the GPU says already.
_EXPLAINED_BY_BUS_LOSS = frozenset({"gpu_lost", "gpu_missing", "gpu_unreadable", "recovery_action"})
_EXPLAINED_BY_FAULT = frozenset({"recovery_action"})


def same(signal: Signal, among: Iterable[Opened]) -> Opened | None:
    for one in among:
        facts = one.facts
        if facts.kind is signal.kind and facts.code == signal.code:
            if facts.mnemonic != signal.verdict.mnemonic and signal.kind is not IncidentKind.XID:
                continue  # an AER Corrected is not an AER Fatal
            processes = {facts.pid, signal.pid} - {0}
            if len(processes) > 1 and facts.fault_class is FaultClass.APPLICATION:
                continue
            if not _same_instance(signal, one):
                continue
            return one
        bus_loss = {(facts.kind, facts.code), (signal.kind, signal.code)}
        if bus_loss == {(IncidentKind.BUS_DROP, 0), (IncidentKind.XID, 79)} and (
            one.age_s(signal.monotonic_s) <= BUS_DROP_WINDOW_S
        ):
            return one
    return None


def root(signal: Signal, among: Iterable[Opened]) -> Opened | None:
    newest_first = sorted(among, key=lambda one: one.last_monotonic_s, reverse=True)
    if signal.kind is not IncidentKind.XID:
        return next((one for one in newest_first if _consequence_of_bus_loss(signal, one)), None)
    rules = catalogue()
    window = RECOVERY_ACTION_WINDOW_S if signal.code == 154 else rules.effect_window_s
    for one in newest_first:
        if one.facts.kind not in (IncidentKind.XID, IncidentKind.BUS_DROP) or _other_instance(signal, one):
            continue
        if signal.caused_by:
            if one.root_code == signal.caused_by or signal.caused_by in one.effects:
                return one
            continue
        if one.age_s(signal.monotonic_s) <= window and _follows(signal, one):
            return one
    return None


def explains(one: Opened, finding: Finding) -> bool:
    if one.facts.injected or one.facts.blame is not Blame.YES:
        return False
    if one.root_code == 79 and finding.check in _EXPLAINED_BY_BUS_LOSS:
        return True
    return one.facts.kind is IncidentKind.XID and finding.check in _EXPLAINED_BY_FAULT


def _follows(signal: Signal, one: Opened) -> bool:
    """Is this Xid an effect of that incident?"""
    rules = catalogue()
    facts = one.facts
    if signal.code != 154 and accuses(signal.verdict.blame) > accuses(facts.blame):
        return False
    other_process = bool(signal.pid and facts.pid and signal.pid != facts.pid)
    if facts.fault_class is FaultClass.APPLICATION and other_process:
        return False
    if signal.code in rules.effects.get(one.root_code, frozenset()) or signal.code in one.effects:
        return True
    if signal.code in rules.effects_of_any:
        return one.root_code not in rules.effects_of_any
    same_process = bool(signal.pid) and signal.pid == facts.pid
    return (
        same_process
        and signal.verdict.fault_class is FaultClass.APPLICATION
        and facts.fault_class is FaultClass.APPLICATION
    )


def _consequence_of_bus_loss(signal: Signal, one: Opened) -> bool:
    """The driver cannot start a GPU that is off the bus, each time somebody opens it; the port tells of it too."""
    if one.root_code != 79:
        return False
    if signal.kind is IncidentKind.RM_INIT_FAILED:
        return True
    return signal.kind is IncidentKind.PCIE_AER and one.age_s(signal.monotonic_s) <= catalogue().effect_window_s


def _same_instance(signal: Signal, one: Opened) -> bool:
    """A MIG instance's fault is not its neighbour's. One source may know the instance while the other does not."""
    mine, theirs = signal.component, one.facts.component
    if (mine.gpu_instance, mine.compute_instance) == (theirs.gpu_instance, theirs.compute_instance):
        return True
    other_source = signal.source not in one.sources and one.age_s(signal.monotonic_s) <= JOIN_WINDOW_S
    return other_source and (mine.gpu_instance is None or theirs.gpu_instance is None)


def _other_instance(signal: Signal, one: Opened) -> bool:
    mine, theirs = signal.component.gpu_instance, one.facts.component.gpu_instance
    return mine is not None and theirs is not None and mine != theirs
