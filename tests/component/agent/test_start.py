"""How `nvcre-agent` starts, and what it says when it cannot."""

import subprocess
import sys
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
