"""Compiling LogProfiles: the mistakes a person can make, and patterns that are awkward for a bulk scan."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from nvcre_coordinator.api.log_profile import LogProfile
from nvcre_coordinator.api.meta import from_json
from nvcre_coordinator.core.log_profile import compile_bandwidth_profile, problems
from nvcre_logs.patterns import LogProfileError, compile_pattern
from nvcre_logs.profile import EventPattern

ROOT = Path(__file__).parents[3]
ROW = r"^(?P<size>\d+) (?P<algBW>\S+) (?P<busBW>\S+)$"


def profile(layout: str = "2006-01-02", **patterns: Any) -> LogProfile:
    return from_json(
        {"metadata": {"name": "p"}, "spec": {"timestamp": {"layout": layout}, "patterns": patterns}}, LogProfile
    )


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (profile(), "no spec.patterns.bandwidthResult"),
        (profile(bandwidthResult={"regex": "(?P<size>"}), "spec.patterns.bandwidthResult.regex does not compile"),
        (profile(bandwidthResult={"regex": r"(?P<size>\d+) (\S+)"}), "lacks the named group(s) algBW, busBW"),
        (profile(bandwidthResult={"regex": ROW, "example": "nothing"}), "spec.patterns.bandwidthResult.example"),
        (profile(bandwidthResult={"regex": ROW + "(?=x)"}), "does not compile as RE2"),
        (profile(bandwidthResult={"regex": r"\pL{30}"}), "spec.patterns.bandwidthResult.regex compiles to"),
        (profile(bandwidthResult={"regex": "(a{1000}){1000}"}), "does not compile as RE2"),
        (profile("never", bandwidthResult={"regex": ROW}), "spec.timestamp.layout"),
    ],
)
def test_a_mistake_names_its_field(spec: LogProfile, told: str) -> None:
    with pytest.raises(LogProfileError) as error:
        compile_bandwidth_profile(spec)
    assert told in str(error.value)


def test_defaults_of_the_worker_strategy() -> None:
    assert compile_bandwidth_profile(profile(bandwidthResult={"regex": ROW})).replicated_job == "node"


LINES = [b"1 a b", b"x 1 a b", b"1", b"2 c d", b"", b"\xff 3", b"end 4"]


@pytest.mark.parametrize(
    "regex",
    [
        r"^(?P<v>\d+)",
        r"(?P<v>\d+)$",
        r"(?P<v>[^x]+)",
        r"\A(?P<v>\d+)",
        r"(?P<v>\d)\s+\S",
        r"(?s)(?P<v>\d.*)",
        r"(?P<v>\d*)",
    ],
)
@given(st.lists(st.sampled_from(LINES), max_size=8))
def test_the_bulk_scan_finds_what_line_by_line_finds(regex: str, lines: list[bytes]) -> None:
    pattern = compile_pattern(EventPattern(regex=regex), "p", ("v",))
    text = b"".join(line + b"\n" for line in lines)
    one_by_one = [match[pattern.captures[0]] for line in lines if (match := pattern.line.search(line)) is not None]
    assert [found for (found,) in pattern.scan(text)][: len(one_by_one)] == one_by_one


def test_a_hostile_pattern_is_linear() -> None:
    pattern = compile_pattern(EventPattern(regex=r"(?P<v>(a*)*b)"), "p", ("v",))
    assert list(pattern.scan(b"a" * 200_000 + b"\n")) == []


@pytest.mark.parametrize(
    "manifest", sorted((ROOT / "daemonset/log-profiles").glob("*.yaml")), ids=lambda path: path.stem
)
def test_no_built_in_profile_has_a_problem(manifest: Path) -> None:
    assert problems(from_json(yaml.safe_load(manifest.read_text()), LogProfile)) == []


def test_a_profile_without_patterns_is_told_that_it_measures_nothing_and_all_problems_are_told_at_once() -> None:
    told = problems(profile("yesterday"))
    assert [problem.partition(" ")[0] for problem in told] == ["spec.timestamp.layout:", "spec.patterns"]


def test_a_step_that_counts_nothing_is_told() -> None:
    (told,) = problems(profile(trainingStep={"regex": r"loss (?P<loss>\S+)"}))
    assert told.startswith("spec.patterns.trainingStep.regex lacks a named group: globalStep or iteration")
