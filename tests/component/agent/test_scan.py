"""`nvcre-agent scan` as a person or a script runs it: a process over the simulated driver and a kernel log."""

import json
import subprocess
import sys
from typing import Any

import pytest
from nvcre_agent import scan_command

from .conftest import Node, gpu_pci, gpu_uuid

BOOT = "Linux version 6.8.0"


def xid(code: int, text: str, gpu: int = 5) -> str:
    return f"NVRM: Xid (PCI:{gpu_pci(gpu)}): {code}, pid=1, name=x, {text}"


LOST = xid(79, "GPU has fallen off the bus.")


def scan(node: Node, *flags: str, simulate: bool = True) -> tuple[int, str]:
    command = [sys.executable, "-m", "nvcre_agent", "scan", "--kernel-log", str(node.kernel_log)]
    command += ["--boot-id-file", str(node.root / "boot_id"), *flags]
    command += ["--simulate", str(node.root / "driver.json")] if simulate else []
    done = subprocess.run(command, capture_output=True, timeout=90, check=False, text=True)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout


def report(node: Node, *flags: str, simulate: bool = True) -> tuple[int, dict[str, Any]]:
    code, out = scan(node, "-o", "json", *flags, simulate=simulate)
    return code, json.loads(out)


def verdicts(told: dict[str, Any]) -> list[str]:
    return [gpu["verdict"] for gpu in told["gpus"]]


def healthy_but(gpu: int, verdict: str) -> list[str]:
    return ["Healthy"] * gpu + [verdict] + ["Healthy"] * (7 - gpu)


def test_a_healthy_node(node: Node) -> None:
    node.kernel(1, BOOT, priority=6)
    code, told = report(node)
    assert (code, told["verdict"], told["simulated"], told["bootID"]) == (0, "Healthy", True, "boot-1")
    assert verdicts(told) == ["Healthy"] * 8
    assert (told["gpus"][5]["uuid"], told["driverVersion"]) == (gpu_uuid(5), "570.133.20")
    assert (told["incidents"], told["notLookedAt"], told["kernelLog"]["records"]) == ([], [], 1)


def test_the_table_says_the_verdict_first(node: Node) -> None:
    node.kernel(1, LOST)
    code, out = scan(node)
    verdict, _, head, *rows = out.splitlines()
    assert code == 1
    assert verdict.startswith("SIMULATED DRIVER. HARDWARE SUSPECT: GPU 5 (00000000:20:00.0): Xid 79 ROBUST_CHANNEL")
    assert head.split() == ["GPU", "VERDICT", "PCI", "UUID", "PRODUCT", "SERIAL"]
    assert [row.split()[1] for row in rows[:8]] == healthy_but(5, "Suspect")


def test_an_xid_79_of_this_boot_accuses_its_gpu(node: Node) -> None:
    node.kernel(1, LOST)
    code, told = report(node)
    assert (code, told["verdict"], verdicts(told)) == (1, "Suspect", healthy_but(5, "Suspect"))
    [incident] = told["incidents"]
    assert (incident["kind"], incident["code"], incident["suspect"]) == ("Xid", 79, True)
    assert incident["component"]["uuid"] == gpu_uuid(5)


def test_what_a_process_wrote_or_an_application_did_accuses_nobody(node: Node) -> None:
    node.kernel(1, LOST, priority=12)  # facility 1: a process wrote it
    node.kernel(2, xid(13, "Graphics Exception"))
    code, told = report(node)
    assert (code, verdicts(told)) == (0, ["Healthy"] * 8)
    assert not any(incident["suspect"] for incident in told["incidents"])


def test_a_lost_gpu_that_cannot_say_who_it_is_is_suspect(node: Node) -> None:
    node.kernel(1, BOOT)
    node.driver(gpu=3, set={"lost": True})
    code, told = report(node)
    assert (code, told["verdict"], told["lostUnidentifiedGPUs"]) == (1, "Suspect", 1)
    assert len(told["gpus"]) == 7

    node.kernel(2, xid(79, "GPU has fallen off the bus.", gpu=3))
    _, out = scan(node)
    first, *_ = out.splitlines()
    assert f"{gpu_pci(3).upper()}" in first.upper(), "the kernel says which; that comes before a GPU without a name"
    assert out.count("lost, and too lost to say which") == 1


