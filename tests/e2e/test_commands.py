"""The command's manners: bad input, Ctrl-C at any moment, kubectl beside it."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from nvcre_local.cluster_hardware import NoGpus, find_gpus

from .conftest import EXAMPLES, until

pytestmark = pytest.mark.timeout(180)

MANIFEST = EXAMPLES / "nccl-all-reduce.yaml"


def has_gpu() -> bool:
    try:
        find_gpus()
    except NoGpus:
        return False
    return True


# -- bad input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["{tmp}/gone.yaml", "--scenario", "healthy"], "gone.yaml: No such file or directory"),
        (["{tmp}/broken.yaml", "--scenario", "healthy"], "broken.yaml:3:1: not YAML"),
        ([str(MANIFEST), "--scenario", "nothing-like-it"], "no such file, and not one of app-crash"),
        ([str(MANIFEST), "--scenario", "{tmp}/unknown-key.yaml"], "unknown-key.yaml: unknown key nodez; allowed: "),
        ([str(MANIFEST), "--scenario", "xid79-mid-run", "--nodes", "2"], "--nodes must be at least 4"),
        ([str(MANIFEST), "--scenario", "healthy", "--nodes", "0"], "--nodes 0 is not within 1 to 128"),
        ([str(MANIFEST), "--scenario", "healthy", "--timeout", "soon"], "'soon' is not a duration"),
        ([str(MANIFEST), "--scenario", "healthy", "--control-plane", "fake"], "'fake' is not one of"),
        ([str(MANIFEST), "-o", "xml"], "'xml' is not one of"),
        ([str(MANIFEST), "--scenario", "healthy", "--html", "/"], "'/' is a directory"),
        ([str(MANIFEST), "--scenario", "healthy", "--junit", "/nowhere/r.xml"], "/nowhere is not a directory"),
    ],
)
def test_what_cannot_be_tried_is_said_in_a_line_and_ends_with_2(nvcre, tmp_path, words, complaint):
    (tmp_path / "broken.yaml").write_text("a: 1\nb: [1,\n")
    (tmp_path / "unknown-key.yaml").write_text("nodez: 3\n")
    ended = nvcre.run("local", "run", *(word.replace("{tmp}", str(tmp_path)) for word in words))
    assert ended.code == 2
    assert complaint in ended.stderr
    assert "Traceback" not in ended.stderr
    assert nvcre.leftovers() == []


@pytest.mark.skipif(has_gpu(), reason="this machine has a GPU")
def test_without_gpu_and_scenario_it_says_what_is_missing_and_how_to_simulate(nvcre):
    ended = nvcre.run("local", "run", MANIFEST)
    assert ended.code == 2
    assert len(ended.stderr.splitlines()) == 1
    assert "no GPU to test: " in ended.stderr
    assert "--scenario healthy" in ended.stderr


def test_a_manifest_that_breaks_a_rule_is_refused_with_field_and_rule(nvcre, tmp_path):
    manifest = tmp_path / "reserved.yaml"
    manifest.write_text(
        MANIFEST.read_text() + "  workloadMetadata: {labels: {nvcre.nvidia.com/job: mine}}\n  stallMultiplier: 0\n"
    )
    ended = nvcre.run("local", "run", manifest, "--scenario", "healthy")
    assert ended.code == 2
    assert "Job default/nccl-all-reduce is refused: Invalid" in ended.stderr
    assert "spec.workloadMetadata.labels" in ended.stderr
    assert "spec.stallMultiplier" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert nvcre.leftovers() == []


def test_an_occupied_port_is_named(nvcre):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = nvcre.run("local", "up", "--scenario", "healthy", "--listen", address)
    assert ended.code == 2
    assert f"cannot listen on {address}: Address already in use" in ended.stderr
    assert nvcre.leftovers() == []


# -- endings --------------------------------------------------------------------------------------------------

MOMENTS = ["API server", "coordinator and kubelets", "agents connected", "applied", "WorkloadRunning"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_at_any_moment_leaves_nothing(nvcre, moment):
    process = nvcre.start("local", "run", MANIFEST, "--scenario", "healthy", "--nodes", "2")
    until(process.stderr, lambda line: moment in line)
    process.send_signal(signal.SIGINT)
    ended = nvcre.end(process)
    assert ended.code == 130
    assert "Traceback" not in ended.stderr
    assert nvcre.leftovers() == []


def test_a_second_ctrl_c_does_not_wait(nvcre):
    process = nvcre.start("local", "run", MANIFEST, "--scenario", "healthy", "--nodes", "2")
    until(process.stderr, lambda line: "applied" in line)
    process.send_signal(signal.SIGINT)
    until(process.stderr, lambda line: "again to do it at once" in line)
    process.send_signal(signal.SIGINT)
    assert nvcre.end(process).code == 130
    gone(nvcre)
    assert nvcre.leftovers() == []


def test_a_terminal_that_is_closed_takes_the_cluster_with_it(nvcre):
    process = nvcre.start("local", "up", "--scenario", "healthy", "--nodes", "1")
    until(process.stderr, lambda line: "Ctrl-C ends it" in line)
    process.stderr.close()  # what is said from now on fails
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 130
    assert nvcre.leftovers() == []


def test_kill_9_leaves_no_process(nvcre):
    process = nvcre.start("local", "run", MANIFEST, "--scenario", "healthy", "--nodes", "2")
    until(process.stderr, lambda line: "WorkloadRunning" in line)
    process.kill()
    process.wait()
    for directory in nvcre.temporary.iterdir():
        shutil.rmtree(directory, ignore_errors=True)
    gone(nvcre)


def test_a_process_of_the_cluster_that_dies_ends_the_run_with_its_last_words(nvcre):
    process = nvcre.start("local", "run", MANIFEST, "--scenario", "healthy", "--nodes", "1")
    until(process.stderr, lambda line: "applied" in line)
    (kubelets,) = nvcre.processes("nvcre_local.node")
    os.kill(kubelets, signal.SIGKILL)
    ended = nvcre.end(process)
    assert ended.code == 2
    assert "nvcre: node ended by itself (signal 9); its log" in ended.stderr
    assert "node registered" in ended.stderr
    gone(nvcre)


def gone(nvcre) -> None:
    """Killed processes take a moment to vanish: wait for each through its descriptor."""
    for number in nvcre.processes():
        try:
            descriptor = os.pidfd_open(number)
        except ProcessLookupError:
            continue
        assert select.select([descriptor], [], [], 20)[0], f"still runs: {number}"
        os.close(descriptor)


def test_a_run_that_takes_too_long_is_a_failure_and_says_what_it_lacked(nvcre, tmp_path):
    manifest = tmp_path / "missing-runtime.yaml"
    manifest.write_text(MANIFEST.read_text().replace("nccl-all-reduce-runtime", "no-such-runtime"))
    ended = nvcre.run(
        "local", "run", manifest, "--scenario", "healthy", "--nodes", "1", "--timeout", "6s", "-o", "json"
    )
    assert ended.code == 1
    assert ended.document["result"] == "FAILED"
    job = ended.document["jobs"][0]
    assert job["note"] == "not finished within 6s; Job deleted"
    # As an Event first, and in the condition as soon as the coordinator has seen it; never in both.
    told = [job["headline"], *(warning["message"] for warning in job["warnings"])]
    lacked = "TrainingRuntime 'no-such-runtime' does not exist in namespace 'default'"
    assert sum(lacked in text for text in told) == 1
    assert nvcre.leftovers() == []


@pytest.mark.parametrize("output", ["text", "json"])
def test_who_stops_reading_does_not_change_the_verdict(nvcre, output):
    process = nvcre.start(
        "local", "run", MANIFEST, "--scenario", "healthy", "--nodes", "1", "--timeout", "60s", "-o", output
    )
    process.stdout.close()
    assert process.wait(120) == 0
    assert "Traceback" not in process.stderr.read()


def test_a_directory_that_cannot_be_written_is_named(nvcre):
    process = nvcre.start("local", "up", "--scenario", "healthy", "--nodes", "1")
    while not (made := list(nvcre.temporary.glob("nvcre-*/logs/apiserver.log"))):
        assert process.poll() is None
    (made[0].parents[1] / "simulation").write_text("in the way")
    ended = nvcre.end(process)
    assert ended.code == 2
    assert f"the cluster's directory {made[0].parents[1]}: " in ended.stderr
    assert "Traceback" not in ended.stderr
    assert nvcre.leftovers() == []


def test_keep_leaves_the_logs(nvcre):
    ended = nvcre.run("local", "run", MANIFEST, "--scenario", "healthy", "--nodes", "1", "--timeout", "1s", "--keep")
    (kept,) = nvcre.temporary.iterdir()
    assert f"kept: {kept}" in ended.stderr
    assert {"apiserver.log", "coordinator.log", "node.log", "supervisor.log"} <= {
        p.name for p in (kept / "logs").iterdir()
    }


# -- kubectl --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on this machine")
def test_kubectl_and_report_work_beside_a_cluster_that_is_up(nvcre, tmp_path):
    process = nvcre.start("local", "up", "--scenario", "healthy")
    line = until(process.stderr, lambda line: "kubectl --kubeconfig" in line)
    config = line.split()[2]
    assert Path(config).stat().st_mode & 0o777 == 0o600

    def kubectl(*words: str) -> str:
        done = subprocess.run(
            ["kubectl", "--kubeconfig", config, "--cache-dir", str(tmp_path / "cache"), *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "node-3" in kubectl("get", "nodehealths")
    assert "created" in kubectl("apply", "-f", str(EXAMPLES / "seed-page.yaml"))
    kubectl("wait", "--for=condition=Succeeded", "jobs.nvcre.nvidia.com/my-job", "--timeout=50s")
    labels = kubectl("get", "trainjobs", "my-job-workload", "-o", "jsonpath={.metadata.labels}")
    assert json.loads(labels) == {
        "kueue.x-k8s.io/queue-name": "gpu-team-a",
        "kai.scheduler/queue": "burn-in",
        "environment": "burn-in",
        "app.kubernetes.io/managed-by": "nvcre",
        "nvcre.nvidia.com/job": "my-job",
    }
    report = nvcre.run("report", "my-job", "--kubeconfig", config, "-o", "json")
    assert (report.code, report.document["result"]) == (0, "PASSED")
    missing = nvcre.run("report", "no-such-job", "--kubeconfig", config)
    assert (missing.code, "no Job no-such-job in namespace default" in missing.stderr) == (2, True)
    process.send_signal(signal.SIGINT)
    assert nvcre.end(process).code == 130
    assert nvcre.leftovers() == []
