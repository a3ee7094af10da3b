"""The scenarios on a real control plane: with kube-scheduler, JobSet and Trainer, the result is the same.

All on the session's control plane, one after the other (`nvcre local run --attach`), and none leaves anything for the
next.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from nvcre_cli.demo import differences_in
from nvcre_local.scenario_file import read_scenario
from support.processes import die_with_parent

from .processes import REPOSITORY, Plane, processes_with

pytestmark = pytest.mark.timeout(600)

EXAMPLES = REPOSITORY / "examples"
SCENARIOS = sorted((EXAMPLES / "scenarios").glob("*.yaml"))
PATIENCE_S = 540
COLLECTED_WITHIN_S = 90
OF_A_RUN = (
    "nodes,nodehealths,jobs.nvcre.nvidia.com,bandwidthmeasurements,trainingruntimes,trainjobs,jobsets,jobs.batch,pods"
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_ends_as_it_does_on_the_embedded_server(
    scenario: Path, plane: Plane, system: None, tmp_path: Path
) -> None:
    expected = read_scenario(scenario).expect
    assert expected is not None
    before = objects_on(plane)
    ended = run(scenario, tmp_path, "--attach", str(plane.ready_file))
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
    until = time.monotonic() + COLLECTED_WITHIN_S
    while (left := objects_on(plane) - before) and time.monotonic() < until:  # by the garbage collector
        time.sleep(1)
    assert left == set()


def test_a_control_plane_of_its_own_ends_with_the_run(tmp_path: Path) -> None:
    ended = run(EXAMPLES / "scenarios/healthy.yaml", tmp_path, "--control-plane", "real")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["result"] == "PASSED"
    assert list(tmp_path.iterdir()) == []
    assert processes_with(str(tmp_path)) == []


def objects_on(plane: Plane) -> set[str]:
    """Of the kinds that a run makes."""
    return set(plane.kubectl("get", OF_A_RUN, "--all-namespaces", "-o", "name", "--ignore-not-found").splitlines())


def run(scenario: Path, directory: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nvcre_cli", "local", "run", str(EXAMPLES / "nccl-all-reduce.yaml")]
    command += ["--scenario", str(scenario), "-o", "json", "--timeout", "3m", *flags]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env={**os.environ, "TMPDIR": str(directory)},
        preexec_fn=die_with_parent,
    )
