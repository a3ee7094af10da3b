"""Tables of every generation of nccl-tests, whole and damaged, as the document that `nvcre parse -o json` prints."""

import json
import random
import re
from itertools import chain, zip_longest
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvcre_logs import nccl_document
from nvcre_logs.nccl_log import COLLECTIVES
from nvcre_logs.nccl_output import NcclOutputParser
from nvcre_logs.nccl_report import read_report

from .nccl_printer import Run, average, copies, expected_rows, factor, footer, header, joined, pieces, rows, text

ERAS = ["2018", "2020", "2022-08", "2023", "2025", "2.19"]
TESTS = [name for name in COLLECTIVES if name != "alltoallv"]


def parsed(log: str | bytes, chunk: int = 1 << 20) -> dict[str, Any]:
    data = log.encode() if isinstance(log, str) else log
    parser = NcclOutputParser()
    for start in range(0, len(data), chunk):
        parser.feed(data[start : start + chunk])
    found: dict[str, Any] = json.loads(json.dumps(nccl_document.document(parser.finish(), "case")))
    return found


def only(log: str | bytes) -> dict[str, Any]:
    (test,) = parsed(log)["tests"]
    assert isinstance(test, dict)
    return test


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("name", TESTS)
def test_a_table_of_every_test_and_generation(name: str, era: str) -> None:
    run = Run(name, era, ranks=16, hosts=("node-a", "node-b"))
    command = f"$ mpirun -np 16 ./build/{name}_perf -b 1M -e 16M -f 4\n"
    document = parsed(command + text(run))
    (test,) = document["tests"]
    assert (document["ok"], document["reasons"], test["status"]) == (True, [], "ok")
    assert test["rows"] == expected_rows(run)
    assert test["test"] == name
    assert test["test_source"] == ("banner" if era in ("2025", "2.19") else "command")
    assert (test["ranks"], test["hosts"]) == (16, {"node-a": 8, "node-b": 8})
    assert test["avg_busbw"] == pytest.approx(average(run))
    assert test["out_of_bounds"] == {"count": 0, "ok": True}


@pytest.mark.parametrize("era", ["2022-08", "2.19"])
@pytest.mark.parametrize(
    "extra",
    [{"stamps": True}, {"per_iteration": True}, {"cputime": True}, {"checked": False}, {"type": "bfloat16"}],
    ids=["-S", "-I", "-C", "-c 0", "-d bfloat16"],
)
def test_columns_that_flags_add_or_rename(era: str, extra: dict[str, Any]) -> None:
    run = Run(era=era, **extra)
    document = parsed(text(run))
    (test,) = document["tests"]
    assert document["ok"]
    assert test["rows"] == expected_rows(run)
    assert test.get("time_is_cpu") == (True if run.cputime else None)
    assert test.get("correctness") == (None if run.checked else "unchecked")


def test_before_mid_2020_all_gather_counted_the_shares_of_others() -> None:
    run = Run("all_gather", "2020")
    lines = []
    for line in rows(run):
        cells = line.split()
        cells[5], cells[9] = cells[4], cells[8]
        lines.append("  ".join(cells))
    sides = [row[side] for row in expected_rows(run) for side in ("out_of_place", "in_place")]
    mean = sum(side["algbw"] for side in sides) / len(sides)
    end = [re.sub(r"(bandwidth +: )\S+", rf"\g<1>{mean:g}", line) for line in footer(run)]
    test = only("$ ./all_gather_perf\n" + joined([*header(run), *lines, *end]))
    assert (test["status"], test["algbw_era"]) == ("ok", "n-1")
    assert "algbw_era" not in only("$ ./all_gather_perf\n" + text(run))


