"""What an operator asks of the real agent process: inject, state, set-healthy, reload; and who is refused."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from nvcre_agent import config_command, inject_command, operator_commands
from nvcre_agent.control import MAX_REQUEST, ControlSocket, RefusedError
from nvcre_protos import nvcre_agent_v1_pb2 as pb

from .conftest import PATIENCE_S, Node, Server, gpu_pci, gpu_uuid

UNCONTAINED = f"NVRM: Xid (PCI:{gpu_pci(5)}): 95, pid=7, name=python, Uncontained ECC error"


class Operator:
    """Runs commands on the node as a person would, in this process."""

    def __init__(self, node: Node, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._environment = {"NVCRE_CONTROL_SOCKET": str(node.root / "control.sock"), "LOGNAME": "ada"}

    async def run(self, command: str, *flags: str) -> tuple[int, str]:
        """(exit code, what was printed); a usage error is its exit code too."""

        def call() -> int:
            try:
                if command == "inject":
                    return inject_command.main(flags, self._environment)
                return operator_commands.main(command, flags, self._environment)
            except SystemExit as ended:
                return int(ended.code or 0)

        code = await asyncio.to_thread(call)
        out, err = self._capsys.readouterr()
        return code, out + err

    async def state(self) -> dict[str, Any]:
        code, out = await self.run("state", "-o", "json")
        assert code == 0, out
        return dict(json.loads(out))

    async def state_once(self, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                state = await self.state()
                if condition(state):
                    return state
                await asyncio.sleep(0.1)


@pytest.fixture
def operator(node: Node, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(node, capsys)


def incident_of(state: Mapping[str, Any], code: int) -> dict[str, Any] | None:
    return next((one for one in state["incidents"] if one["code"] == code), None)


async def test_47_an_injected_xid_is_shown_as_injected_and_blames_nobody(
    node: Node, server: Server, operator: Operator
) -> None:
    await node.start(server.address)
    await operator.state_once(lambda state: state["inventory"])
    node.kernel(4, "Linux version 6.8.0", priority=6)
    await operator.state_once(lambda state: state["kernelLog"]["lastSequence"] == 4)

    code, out = await operator.run("inject", "--xid", "79", "--gpu", gpu_uuid(5))
    assert code == 0
    assert f"wrote to {node.kernel_log}: 11,5," in out
    assert "shows Xid 79 of GPU 5, injected" in out
    state = await operator.state_once(lambda state: incident_of(state, 79))
    assert (incident := incident_of(state, 79)) is not None
    assert (incident["injected"], incident["blame"], incident["component"]["index"]) == (True, "No", 5)
    assert "nvcre test injection" in incident["raw"]
    assert state["simulated"] is incident["simulated"] is True
    _, metrics = await node.get("/metrics")
    assert 'nvcre_agent_injected_signals_total{node="node-0"} 1.0' in metrics
    assert "nvcre_agent_xid_total{" not in metrics
    coordinator = server.coordinator
    await coordinator.until(coordinator.incidents)
    [told] = coordinator.incidents().values()
    assert (told.injected, told.blame) == (True, pb.BLAME_NO)

    for flags, said in (
        (("--xid", "999", "--gpu", "5"), "Xid 999 is not in the catalogue; it has 1 to "),
        (("--xid", "79", "--gpu", "8"), f"no GPU '8' on this node; there are\n  0  {gpu_uuid(0)}  "),
        (("--xid", "79", "--gpu", "0", "--kernel-log", "/no/such/log"), "/no/such/log: No such file"),
    ):
        code, out = await operator.run("inject", *flags)
        assert (code, said in out) == (1, True), out


async def test_set_healthy_closes_with_a_recovery_that_says_by_whom_and_what_nvml_still_finds_opens_again(
    node: Node, server: Server, operator: Operator
) -> None:
    coordinator = server.coordinator
    await node.start(server.address)
    await operator.state_once(lambda state: state["inventory"])
    node.kernel(1, UNCONTAINED)
    node.kernel(2, UNCONTAINED.replace(gpu_pci(5), gpu_pci(2)))
    await operator.state_once(lambda state: len(state["incidents"]) == 2)

    code, out = await operator.run("set-healthy", "--gpu", gpu_pci(5), "--reason", "board replaced")
    assert (code, out.count("closed "), ", Xid 95 of GPU 5: " in out) == (0, 1, True)

    def recovered() -> list[pb.Incident]:
        return [one for one in coordinator.incidents().values() if one.HasField("recovered_at")]

    await coordinator.until(recovered)
    [told] = recovered()
    assert (told.component.index, told.recovered_by) == (5, "SetHealthy")
    assert told.message.startswith("set healthy by ada (board replaced); it was: ")
    assert [one["component"]["index"] for one in (await operator.state())["incidents"]] == [2]

    left = (await operator.state())["incidents"][0]["id"]
    assert (await operator.run("set-healthy", "--incident", left))[0] == 0
    assert "nothing was open there" in (await operator.run("set-healthy", "--node"))[1]
    for flags, exit_code, said in (
        (("--incident", "no-such"), 1, "no open incident 'no-such'; open are none"),
        (("--gpu", "9"), 1, "no GPU '9' on this node"),
        (("--gpu", ""), 1, "no GPU '' on this node"),  # of a shell variable that is not set: not the whole node
        (("--incident", ""), 1, "no open incident ''"),
        (("--node", "--by", "x" * 65), 1, "by must be a line of at most 64 characters"),
        ((), 2, "one of the arguments --incident --gpu --node is required"),
    ):
        code, out = await operator.run("set-healthy", *flags)
        assert (code, said in out) == (exit_code, True), out


async def test_the_file_is_taken_over_on_reload_and_on_sighup_and_a_wrong_one_is_refused(
    node: Node, operator: Operator
) -> None:
    file = node.root / "agent.yaml"
    file.write_text("log-level: info\n")
    await node.start(None, "--config", str(file))
    assert (await operator.state())["config"]["file"] == str(file)

    file.write_text("log-level: info\ndcgm-aliases: yes\nserver-name: other\n")
    code, out = await operator.run("reload")
    assert (code, out) == (0, "reloaded; changed: dcgm-aliases\nneeds a restart: server-name\n")
    assert (await operator.state())["config"]["needsRestart"] == ["server-name"]
    await operator.state_once(lambda state: state["inventory"])
    async with asyncio.timeout(PATIENCE_S):
        while True:
            _, metrics = await node.get("/metrics")
            if "DCGM_FI_DEV_GPU_TEMP{" in metrics:
                break
            await asyncio.sleep(0.1)
    assert "config change needs a restart setting=server-name" in node.log()

    file.write_text("log-level: loud\n")
    code, out = await operator.run("reload")
    assert (code, f"refused: {file}:1: log-level 'loud' must be" in out) == (1, True), out
    state = await operator.state()
    assert (state["config"]["success"], state["alive"]) == (False, True)
    assert "log-level 'loud'" in state["config"]["problems"][0]
    _, metrics = await node.get("/metrics")
    assert 'nvcre_agent_config_reload_success{node="node-0"} 0.0' in metrics
    assert "DCGM_FI_DEV_GPU_TEMP{" in metrics, "the old configuration stays in force"

    (node.root / "xid.yaml").write_text("xid: {94: {blame: No}}")
    file.write_text(f"xid-catalogue: {node.root / 'xid.yaml'}\n")
    code, out = await operator.run("reload")
    assert (code, "xid 94: blame must be a text in quotes" in out) == (1, True), out

    file.write_text("log-level: debug\n")
    assert node.process is not None
    node.process.send_signal(signal.SIGHUP)
    await operator.state_once(lambda state: state["config"]["success"])
    assert await operator.run("reload") == (0, "reloaded; changed: nothing\n")
    assert (await node.stop()) == 0
    assert not (node.root / "control.sock").exists()


async def test_release_frees_nvml_and_resume_takes_it_again(node: Node, operator: Operator) -> None:
    await node.start(None)

    def nvml(state: Mapping[str, Any]) -> tuple[str, str]:
        [one] = [one for one in state["monitors"] if one["name"] == "nvml"]
        return one["state"], one["reason"]

    await operator.state_once(lambda state: nvml(state) == ("Watching", ""))
    code, out = await operator.run("release", "--for", "1h")
    assert (code, "NVML is free for 1h" in out) == (0, True), out
    await operator.state_once(lambda state: nvml(state) == ("Blind", "Released"))
    assert (await operator.run("resume"))[1].startswith("the agent takes NVML again")
    assert (await operator.run("resume"))[1].startswith("NVML was not released")
    await operator.state_once(lambda state: nvml(state) == ("Watching", ""))
    for duration, exit_code, said in (
        ("soon", 2, "a time such as 30s, 10m or 1h"),
        ("25h", 1, "--for must be more than 0 and at most 24h, not 90000.0 seconds"),
    ):
        code, out = await operator.run("release", "--for", duration)
        assert (code, said in out) == (exit_code, True), out


async def test_state_over_http_is_the_same_document_and_a_process_prints_it(node: Node, operator: Operator) -> None:
    await node.start(None)
    await operator.state_once(lambda state: state["inventory"])
    done = await asyncio.to_thread(
        subprocess.run,
        [
            sys.executable,
            "-m",
            "nvcre_agent",
            "state",
            "-o",
            "json",
            "--control-socket",
            str(node.root / "control.sock"),
        ],
        capture_output=True,
        timeout=90,
        check=False,
        text=True,
    )
    status, body = await node.get("/state")
    printed, served = json.loads(done.stdout), json.loads(body)
    assert (done.returncode, status) == (0, 200)
    assert {**printed, "time": "", "monitors": []} == {**served, "time": "", "monitors": []}
    assert [gpu["answered"] for gpu in printed["inventory"]["gpus"]] == [True] * 8
    assert "token" not in body
    assert os.stat(node.root / "control.sock").st_mode & 0o777 == 0o600


async def test_no_agent_is_a_clear_error(operator: Operator) -> None:
    for command, flags in (("state", ()), ("reload", ()), ("inject", ("--xid", "79", "--gpu", "0"))):
        code, out = await operator.run(command, *flags)
        assert code == 2
        assert "no agent listens at " in out
        assert "(NVCRE_CONTROL_SOCKET)" in out


# --- the socket by itself


async def exchange(path: Path, sent: bytes) -> dict[str, Any]:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(sent)
    answer = await asyncio.wait_for(reader.readline(), PATIENCE_S)
    writer.close()
    return dict(json.loads(answer))


async def _refuse(_request: Mapping[str, Any]) -> Mapping[str, Any]:
    raise RefusedError("not today")


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b'{"do": "it"}\n', "not today"),
        (b'{"do": "harm"}\n', "cannot do 'harm', only it"),
        (b'{"do": 7}\n', "one line of JSON"),
        (b"[" * 5000 + b"\n", "one line of JSON"),
        (b"\xff\xfe\n", "one line of JSON"),
        (b"x" * (2 * MAX_REQUEST) + b"\n", f"at most {MAX_REQUEST} bytes"),
    ],
    ids=["refused", "unknown", "no text", "deep", "no UTF-8", "endless"],
)
async def test_whatever_is_sent_gets_one_line_back(sent: bytes, said: str, tmp_path: Path) -> None:
    one = ControlSocket(tmp_path / "s", {"it": _refuse})
    await one.start()
    try:
        answer = await exchange(tmp_path / "s", sent)
        assert answer["ok"] is False
        assert said in answer["error"]
    finally:
        await one.stop()


async def test_a_stranger_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = ControlSocket(tmp_path / "s", {"it": _refuse})
    await one.start()
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    monkeypatch.setattr("nvcre_agent.control.struct.unpack", lambda *_: (7, 1000, 1000))
    try:
        assert await exchange(tmp_path / "s", b'{"do": "it"}\n') == {
            "ok": False,
            "error": "uid 1000 (pid 7); run as root or as the agent's user",
        }
    finally:
        await one.stop()


async def test_a_socket_that_a_killed_agent_left_is_replaced_also_where_its_path_is_too_long(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    path = directory / "s"
    first, second = ControlSocket(path, {"it": _refuse}), ControlSocket(path, {"it": _refuse})
    await first.start()
    await second.start()
    await first.stop()  # later than its successor started: leaves the file alone
    assert path.is_socket()
    await second.stop()
    assert not path.exists()


async def test_nothing_is_kept_for_a_client_that_does_not_read_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nvcre_agent.control.REQUEST_TIMEOUT_S", 0.1)

    async def tell(_request: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"large": "x" * (8 << 20)}

    one = ControlSocket(tmp_path / "s", {"it": tell})
    await one.start()
    try:
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s", limit=1024)
        writer.write(b'{"do": "it"}\n')
        async with asyncio.timeout(PATIENCE_S):
            while one._connections or not reader._buffer:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            with contextlib.suppress(ConnectionError):
                assert len(await reader.read(-1)) < 8 << 20  # the rest is gone
        writer.close()
    finally:
        await one.stop()


async def test_an_agent_without_a_place_for_the_socket_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    one = ControlSocket(tmp_path / "file" / "s", {})
    await one.start()
    await one.stop()
    assert "no control socket" in caplog.text


# --- config check, and what the running agent does not load


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("log-level: debug\nheartbeat-interval: 5\n", 0, "can be used; sets heartbeat-interval, log-level"),
        ("log-level: loud\nnode: x\n", 2, "agent.yaml:2: 'node' is no setting; did you mean node-name?"),
        ("limits: /no/such\n", 2, "agent.yaml:1: limits /no/such: "),
        ("xid-catalogue: /no/such\n", 2, "agent.yaml:1: xid-catalogue /no/such: cannot be read"),
    ],
)
def test_config_check_tells_everything_that_is_wrong(
    text: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agent.yaml").write_text(text)
    assert config_command.main(["check", str(tmp_path / "agent.yaml")]) == code
    assert said in capsys.readouterr().out


def test_the_running_agent_loads_nothing_of_the_commands() -> None:
    asked = "import sys, nvcre_agent.__main__, nvcre_agent.agent; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, timeout=90, check=True, text=True)
    loaded = {name for name in done.stdout.split() if name.startswith("nvcre_agent")}
    assert "nvcre_agent.control" in loaded
    assert {
        name for name in loaded if name.endswith(("_command", "_commands", "command_line", "control_client"))
    } == set()
    assert not {"pynvml", "difflib"} & set(done.stdout.split())
