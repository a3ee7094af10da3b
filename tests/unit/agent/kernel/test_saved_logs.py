"""Saved logs of many drivers, boards and kernels say what saved_logs.yaml judges that they say."""

import io
from pathlib import Path
from typing import Any

import pytest
import yaml
from nvcre_agent.kernel.saved import SavedLog
from nvcre_agent.kernel_log_reading import Reading, Told

CASES = yaml.safe_load(Path(__file__).with_name("saved_logs.yaml").read_text(encoding="utf-8"))
LABELS = {True: "hardware", False: "not hardware", None: "unknown"}


def read(log: str) -> tuple[list[Told], Reading]:
    reading = Reading()
    return list(reading.read(SavedLog(io.BytesIO(log.encode())))), reading


def short(told: Told) -> list[Any]:
    event = told.event
    kind = event.kind.value if event.code is None else f"{event.kind.value} {event.code}"
    return [event.line, kind, event.pci, LABELS[told.hardware]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_log(case: dict[str, Any]) -> None:
    told, reading = read(case["log"])
    assert [short(one) for one in told] == [event[:4] for event in case["events"]]
    assert reading.node_suspect is case["suspect"]
    for one, event in zip(told, case["events"], strict=True):
        details = event[4] if len(event) > 4 else {}
        seen = one.to_json()
        assert {key: seen.get(key) for key in details} == details


def test_the_notes_say_why_counts_may_be_too_low_and_what_explains_a_fault() -> None:
    [lines] = [case["log"] for case in CASES if case["name"].startswith("lines that explain")]
    _, reading = read(lines)
    assert [listed.lines for listed in reading.notes.values()] == [[number] for number in range(1, 14)]