def test_links_that_are_down_need_no_second_look(node: Node) -> None:
    node.kernel(1, BOOT)
    node.driver(gpu=2, set={"nvlinks_down": [4]})
    code, told = report(node)
    assert (code, verdicts(told)) == (1, healthy_but(2, "Suspect"))
    assert [incident["check"] for incident in told["incidents"]] == ["nvlink_down"]


def test_a_pending_row_remap_is_a_note(node: Node) -> None:
    node.kernel(1, BOOT)
    node.driver(gpu=3, set={"remap_pending": True})
    code, out = scan(node)
    assert code == 0
    assert "note: GPU 3 has a memory row remap waiting for a reset (00000000:1E:00.0) -> reset the GPU" in out


def test_a_machine_without_nvml_is_not_healthy(node: Node) -> None:
    node.kernel(1, BOOT)
    code, told = report(node, simulate=False)
    if told["gpus"]:
        pytest.skip("this machine has a GPU")
    assert (code, told["verdict"], told["simulated"]) == (2, "Blind", False)
    [missing] = told["notLookedAt"]
    assert (missing["what"], bool(missing["reason"]), bool(missing["message"])) == ("nvml", True, True)


@pytest.mark.parametrize("answer", ["NO_PERMISSION", "UNKNOWN"])
def test_a_gpu_that_was_not_looked_at_is_not_healthy(node: Node, answer: str) -> None:
    node.kernel(1, BOOT)
    node.driver(gpu=2, set={"return": answer})
    code, told = report(node)
    assert (code, told["verdict"], verdicts(told)) == (2, "Blind", ["Healthy"] * 7)
    assert told["notLookedAt"][0]["what"] == "nvml"


@pytest.mark.parametrize(("there", "reason"), [(False, "NotFound"), (True, "Empty")])
def test_without_a_kernel_log_no_gpu_is_healthy(node: Node, there: bool, reason: str) -> None:
    if not there:
        node.kernel_log.unlink()
    code, told = report(node)
    assert (code, told["verdict"], set(verdicts(told))) == (2, "Blind", {"Blind"})
    assert [(one["what"], one["reason"]) for one in told["notLookedAt"]] == [("kernel-log", reason)]


def test_a_scan_that_fails_accuses_nobody(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(**_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(scan_command, "look", broken)
    monkeypatch.setattr(scan_command, "log_to_stderr", lambda level: None)  # it would take pytest's handlers away
    assert scan_command.main(["--boot-id-file", str(node.root / "boot_id")], {}) == 2


def test_a_call_that_hangs_is_given_up_and_the_kernel_log_is_still_read(node: Node) -> None:
    node.kernel(1, BOOT)
    node.driver(set={"hang_s": 3600})
    code, told = report(node, "--nvml-deadline", "2")
    assert (code, [one["reason"] for one in told["notLookedAt"]]) == (2, ["NvmlUnresponsive"])
    node.kernel(2, LOST)
    code, told = report(node, "--nvml-deadline", "2")
    assert (code, told["verdict"], [one["code"] for one in told["incidents"]]) == (1, "Suspect", [79])


def test_a_dead_fabric_manager_accuses_the_node_and_no_gpu(node: Node) -> None:
    node.kernel(1, BOOT, priority=6)
    (node.root / "proc/driver/nvidia-nvswitch/devices/0000:05:00.0").mkdir(parents=True)
    (node.root / "proc/2").mkdir()
    (node.root / "proc/2/comm").write_text("kthreadd\n")
    code, told = report(node)
    assert (code, told["verdict"], verdicts(told)) == (1, "Suspect", ["Healthy"] * 8)
    [incident] = told["incidents"]
    assert (incident["check"], incident["component"]["kind"], incident["sources"]) == (
        "fabric_manager",
        "Fabric",
        ["host"],
    )


def test_what_takes_time_to_judge_is_told_as_waiting_and_accuses_nobody(node: Node) -> None:
    node.kernel(1, BOOT, priority=6)
    node.driver(gpu=3, set={"fabric_state": 2, "nvlinks_down": list(range(18))})
    node.driver(gpu=5, set={"pcie_generation": 1, "pstate": 0, "utilization_gpu": 99})
    code, told = report(node)
    assert (code, told["incidents"]) == (2, [])
    assert [(one["what"], one["reason"], one["uuid"]) for one in told["notLookedAt"]] == [
        ("fabric_registration", "Waiting", gpu_uuid(3)),
        ("pcie_link", "Waiting", gpu_uuid(5)),
    ]
    assert "look again" in told["notLookedAt"][0]["message"]
