"""A report of 500 nodes shows the few that differ, and counts the rest."""

import io

import pytest
from nvcre_cli.render import alike
from nvcre_cli.render.html import as_page
from nvcre_cli.render.junit import as_junit
from nvcre_cli.render.text import print_report
from nvcre_cli.report import Gathered, build
from rich.console import Console

JOB = {
    "metadata": {"name": "j", "namespace": "default", "uid": "u-1", "creationTimestamp": "2026-03-01T10:00:00Z"},
    "spec": {},
    "status": {"conditions": [{"type": "Failed", "status": "True", "reason": "WorkloadFailed", "message": "m"}]},
}
NODES = 500


def printed(report, width=140) -> str:
    out = io.StringIO()
    print_report(Console(file=out, width=width), report)
    return out.getvalue()


def health(number: int):
    slow = number == 7
    probe = {
        "kind": "NVLinkAllReduce",
        "jobUID": "u-1",
        "verdict": "Slow" if slow else "Pass",
        "busBandwidthGBps": "162.08" if slow else f"{360 + number / 100:.2f}",
        "comparison": f"compared {number}",
    }
    inventory = {"driverVersion": "570.0" if number == 9 else "580.1", "gpus": [{"product": "H100"}]}
    status = {"verdict": "Suspect" if slow else "Healthy", "message": "", "inventory": inventory, "probes": [probe]}
    return {"metadata": {"name": f"node-{number}"}, "status": status}


@pytest.fixture(scope="module")
def report():
    return build(
        Gathered(
            JOB, node_healths=[health(n) for n in range(NODES)], ran_on=frozenset(f"node-{n}" for n in range(NODES))
        )
    )


def test_the_node_that_differs_comes_first_and_the_others_are_one_row(report):
    assert [row["name"] for row in alike.nodes(report.nodes)] == [
        "node-7",
        "node-9",
        "498 nodes: node-0, node-1, node-2 and 495 more",
    ]


def test_probes_that_passed_are_one_row_with_their_range(report):
    slow, passed = alike.probes(report.probes)
    assert (slow["node"], slow["comparison"]) == ("node-7", "compared 7")
    assert (passed["node"], passed["busBandwidthGBps"]) == (
        "499 nodes: node-0, node-1, node-2 and 496 more",
        "360.00 to 364.99",
    )
    assert passed["comparison"] == "the lowest, node-0: compared 0"


def test_probes_that_were_not_run_for_different_reasons_stay_apart():
    busy = [
        {"node": f"n{n}", "kind": "NICLoopback", "state": "NotTested", "message": "no InfiniBand"} for n in range(20)
    ]
    busy.append({"node": "x", "kind": "NICLoopback", "state": "NotTested", "message": "the node was busy"})
    assert [(row["node"], row["message"]) for row in alike.probes(busy)] == [
        ("x", "the node was busy"),
        ("20 nodes: n0, n1, n2 and 17 more", "no InfiniBand"),
    ]


def test_a_group_that_could_not_be_narrowed_is_one_block():
    failed = [{"name": f"n{n}", "reason": "WorkloadFailed", "message": "could not be narrowed"} for n in range(NODES)]
    job = {**JOB, "status": {**JOB["status"], "failedNodes": failed}}
    whole = build(Gathered(job))
    for text in (as_junit([whole]), printed(whole)):
        assert text.count("could not be narrowed") == 1
        assert "500 nodes: n0, n1, n2 and 497 more" in text


def test_the_same_fault_everywhere_is_one_row_that_names_whom_it_met_first():
    def fault(node, index, code=79):
        component = {"kind": "GPU", "index": index}
        return {"node": node, "kind": "Xid", "code": code, "component": component, "message": f"m{index}", "count": 2}

    own = fault("n3", 0, code=48)
    one, everywhere = alike.incidents([*(fault(f"n{n}", gpu) for n in (7, 2) for gpu in range(5)), own])
    assert one == own
    assert (everywhere["node"], everywhere["component"], everywhere["count"]) == (
        "2 nodes: n7, n2",
        {"kind": "10 x GPU"},
        20,
    )
    assert everywhere["message"] == "the first: m0"
    [of_one_node] = alike.incidents([fault("n1", gpu) for gpu in range(9)])
    assert of_one_node["node"] == "n1"


def test_a_few_nodes_are_all_shown(report):
    few = report.nodes[: alike.FEW]
    assert alike.nodes(few) == few


def test_the_text_of_500_nodes_fits_a_screen_and_the_page_keeps_every_row(report):
    assert len(printed(report).splitlines()) < 50
    assert as_page([report]).count("compared 499") == 1


def test_a_narrow_terminal_keeps_the_columns_that_say_who_and_why(report):
    for width, beside in ((60, False), (140, True)):
        text = printed(report, width)
        assert ("driver" in text, "busbw GB/s" in text) == (beside, beside)
        assert {"verdict", "comparison", "message", "node-7"} <= {*text.replace("┃", " ").replace("│", " ").split()}


def test_one_figure_among_probes_that_failed_alike():
    failed = [{"node": f"n{n}", "kind": "NICLoopback", "state": "Error", "message": "m"} for n in range(20)]
    failed[3]["busBandwidthGBps"] = "1.00"
    [one] = alike.probes(failed)
    assert one["busBandwidthGBps"] == "1.00 to 1.00"


@pytest.mark.parametrize("width", [40, 60, 79, 80, 140])
def test_no_bar_is_folded_however_narrow_the_terminal(width):
    rows = [{"sizeBytes": 1 << n, "algBW": "100.00", "busBW": "300.00", "samples": 1} for n in range(3, 34)]
    measurement = {"kind": "BandwidthMeasurement", "status": {"results": rows}}
    lines = printed(build(Gathered(JOB, [measurement])), width).splitlines()
    assert sum("300.00" in line for line in lines) == len(rows)
    assert sum("█" in line for line in lines) == (len(rows) if width >= 60 else 0)
