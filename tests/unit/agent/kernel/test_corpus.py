"""The kernel log cases of the corpus come out exactly, through the live agent's way and through `kernel-log FILE`."""

import json
from pathlib import Path

import pytest
from nvcre_agent import kernel_log_command
from nvcre_agent.kernel.envelope import unwrap
from nvcre_agent.kernel.parsers import LineParser
from nvcre_agent.kernel.record import parse_record

CORPUS = Path(__file__).parents[3] / "corpus"
CASES = sorted(path.stem for path in CORPUS.glob("ks*.log"))


def test_all_fifteen_cases_are_here() -> None:
    assert len(CASES) == 15


@pytest.mark.parametrize("case", CASES)
def test_the_command_answers_as_the_corpus_says(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = json.loads((CORPUS / f"{case}.expected.json").read_text())
    code = kernel_log_command.main([str(CORPUS / f"{case}.log"), "-o", "json"], {})
    told = json.loads(capsys.readouterr().out)
    assert told == {key: expected[key] for key in ("events", "hardware_events", "node_suspect")}
    assert code == (1 if expected["node_suspect"] else 0)


@pytest.mark.parametrize("case", CASES)
def test_the_agent_reads_the_same_from_its_records(case: str) -> None:
    lines = (CORPUS / f"{case}.log").read_text().splitlines()
    parser = LineParser()
    events = []
    for number, line in enumerate(lines, 1):
        record = parse_record(f"3,{number},{number * 1000},-;{unwrap(line).text}".encode())
        events += [(record.sequence, event.kind, event.code, event.message) for event in parser.feed(record.text)]
    expected = json.loads((CORPUS / f"{case}.expected.json").read_text())["events"]
    assert events == [(one["line"], one["kind"], one["code"], one["message"]) for one in expected]
