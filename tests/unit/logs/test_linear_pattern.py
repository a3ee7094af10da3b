"""Which patterns `re` may match, and that it then finds what RE2 finds."""

from pathlib import Path

import pytest
import re2
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from nvcre_logs.linear_pattern import LONGEST_LINE, linear_pattern

PROFILES = Path(__file__).parents[3] / "daemonset/log-profiles"


def shipped(profile: str, pattern: str) -> tuple[str, str]:
    found = yaml.safe_load((PROFILES / f"{profile}.yaml").read_text())["spec"]["patterns"][pattern]
    return found["regex"], found["example"]


BANDWIDTH, BANDWIDTH_LINE = shipped("nccl-bandwidth", "bandwidthResult")
STEP, STEP_LINE = shipped("megatron-training", "trainingStep")
WORDS = r"^(?P<a>[a-c]+)[ \t]+(?:(?P<b>[0-9]{1,3})|none)(?:,x)? \|.*\| end: (?P<c>[0-9.]+)(?:[eE][+-]?[0-9]+)?(?: |$)"


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (BANDWIDTH, "the rows of nccl-tests"),
        (STEP, "the steps of Megatron-LM: each .* is before a literal"),
        (WORDS, "everything that is understood"),
        ("NCCL INFO [a-z]+ [0-9]+$", "a literal to look for"),
        ("^(?:.*long literal)?x", "a .* that may be left out"),
        ("^[0-9]+[a-z]*", "at the end of the pattern nothing can fail"),
    ],
)
def test_a_pattern_without_a_choice_is_accepted(pattern: str, why: str) -> None:
    assert linear_pattern(pattern) is not None, why


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("^(a+)+b", "a repeat within a repeat"),
        ("^a+a", "a repeat that takes what must follow"),
        ("^(?:a|ab)c", "alternatives that begin alike"),
        ("^(?:a|)b?b", "an empty alternative"),
        ("^.*a", "nothing long enough after .* to count"),
        ("^(?:a|ab)?a(?:a)?(?:a)?(?:a)?(?:a)?a", "too many groups that may be taken or left"),
        ("[0-9]+x LITERAL", "a search begins anew at every digit"),
        ("[a-z]x", "unanchored, and nothing to look for"),
        ("^(?<count>[0-9]+)x", "a group that RE2 can name so, and `re` cannot"),
        ("^(?P<6>[0-9]+)x", "the same"),
        ("a|b", "alternatives of the whole"),
        ("^a*?b", "lazy"),
        ("(?i)literal", "flags"),
        (r"^a\s+b", "RE2 and re disagree on \\s"),
        (r"^a\bb", "a word boundary"),
        ("^é", "more than one byte a character"),
        ("^[^,]x", "one character of UTF-8 may be several bytes"),
        ("^[^,]{1,9},", "the same, counted"),
        ("^a$b", "an end in the middle"),
        ("^(a", "not closed"),
        ("^[z-a]", "a range backwards"),
        ("(" * 999 + "a" + ")" * 999, "deeper than Python's stack"),
    ],
)
def test_everything_else_stays_with_re2(pattern: str, why: str) -> None:
    assert linear_pattern(pattern) is None, why


def test_only_lines_with_the_literal_are_looked_at() -> None:
    pattern = linear_pattern("step [0-9]+ done")
    assert pattern is not None
    assert list(pattern.candidates(b"one\nstep 1 done\nstepping\n\nx step 2 done")) == [
        b"step 1 done",
        b"x step 2 done",
    ]
    assert list(pattern.candidates(b"")) == []


def test_a_line_that_leaves_a_choice_is_for_re2() -> None:
    pattern = linear_pattern("begin.*middle.*end of it")
    assert pattern is not None
    assert pattern.suits(b"begin - middle - end of it")
    assert not pattern.suits(b"begin - middle - middle - end of it")
    assert not pattern.suits(b"begin middle end of it" + b"." * LONGEST_LINE)


PIECES = [
    *("a", "abc", " ", "\t", "7", "42", "none", ",x", " |", "| end: ", "1.5", "e-3", "| ", "x", "é"),
    *("float", "sum", "-1", "N/A", "inf", "1073741824 ", "476.74 ", "[2026-02-05 16:03:52]", " iteration 10/ 20 |"),
    *("| elapsed time per iteration (ms): 13.1 |", "| throughput per GPU (TFLOP/s/GPU): 138.5 |", "| lm loss: 1E+1"),
]


@pytest.mark.parametrize(
    ("source", "example"), [(BANDWIDTH, BANDWIDTH_LINE), (STEP, STEP_LINE), (WORDS, "ab  7,x | 1 | end: 2.5e3")]
)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_it_finds_what_re2_finds(source: str, example: str, data: st.DataObject) -> None:
    pattern, reference = linear_pattern(source), re2.compile(source.encode())
    assert pattern is not None
    assert reference.search(example.encode()) is not None
    cut = data.draw(st.integers(0, len(example)))
    noise = "".join(data.draw(st.lists(st.sampled_from(PIECES), max_size=12)))
    line = (example[:cut] + noise + data.draw(st.sampled_from(["", example[cut:]]))).encode()
    theirs = reference.search(line)
    candidates = list(pattern.candidates(line))
    if theirs is not None:
        assert candidates == [line]
    if candidates and pattern.suits(line):
        ours = pattern.line.search(line)
        assert (ours and (ours.span(), ours.groups())) == (theirs and (theirs.span(), theirs.groups()))
