from datetime import UTC, datetime, timedelta

import pytest
from nvcre_coordinator.core.run_window import RunWindow

START = datetime(2026, 12, 1, 12, tzinfo=UTC)


def minutes(value: float | None) -> datetime | None:
    return None if value is None else START + timedelta(minutes=value)


@pytest.mark.parametrize(
    ("first_seen", "recovered_at", "covered", "case"),
    [
        (2, None, True, "during the run"),
        (-600, None, True, "older than the run and still open"),
        (-600, -6, False, "recovered long before"),
        (-600, -4, True, "recovered less than 5 minutes before"),
        (10.4, None, True, "printed 24 s after the end"),
        (10.6, None, False, "36 s after the end"),
        (2, 3, True, "came and went"),
        (None, None, False, "never seen"),
    ],
)
def test_open_at_any_moment_of_the_window(
    first_seen: float | None, recovered_at: float | None, covered: bool, case: str
) -> None:
    window = RunWindow(START, START + timedelta(minutes=10))
    assert window.covers(minutes(first_seen), minutes(recovered_at)) is covered, case


def test_a_run_without_an_end_is_open_to_the_future() -> None:
    assert RunWindow(START).covers(minutes(10_000), None)
    assert not RunWindow(START).too_late(minutes(10_000))
