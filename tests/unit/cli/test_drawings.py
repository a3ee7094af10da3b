"""The plots of a report, in characters, as SVG, and the other files it is written to."""

from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvcre_cli.goodput import breakdown, goodput_of
from nvcre_cli.render import charts
from nvcre_cli.render.junit import as_junit
from nvcre_cli.render.plots import bar, shares, spark
from nvcre_cli.report import Gathered, build

BEGIN = datetime(2026, 3, 1, 10, tzinfo=UTC)
STATUS = {
    "trainingTimeSec": "100.000000",
    "lostWorkTimeSec": "20.000000",
    "rescheduleTimeSec": "10.000000",
    "resumeTimeSec": "5.000000",
    "checkpointSaveTimeSec": "5.000000",
}


def test_the_time_of_a_run_is_all_of_its_parts() -> None:
    parts = {"productive": 60.0, "lost": 20.0, "reschedule": 10.0, "resume": 5.0, "checkpoint": 5.0}
    assert breakdown(STATUS) == parts
    assert breakdown({}) == {}
    assert breakdown({**STATUS, "lostWorkTimeSec": "500.0"})["productive"] == 0.0


def test_what_was_not_measured_is_absent_and_not_zero() -> None:
    assert goodput_of({"metadata": {"name": "g"}}) == {
        "name": "g", "breakdownSec": {}, "stepTimes": [], "interruptions": []
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "highest", "drawn"), [(0, 10, ""), (10, 10, "████"), (5, 10, "██"), (0.01, 10, "█"), (1, 0, "")]
)
def test_a_bar_shows_anything_that_is_more_than_nothing(value: float, highest: float, drawn: str) -> None:
    assert bar(value, highest, width=4) == drawn


def test_a_line_of_columns_and_a_bar_of_shares() -> None:
    assert spark([1.0, 2.0, 4.0, 8.0]) == "▂▃▅█"
    assert spark([8.0] * 1000, width=5) == "█████"
    assert spark([]) == ""
    assert shares({"productive": 6.0, "lost": 2.0, "reschedule": 2.0}, width=10) == "██████▓▓▒▒"
    assert shares({}) == ""


@given(st.floats(1e-9, 1e12))
def test_a_scale_has_a_few_round_marks_that_hold_every_value(highest: float) -> None:
    marks = charts.ticks(highest)
    assert marks[0] == 0
    assert marks[-1] >= highest * 0.99999
    assert 2 <= len(marks) <= 7


@pytest.mark.parametrize("highest", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_of_nothing_is_one(highest: float) -> None:
    assert charts.ticks(highest) == [0.0, 1.0]


def test_drawings_are_xml_whatever_the_words_in_them() -> None:
    span = charts.Span(BEGIN, BEGIN + timedelta(hours=9), "interruption", 'a <b> & "c"\x1b\x00 \ud800')
    for svg in (
        charts.time_line(BEGIN, BEGIN + timedelta(hours=1), [span]),
        charts.bandwidth([(8, 0.0, 0.0)]),
        charts.breakdown({"productive": 0.0}),
        charts.step_times([(1, 2.0), (5, 3.0)], [1, 99]),
        charts.step_times([]),
    ):
        assert ET.fromstring(svg).tag == "svg"


def test_an_interruption_is_drawn_as_long_as_it_was() -> None:
    span = charts.Span(BEGIN + timedelta(minutes=15), BEGIN + timedelta(minutes=45), "interruption", "gone")
    svg = ET.fromstring(charts.time_line(BEGIN, BEGIN + timedelta(hours=1), [span]))
    run, gone = (
        next(box for box in svg.iter("rect") if box.get("class") == name) for name in ("productive", "interruption")
    )
    assert float(gone.get("width", 0)) == pytest.approx(float(run.get("width", 0)) / 2, abs=0.1)


def job(name: str, kind: str = "", status: str = "True", message: str = "") -> dict[str, object]:
    condition = {"type": kind, "status": status, "reason": "R", "message": message}
    return {"metadata": {"name": name, "namespace": "n"}, "status": {"conditions": [condition] if kind else []}}


def test_a_ci_system_sees_failures_as_failures_and_what_is_unknown_as_errors() -> None:
    attributed = {"type": "Attributed", "status": "True", "reason": "NodesNamed", "message": "named"}
    failed = job("bad", "HardwareFailed", message="GPU <5>\x1b")
    failed["status"]["conditions"].append(attributed)  # type: ignore[index]
    failed["status"]["failedNodes"] = [{"name": "node-3", "reason": "HardwareFailureDetected"}]  # type: ignore[index]
    suite = ET.fromstring(as_junit([build(Gathered(one)) for one in (failed, job("runs"))]))[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "1", "1")
    bad, runs = suite
    assert "node-3: HardwareFailureDetected" in (bad[0].text or "")
    assert (bad[0].tag, bad[0].get("message"), runs[0].tag) == ("failure", "R: GPU <5>", "error")
