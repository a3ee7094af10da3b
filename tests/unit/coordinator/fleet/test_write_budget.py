"""News is written at once within a budget; counters wait."""

from __future__ import annotations

from nvcre_coordinator.fleet.write_budget import BURST, FREE_BYTES, QUIET_S, WriteBudget


def writes(budget: WriteBudget, *, seconds: float, every: float, urgent: bool, size: int = 0) -> int:
    now, count = 100.0, 0
    while now < 100.0 + seconds:
        if budget.spend(now, urgent=urgent) == 0:
            count += 1
            budget.wrote(size)
        now += every
    return count


def test_the_first_news_is_written_at_once() -> None:
    assert WriteBudget().spend(100.0, urgent=True) == 0


def test_a_storm_of_repeats_for_a_minute_costs_a_write_every_ten_seconds() -> None:
    assert writes(WriteBudget(), seconds=60, every=0.01, urgent=False) == 60 / QUIET_S


def test_a_storm_of_news_for_a_minute_costs_a_burst_and_then_one_a_second() -> None:
    assert BURST + 55 <= writes(WriteBudget(), seconds=60, every=0.01, urgent=True) <= BURST + 60


def test_the_wait_is_long_enough() -> None:
    budget = WriteBudget()
    for _ in range(BURST):
        budget.spend(100.0, urgent=True)
    wait = budget.spend(100.0, urgent=True)
    assert wait > 0
    assert budget.spend(100.0 + wait, urgent=True) == 0


def test_a_storm_of_the_largest_news_for_five_minutes_is_little_of_what_etcd_holds() -> None:
    size = 600 * 1024
    count = writes(WriteBudget(), seconds=300, every=0.01, urgent=True, size=size)
    assert count >= 2
    assert count * size <= (BURST + 300) * 2 * FREE_BYTES


def test_a_status_as_they_are_costs_nothing_extra() -> None:
    assert writes(WriteBudget(), seconds=60, every=0.01, urgent=True, size=FREE_BYTES - 1) >= BURST + 55
