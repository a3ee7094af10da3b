"""One agent that sends without end takes a burst and then a tenth of the loop, whatever it does."""

from __future__ import annotations

import pytest
from nvcre_coordinator.fleet.fair_share import BURST_S, MESSAGE_S, SHARE, STREAM_S, FairShare


def taken_in_a_minute(cost_s: float) -> float:
    """By who comes again as soon as it may."""
    share, now, taken_s = FairShare(), 100.0, 0.0
    while now < 160.0:
        taken_s += cost_s
        now += cost_s + share.spend(cost_s, now)
    return taken_s


@pytest.mark.parametrize("cost_s", [MESSAGE_S, STREAM_S, 0.3], ids=["messages", "streams", "huge snapshots"])
def test_a_flood_for_a_minute_takes_a_burst_and_then_its_share(cost_s: float) -> None:
    assert taken_in_a_minute(cost_s) <= BURST_S + 60 * SHARE + cost_s


def test_an_agent_as_we_know_them_never_waits() -> None:
    share = FairShare()
    backlog = [share.spend(0.004, 100.0) for _ in range(100)]  # 6,400 events after an outage
    heartbeats = [share.spend(MESSAGE_S, 110.0 + 30 * number) for number in range(100)]
    storm = [
        share.spend(MESSAGE_S + 0.0008, 4000.0 + number / 80) for number in range(4000)
    ]  # a message for 256 lines, 20,000 a second
    assert set(backlog + heartbeats + storm) == {0.0}


def test_a_pause_is_over_when_it_says_so() -> None:
    share = FairShare()
    pause_s = share.spend(2 * BURST_S, 100.0)
    assert pause_s == BURST_S / SHARE
    assert share.spend(0.0, 100.0 + pause_s) == 0.0
