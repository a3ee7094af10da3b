"""Lines of a log: how a stream is cut into them, and what launchers put in front of them."""

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvcre_logs.lines import MAX_LINE_BYTES, Line, LineFeed, split_prefix, split_prefixes, unwrap

PIECES = st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b" ", b"\xff"])


def lines_of(data: bytes, cuts: list[int]) -> tuple[list[bytes], int]:
    feed, blocks, start = LineFeed(), [], 0
    for cut in [*sorted(cut for cut in cuts if cut < len(data)), len(data)]:
        blocks.append(feed.feed(data[start:cut]))
        start = cut
    blocks.append(feed.finish())
    return b"".join(blocks).split(b"\n")[:-1], feed.skipped_lines


@given(st.lists(PIECES, max_size=30).map(b"".join), st.lists(st.integers(0, 60), max_size=8))
def test_a_line_ends_at_crlf_lf_or_cr_wherever_the_stream_is_cut(data: bytes, cuts: list[int]) -> None:
    expected = re.split(rb"\r\n|\n|\r", data)
    if expected[-1] == b"":
        expected.pop()  # what was ended is no further line
    found, skipped = lines_of(data, cuts)
    assert skipped == 0
    assert found == expected


@pytest.mark.parametrize("end", [b"\n", b"\r", b""])
@pytest.mark.parametrize("step", [65536, 1 << 30])
def test_a_line_that_is_too_long_leaves_its_place_and_nothing_else(end: bytes, step: int) -> None:
    data = b"one\n" + b"x" * (MAX_LINE_BYTES + 1) + end
    found, skipped = lines_of(data + (b"three\n" if end else b""), list(range(step, len(data), step)))
    assert (found, skipped) == ([b"one", b"", *([b"three"] if end else [])], 1)


TIME = datetime(2026, 3, 3, 12, 0, 25, 500000, UTC)


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        (b"plain", Line("plain")),
        (b"  12 34", Line("  12 34")),
        (b"2026-03-03T12:00:25.5Z x", Line("x", TIME)),
        (b"2026-03-03T05:00:25.5-07:00 x", Line("x", TIME)),
        (b"2026-13-03T12:00:25Z x", Line("2026-13-03T12:00:25Z x")),
        (b"[pod/a-0/c] x", Line("x", pod="pod/a-0/c")),
        (b"[1,7]<stderr>: x", Line("x", rank=7)),
        (b"[prterun-h-1@1,7]<stdout>:x", Line("x", rank=7)),
        (b"12: x", Line("x", rank=12)),
        (b" 0: 100%|#| 40/40 [", Line("100%|#| 40/40 [", rank=0)),
        (b"12: 2026-03-03 12:00:25,500 x", Line("2026-03-03 12:00:25,500 x", rank=12)),
        (b"12: 34:56", Line("12: 34:56")),
        (b"[rank3]:[titan] x", Line("[titan] x", rank=3)),
        (b"[pod/a/c] 2026-03-03T12:00:25.5Z [default0]: \x1b[1mx", Line("x", TIME, "pod/a/c", 0)),
        (b"12:00:25 x", Line("12:00:25 x")),
        (b"\xff\x00", Line("\ufffd\x00")),
    ],
)
def test_what_stands_in_front_of_a_line(raw: bytes, line: Line) -> None:
    assert unwrap(raw) == line


def test_the_kubelet_s_nanoseconds_are_rounded() -> None:
    assert split_prefix("2026-03-03T12:00:24.9999999Z x")[0] == datetime(2026, 3, 3, 12, 0, 25, 0, UTC)


@pytest.mark.parametrize(
    "stamp", ["9999-12-31T23:59:59.999999999Z", "0001-01-01T00:00:00+14:00", "2026-13-01T00:00:00Z"]
)
def test_a_time_that_cannot_be_is_text(stamp: str) -> None:
    assert split_prefix(f"{stamp} x") == (None, f"{stamp} x")
    assert unwrap(f"{stamp} x").text == f"{stamp} x"


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (b"2026-02-05T10:00:01Z one\n", b"one\n"),
        (b"50%\n2026-02-05T10:00:01Z one\n", b"50%\none\n"),
        (b"2026-02-05T10:00:01Z one\n50%\n", b"one\n50%\n"),
        (b"one\ntwo\n", b"one\ntwo\n"),
        (b"", b""),
    ],
)
def test_the_kubelet_s_times_are_taken_off_also_where_a_block_begins_behind_a_carriage_return(
    block: bytes, text: bytes
) -> None:
    assert split_prefixes(block) == text
