"""Has this fault come back? Decides how a verdict grows by what the same GPU went through before. Pure.

A fault that returns after its remedy was carried out goes up the ladder: reset, reboot, inspection (Fatal hardware).
A contained error that comes a second time accuses the GPU. The numbers are in escalation.yaml.

`History` is a value; the agent keeps it over restarts and reboots (`to_json`). It remembers remedies that were seen,
not those that were asked for, and forgets a GPU that was replaced or that a person declared healthy.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

import yaml
from nvcre_protos.vocabulary import Blame, FaultClass

from nvcre_agent.xid.model import Classification, Clears

MAX_FAULTS = 256


@dataclass(frozen=True, slots=True)
class Repeats:
    window_s: float
    apart_s: float
    remedy: str


@dataclass(frozen=True, slots=True)
class Ladder:
    """escalation.yaml."""

    window_s: float
    remedies_before_inspection: int
    inspect_at_once: frozenset[int]
    guilty_when_back: frozenset[int]
    repeats: Mapping[int, Repeats]


@dataclass(frozen=True, slots=True)
class Past:
    """What is known of one fault of one GPU: remedies seen, and when it was seen itself (codes in `repeats` only)."""

    remedies: int = 0
    remedied_at_s: float = 0.0
    seen_at_s: float = 0.0
    seen_pid: int = 0


@dataclass(frozen=True, slots=True)
class History:
    """By fault: `<GPU's UUID>/<code>`, `<slot>/<code>` of other devices."""

    faults: Mapping[str, Past] = field(default_factory=dict)

    def remedied(self, fault: str, now_s: float) -> "History":
        past = self.faults.get(fault, Past())
        earlier = past.remedies if _within(past.remedied_at_s, now_s, ladder().window_s) else 0
        return self._with(fault, replace(past, remedies=earlier + 1, remedied_at_s=now_s))

    def seen(self, fault: str, code: int, pid: int, now_s: float) -> "History":
        """Remember the event of a code that must not come twice; further lines of the same event change nothing."""
        rule, past = ladder().repeats.get(code), self.faults.get(fault, Past())
        if rule is None or _one_event(past, pid, now_s, rule):
            return self
        return self._with(fault, replace(past, seen_at_s=now_s, seen_pid=pid))

    def without(self, device: str) -> "History":
        """`device`: a UUID or slot."""
        return History({key: past for key, past in self.faults.items() if not key.startswith(f"{device}/")})

    def escalated(self, verdict: Classification, fault: str, code: int, pid: int, now_s: float) -> Classification:
        """The verdict about a fault that is seen now, before `seen` is told of it."""
        past = self.faults.get(fault)
        if past is None:
            return verdict
        repeats = ladder().repeats.get(code)
        if repeats is not None and past.seen_at_s and _within(past.seen_at_s, now_s, repeats.window_s):
            twice = not _one_event(past, pid, now_s, repeats)
            return _accused(verdict, FaultClass.NEEDS_RESET, Clears.RESET, repeats.remedy) if twice else verdict
        return _next_rung(verdict, past, code) if _came_back(verdict, past, code, now_s) else verdict

    def to_json(self) -> dict[str, list[float]]:
        return {
            fault: [past.remedies, past.remedied_at_s, past.seen_at_s, past.seen_pid]
            for fault, past in self.faults.items()
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Iterable[float]]) -> "History":
        """AttributeError, TypeError or ValueError where `raw` did not come from `to_json`."""
        faults = {}
        for fault, numbers in raw.items():
            remedies, remedied_at_s, seen_at_s, seen_pid = numbers
            faults[fault] = Past(int(remedies), float(remedied_at_s), float(seen_at_s), int(seen_pid))
        return cls(faults)

    def _with(self, fault: str, past: Past) -> "History":
        faults = {**self.faults, fault: past}
        if len(faults) > MAX_FAULTS:
            del faults[min(faults, key=lambda key: max(faults[key].remedied_at_s, faults[key].seen_at_s))]
        return History(faults)


def _came_back(verdict: Classification, past: Past, code: int, now_s: float) -> bool:
    guilty = verdict.blame is Blame.YES or code in ladder().guilty_when_back
    return guilty and past.remedies > 0 and _within(past.remedied_at_s, now_s, ladder().window_s)


def _next_rung(verdict: Classification, past: Past, code: int) -> Classification:
    rules = ladder()
    inspect = code in rules.inspect_at_once or past.remedies >= rules.remedies_before_inspection
    match verdict.fault_class:
        case FaultClass.NEEDS_RESET if not inspect:
            remedy = "drain and reboot the node: the reset did not last"
            return _accused(verdict, FaultClass.NEEDS_REBOOT, Clears.REBOOT, remedy)
        case FaultClass.NEEDS_RESET | FaultClass.NEEDS_REBOOT:
            remedy = "drain the node; inspect or replace the hardware: the fault came back after its remedy"
            return _accused(verdict, FaultClass.FATAL_HARDWARE, Clears.REPLACEMENT, remedy)
        case _:
            return verdict


def _within(then_s: float, now_s: float, window_s: float) -> bool:
    """The wall clock may have jumped in either direction since."""
    return abs(now_s - then_s) <= window_s


def _one_event(past: Past, pid: int, now_s: float, rule: Repeats) -> bool:
    other_process = bool(pid and past.seen_pid and pid != past.seen_pid)
    return _within(past.seen_at_s, now_s, rule.apart_s) and not other_process


def _accused(verdict: Classification, fault_class: FaultClass, clears: Clears, remedy: str) -> Classification:
    return replace(
        verdict, fault_class=fault_class, blame=Blame.YES, condition="", clears=clears, remedy=remedy, hardware=True
    )


@cache
def ladder() -> Ladder:
    text = resources.files(__package__).joinpath("escalation.yaml").read_text(encoding="utf-8")
    raw: dict[str, Any] = yaml.safe_load(text)
    return Ladder(
        window_s=float(raw["window_s"]),
        remedies_before_inspection=int(raw["remedies_before_inspection"]),
        inspect_at_once=frozenset(raw["inspect_at_once"]),
        guilty_when_back=frozenset(raw["guilty_when_back"]),
        repeats={
            code: Repeats(float(row["window_s"]), float(row["apart_s"]), row["remedy"])
            for code, row in raw["repeats"].items()
        },
    )
