"""Go's reference-time layouts."""

from datetime import UTC, datetime

import pytest
from nvcre_logs.go_time import LayoutError, compile_layout


@pytest.mark.parametrize(
    ("layout", "text", "expected"),
    [
        ("2006-01-02 15:04:05.999999", "2026-02-05 16:03:52", datetime(2026, 2, 5, 16, 3, 52, tzinfo=UTC)),
        ("2006-01-02 15:04:05.999999", "2026-02-05 16:03:52.25", datetime(2026, 2, 5, 16, 3, 52, 250000, tzinfo=UTC)),
        ("2006-01-02T15:04:05.999999999Z07:00", "2026-02-05T16:03:52.5Z",
         datetime(2026, 2, 5, 16, 3, 52, 500000, tzinfo=UTC)),
        ("2006-01-02T15:04:05Z07:00", "2026-02-05T09:03:52-07:00", datetime(2026, 2, 5, 16, 3, 52, tzinfo=UTC)),
        ("Jan _2 15:04:05 2006", "Feb  5 16:03:52 2026", datetime(2026, 2, 5, 16, 3, 52, tzinfo=UTC)),
        ("Monday, 02-Jan-06 15:04:05 -0700", "Thursday, 05-Feb-26 18:03:52 +0200",
         datetime(2026, 2, 5, 16, 3, 52, tzinfo=UTC)),
        ("1/2/2006 3:04PM", "2/5/2026 4:03pm", datetime(2026, 2, 5, 16, 3, tzinfo=UTC)),
        ("unix-ms", "1770000000250", datetime(2026, 2, 2, 2, 40, 0, 250000, tzinfo=UTC)),
        ("2006-002 15:04:05,000", "2026-036 16:03:52,125", datetime(2026, 2, 5, 16, 3, 52, 125000, tzinfo=UTC)),
    ],
)  # fmt: skip
def test_a_time_is_read_by_its_layout(layout: str, text: str, expected: datetime) -> None:
    assert compile_layout(layout).parse(text) == expected


@pytest.mark.parametrize(
    "text", ["", "2026-02-05", "2026-13-05 16:03:52", "2026-02-30 16:03:52", "x2026-02-05 16:03:52"]
)
def test_what_does_not_fit_is_no_time(text: str) -> None:
    assert compile_layout("2006-01-02 15:04:05").parse(text) is None


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        ("2006-01-02T15:04:05Z07:00", "0001-01-01T00:00:00+05:00"),
        ("2006-01-02T15:04:05Z07:00", "9999-12-31T23:59:59-05:00"),
        ("2006-002", "9999-999"),
        ("unix-ms", "9" * 15),
    ],
)
def test_a_time_beyond_the_calendar_is_none(layout: str, text: str) -> None:
    assert compile_layout(layout).parse(text) is None


@pytest.mark.parametrize("layout", ["", "no time at all", "2006 2006", "x" * 200])
def test_a_useless_layout_is_told(layout: str) -> None:
    with pytest.raises(LayoutError):
        compile_layout(layout)
