"""The log format: nothing lost, memory bounded, the beginning of a read found without reading all."""

import io
import re
from datetime import UTC, datetime
from typing import BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvcre_local.node.log_files import LogOptions, start_offset
from nvcre_local.node.log_records import CONTENT_LIMIT, RECORD_LIMIT, LineReader, RecordWriter, parse_time

T0 = 1_700_000_000_123_456_789


def written(*chunks: bytes, start_ns: int = T0, step_ns: int = 1_000_000_000) -> bytes:
    writer = RecordWriter()
    records = b"".join(writer.feed(chunk, start_ns + i * step_ns) for i, chunk in enumerate(chunks))
    return records + writer.finish(start_ns + len(chunks) * step_ns)


def test_a_line_becomes_a_record_in_the_form_of_the_container_runtimes() -> None:
    assert written(b"hello\n") == b"2023-11-14T22:13:20.123456789Z stdout F hello\n"


def test_a_last_line_without_newline_stays_without() -> None:
    assert written(b"a\nb") == (
        b"2023-11-14T22:13:20.123456789Z stdout F a\n2023-11-14T22:13:21.123456789Z stdout P b\n"
    )


@settings(max_examples=60)
@given(st.lists(st.one_of(st.binary(max_size=200), st.sampled_from([b"\n", b"x" * 20_000])), max_size=12))
def test_whatever_is_written_is_read_back(chunks: list[bytes]) -> None:
    assert LineReader().feed(written(*chunks)) == b"".join(chunks)


def test_a_line_of_five_megabytes_is_kept_in_records_of_bounded_size() -> None:
    line = b"x" * (5 * 1024 * 1024)
    records = written(*(line[i : i + 65536] for i in range(0, len(line), 65536)), b"\nnext\n")
    assert max(len(record) for record in records.split(b"\n")) < RECORD_LIMIT
    assert LineReader().feed(records) == line + b"\nnext\n"


def test_timestamps_grow_strictly_also_within_a_chunk_and_when_the_clock_steps_back() -> None:
    stamps = re.findall(rb"(?m)^(\S+) stdout", written(b"a\nb\n", b"c\n", b"d\n", step_ns=-5_000_000_000))
    assert stamps == sorted(set(stamps))
    assert len(stamps) == 4


def test_a_split_line_gets_one_timestamp() -> None:
    text = LineReader(timestamps=True).feed(written(b"x" * (2 * CONTENT_LIMIT + 5) + b"\nb\n"))
    assert text.count(b"2023-11-14T") == 2


def test_limit_cuts_at_that_byte_also_across_chunks() -> None:
    reader = LineReader(limit=7)
    records = written(b"hello\nworld\n")
    text = b"".join(reader.feed(records[i : i + 3]) for i in range(0, len(records), 3))
    assert text == b"hello\nw"
    assert reader.exhausted


def read(records: bytes, options: LogOptions) -> bytes:
    file: BinaryIO = io.BytesIO(records)
    file.seek(start_offset(file, options))
    return LineReader().feed(file.read())


LINES = [b"line %d " % i + b"." * (i % 700) + b"\n" for i in range(500)]
LONG = b"y" * (5 * CONTENT_LIMIT) + b"\n"


@pytest.mark.parametrize("count", [0, 1, 2, 7, 499, 500, 501])
def test_tail_gives_exactly_that_many_lines(count: int) -> None:
    assert read(written(*LINES), LogOptions(tail_lines=count)) == b"".join(LINES[max(0, 500 - count) :])


@pytest.mark.parametrize(
    ("chunks", "count", "expected"),
    [
        ([b"a\n", LONG], 1, LONG),
        ([b"a\n", LONG, b"b\n"], 2, LONG + b"b\n"),
        ([b"a\n", b"unfinished"], 1, b"unfinished"),
        ([b"a\n", b"unfinished"], 2, b"a\nunfinished"),
        ([], 3, b""),
    ],
)
def test_tail_counts_lines_not_records(chunks: list[bytes], count: int, expected: bytes) -> None:
    assert read(written(*chunks), LogOptions(tail_lines=count)) == expected


@pytest.mark.parametrize("first", [0, 1, 250, 499, 500])
def test_since_starts_at_the_first_line_at_or_after_it(first: int) -> None:
    since = datetime.fromtimestamp(T0 // 1_000_000_000 + first, UTC)
    assert read(written(*LINES), LogOptions(since=since)) == b"".join(LINES[first:])


def test_tail_and_since_hold_both() -> None:
    since = datetime.fromtimestamp(T0 // 1_000_000_000 + 490, UTC)
    assert read(written(*LINES), LogOptions(since=since, tail_lines=3)) == b"".join(LINES[497:])
    assert read(written(*LINES), LogOptions(since=since, tail_lines=300)) == b"".join(LINES[490:])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 40_000), min_size=1, max_size=25), st.integers(0, 30))
def test_tail_of_lines_of_any_length(lengths: list[int], count: int) -> None:
    lines = [b"z" * length + b"\n" for length in lengths]
    assert read(written(*lines), LogOptions(tail_lines=count)) == b"".join(lines[max(0, len(lines) - count) :])


def test_times_of_a_query_need_a_zone() -> None:
    assert parse_time("2026-01-01T00:00:00.123456789Z").tzinfo is not None
    with pytest.raises(ValueError, match="time zone"):
        parse_time("2026-01-01T00:00:00")
