"""Bandwidth rows of real and crippled nccl-tests logs, read through the built-in profile."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from nvcre_coordinator.api.log_profile import LogProfile
from nvcre_coordinator.api.meta import from_json
from nvcre_coordinator.controllers.log_follower import Kept, LogSums
from nvcre_coordinator.core.bandwidth import BandwidthRow, BandwidthTable, peak
from nvcre_coordinator.core.log_profile import CompiledProfile, bandwidth_rows, compile_bandwidth_profile
from nvcre_logs.lines import LineFeed, split_prefixes

ROOT = Path(__file__).parents[3]
CORPUS = ROOT / "tests/corpus"


def profile(name: str = "nccl-bandwidth") -> CompiledProfile:
    manifest = yaml.safe_load((ROOT / f"daemonset/log-profiles/{name}.yaml").read_text())
    return compile_bandwidth_profile(from_json(manifest, LogProfile))


PROFILE = profile()


def rows_of(text: bytes, chunk: int = 1 << 20) -> tuple[list[BandwidthRow], LineFeed]:
    feed, rows = LineFeed(), []
    for start in range(0, len(text), chunk):
        rows += bandwidth_rows(PROFILE.bandwidth, split_prefixes(feed.feed(text[start : start + chunk])))
    return rows + bandwidth_rows(PROFILE.bandwidth, split_prefixes(feed.finish())), feed


@pytest.mark.parametrize(
    "case",
    [
        "ns01-allreduce-h100-clean",
        "ns03-allgather-b200-two-nodes-2.19",
        "ns07-wrong-elements",
        "ns08-nccl-failure-no-rows",
        "ns09-truncated-after-four-rows",
        "ns11-info-lines-between-rows",
    ],
)
@pytest.mark.parametrize("chunk", [1 << 20, 97])
def test_the_corpus_gives_exactly_its_out_of_place_rows(case: str, chunk: int) -> None:
    expected = json.loads((CORPUS / f"{case}.expected.json").read_text())
    wanted = [
        BandwidthRow(row["size_bytes"], row["out_of_place"]["algbw"], row["out_of_place"]["busbw"])
        for test in expected["tests"]
        for row in test["rows"]
    ]
    rows, _ = rows_of((CORPUS / f"{case}.log").read_bytes(), chunk)
    assert rows == wanted


def test_rows_of_one_size_are_averaged_and_counted() -> None:
    table = BandwidthTable()
    table.add([BandwidthRow(8, 0.0, 0.0), BandwidthRow(1048576, 14.90, 28.00), BandwidthRow(1048576, 15.04, 28.14)])
    small, large = table.results()
    assert (small.size_bytes, small.alg_bw, small.bus_bw, small.samples) == (8, "0.00", "0.00", 1)
    assert (large.alg_bw, large.bus_bw, large.samples) == ("14.97", "28.07", 2)


def test_the_peak_is_the_best_size_of_each() -> None:
    table = BandwidthTable()  # case 45
    table.add([BandwidthRow(1 << 30, 397.14, 769.45), BandwidthRow(1 << 34, 476.36, 922.94), BandwidthRow(8, 0, 0)])
    best = peak(table.results())
    assert best is not None
    assert (best.algbw_gbps, best.busbw_gbps) == (476.36, 922.94)
    assert peak(()) is None


def test_a_single_rank_has_rows_with_a_bus_bandwidth_of_zero() -> None:
    line = b"  17179869184 4294967296 float sum -1  24936.2  688.95    0.00      0  24935.1  688.98    0.00      0\n"
    assert rows_of(line)[0] == [BandwidthRow(17179869184, 688.95, 0.0)]


ROW = (
    b"   1048576        262144     float     sum      -1    42.70   24.56   42.97       0    42.78  24.51  42.89   0\n"
)


def test_a_line_of_5_mb_is_skipped_and_counted_and_no_row_is_lost() -> None:
    rows, feed = rows_of(ROW + b"x" * 5_000_000 + b"\n" + ROW, chunk=65536)
    assert len(rows) == 2
    assert feed.skipped_lines == 1


def test_binary_garbage_costs_nothing_but_itself() -> None:
    rows, _ = rows_of(b"\x00\xff\xfe\x80 garbage\n" + ROW + bytes(range(256)) + b"\n" + ROW)
    assert len(rows) == 2


def test_the_kubelet_s_prefix_in_any_zone_and_windows_line_ends_are_removed() -> None:
    text = b"2026-12-01T05:00:00.123456789-07:00 " + ROW.replace(b"\n", b"\r\n") + b"2026-12-01T12:00:01Z " + ROW
    assert len(rows_of(text)[0]) == 2


def test_not_a_number_is_no_row() -> None:
    bad = ROW.replace(b"24.56", b"N/A").replace(b"42.97", b"N/A")
    assert rows_of(bad + ROW)[0] == rows_of(ROW)[0]


@given(st.lists(st.sampled_from([ROW, b"noise\n", b"\n", b"12 34\n", b"\x00\xff\n"]), max_size=30), st.integers(1, 400))
def test_how_the_stream_is_cut_makes_no_difference(lines: list[bytes], chunk: int) -> None:
    text = b"".join(lines)
    assert len(rows_of(text, chunk)[0]) == lines.count(ROW)


@pytest.mark.parametrize("figure", ["nan", "inf", "-inf", "1e400", "1e308", "1e30", "-5.0", "N/A", "9" * 40])
def test_a_row_with_impossible_figures_is_none_and_spoils_no_other(figure: str) -> None:
    """A mean of it would not fit the status' schema: the measurement could never be written again."""
    row = "   1048576   262144   float   sum   -1   42.69   {}   {}   0   42.30   24.79   43.38   0\n"
    rows, _ = rows_of((row.format("24.56", "42.97") + row.format(figure, "42.97") + row.format("1.0", figure)).encode())
    table = BandwidthTable()
    table.add(rows)
    (result,) = table.results()
    assert (result.alg_bw, result.bus_bw, result.samples) == ("24.56", "42.97", 1)


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        (b"[1,0]<stdout>:" + ROW, 1),
        (b"2026-12-01T05:00:00.1-07:00 [1,0]<stdout>:" + ROW, 1),
        (ROW.replace(b"    42.78", b"n1:7:8 [0] NCCL INFO x\n    42.78"), 1),
        (ROW.replace(b"   24.56   42.97", b"     nan     nan"), 0),
    ],
)
def test_the_built_in_profile_has_its_tables_read_and_not_only_rows_at_the_beginning_of_a_line(
    line: bytes, rows: int
) -> None:
    sums = LogSums(PROFILE)
    heading = b"# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
    sums.scan(heading + line)
    assert (sums.rows, len(sums.table.results())) == (rows, rows)


def test_a_profile_of_ones_own_is_applied_as_it_is_written() -> None:
    sums = LogSums(replace(PROFILE, reads_tables=False))
    sums.scan(b"2026-12-01T05:00:00.1-07:00 " + ROW + b"[1,0]<stdout>:" + ROW)
    assert sums.rows == 1


@pytest.mark.parametrize(
    "sums", ["[[8,1.0,1.0,0]]", "[[8,1e300,1.0,1]]", "[[-1,1.0,1.0,1]]", "[[8,1.0,1.0,3000000000]]"]
)
def test_sums_that_cannot_be_are_not_read(sums: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(f'{{"pod_uid": "u", "position": [0,0,1], "sums": {sums}}}', type=Kept)
