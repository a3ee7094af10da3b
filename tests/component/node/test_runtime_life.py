"""The runtime as a process: what it registers, how it ends, what survives it (nothing)."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from nvcre_kube.resources import LEASES, NODES, PODS

from .conftest import Api, Control, processes_with

STUBBORN = "trap '' TERM; (setsid sleep {0}1 &); setsid env -i sleep {0}2 & sleep {0}3 & echo up; sleep {0}4"


def alive(prefix: str) -> list[int]:
    return [pid for i in range(1, 5) for pid in processes_with(f"sleep\0{prefix}{i}")]


def wait_until_dead(prefix: str) -> None:
    until = time.monotonic() + 10
    while alive(prefix) and time.monotonic() < until:
        time.sleep(0.02)
    assert alive(prefix) == []


async def test_nodes_are_registered_with_their_lease(own_api: Api, control: Control) -> None:
    control.node("--gpu-product", "NVIDIA L4", nodes=("a=4", "b=0"))
    node = await own_api.client.get(NODES, "a")
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "4"
    assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-L4"
    assert node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == control.ports["a"]
    lease = await own_api.client.get(LEASES, "a", "kube-node-lease")
    assert lease["spec"]["holderIdentity"] == "a"
    assert "nvidia.com/gpu.present" not in (await own_api.client.get(NODES, "b"))["metadata"]["labels"]


async def test_a_node_that_was_called_unknown_says_that_it_is_ready(own_api: Api, control: Control) -> None:
    """As the node controller does when it has seen no Lease for a while."""
    control.node(nodes=("a",))
    unknown = {"status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]}}
    await own_api.client.merge_patch(NODES, "a", unknown, subresource="status")

    async def ready() -> bool:
        conditions = (await own_api.client.get(NODES, "a"))["status"]["conditions"]
        return [one["status"] for one in conditions if one["type"] == "Ready"] == ["True"]

    await own_api.until(ready)


async def test_sigterm_ends_every_process_and_exits_zero(own_api: Api, control: Control) -> None:
    child = control.node("--scheduler", nodes=("a",))
    await own_api.run("p", "sh", "-c", STUBBORN.format("661"))
    await own_api.logged("p", b"up")
    started = time.monotonic()
    child.send_signal(signal.SIGTERM)
    assert child.wait(10) == 0
    assert time.monotonic() - started < 10  # the contract, not a measurement
    assert alive("661") == []


async def test_at_the_end_processes_are_asked_before_they_are_killed(own_api: Api, control: Control) -> None:
    child = control.node("--scheduler", nodes=("a",))
    bye = control.directory / "bye"
    await own_api.run("p", "sh", "-c", f"trap 'echo bye > {bye}; exit 0' TERM; echo up; while :; do sleep 0.05; done")
    await own_api.logged("p", b"up")
    child.send_signal(signal.SIGINT)
    assert child.wait(10) == 0
    assert bye.read_text() == "bye\n"
    pod: Any = await own_api.pod("p")
    assert pod["status"]["phase"] == "Running"  # the end of the runtime is no failure of the Pod


async def test_nothing_survives_the_runtime_being_killed(own_api: Api, control: Control) -> None:
    child = control.node("--scheduler", nodes=("a",))
    await own_api.run("p", "sh", "-c", STUBBORN.format("671"))
    await own_api.logged("p", b"up")
    child.kill()
    child.wait(10)
    wait_until_dead("671")


async def test_nothing_survives_the_spawner_being_killed_and_the_runtime_says_so(
    own_api: Api, control: Control
) -> None:
    child = control.node("--scheduler", nodes=("a",))
    await own_api.run("p", "sh", "-c", STUBBORN.format("672"))
    await own_api.logged("p", b"up")
    spawner = next(pid for pid in processes_with("spawner.py") if parent(pid) == child.pid)
    os.kill(spawner, signal.SIGKILL)
    assert child.wait(15) == 1
    assert alive("672") == []


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


async def test_after_a_restart_a_pod_that_ran_is_failed_or_started_again(own_api: Api, control: Control) -> None:
    child = control.node("--scheduler", nodes=("a",))
    await own_api.run("once", "sleep", "6811")
    await own_api.run("always", "sleep", "6812", restartPolicy="Always")
    await own_api.phase("once", "Running")
    await own_api.phase("always", "Running")
    child.kill()
    child.wait(10)
    control.node("--scheduler", nodes=("a",))
    end: Any = (await own_api.phase("once", "Failed"))["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (end["exitCode"], end["reason"]) == (137, "ContainerStatusUnknown")

    async def restarted() -> bool:
        pod: Any = await own_api.pod("always")
        return bool(pod["status"]["containerStatuses"][0]["restartCount"] == 1 and processes_with("sleep\x006812"))

    await own_api.until(restarted)
    await own_api.client.delete(PODS, "once", own_api.namespace)
    await own_api.gone("once")


def run_cli(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nvcre_local.node", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_help_teaches() -> None:
    result = run_cli("--help")
    assert result.returncode == 0
    assert "NVCRE_ROOT" in result.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--node", "Bad_Name"], "expected a lower-case DNS name"),
        (["--node", "a", "--node", "a"], "given twice"),
        ([], "at least one --node"),
        (["--node", "a", "--kubelet-token-file", "/no/such/file"], "--kubelet-token-file"),
        (["--node", "a", "--kubeconfig", "/no/such/file"], "/no/such/file"),
    ],
)
def test_usage_errors(tmp_path: Path, flags: list[str], message: str) -> None:
    token = tmp_path / "token"
    token.write_text("x")
    base = ["--root", str(tmp_path / "root"), "--kubeconfig", str(token), "--kubelet-token-file", str(token)]
    result = run_cli(*base, *flags)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


async def test_a_pod_whose_files_cannot_be_written_fails_and_says_why(own_api: Api, control: Control) -> None:
    control.node("--scheduler", nodes=("a",))
    logs = control.directory / "root" / "logs"
    assert not logs.exists()
    logs.write_text("in the way, as a full disk would be")
    await own_api.run("p", "sleep", "771")
    pod = await own_api.phase("p", "Failed")
    assert pod["status"]["reason"] == "NodeStorage"
    assert "the node runtime cannot write the Pod's files: " in pod["status"]["message"]
    assert str(logs) in pod["status"]["message"]
    assert processes_with("sleep\000771") == []
    await own_api.client.delete(PODS, "p", own_api.namespace)
    await own_api.gone("p")
