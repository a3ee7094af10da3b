"""Every part of a structural schema: our engine says what a real kube-apiserver says, word for word.

The CRD is features.yaml. Without a real server the engine alone is held to what is written here.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest

from .case import judge
from .judges import UNCHECKED, Engine, Refused, ServerJudge

BASE = {"apiVersion": "test.nvcre.nvidia.com/v1alpha1", "kind": "Feature", "spec": {}}


@dataclass(frozen=True)
class Case:
    name: str
    given: dict[str, Any] = field(default_factory=dict)
    change: dict[str, Any] | None = None
    says: tuple[str, ...] = ()
    """Parts of `field: message`, one per cause beside the one about rules that were not checked; none: accepted."""
    status: None = None


def given(name: str, value: Any, *says: str) -> Case:
    return Case(f"{name} {value!r:.40}", {f"spec.{name}": value}, says=says)


def changed(name: str, old: Any, new: Any, *says: str) -> Case:
    return Case(f"{name} from {old!r:.30} to {new!r:.30}", {f"spec.{name}": old}, {f"spec.{name}": new}, says)


VALUES = [
    given("word", "ab"),
    given("word", "a", "at least 2 chars"),
    given("word", "abcde", "Too long"),
    given("word", "éééé", "should match"),
    given("word", "AB", "should match"),
    given("word", 'a"\\', "should match"),
    given("word", 1, 'must be of type string: "integer"'),
    given("ratio", 1),
    given("ratio", 0.5),
    given("ratio", 0, "greater than 0"),
    given("ratio", 1.6, "less than or equal to 1.5"),
    given("ratio", "1", "must be of type number"),
    given("ratio", True, "must be of type number"),
    given("even", 4),
    given("even", 3, "multiple of 2"),
    given("even", 10, "less than 10"),
    given("even", 1.5, "must be of type integer", "(default format)", "multiple of 2"),
    given("even", 2**70, "(default format)", "multiple of 2", "less than 10", 'must be of type integer: "number"'),
    given("port", 80),
    given("port", "http"),
    given("port", "80", "should match"),
    given("port", 1.5, 'must be of type integer,string: "number"'),
    given("choice", 1),
    given("choice", 3, 'Unsupported value: 3: supported values: "1", "2"'),
    given("choice", True, "Unsupported value: true", "must be of type integer"),
    given("maybe", None),
    given("size", None),
    given("when", "2026-03-01T12:00:00Z"),
    given("when", "2026-03-01t12:00:00.5+01:00"),
    given("when", "2026-03-01", "of type date-time"),
    given("when", "2026-02-30T12:00:00Z", "of type date-time"),
    given("when", "2026-03-01T24:00:00Z", "of type date-time"),
    given("when", "2026-03-01T12:00:00 Z", "of type date-time"),
    given("day", "2026-03-01"),
    given("day", "2026-3-1", "of type date"),
    given("pause", "1m30s"),
    given("pause", "soon", "of type duration"),
    given("pause", "5", "of type duration"),
    given("address", "10.0.0.1"),
    given("address", "10.0.0.256", "of type ipv4"),
    given("network", "10.0.0.0/8"),
    given("network", "10.0.0.0", "of type cidr"),
    given("bytes", "aGk="),
    given("bytes", "aGk", "of type byte"),
    given("id", "123e4567-e89b-12d3-a456-426614174000"),
    given("id", "123e4567", "of type uuid"),
    given("shape", "square"),
    given("pair", [1, 2]),
    given("pair", [1], "at least 2 items"),
    given("pair", [1, 2, 3, 4], "Too many: 4: must have at most 3 items"),
    given("pair", [1, "x"], "pair[1]"),
    given("pair", [1, None], 'must be of type integer: "null"'),
    given("tags", ["a", "b"]),
    given("tags", ["a", "b", "a", "a", "b"], 'tags[2]: Duplicate value: "a"', 'tags[4]: Duplicate value: "b"'),
    given("either", {"a": "1"}),
    given("either", {"a": "1", "b": "2"}, "Found 2 valid alternatives"),
    given("some", 7),
    given("some", 100),
    given("every", "xy"),
    given("never", "ever"),
    given("never", "never", '"spec.never" must not validate the schema (not)'),
]

COERCION = [
    given("unknown", 1),
    given("open", {"x": {"y": 1}, "closed": {"known": "k", "unknown": 1}}),
    given("open", {"closed": {}}),
    given("anything", [1, {"a": None}]),
    given("embedded", {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"x": 1, "y": 2}, "z": 1}),
    given("either", None),
]

RULES = [
    given("range", {"low": 1, "high": 2}),
    given(
        "range", {"low": 3, "high": 2.5, "unit": "GB/s"}, "spec.range.low: Invalid value: low is above high, in GB/s"
    ),
    given("range", {"low": 3, "high": 2}, "spec.range.low: Invalid value: low is above high"),
    given("names", {"dash-ed": "d", "dot.ted/slash": "s", "namespace": "n", "under__score": "u"}),
    given("names", {"dash-ed": "x"}, "spec.names: Invalid value: dash-ed is d"),
    given("names", {"dot.ted/slash": "x"}, "spec.names: Forbidden: dot.ted/slash is s"),
    given("names", {"namespace": "x"}, "namespace is n"),
    given("names", {"under__score": "x"}, "Required value: failed rule: !has"),
    given("grows", 0),
    given("grows", -1, "spec.grows: Invalid value: -1: grows may not shrink nor begin below 0"),
    changed("grows", 1, 2),
    changed("grows", 2, 1, "grows may not shrink"),
    given("times", {"start": "2026-03-01T12:00:00Z", "end": "2026-03-01T12:30:00Z"}),
    given("times", {"start": "2026-03-01T12:00:00Z", "end": "2026-03-01T12:30:00+01:00"}, "end is before start"),
    given("times", {"limit": "1500ms"}),
    given("times", {"limit": "0.5s"}, "limit is at most one second"),
    changed("counters", {"a": 1}, {"a": 2, "b": 0}),
    changed("counters", {"a": 1}, {"a": 0}, "spec.counters[a]: Invalid value: 0: a counter does not go back"),
    changed(
        "steps", [{"name": "a", "at": 1}, {"name": "b", "at": 5}], [{"name": "b", "at": 5}, {"name": "a", "at": 2}]
    ),
    changed(
        "steps",
        [{"name": "a", "at": 1}, {"name": "b", "at": 5}],
        [{"name": "b", "at": 4}],
        "spec.steps[0].at: Invalid value: 4",
    ),
    changed("steps", [{"name": "a", "at": 1}], [{"name": "c", "at": 0}]),
    changed("tags", ["a", "b"], ["b", "a"]),
    changed("tags", ["a", "b"], ["a", "c"], "tags are immutable"),
    given("broken", [1, 2]),
    given("broken", [1, 0], "spec.broken: Invalid value: second is positive"),
]

CASES = [*VALUES, *COERCION, *RULES]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_engine_says_what_is_written(engine: Engine, case: Case) -> None:
    verdict = judge(engine, BASE, case, "case")

    causes = verdict.causes if isinstance(verdict, Refused) else ()

    said = [f"{field}: {message}" for _, field, message in causes if UNCHECKED not in message]
    assert len(said) == len(case.says), said
    for part in case.says:
        assert any(part in text for text in said), said


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: CASES[number].name)
def test_a_server_says_the_same(engine: Engine, server_judge: ServerJudge, number: int) -> None:
    ours = judge(engine, BASE, CASES[number], f"feature-{number}")

    theirs = judge(server_judge, BASE, CASES[number], f"feature-{number}")

    assert spec(ours) == spec(theirs)


def spec(verdict: dict[str, Any] | Refused) -> Any:
    return verdict if isinstance(verdict, Refused) else verdict["spec"]
