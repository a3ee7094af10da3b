"""The HTML report in a real browser: what it draws, that it asks for nothing else, that foreign text stays text."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nvcre_cli.render.html import as_page
from nvcre_cli.report import Gathered, build

pytestmark = pytest.mark.browser

HOSTILE = "<script>document.title = 'taken'</script><img src=x onerror=\"document.title='taken'\">\x1b[31m"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-quic", "--window-size=800,1200",
)  # fmt: skip
JOB = {
    "metadata": {"name": "train", "namespace": "team", "uid": "u", "creationTimestamp": "2026-03-01T10:00:00Z"},
    "spec": {"thresholds": {"busBandwidthGBps": "value >= 300.0"}},
    "status": {
        "conditions": [{"type": "Failed", "status": "True", "reason": "WorkloadFailed", "message": HOSTILE}],
        "failedNodes": [{"name": "node-3", "reason": "HardwareFailureDetected", "message": HOSTILE}],
    },
}
BANDWIDTH = {
    "kind": "BandwidthMeasurement",
    "metadata": {"name": "train-bandwidth"},
    "spec": {"testType": "all_reduce"},
    "status": {"results": [
        {"sizeBytes": 8 << (3 * power), "algBW": f"{power}.50", "busBW": f"{2 * power}.00", "samples": 1}
        for power in range(10)
    ]},
}  # fmt: skip
GOODPUT = {
    "kind": "GoodputMeasurement",
    "metadata": {"name": "train-goodput"},
    "spec": {},
    "status": {
        "result": "0.800000", "trainingTimeSec": "1000.000000", "lostWorkTimeSec": "100.000000",
        "rescheduleTimeSec": "50.000000", "resumeTimeSec": "25.000000", "checkpointSaveTimeSec": "25.000000",
        "startTime": "2026-03-01T10:00:00Z", "completionTime": "2026-03-01T10:16:40Z", "highestStep": 99,
        "stepTimes": [{"step": step, "stepTimeSec": f"{5 + step % 3}.000000"} for step in range(100)],
        "interruptions": [
            {"at": "2026-03-01T10:05:00Z", "reason": "WorkloadRestarted", "lostWorkSec": "100.000000", "step": 40,
             "resumedAt": "2026-03-01T10:06:15Z"},
        ],
    },
}  # fmt: skip


@pytest.fixture
def dom(tmp_path: Path) -> Callable[[str], str]:
    """What the browser makes of a page, after its scripts ran."""

    def load(page: str) -> str:
        file = tmp_path / "report.html"
        file.write_text(page, "utf-8")
        command = ["chromium", *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", file.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

    return load


def test_the_page_shows_the_run_and_what_a_pod_wrote_stays_text(dom: Callable[[str], str]) -> None:
    page = as_page([build(Gathered(JOB, [BANDWIDTH, GOODPUT]))])
    shown = dom(page)
    assert "<title>FAILED team/train</title>" in shown  # nothing of HOSTILE ran
    drawn = re.findall(r'aria-label="([^"]+)"', shown)
    assert drawn == ["Bandwidth by message size", "Where the time went", "Step time", "The run on a time line"]
    assert shown.count("<circle") == 2 * 10 + 100
    assert "productive 800.0 s (80.0 %)" in shown
    assert "interrupted after step 40" in shown
    assert not re.search(r'(?:src|href)="|url\(|@import', shown.replace("src=x", ""))


def test_a_page_of_a_job_that_has_nothing_yet_is_a_page(dom: Callable[[str], str]) -> None:
    job: dict[str, Any] = {"metadata": {"name": "new", "namespace": "team"}}
    shown = dom(as_page([build(Gathered(job, [{**GOODPUT, "status": {}}, {**BANDWIDTH, "status": {}}]))]))
    assert "RUNNING" in shown
    assert "<svg" not in shown
