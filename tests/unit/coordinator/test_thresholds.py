import time

import pytest
from nvcre_coordinator.api.conditions import Reason
from nvcre_coordinator.core import thresholds
from nvcre_coordinator.core.thresholds import Problem, Violation


@pytest.mark.parametrize(
    ("expression", "value", "satisfied"),
    [
        ("value >= 0.95", 0.88, False),  # case 23
        ("value >= 0.95", 0.96, True),  # case 24
        ("value >= 300 && value <= 350", 370.14, False),  # case 25
        ("value >= 400", 400.0, True),  # case 26: on the bound
        ("value > 400", 400.0, False),
        ("value >= 300.5", 301.0, True),
        ("value == 400", 400.0, True),
        ("[1, 2, 3].all(x, value > x)", 4.0, True),
    ],
)
def test_a_threshold_holds_when_its_expression_is_true(expression: str, value: float, satisfied: bool) -> None:
    assert thresholds.holds(expression, value) is satisfied


def test_a_violation_says_what_was_measured_with_four_decimals() -> None:
    outcome = thresholds.evaluate({"busBandwidthGBps": "value >= 300 && value <= 350"}, {"busBandwidthGBps": 370.14})
    message = 'Threshold "busBandwidthGBps" violated: measured 370.1400, expression: value >= 300 && value <= 350'
    assert outcome == (Violation("busBandwidthGBps", message),)


def test_all_are_evaluated_and_sorted_and_missing_values_are_skipped() -> None:
    demanded = {"goodputRatio": "value > 1", "busBandwidthGBps": "value > 9", "algBandwidthGBps": "value > 9"}
    outcome = thresholds.evaluate(demanded, {"goodputRatio": 0.5, "algBandwidthGBps": 1.0})
    assert isinstance(outcome, tuple)
    assert [violation.key for violation in outcome] == ["algBandwidthGBps", "goodputRatio"]


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("value >=", "Syntax error"),
        ("value + 1.0", "must give a bool"),
        ('"fast"', "must give a bool"),
        ("value", "must give a bool"),
        ("speed > 1", "undeclared reference"),
        ('value > "fast"', "No matching overloads"),
        ("value > 1 || " * 200 + "true", "longer than"),
    ],
)
def test_a_bad_expression_is_found_before_anything_runs(expression: str, told: str) -> None:
    problem = thresholds.check({"busBandwidthGBps": expression})
    assert problem is not None
    assert problem.reason is Reason.INVALID_THRESHOLD_EXPRESSION
    assert problem.message.startswith('Threshold "busBandwidthGBps": ')
    assert told in problem.message
    assert f'in "{expression[:200]}' in problem.message
    assert problem.message.endswith('write CEL over value that gives a bool, such as "value >= 300.0"')
    assert "\n" not in problem.message
    assert len(problem.message.encode()) <= 1024


def test_the_place_of_a_syntax_error_is_told_in_words() -> None:
    problem = thresholds.check({"busBandwidthGBps": "value >= 250 GB"})
    assert problem is not None
    assert problem.message.startswith('Threshold "busBandwidthGBps": line 1 column 14: Syntax error: ')


def test_an_unknown_key_is_told_before_a_bad_expression_and_names_the_known_ones() -> None:
    problem = thresholds.check({"busBandwidthGBps": "value >=", "speed": "value > 1", "another": "value > 1"})
    assert problem is not None
    assert problem.reason is Reason.UNKNOWN_THRESHOLD_KEY
    assert "[another speed]" in problem.message
    assert "busBandwidthGBps" in problem.message


def test_an_expression_that_fails_on_the_value_is_a_problem_not_a_pass() -> None:
    outcome = thresholds.evaluate({"goodputRatio": "1 / int(value) > 0"}, {"goodputRatio": 0.0})
    assert isinstance(outcome, Problem)
    assert outcome.reason is Reason.INVALID_THRESHOLD_EXPRESSION


def test_nested_loops_end_at_the_iteration_budget() -> None:
    digits = "[" + ",".join("1234567890") + "]"
    bomb = "".join(f"{digits}.all({name}, " for name in "abcdefghij") + "value > 0" + ")" * 10
    started = time.monotonic()
    assert thresholds.check({"goodputRatio": bomb}) is not None
    assert time.monotonic() - started < 5
