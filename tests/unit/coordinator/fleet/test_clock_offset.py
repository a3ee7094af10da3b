"""How far an agent's clock is off, from heartbeats alone and from answered questions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from nvcre_coordinator.core.clock_offset import MAX_SAMPLES, NEGLIGIBLE, ClockSamples

NOW = datetime(2026, 1, 1, tzinfo=UTC)
S = timedelta(seconds=1)


def test_nothing_is_known_before_the_first_heartbeat() -> None:
    assert ClockSamples().estimate() is None


def test_clocks_that_roughly_agree_are_not_corrected() -> None:
    clock = ClockSamples().heard(sent_at=NOW, received_at=NOW + 0.2 * S).estimate()
    assert clock is not None
    assert clock.correction == timedelta(0)
    assert not clock.uncertain


def test_a_clock_that_is_ahead_is_corrected_by_whole_seconds() -> None:
    samples = ClockSamples()
    for _ in range(3):
        samples = samples.heard(sent_at=NOW + 60 * S, received_at=NOW + 0.1 * S, asked_at=NOW - 0.1 * S)
    clock = samples.estimate()
    assert clock is not None
    assert clock.correction == 60 * S
    assert clock.uncertainty <= 0.1 * S


def test_a_stepped_clock_is_believed_once_its_old_samples_contradict_it() -> None:
    samples = ClockSamples().heard(sent_at=NOW, received_at=NOW + 0.1 * S, asked_at=NOW - 0.1 * S)
    samples = samples.heard(sent_at=NOW - 99 * S, received_at=NOW + 1 * S, asked_at=NOW + 0.9 * S)
    clock = samples.estimate()
    assert clock is not None
    assert abs(clock.offset + 100 * S) < S


def test_an_answer_that_took_long_does_not_make_the_clock_less_sure() -> None:
    """Else whoever answers an hour late is simultaneous with everybody (core/first_exit.py)."""
    samples = ClockSamples().heard(sent_at=NOW + 3600 * S, received_at=NOW + 3600 * S, asked_at=NOW)
    clock = samples.estimate()
    assert clock is not None
    assert clock.error <= NEGLIGIBLE


@given(st.integers(-10_000, 10_000), st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900)), min_size=1))
def test_the_true_offset_lies_within_the_uncertainty(offset_s: int, delays_ms: list[tuple[int, int]]) -> None:
    samples = ClockSamples()
    for number, (there, back) in enumerate(delays_ms[:MAX_SAMPLES]):
        asked_at = NOW + number * 10 * S
        sent_at = asked_at + there * S / 1000
        samples = samples.heard(
            sent_at=sent_at + offset_s * S, received_at=sent_at + back * S / 1000, asked_at=asked_at
        )
    clock = samples.estimate()
    assert clock is not None
    assert abs(clock.offset - offset_s * S) <= clock.uncertainty + timedelta(microseconds=2)
    assert clock.uncertainty < NEGLIGIBLE
    assert abs(clock.on_our_clock(NOW + offset_s * S) - NOW) <= clock.error + timedelta(microseconds=2)
