"""When a kernel record happened: by the reader's clock while it is live, by the kernel's own clock in the backlog."""

from types import SimpleNamespace

import pytest
from nvcre_agent import watch
from nvcre_agent.kernel.record import Record

NOW_S, MONOTONIC_S = 1_800_000_000.0, 5_000.0


@pytest.mark.parametrize(
    ("printed_s", "ago_s"),
    [
        (4_000.0, 1_000.0),
        (5_000.0, 0.0),
        (9_000.0, 0.0),  # the kernel's clock went on while the machine slept: not in the future
        (1e14, 0.0),
    ],
)
def test_35_a_record_of_the_backlog_is_never_in_the_future_however_the_clocks_drifted(
    printed_s: float, ago_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "time", SimpleNamespace(time=lambda: NOW_S, monotonic=lambda: MONOTONIC_S))
    record = Record(3, 1, int(printed_s * 1e6), "text", {})
    at = watch._moment(record, backlog=True)
    assert (at.time_s, at.monotonic_s, at.age_s) == (NOW_S - ago_s, MONOTONIC_S - ago_s, ago_s)
    assert at.uncertain
    live = watch._moment(record, backlog=False)
    assert (live.time_s, live.monotonic_s, live.age_s, live.uncertain) == (NOW_S, MONOTONIC_S, 0.0, False)
