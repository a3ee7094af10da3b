"""How `nvcre-agent` starts, and what it says when it cannot."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.parametrize("command", [[], ["run"]], ids=["without a command", "run"])
def test_a_wrong_xid_catalogue_ends_the_start_and_names_file_entry_and_key(command: list[str], tmp_path: Path) -> None:
    file = tmp_path / "xid.yaml"
    file.write_text("xid: {94: {blame: No}}")  # without quotes YAML reads false
    done = subprocess.run(
        [sys.executable, "-m", "nvcre_agent", *command, "--node-name", "n", "--xid-catalogue", str(file)],
        capture_output=True,
        timeout=90,
        check=False,
        text=True,
    )
    assert done.returncode == 2
    assert f"--xid-catalogue {file}: xid 94: blame must be a text in quotes" in done.stderr


def test_a_signal_that_comes_while_it_starts_is_obeyed_once_it_has_started(tmp_path: Path) -> None:
    """Python's own answer to an early SIGHUP is to end."""
    (tmp_path / "boot_id").write_text("boot-1")
    flags = ["--node-name", "n", "--outbox", str(tmp_path / "outbox.sqlite"), "--listen", "127.0.0.1:0"]
    flags += ["--boot-id-file", str(tmp_path / "boot_id"), "--kernel-log", str(tmp_path / "kmsg")]
    flags += ["--simulate", str(tmp_path / "driver.json")]
    (tmp_path / "driver.json").write_text("{}")
    agent = subprocess.Popen([sys.executable, "-m", "nvcre_agent", *flags], stderr=subprocess.PIPE, text=True)
    status = Path(f"/proc/{agent.pid}/status")
    deadline = time.monotonic() + 60
    while not _blocks(status.read_text(), signal.SIGTERM):
        assert time.monotonic() < deadline, agent.poll()
        time.sleep(0.002)
    agent.send_signal(signal.SIGHUP)
    agent.send_signal(signal.SIGTERM)
    _, log = agent.communicate(timeout=60)
    assert (agent.returncode, "stopped" in log) == (0, True), log


def _blocks(status: str, number: signal.Signals) -> bool:
    """Or handles it already, should we have been slow."""
    masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigBlk:", "SigCgt:"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


def test_help_lists_every_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nvcre_agent", "--help"], capture_output=True, timeout=90, check=True, text=True
    )
    for command in [
        "run",
        "scan",
        "kernel-log",
        "config",
        "state",
        "inject",
        "set-healthy",
        "release",
        "resume",
        "reload",
        "version",
    ]:
        assert f"\n  {command} " in done.stdout


def test_an_unknown_command_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nvcre_agent", "relaod"], capture_output=True, timeout=90, check=False, text=True
    )
    assert (done.returncode, done.stderr) == (2, "nvcre-agent: no command 'relaod'; did you mean reload?\n")
