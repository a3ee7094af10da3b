from datetime import timedelta

import pytest
from nvcre_coordinator.core.durations import go_duration, parse_go_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("5m", 300), ("1h30m", 5400), ("1.5h", 5400), ("100ms", 0.1), (".5s", 0.5), ("0", 0), ("1m0s", 60)],
)
def test_go_durations(text: str, seconds: float) -> None:
    assert parse_go_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "5", "m", "5 m", "-1s", "1d", "1s" * 40])
def test_what_is_no_duration_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="Go duration"):
        parse_go_duration(text)


def test_an_absurd_duration_is_cut_at_a_year() -> None:
    assert parse_go_duration("9" * 60 + "h") == timedelta(days=365)


@pytest.mark.parametrize(("seconds", "text"), [(3, "3s"), (300, "5m0s"), (3661, "1h1m1s")])
def test_printed_as_go_prints_it(seconds: int, text: str) -> None:
    assert go_duration(timedelta(seconds=seconds)) == text
