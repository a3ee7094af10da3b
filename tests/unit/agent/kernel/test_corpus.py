"""The kernel log cases of the corpus, wrapped as /dev/kmsg records, give exactly the expected events."""

import json
import re
from pathlib import Path

import pytest
from nvcre_agent.kernel.parsers import LineParser
from nvcre_agent.kernel.record import parse_record

CORPUS = Path(__file__).parents[3] / "corpus"
CASES = sorted(path.stem for path in CORPUS.glob("ks*.log"))
# What dmesg, journald and syslog print before the kernel's own text.
PREFIX = re.compile(
    r"^(?:\w{3} +\d+ [\d:]{8} \S+ (?:kernel: )?)?(?:\[ *\d+\.\d+\] |\[\w{3} \w{3} +\d+ [\d:]{8} \d{4}\] )?"
)


def kmsg_records(log: str) -> list[bytes]:
    lines = log.splitlines()
    return [f"3,{number},{number * 1000},-;{PREFIX.sub('', line)}".encode() for number, line in enumerate(lines, 1)]


def test_all_fifteen_cases_are_here() -> None:
    assert len(CASES) == 15


@pytest.mark.parametrize("case", CASES)
def test_case(case: str) -> None:
    expected = json.loads((CORPUS / f"{case}.expected.json").read_text())["events"]
    parser = LineParser()
    events = []
    for raw in kmsg_records((CORPUS / f"{case}.log").read_text()):
        record = parse_record(raw)
        assert record.from_kernel
        events += [(record.sequence, event) for event in parser.feed(record.text)]
    fields = ("kind", "pci", "code", "pid", "process", "message")
    optional = ("nvlink", "severity", "recovery_action", "caused_by", "switch", "device", "state")
    seen = [
        {"line": line}
        | {field: getattr(event, field) for field in fields}
        | {field: value for field in optional if (value := getattr(event, field)) is not None}
        for line, event in events
    ]
    verdicts = ("hardware", "duplicate_of_line")  # triage labels, not what the line says
    assert seen == [{key: value for key, value in one.items() if key not in verdicts} for one in expected]
