"""When does a finding open, change and recover?  Hysteresis over successive evaluations, as a pure value.

    tracked, changes = tracked.step(evaluate(snapshot, baseline, limits), now_s, limits, replaced=uuids)

`now_s` is monotonic time.  A condition opens once it was seen for `raise_after_s` without a gap, and recovers once it
was gone for `clear_after_s`.  An open condition that is `Undecided` stays as it is, one that is not open begins anew.
What a GPU had that was replaced ends at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from nvcre_agent.checks.limits import Hysteresis, Limits
from nvcre_agent.checks.model import Finding, Undecided


@dataclass(frozen=True, slots=True)
class Opened:
    finding: Finding


@dataclass(frozen=True, slots=True)
class Updated:
    """Same key, but the text, class or component changed (a second link went down, the action rose)."""

    finding: Finding


@dataclass(frozen=True, slots=True)
class Recovered:
    finding: Finding


Change: TypeAlias = Opened | Updated | Recovered


@dataclass(frozen=True, slots=True)
class _Condition:
    finding: Finding
    seen_since_s: float
    gone_since_s: float | None
    open: bool


@dataclass(frozen=True, slots=True)
class Tracker:
    _conditions: Mapping[str, _Condition] = field(default_factory=dict)

    @property
    def open(self) -> tuple[Finding, ...]:
        return tuple(condition.finding for condition in self._conditions.values() if condition.open)

    @property
    def waiting(self) -> tuple[Finding, ...]:
        """Seen, and not for long enough to be a fault."""
        return tuple(condition.finding for condition in self._conditions.values() if not condition.open)

    @classmethod
    def resume(cls, open_findings: Iterable[Finding], now_s: float) -> Tracker:
        """After a restart: what was open stays open until it has been gone for long enough."""
        return cls({finding.key: _Condition(finding, now_s, None, True) for finding in open_findings})

    def forget(self, keys: Iterable[str]) -> Tracker:
        """As if these had never been seen: what is still so opens anew."""
        gone = frozenset(keys)
        return Tracker({key: one for key, one in self._conditions.items() if key not in gone})

    def step(
        self,
        said: Iterable[Finding | Undecided],
        now_s: float,
        limits: Limits,
        *,
        replaced: Collection[str] = (),
    ) -> tuple[Tracker, tuple[Change, ...]]:
        seen: dict[str, Finding] = {}
        undecided: set[str] = set()
        for answer in said:
            match answer:
                case Finding():
                    seen[answer.key] = answer
                case Undecided():
                    undecided.add(answer.key)
        conditions: dict[str, _Condition] = {}
        changes: list[Change] = []
        for key in [*self._conditions, *(key for key in seen if key not in self._conditions)]:
            before = self._conditions.get(key)
            finding = seen.get(key)
            change: Change | None
            if before is not None and before.finding.component.uuid in replaced:
                after, change = None, Recovered(before.finding) if before.open else None
            elif finding is not None:
                after, change = _seen(before, finding, now_s, limits.hysteresis[finding.check])
            elif before is not None and key in undecided:
                after, change = (replace(before, gone_since_s=None) if before.open else None), None
            elif before is not None:
                after, change = _gone(before, now_s, limits.hysteresis[before.finding.check])
            else:
                continue
            if after is not None:
                conditions[key] = after
            if change is not None:
                changes.append(change)
        return Tracker(conditions), tuple(changes)


def _seen(
    before: _Condition | None, finding: Finding, now_s: float, limits: Hysteresis
) -> tuple[_Condition | None, Change | None]:
    since = before.seen_since_s if before else now_s
    if before is not None and before.open:
        change = Updated(finding) if before.finding != finding else None
        return _Condition(finding, since, None, True), change
    if now_s - since >= limits.raise_after_s:
        return _Condition(finding, since, None, True), Opened(finding)
    return _Condition(finding, since, None, False), None


def _gone(before: _Condition, now_s: float, limits: Hysteresis) -> tuple[_Condition | None, Change | None]:
    if not before.open:
        return None, None
    since = before.gone_since_s if before.gone_since_s is not None else now_s
    if now_s - since >= limits.clear_after_s:
        return None, Recovered(before.finding)
    return replace(before, gone_since_s=since), None
