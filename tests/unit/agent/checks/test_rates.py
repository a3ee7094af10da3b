"""What only a rate accuses: lifetime totals never do, a counter that was reset counts from there."""

from typing import Any

import pytest
from nvcre_agent.checks.history import MAX_SAMPLES, Series
from support.checked_node import CheckedNode


def grow(node: CheckedNode, seconds: int, **per_snapshot: int) -> None:
    """Counters of GPU 2 that grow with each snapshot."""
    for _ in range(seconds // 30):
        now: Any = node.gpus[2]
        node.set(2, **{name: getattr(now, name) + step for name, step in per_snapshot.items()})
        node.watch(30)


@pytest.mark.parametrize(
    "totals",
    [
        {"ecc_uncorrected_volatile": 7},
        {"ecc_corrected_volatile": 20_000_000},
        {"nvlink_replays": 12, "nvlink_recoveries": 3},
        {"nvlink_crc_errors": 10**9},
        {"pcie_replays": 5000},
        {"remapped_correctable": 100},
    ],
)
def test_totals_from_before_the_agent_are_old_news(totals: dict[str, int]) -> None:
    node = CheckedNode()
    node.set(2, **totals)
    node.watch(600)
    assert node.checks == []


@pytest.mark.parametrize(
    ("per_snapshot", "check"),
    [
        ({"nvlink_crc_errors": 3000}, "nvlink_errors"),  # 100 a second
        ({"nvlink_crc_errors": 2999}, None),
        ({"pcie_replays": 5}, "pcie_replays"),  # 10 a minute
        ({"pcie_replays": 4}, None),  # 8 a minute
        ({"ecc_corrected_volatile": 6}, "ecc_corrected"),  # 12 a minute
        ({"ecc_corrected_volatile": 5}, None),
    ],
)
def test_a_rate_over_its_limit_is_found(per_snapshot: dict[str, int], check: str | None) -> None:
    node = CheckedNode()
    node.look()
    grow(node, 300, **per_snapshot)
    assert node.checks == ([check] if check else [])
    grow(node, 1500, **dict.fromkeys(per_snapshot, 0))
    assert node.checks == []


@pytest.mark.parametrize("counter", ["nvlink_replays", "nvlink_recoveries"])
def test_one_nvlink_replay_or_recovery_is_enough_and_is_over_after_quiet_minutes(counter: str) -> None:
    node = CheckedNode()
    node.set(2, **{counter: 1000})
    node.look()
    grow(node, 30, **{counter: 1})
    assert node.only().check == "nvlink_errors"
    assert counter.removeprefix("nvlink_") in node.only().message
    node.watch(720)
    assert node.checks == []


@pytest.mark.parametrize("counter", ["nvlink_replays", "nvlink_recoveries"])
def test_an_nvlink_error_while_the_agent_was_away_is_found(counter: str) -> None:
    node = CheckedNode()
    node.set(2, **{counter: 7})
    node.look()
    node.restart()
    node.set(2, **{counter: 8})
    node.watch(30)
    assert node.checks == ["nvlink_errors"]


@pytest.mark.parametrize(
    "counter", ["nvlink_replays", "nvlink_recoveries", "nvlink_crc_errors", "pcie_replays", "ecc_corrected_volatile"]
)
def test_a_counter_that_was_reset_is_no_error(counter: str) -> None:
    node = CheckedNode()
    node.set(2, **{counter: 10**6})
    node.watch(120)
    node.set(2, **{counter: 0})  # a driver reload
    node.watch(300)
    assert node.checks == []


@pytest.mark.parametrize("counter", ["nvlink_replays", "nvlink_recoveries"])
def test_an_error_after_the_counter_was_reset_is_found(counter: str) -> None:
    node = CheckedNode()
    node.set(2, **{counter: 10**6})
    node.watch(60)
    node.set(2, **{counter: 0})
    node.watch(30)
    node.set(2, **{counter: 1})
    node.watch(30)
    assert node.checks == ["nvlink_errors"]


def test_ecc_errors_stay_found_until_the_counter_is_reset_and_count_anew_after_it() -> None:
    node = CheckedNode()
    node.set(2, ecc_uncorrected_volatile=7)
    node.look()
    node.set(2, ecc_uncorrected_volatile=9)
    node.watch(3600)
    assert "2 uncorrectable ECC errors" in node.only().message
    node.restart()
    node.watch(3600)
    assert node.checks == ["ecc_uncorrected"]
    node.set(2, ecc_uncorrected_volatile=0)
    node.watch(120)
    assert node.checks == []
    node.set(2, ecc_uncorrected_volatile=1)
    node.watch(30)
    assert "1 uncorrectable ECC error " in node.only().message


def test_a_steady_fault_is_told_once() -> None:
    node = CheckedNode()
    node.look()
    grow(node, 1800, pcie_replays=50, nvlink_replays=3)
    assert sorted(node.changes) == ["opened nvlink_errors", "opened pcie_replays"]


def test_a_series_is_bounded_whatever_comes() -> None:
    series = Series()
    for second in range(10_000):
        series = series.extended(second / 10, second)
    assert len(series.samples) == MAX_SAMPLES


def test_the_baseline_is_written_only_when_something_was_learned() -> None:
    node = CheckedNode()
    node.look()
    before = node.baseline
    grow(node, 300, nvlink_crc_errors=1, pcie_replays=1)
    assert node.baseline == before
    grow(node, 30, nvlink_replays=1)
    assert node.baseline != before
