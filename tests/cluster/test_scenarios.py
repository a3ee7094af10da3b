"""The five scenarios on a real control plane: with kube-scheduler, JobSet and Trainer, the result is the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from nvcre_cli.demo import differences_in
from nvcre_local.scenario_file import read_scenario

from .processes import REPOSITORY, die_with_parent, processes_with

pytestmark = pytest.mark.timeout(600)

EXAMPLES = REPOSITORY / "examples"
SCENARIOS = sorted((EXAMPLES / "scenarios").glob("*.yaml"))
PATIENCE_S = 540


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_ends_as_it_does_on_the_embedded_server(scenario: Path, tmp_path: Path) -> None:
    expected = read_scenario(scenario).expect
    assert expected is not None
    command = [sys.executable, "-m", "nvcre_cli", "local", "run", str(EXAMPLES / "nccl-all-reduce.yaml")]
    command += ["--scenario", str(scenario), "--control-plane", "real", "-o", "json", "--timeout", "3m"]
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        preexec_fn=die_with_parent,
    )
    assert ended.stdout, ended.stderr
    document = json.loads(ended.stdout)
    (job,) = document["jobs"]
    true = {one["type"]: one["reason"] for one in job["conditions"] if one["status"] == "True"}
    assert document["result"] == expected.result, ended.stderr
    assert differences_in(job["failedNodes"], expected) == []
    assert expected.conditions.items() <= true.items()
    assert ended.returncode == (0 if expected.result == "PASSED" else 1)
    assert list(tmp_path.iterdir()) == []
    assert processes_with(str(tmp_path)) == []
