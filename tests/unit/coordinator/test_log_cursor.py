"""Asking for a log again: no line twice, none lost, whatever the stamps and the blocks are."""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvcre_coordinator.core.log_cursor import LogCursor, Position


def line(stamp: int, text: str, zone: str = "Z") -> bytes:
    second, nanosecond = divmod(stamp, 1_000_000_000)
    hour = 10 if zone == "Z" else 3
    fraction = f".{nanosecond:09d}".rstrip("0").rstrip(".")
    return f"2026-02-05T{hour:02d}:00:{second:02d}{fraction}{zone} {text}\n".encode()


def served(log: Sequence[tuple[int, bytes]], cursor: LogCursor) -> list[bytes]:
    """As a kubelet does: from the whole second on."""
    since = cursor.ask_again()
    return [raw for stamp, raw in log if since is None or stamp // 1_000_000_000 >= since.second]


# To the stamp before: clocks are set back, and what comes from two outputs is not in the order of its stamps.
FURTHER = st.sampled_from([0, 1, 7, 999_999_999, 2_500_000_000, -1, -3, -1_200_000_000])
LINES = st.lists(st.tuples(FURTHER, st.integers(0, 2)), max_size=16)


@given(LINES, st.integers(0, 40), st.integers(0, 40), st.integers(1, 4))
def test_a_log_that_is_asked_for_three_times_gives_every_line_once(
    written: list[tuple[int, int]], first: int, second: int, block: int
) -> None:
    log: list[tuple[int, bytes]] = []
    stamp, used = 20_000_000_000, set[int]()
    for number, (further, bars) in enumerate(written):
        stamp += further
        while further and stamp in used:  # the same nanosecond only in a row
            stamp += 1
        used.add(stamp)
        log += [(stamp, line(stamp, str(number))), *[(stamp, b"50%\n")] * bars]  # drawn behind a carriage return
    got, wanted, gaps, before = b"", b"", 0, 0
    position: Position | None = None
    for end in sorted((min(first, len(log)), min(second, len(log)), len(log))):
        cursor = LogCursor(position)  # a coordinator that begins anew has nothing but the position
        lines = served(log[:end], cursor)
        wanted += b"".join(served(log[before:end], cursor))  # nobody can ask for what was set back behind the second
        before = end
        for start in range(0, len(lines), block):
            got += cursor.take(b"".join(lines[start : start + block]))
        gaps += cursor.take_gap() is not None
        position = cursor.position
    assert (got, gaps) == (wanted, 0)


def test_a_log_that_does_not_begin_with_what_was_seen_has_a_gap_unless_it_is_the_next_container_s() -> None:
    seen, later = line(5_000_000_001, "seen"), line(9_000_000_000, "after the rotation")
    for had_ended in (False, True):
        cursor = LogCursor()
        cursor.take(seen)
        cursor.ask_again(had_ended=had_ended)
        assert cursor.take(later) == later
        at = datetime(2026, 2, 5, 10, tzinfo=UTC)
        gap = (at.replace(second=5), at.replace(second=9))
        assert cursor.take_gap() == (None if had_ended else gap)


def test_a_log_that_goes_on_has_no_gap() -> None:
    cursor = LogCursor()
    cursor.take(line(5_000_000_001, "seen"))
    cursor.ask_again()
    cursor.take(line(5_000_000_001, "seen") + line(9_000_000_000, "new"))
    cursor.ask_again()
    cursor.take(line(9_000_000_000, "new"))
    assert cursor.take_gap() is None


def test_the_zone_of_the_stamps_may_change() -> None:
    cursor = LogCursor()
    cursor.take(line(5_000_000_001, "a"))
    cursor.ask_again()
    assert cursor.take(line(5_000_000_001, "a", "-07:00") + line(5_000_000_002, "b", "-07:00")).count(b"\n") == 1


def test_lines_without_a_stamp_are_taken_as_they_come() -> None:
    cursor = LogCursor()
    block = b"one\ntwo\n"
    assert (cursor.take(block), cursor.position, cursor.ask_again()) == (block, None, None)


@pytest.mark.parametrize("stamp", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_stamp_that_is_no_time_in_utc_moves_nothing(stamp: str) -> None:
    cursor = LogCursor()
    cursor.take(line(1, "a") + f"{stamp} printed behind a carriage return\n".encode())
    assert cursor.position is not None
    assert cursor.ask_again() == cursor.position.time.replace(microsecond=0) == datetime(2026, 2, 5, 10, tzinfo=UTC)


@pytest.mark.parametrize("kept", ["[1000000000000,0,1]", "[0,1000000000,1]", "[0,0,-1]"])
def test_a_position_that_cannot_be_is_not_read(kept: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(kept, type=Position)
