"""Skipping the lines that can say nothing changes no answer."""

import io
import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml
from nvcre_agent.kernel import dull
from nvcre_agent.kernel.envelope import Writer
from nvcre_agent.kernel.saved import SavedLog
from nvcre_agent.kernel_log_reading import Reading

LOGS = [case["log"] for case in yaml.safe_load(Path(__file__).with_name("saved_logs.yaml").read_text("utf-8"))]
CORPUS = sorted((Path(__file__).parents[3] / "corpus").glob("ks*.log"))
DULL = [
    "[  200.011791] usb 1-1: new high-speed USB device number 5 using xhci_hcd",
    "<6>[  200.011791] usb 1-1: new high-speed USB device number 5 using xhci_hcd",
    "Feb  1 00:00:00 n101 kernel: [  200.011791] usb 1-1: new high-speed USB device",
    "Feb  1 00:00:00 n101 systemd[1]: Started Session 5 of User root.",
    "2026-05-05T05:05:05.123456+00:00 n101 kernel: usb 1-1: new high-speed USB device",
    '{"MESSAGE":"usb 1-1: new device","_TRANSPORT":"kernel","SYSLOG_FACILITY":"0"}',
]


def answer(log: str) -> tuple[Any, ...]:
    reading = Reading()
    saved = SavedLog(io.BytesIO(log.encode()))
    told = [(one.to_json(), one.verdict) for one in reading.read(saved)]
    return told, reading.node_suspect, reading.notes, reading.quoted, reading.unread, reading.recognised, saved.counts


@pytest.mark.parametrize("header", ["", "Feb  1 00:00:00 n101 kernel: ", "Feb  1 00:00:00 n101 app[7]: "])
def test_no_answer_changes(header: str, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = [*LOGS, *(path.read_text("utf-8", "replace") for path in CORPUS)]
    between = itertools.cycle(DULL)
    logs += ["\n".join(f"{header}{line}\n{next(between)}" for line in log.split("\n")) for log in logs]
    quick = [answer(log) for log in logs]
    monkeypatch.setattr(dull, "writer_of_dull", lambda line: None)
    for log, one in zip(logs, quick, strict=True):
        assert answer(log) == one, log


@pytest.mark.parametrize("line", DULL)
def test_the_bulk_of_a_log_is_dull(line: str) -> None:
    assert dull.writer_of_dull(line) is (Writer.PROCESS if "systemd" in line else Writer.KERNEL)


@pytest.mark.parametrize(
    "line",
    [
        "Feb  1 00:00:00 n101 app: words",
        "words",
        "[1.0] [  2.0] x",
        "[2026-05-05T05:05:05] x",
        "{}",
        '{"MESSAGE":"\\u004eVRM","_TRANSPORT":"kernel","SYSLOG_FACILITY":"0"}',
        "2026-05-05T05:05:05.123456789Z stdout P half a line",
        "[  1.0] NVRM: loading",
    ],
)
def test_everything_else_is_read_in_full(line: str) -> None:
    assert dull.writer_of_dull(line) is None
