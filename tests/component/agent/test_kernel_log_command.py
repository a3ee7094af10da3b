"""`nvcre-agent kernel-log` as a person or a script runs it: a process, its output and its exit code."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

XID_79 = "[  200.0] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus.\n"
APPLICATION = "[  100.0] NVRM: Xid (PCI:0000:3b:00): 13, pid=1, name=x, Graphics Exception\n"


def kernel_log(*arguments: str, stdin: bytes = b"", environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "nvcre_agent", "kernel-log", *arguments],
        input=stdin,
        capture_output=True,
        timeout=90,
        check=False,
        env=environment,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_help_says_what_the_exit_codes_mean() -> None:
    code, out, _ = kernel_log("--help")
    assert code == 0
    for words in ("exit codes:", "  0  ", "  1  ", "  2  ", "- for standard input", "--xid-catalogue"):
        assert words in out


def test_a_person_reads_the_verdict_first_then_the_table_and_what_was_read() -> None:
    uuid = "GPU-12345678-1234-1234-1234-123456789abc"
    preface = f"[199.9] NVRM: GPU at PCI:0000:3b:00: {uuid}\n"
    code, out, err = kernel_log("-", stdin=(APPLICATION * 3 + preface + XID_79).encode())
    verdict, _, head, *rows = out.splitlines()
    assert code == 1
    assert verdict.startswith("HARDWARE SUSPECT: 0000:3b:00: Xid 79 ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS")
    assert head.split()[:6] == ["TIME", "DEVICE", "WHAT", "CLASS", "HARDWARE", "COUNT"]
    assert rows[0].startswith("200.0  0000:3b:00  Xid 79  needs reboot  yes       1 ")
    assert any(row.startswith("100.0  0000:3b:00  Xid 13  application   no        3 ") for row in rows)
    assert f"0000:3b:00 is {uuid}" in rows
    assert rows[-1] == "5 lines read; 5 of the kernel; 4 events"
    assert err == ""


def test_a_program_reads_json_and_nothing_else_on_stdout(tmp_path: Path) -> None:
    log = tmp_path / "dmesg.log.gz"
    log.write_bytes(gzip.compress((APPLICATION + XID_79).encode()))
    code, out, err = kernel_log(str(log), "-o", "json")
    told = json.loads(out)
    assert code == 1
    assert list(told) == ["events", "hardware_events", "node_suspect"]
    assert ([one["code"] for one in told["events"]], told["hardware_events"], told["node_suspect"]) == (
        [13, 79],
        [1],
        True,
    )
    assert "2 lines read" in err


def test_an_unknown_xid_is_a_warning_and_two_gpus_are_named() -> None:
    code, out, _ = kernel_log("-", stdin=b"[1.0] NVRM: Xid (PCI:0000:3b:00): 185, x\n")
    assert code == 0
    assert "warning: Xid 185: in no catalogue known here; accuses nobody" in out
    code, out, _ = kernel_log("-", stdin=(XID_79 + XID_79.replace("3b", "3c")).encode())
    assert code == 1
    assert out.splitlines()[0].endswith("power cycle the node (and 1 other device below)")


def test_an_application_s_fault_is_no_fault_of_the_node() -> None:
    code, out, _ = kernel_log("-", stdin=APPLICATION.encode())
    assert code == 0
    assert out.startswith("NOTHING OF HARDWARE: 1 other event\n")


@pytest.mark.parametrize("stdin", [b"", b"step 1 loss 2.3\nstep 2 loss 2.2\n"], ids=["empty", "alien"])
def test_no_kernel_lines_are_no_answer_and_not_health(stdin: bytes) -> None:
    lines = stdin.count(b"\n")
    code, out, err = kernel_log("-", stdin=stdin)
    assert (code, err) == (2, "")
    assert out.startswith(f"NO ANSWER: no kernel lines recognised in {lines} lines")
    assert out.count(f"\n{lines} lines read; ") == 1
    code, out, err = kernel_log("-", "-o", "json", stdin=stdin)
    assert code == 2
    assert json.loads(out) == {"events": [], "hardware_events": [], "node_suspect": False}
    assert "no kernel lines recognised" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["/nowhere/dmesg.log"], "/nowhere/dmesg.log: No such file"),
        (["/"], "/: Is a directory"),
        (["/dev/zero"], "/dev/zero: is a device, not a saved log"),
        ([], "FILE"),
        (["-", "-o", "xml"], "xml"),
        (["-", "--xid-catalogue", "/nowhere/xid.yaml"], "--xid-catalogue /nowhere/xid.yaml: cannot be read"),
    ],
)
def test_what_cannot_be_done_is_said_and_ends_with_2(arguments: list[str], words: str) -> None:
    code, out, err = kernel_log(*arguments)
    assert (code, out) == (2, "")
    assert words in err


def test_the_operator_s_catalogue_comes_from_the_environment_too(tmp_path: Path) -> None:
    file = tmp_path / "xid.yaml"
    file.write_text('xid: {79: {remedy: "call the hotline"}}')
    code, out, _ = kernel_log("-", stdin=XID_79.encode(), environment={"NVCRE_XID_CATALOGUE": str(file)})
    assert code == 1
    assert out.splitlines()[0].endswith(": call the hotline")


def test_a_terminal_without_unicode_gets_its_answer() -> None:
    code, out, err = kernel_log("-", stdin=XID_79.encode(), environment={"PYTHONIOENCODING": "ascii"})
    assert (code, err) == (1, "")
    assert out.startswith("HARDWARE SUSPECT")


def test_a_log_s_control_characters_do_not_reach_the_terminal() -> None:
    line = "[1.0] NVRM: Xid (PCI:0000:3b:00): 43, pid=1, name=a\x07\x9b31m, Ch 1\n"
    _, out, _ = kernel_log("-", stdin=line.encode())
    assert "\x07" not in out
    assert "\x9b" not in out


def test_a_reader_that_leaves_early_ends_it_quietly() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "nvcre_agent", "kernel-log", "-", "-o", "json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        try:
            for _ in range(200):
                process.stdin.write(XID_79.encode() * 100)
            process.stdin.close()
        except BrokenPipeError:
            process.stdin = None
        assert process.wait(timeout=90) == -13
        assert process.stderr.read() == b""
