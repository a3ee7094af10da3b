"""What the reader of nccl-tests text makes of the corpus, of damaged text and of hostile text."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvcre_logs.nccl_log import NcclLog, NcclTest, PerIteration, Row, Side
from nvcre_logs.nccl_output import NcclOutputParser
from nvcre_logs.nccl_tables import MAX_FAILURES, MAX_ROWS, MAX_TESTS

CORPUS = Path(__file__).parents[2] / "corpus"
CASES = sorted(path.stem for path in CORPUS.glob("ns*.log"))

HEADING = "#       size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong\n"
ROW = "  1048576  262144  float  sum  -1    53.55  19.58  34.27      0    53.78  19.50  34.12      0\n"
FOOTER = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 34.2\n"


def parse(data: bytes | str, chunk: int = 1 << 20) -> NcclLog:
    data = data.encode() if isinstance(data, str) else data
    parser = NcclOutputParser()
    for start in range(0, len(data), chunk):
        parser.feed(data[start : start + chunk])
    return parser.finish()


def only_test(text: bytes | str) -> NcclTest:
    (test,) = parse(text).tests
    return test


def as_expected(test: NcclTest, expected: dict[str, Any]) -> dict[str, Any]:
    """`test` in the corpus' words, with the keys that the expected answer has."""
    # Where the log itself does not say the name (test_source), a reader may answer null.
    name = expected["test"] if test.name is None and expected["test_source"] in ("unknown", "inferred") else test.name
    bounds = None if test.out_of_bounds is None else {"count": test.out_of_bounds, "ok": test.out_of_bounds_ok}
    answer = {
        "test": name,
        "test_source": expected["test_source"],
        "status": test.status,
        "reasons": list(test.reasons),
        "ranks": test.ranks,
        "hosts": test.hosts,
        "rows": [row_in_corpus_words(row) for row in test.rows],
        "avg_busbw": test.avg_busbw_gbps,
        "peak_busbw": test.peak_busbw_gbps,
        "out_of_bounds": bounds,
        "complete": test.complete,
        "correctness": "checked" if test.checked else "unchecked",
        "suspect_hosts": test.suspect_hosts,
    }
    return {key: answer[key] for key in expected}


def row_in_corpus_words(row: Row) -> dict[str, Any]:
    def side(cells: Side) -> dict[str, Any]:
        words = {"time_us": cells.time_us, "algbw": cells.algbw_gbps, "busbw": cells.busbw_gbps, "wrong": cells.wrong}
        return words if cells.error is None else {**words, "error": cells.error}

    return {
        "size_bytes": row.size_bytes,
        "count": row.count,
        "type": row.type,
        "redop": row.redop,
        "root": row.root,
        "out_of_place": side(row.out_of_place),
        "in_place": side(row.in_place),
    }


def test_the_corpus_is_there() -> None:
    assert len(CASES) == 12


@pytest.mark.parametrize("chunk", [7, 1 << 20])
@pytest.mark.parametrize("case", CASES)
def test_every_corpus_case_is_read_as_expected(case: str, chunk: int) -> None:
    expected = json.loads((CORPUS / f"{case}.expected.json").read_text())
    log = parse((CORPUS / f"{case}.log").read_bytes(), chunk)
    assert log.ok == expected["ok"]
    assert [as_expected(*pair) for pair in zip(log.tests, expected["tests"], strict=True)] == expected["tests"]


@pytest.mark.parametrize(
    ("cell", "wrong"), [("0", 0), ("48", 48), ("1e+06", 1_000_000), ("1.04858e+06", 1_048_580), ("N/A", None)]
)
def test_wrong_elements_are_counted_as_printed(cell: str, wrong: int | None) -> None:
    row = ROW.replace("34.27      0", f"34.27 {cell}")
    assert only_test(HEADING + row + FOOTER).rows[0].out_of_place.wrong == wrong


def test_wrong_elements_of_both_sides_add_up() -> None:
    row = ROW.replace("34.27      0", "34.27      2").replace("34.12      0", "34.12      3")
    assert only_test(HEADING + row + "# Out of bounds values : 2 FAILED\n").wrong_elements == 5


def test_version_and_library_version_are_read() -> None:
    test = only_test("# nccl-tests version 2.20.0 (b4d5bee) nccl-headers=23007 nccl-library=23008\n" + HEADING + ROW)
    assert (test.version, test.library_version) == ("2.20.0", 23008)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("n1: Test CUDA failure common.cu:950 'out of memory'", "cuda_oom"),
        ("n1: Test CUDA failure common.cu:950 'an illegal memory access was encountered'", "cuda_error"),
        ("n1: Test NCCL failure common.cu:1119 'unhandled system error / '", "nccl_error"),
        ("n1: Test timeout (60s) common.cu:501", "timeout"),
        ("Invalid number of GPUs: 8 requested but only 7 were found.", "gpu_missing"),
    ],
)
def test_a_failure_line_gives_its_reason_and_text(line: str, reason: str) -> None:
    test = only_test("# nThread 1 nGpus 8\n" + line + "\n")
    assert (test.status, test.reasons, test.failures) == ("failed", (reason,), [line])