@pytest.mark.parametrize(
    "prefix",
    [
        "2026-03-03T12:00:25.108115123Z ",
        "2026-03-03T05:00:25.1-07:00 ",
        "[pod/nccl-launcher-0-0-x8k2p/node] ",
        "[1,0]<stdout>:",
        "[1,0]<stdout>: ",
        "[prterun-node-1-77@1,0]<stdout>: ",
        "0: ",
        "[pod/a/b] 2026-03-03T12:00:25Z [1,0]<stdout>:",
        "\x1b[32m",
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_what_launchers_and_terminals_put_around_a_line(prefix: str, end: str) -> None:
    run = Run(ranks=16, hosts=("node-a", "node-b"))
    log = "".join(prefix + line + end for line in text(run).splitlines())
    document = parsed(log, chunk=61)
    assert document["ok"]
    assert document["tests"][0]["rows"] == expected_rows(run)
    assert "stream" not in document["tests"][0]


INTRUDERS = [
    "n1:700:760 [0] NCCL INFO Connected all rings",
    "node-a:4297:4421 [0] NCCL INFO comm 0x55 rank 0 nranks 8 cudaDev 0 busId 1b000 - Init COMPLETE",
    "[2026-01-20 08:02:55] n1:1:2 [5] misc/socket.cc:50 NCCL WARN something 12 34",
    "NCCL DIAG 17 42 report",
    "--------------------\nWARNING: Open MPI accepted a TCP connection from what appears to be another process",
]


@pytest.mark.parametrize("era", ["2020", "2.19"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_other_lines_between_and_inside_rows_do_not_lose_one(era: str, data: st.DataObject) -> None:
    run = Run(era=era)
    body = []
    for row in expected_rows(run):
        for piece in pieces(run, row):
            body.append(piece)
            if data.draw(st.booleans()):
                intruders = data.draw(st.lists(st.sampled_from(INTRUDERS), min_size=1, max_size=3))
                body.append("\n".join(intruders) + "\n")
        body.append("\n")
    test = only(joined(header(run)) + "".join(body) + joined(footer(run)))
    assert test["rows"] == expected_rows(run)
    assert test["complete"]


@pytest.mark.parametrize("host", ["10-0-1-22", "10", "0fed198eb8ba"])
@pytest.mark.parametrize("blank", ["", " "])
def test_a_host_whose_name_begins_with_a_digit_is_no_cell(host: str, blank: str) -> None:
    run = Run(hosts=("10-0-1-2", host), ranks=16)
    noise = f"{host}:4001:4077 [3] NCCL INFO Connected all rings\n"
    body = "".join(noise + (blank + noise).join(pieces(run, row)) + blank + noise for row in expected_rows(run))
    test = only(joined(header(run)) + body + joined(footer(run)))
    assert (test["rows"], test["status"]) == (expected_rows(run), "ok")


@given(cut=st.integers(0, 4000), era=st.sampled_from(ERAS))
@settings(max_examples=150, deadline=None)
def test_a_log_that_is_cut_anywhere_gives_no_row_that_was_not_there(cut: int, era: str) -> None:
    run = Run("reduce", era)
    whole = text(run)
    cut = min(cut, whole.index("Avg") - 1)
    document = parsed(whole[:cut])
    assert not document["ok"]
    for test in document["tests"]:
        assert test["rows"] == expected_rows(run)[: len(test["rows"])]
        assert test["status"] == "incomplete"


def test_all_sizes_without_a_footer_are_another_reason_than_missing_sizes() -> None:
    run = Run()
    assert only(joined([*header(run), *rows(run)]))["reasons"] == ["no_footer"]
    assert only(joined([*header(run), *rows(run)[:-1]]))["reasons"] == ["truncated"]
    reduced = joined([*header(run), "# Reducing maxBytes to 4194304 due to memory limitation", *rows(run)[:-1]])
    assert only(reduced)["reasons"] == ["no_footer"]


def test_wrong_results_spoil_the_log_even_where_the_last_table_is_right() -> None:
    document = parsed(text(Run(wrong=48)) + text(Run("alltoall")))
    assert (document["ok"], document["reasons"]) == (False, ["wrong_results"])
    assert [test["status"] for test in document["tests"]] == ["failed", "ok"]


def test_an_average_below_the_minimum_is_no_success() -> None:
    document = parsed(text(Run(min_bandwidth="FAILED")))
    assert (document["ok"], document["reasons"]) == (False, ["below_min_bw"])
    assert parsed(text(Run(min_bandwidth="OK")))["ok"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("n1: Test CUDA failure common.cu:950 'out of memory'", "cuda_oom"),
        ("n1: Test CUDA failure common.cu:950 'invalid device ordinal'", "gpu_missing"),
        ("n1: Test CUDA failure common.cu:950 'an illegal memory access was encountered'", "nccl_error"),
        ("n1: Test NCCL failure common.cu:1119 'internal error / '", "nccl_error"),
        (
            "n1: Test NCCL failure common.cu:401 'remote process exited or there was a network error / '",
            "network_error",
        ),
        ("n1: Test NCCL failure all_reduce.cu:44 'unhandled system error'", "nccl_error"),
        ("n1: Test timeout (60s) common.cu:501", "timeout"),
        ("slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***", "timeout"),
    ],
)
def test_a_failure_in_the_middle_of_the_table(line: str, reason: str) -> None:
    run = Run()
    document = parsed(joined([*header(run), *rows(run)[:1], line, " .. n1 pid 331: Test failure common.cu:1005"]))
    assert (document["ok"], document["reasons"]) == (False, [reason])
    assert len(document["tests"][0]["rows"]) == 1
    torn = pieces(run, expected_rows(run)[1])[0] + line
    assert parsed(joined([*header(run), *rows(run)[:1], torn]))["reasons"] == [reason]


def test_missing_gpus_are_told_before_the_header_of_the_same_attempt() -> None:
    lines = ["Invalid number of GPUs: 8 requested but only 7 were found.", *header(Run())[:5]]
    for log in (lines, lines[::-1]):
        document = parsed(joined(log))
        assert [test["reasons"] for test in document["tests"]] == [["gpu_missing"]]


def test_an_attempt_that_succeeds_later_is_told_as_retried() -> None:
    run = Run()
    failed = joined([*header(run), "n1: Test NCCL failure common.cu:401 'unhandled system error / '"])
    document = parsed(failed + text(run))
    assert (document["ok"], document["reasons"]) == (True, ["retried"])
    assert [test["status"] for test in document["tests"]] == ["failed", "ok"]
    silent = parsed(joined(header(run)) + text(run))
    assert (silent["ok"], silent["reasons"]) == (True, ["retried"])
    assert [len(test["rows"]) for test in silent["tests"]] == [0, 3]


@pytest.mark.parametrize("era", ["2020", "2.19"])
@pytest.mark.parametrize("lines", range(1, 16))
def test_an_attempt_that_ends_anywhere_in_its_header_takes_nothing_from_the_next(era: str, lines: int) -> None:
    run = Run(era=era, checked=False)
    tests = parsed(joined(header(run)[:lines]) + text(run))["tests"]
    assert tests[-1] == only(text(run))
    assert all(not test["rows"] for test in tests[:-1])


def test_a_failure_after_a_good_table_is_the_end_of_the_log() -> None:
    run = Run()
    failed = joined([*header(run), "n1: Test timeout (60s) common.cu:501"])
    assert not parsed(text(run) + failed)["ok"]


def test_one_rank_measures_nothing() -> None:
    document = parsed(text(Run(ranks=1)))
    assert (document["ok"], document["reasons"]) == (False, ["single_rank"])
    assert document["tests"][0]["rows"][-1]["in_place"]["busbw"] == 0.0
    without_header = joined([*rows(Run(ranks=1)), *footer(Run(ranks=1))])
    assert parsed(without_header)["reasons"] == ["single_rank"]


@pytest.mark.parametrize("number", [2, 8])
def test_processes_that_do_not_know_of_each_other_are_told_apart(number: int) -> None:
    runs = copies(Run(), number)
    columns = zip_longest(*(text(run).splitlines() for run in runs))
    document = parsed(joined([line for line in chain.from_iterable(columns) if line is not None]))
    assert (document["ok"], document["reasons"]) == (False, ["single_rank", "not_distributed"])
    assert [test["rows"] for test in document["tests"]] == [expected_rows(run) for run in runs]
    assert all(test["ranks"] == 1 and test["complete"] for test in document["tests"])


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_in_whatever_order_their_lines_come(seed: int) -> None:
    runs = copies(Run(), 3)
    left = [text(run).splitlines() for run in runs]
    heads = [len(header(run)) for run in runs]
    order, choose = [], random.Random(seed)
    while any(left):
        sources = [
            lines
            for lines, head in zip(left, heads, strict=True)
            if len(lines) > len(text(runs[0]).splitlines()) - head
        ]
        source = choose.choice([lines for lines in (sources or left) if lines])  # all headers before the first row
        order.append(source.pop(0))
    document = parsed(joined(order))
    assert [test["rows"] for test in document["tests"]] == [expected_rows(run) for run in runs]


def test_tagged_processes_that_do_not_know_of_each_other() -> None:
    runs = copies(Run(), 2)
    lines = [f"[1,{rank}]<stdout>:{line}" for rank, run in enumerate(runs) for line in text(run).splitlines()]
    random.Random(7).shuffle(by_rank := [rank for rank in range(2) for _ in text(runs[rank]).splitlines()])
    queues = [[line for line in lines if line.startswith(f"[1,{rank}]")] for rank in range(2)]
    document = parsed(joined([queues[rank].pop(0) for rank in by_rank]))
    assert "not_distributed" in document["reasons"]
    assert sorted(len(test["rows"]) for test in document["tests"]) == [3, 3]


def test_other_ranks_say_their_failures_about_the_table_of_the_first() -> None:
    run = Run(ranks=16, hosts=("node-a", "node-b"))
    tagged = [f"[1,0]<stdout>:{line}" for line in [*header(run), *rows(run)[:2]]]
    failure = "[1,9]<stderr>:node-b: Test CUDA failure common.cu:1 'out of memory'"
    (test,) = parsed(joined(["[1,9]<stdout>:node-b:1:2 [1] NCCL INFO Bootstrap", *tagged, failure]))["tests"]
    assert (test["reasons"], test["suspect_hosts"], len(test["rows"])) == (["cuda_oom"], ["node-b"], 2)


def test_pods_in_one_log_are_told_apart() -> None:
    one, two = Run(hosts=("node-a",)), Run(hosts=("node-b",), pid=9)
    mixed = chain.from_iterable(
        zip(
            (f"[pod/run-0/node] {line}" for line in text(one).splitlines()),
            (f"[pod/run-1/node] {line}" for line in text(two).splitlines()),
            strict=True,
        )
    )
    document = parsed(joined(list(mixed)))
    assert document["ok"]
    assert [(test["stream"], test["hosts"]) for test in document["tests"]] == [
        ("pod/run-0/node", {"node-a": 8}),
        ("pod/run-1/node", {"node-b": 8}),
    ]


def test_groups_of_a_split_run_count_their_own_ranks() -> None:
    run = Run("all_gather", ranks=16, hosts=("node-a", "node-b"), groups=2)
    test = only(text(run))
    assert (test["ranks"], test["ranks_per_group"], test["rows"]) == (16, 8, expected_rows(run))
    assert factor(run) == 7 / 8


def test_a_list_of_gpus_that_was_cut_counts_what_the_process_was_told_to_use() -> None:
    run = Run(ranks=16)
    head = [line.replace("nGpus 1", "nGpus 16") for line in header(run)]
    first = next(index for index, line in enumerate(head) if "Rank" in line)
    listed = [
        f"#  Rank {rank:2d} Group  0 Pid   4000 on     node-a device {rank:2d} [0000:1b:00] GPU" for rank in range(12)
    ]
    for end in (["#  Rank 12 Group  0 Pid   4000 on     no..."], ["..."]):
        test = only(joined([*head[:first], *listed, *end, *head[first + 16 :], *rows(run), *footer(run)]))
        assert (test["ranks"], test["hosts"], test["status"]) == (16, {"node-a": 16}, "ok")


def test_a_log_without_its_beginning_is_still_a_measurement() -> None:
    run = Run()
    test = only(joined([*rows(run), *footer(run)]))
    assert (test["ranks"], test["hosts"], test["complete"], test["status"]) == (None, {}, True, "ok")
    assert (test["test"], test["test_source"]) == ("all_reduce", "banner")


@pytest.mark.parametrize("era", ["2020", "2022-08", "2.19"])
@pytest.mark.parametrize("lost", range(3))
def test_an_average_that_is_not_that_of_the_rows_tells_of_lost_ones(lost: int, era: str) -> None:
    run = Run(era=era)
    kept = [row for index, row in enumerate(rows(run)) if index != lost]
    test = only(joined([*header(run), *kept, *footer(run)]))
    assert (test["complete"], test["status"], test["reasons"]) == (False, "incomplete", ["truncated"])


def test_threads_that_each_measured_for_themselves_have_an_average_of_their_own() -> None:
    run = Run(era="2020")
    text = joined([*header(run), *rows(run), *footer(run)]).replace("nThread 1", "nThread 8")
    assert only(re.sub(r"(bandwidth +: )\S+", r"\g<1>77.5", text))["status"] == "ok"


def test_cycles_repeat_their_sizes_in_one_table() -> None:
    run = Run()
    test = only(joined([*header(run), *rows(run), *rows(run), *footer(run)]))
    assert test["rows"] == expected_rows(run) * 2


@pytest.mark.parametrize(("cell", "shown"), [("inf", "inf"), ("nan", "nan"), ("-nan", "nan")])
def test_a_bandwidth_that_is_no_number_is_told_as_it_was_printed(cell: str, shown: str) -> None:
    run = Run()
    lines = rows(run)
    busbw = f"{expected_rows(run)[0]['out_of_place']['busbw']:6.2f}"
    lines[0] = lines[0].replace(busbw, f"{cell:>6s}", 1)
    end = [line.replace(f"{average(run):g}", cell) for line in footer(run)]
    test = only(joined([*header(run), *lines, *end]))
    assert (test["reasons"], test["rows"][0]["out_of_place"]["busbw"]) == (["non_finite"], shown)
    assert (test["avg_busbw"], test["peak_busbw"]) == (
        shown,
        max(row[s]["busbw"] for row in expected_rows(run) for s in ("out_of_place", "in_place")),
    )


# The JSON report


def report(run: Run, **changes: Any) -> dict[str, Any]:
    def side(cells: dict[str, Any]) -> dict[str, Any]:
        wrong = cells["wrong"]
        return {
            "cpu_time" if run.cputime else "time": cells["time_us"],
            "alg_bw": cells["algbw"],
            "bus_bw": cells["busbw"],
            "nwrong": None if wrong is None else float(wrong),
        }

    return {
        "version": 3,
        "args": [f"/opt/nccl-tests/build/{run.test}_perf", "-b", "1M", "-J", "out.json"],
        "env": ["SECRET=all_gather_perf"],
        "nccl_version": 22903,
        "config": {
            "nthreads": 1,
            "ngpus": run.ranks // len(run.hosts),
            "maximum_bytes": run.sizes[-1],
            "step_factor": 4,
            "devices": [
                {"rank": index, "group": 0, "pid": index, "hostname": host, "device": 0, "device_info": "H100"}
                for index, host in enumerate(run.hosts)
            ],
        },
        "results": [
            {
                "size": row["size_bytes"],
                "count": row["count"],
                "type": row["type"],
                "redop": row["redop"],
                "root": f"{row['root']:6d}",
                "out_of_place": side(row["out_of_place"]),
                "in_place": side(row["in_place"]),
                "actual_iterations": 20,
                "experiment_name": "",
            }
            for row in expected_rows(run)
        ],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": average(run), "okay": "unchecked"},
        "errors": [],
        "end_time": "2026-01-01",
    } | changes


def from_report(data: str) -> dict[str, Any]:
    log = read_report(data.encode())
    assert log is not None
    return nccl_document.document(log, "case")


@pytest.mark.parametrize("name", ["all_reduce", "alltoall", "broadcast"])
def test_a_report_says_what_the_table_says(name: str) -> None:
    run = Run(name, ranks=16, hosts=("node-a", "node-b"))
    document = from_report(json.dumps(report(run)))
    (test,) = document["tests"]
    assert document["ok"]
    assert test["rows"] == expected_rows(run)
    assert (test["test"], test["test_source"], test["ranks"]) == (name, "args", 16)
    assert test["hosts"] == {"node-a": 8, "node-b": 8}


def test_a_report_of_a_run_that_was_killed_has_its_finished_rows() -> None:
    run = Run()
    whole = json.dumps(report(run))
    for cut in range(whole.index('"results"') + 12, whole.index('"average_bus')):
        document = from_report(whole[:cut])
        assert not document["ok"]
        assert document["tests"][0]["rows"] == expected_rows(run)[: len(document["tests"][0]["rows"])]
        assert document["tests"][0]["status"] == "incomplete"


def test_values_that_json_cannot_hold() -> None:
    run = Run()
    odd = json.dumps(report(run, average_bus_bandwidth={"bandwidth": "nan", "okay": "unchecked"}))
    document = from_report(odd.replace(f'"bus_bw": {expected_rows(run)[0]["in_place"]["busbw"]}', '"bus_bw": inf', 1))
    assert (document["ok"], document["reasons"], document["tests"][0]["avg_busbw"]) == (False, ["non_finite"], "nan")
    low = report(run, average_bus_bandwidth={"bandwidth": average(run), "okay": "false"})
    assert from_report(json.dumps(low))["reasons"] == ["below_min_bw"]


@pytest.mark.parametrize("data", ["", "{", "[]", "{}", '{"a": 1}', "# nThread 1", '{"results": ' * 5000])
def test_what_is_no_report_is_none(data: str) -> None:
    log = read_report(data.encode())
    assert log is None or not log.ok