def test_a_row_torn_by_another_process_is_put_together() -> None:
    left, right = ROW.split("    53.55")
    right = "    53.55" + right
    test = only_test(HEADING + left + "n1:700:760 [0] NCCL INFO Connected all rings\n" + right + FOOTER)
    assert test.rows == only_test(HEADING + ROW).rows
    assert test.complete


def test_a_row_that_lost_its_right_side_is_not_complete() -> None:
    test = only_test(HEADING + ROW + ROW.split("    53.55", maxsplit=1)[0] + "\n" + ROW + FOOTER)
    assert (len(test.rows), test.lost_rows, test.complete) == (2, 1, False)


def test_timestamps_and_per_iteration_cells_do_not_shift_the_columns() -> None:
    stamped = ROW.rstrip() + "  2026-07-09 12:00:01\n"
    cells = ROW.split()
    detailed = " ".join([*cells[:9], "51.2", "61", "60.5", "3.21", *cells[9:], "52", "62", "61.5", "4"]) + "\n"
    detailed_heading = HEADING.replace("#wrong", "#wrong i_min i_max i_p99 i_cv%")
    plain, with_time = only_test(HEADING + ROW + stamped + FOOTER).rows
    assert plain == with_time
    for heading in (detailed_heading, ""):
        (row,) = only_test(heading + detailed + FOOTER).rows
        assert row.out_of_place.per_iteration == PerIteration(51.2, 61.0, 60.5, 3.21)
        assert replace(row.in_place, per_iteration=None) == plain.in_place


def test_non_finite_bandwidth_is_no_measurement() -> None:
    assert "non_finite" in only_test(HEADING + ROW.replace("34.27", "nan") + FOOTER).reasons


def test_crlf_and_escape_codes_do_not_matter() -> None:
    text = (HEADING + "\x1b[0m" + ROW + FOOTER).replace("\n", "\r\n")
    assert parse(text, chunk=1).ok


def test_a_line_of_5_mb_is_skipped_and_counted_and_the_rest_is_read() -> None:
    log = parse((HEADING + "x" * 5_000_000 + "\n" + ROW + FOOTER), chunk=65536)
    assert log.oversized_lines == 1
    assert log.ok
    whole = parse(HEADING + "x" * 5_000_000 + "\n" + ROW + FOOTER, chunk=10_000_000)
    assert (whole.oversized_lines, whole.ok) == (1, True)


def test_binary_garbage_is_counted_and_the_rest_is_read() -> None:
    log = parse(HEADING.encode() + b"\xff\xfe\x00\x81\n" + ROW.encode() + FOOTER.encode())
    assert log.undecodable_lines == 1
    assert log.ok


UNITS = ["x", " ", ". ", ".. x", "a/", "_perf", "#", "# Rank ", "1 ", "1", "\x1b[", "[1,0]<stdout>:", "é"]


@pytest.mark.parametrize("before", ["", "#  Rank  0 Group  0 Pid   ", "# Out of bounds values : "])
@pytest.mark.parametrize("unit", UNITS)
def test_no_line_takes_more_than_linear_time(unit: str, before: str) -> None:
    """Quadratic would take minutes here and end in the suite's timeout."""
    parse((HEADING + before + unit * (60_000 // len(unit.encode())) + "\n") * 20)


def test_endless_rows_and_failures_are_bounded() -> None:
    test = only_test(HEADING + ROW * (MAX_ROWS + 5))
    assert (len(test.rows), test.dropped_rows) == (MAX_ROWS, 5)
    failing = only_test("# nThread 1\n" + "".join(f"n{i}: Test timeout (60s) x.cu:1\n" for i in range(100)))
    assert len(failing.failures) == len(failing.suspect_hosts) == MAX_FAILURES


@pytest.mark.parametrize(
    "line", ["# nThread 1 nGpus 1\n", "[1,{n}]<stdout>:# nThread 1\n", "[pod/{n}/c] # nThread 1\n"]
)
def test_endless_headers_ranks_and_pods_are_bounded(line: str) -> None:
    """Quadratic would take minutes here and end in the suite's timeout."""
    log = parse("".join(line.format(n=n) for n in range(50_000)))
    assert len(log.tests) == MAX_TESTS


def test_what_the_loader_complained_about_is_kept() -> None:
    complaint = "all_reduce_perf: error while loading shared libraries: libnccl.so.2: cannot open shared object file"
    for end in ("\n", ""):
        log = parse(complaint + end)
        assert (log.tests, log.last_words) == ((), complaint)


@given(st.binary(max_size=4 * 1024), st.integers(1, 64))
def test_no_bytes_kill_the_reader_and_cuts_change_nothing(data: bytes, chunk: int) -> None:
    whole, cut = parse(data), parse(data, chunk)
    assert (whole.undecodable_lines, len(whole.tests)) == (cut.undecodable_lines, len(cut.tests))


@given(st.text(alphabet="0123456789 .-eNA/#flotsum\n\r", max_size=2000))
def test_text_that_looks_like_rows_never_kills_the_reader(text: str) -> None:
    parse(HEADING + text)
