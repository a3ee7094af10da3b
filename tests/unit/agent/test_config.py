"""Settings of nvcre-agent: flags, environment, file, and what is said when they are wrong."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from nvcre_agent import config
from nvcre_agent.config import ConfigError, parse, resolve

STREAM = ["--coordinator", "c:9443", "--ca-file", "ca", "--token-file", "t"]


def file_of(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    return path


def test_a_flag_wins_over_the_environment_that_over_the_file_and_that_over_the_default(tmp_path: Path) -> None:
    file = file_of(tmp_path, "node-name: file\noutbox: /file\nkernel-log: /file\nheartbeat-interval: 7\n")
    environment = {"NVCRE_NODE_NAME": "env", "NVCRE_OUTBOX": "/env", "NCCL_TESTS_DIR": "/n", "NVCRE_CONFIG": str(file)}
    got = parse(["--node-name", "flag"], environment)
    assert (got.node_name, got.outbox, got.kernel_log, got.nccl_tests_dir) == (
        "flag",
        Path("/env"),
        Path("/file"),
        Path("/n"),
    )
    assert (got.heartbeat_interval_s, got.listen, got.log_level, got.config_file) == (
        7.0,
        ("0.0.0.0", 9465),
        "info",
        file,
    )
    assert (got.coordinator, got.simulate, got.xid_catalogue, got.dcgm_aliases) == (None, None, None, False)


def test_the_control_socket_lies_beside_the_outbox_unless_it_is_named() -> None:
    assert parse(["--node-name", "n", "--outbox", "/a/o.sqlite"], {}).control_socket == Path("/a/control.sock")
    assert parse(["--node-name", "n", "--control-socket", "/c"], {}).control_socket == Path("/c")


@pytest.mark.parametrize(
    ("flags", "environment", "text", "socket", "named_by"),
    [
        ({"control-socket": "/f.sock"}, {"NVCRE_CONTROL_SOCKET": "/e.sock"}, "", "/f.sock", "--control-socket"),
        ({"control-socket": "/f.sock"}, {}, "- not a mapping", "/f.sock", "--control-socket"),
        ({}, {"NVCRE_CONTROL_SOCKET": "/e.sock"}, "control-socket: /c.sock", "/e.sock", "NVCRE_CONTROL_SOCKET"),
        ({}, {"NVCRE_OUTBOX": "/e/o"}, "control-socket: /c.sock", "/c.sock", "{file}:1: control-socket"),
        ({}, {}, "log-level: loud\noutbox: /c/o.sqlite", "/c/control.sock", "{file}:2: outbox"),
        ({}, {"NVCRE_OUTBOX": "/e/o"}, "outbox: /c/o.sqlite", "/e/control.sock", "NVCRE_OUTBOX"),
        ({}, {}, "log-level: info", "/var/lib/nvcre/control.sock", "the default"),
    ],
)
def test_commands_find_the_socket_of_the_agent_that_has_this_configuration(
    flags: dict[str, str], environment: dict[str, str], text: str, socket: str, named_by: str, tmp_path: Path
) -> None:
    file = file_of(tmp_path, text)
    found = config.control_socket({**flags, "config": str(file)}, environment)
    assert (found.text, found.where) == (socket, named_by.format(file=file))


def test_a_simulated_node_has_its_own_kernel_log() -> None:
    def kernel_log(*more: str) -> Path:
        return parse(["--node-name", "n", *more], {}).kernel_log

    assert kernel_log() == Path("/dev/kmsg")
    assert kernel_log("--simulate", "/s/driver.json") == Path("/s/kmsg")
    assert kernel_log("--simulate", "/s/driver.json", "--kernel-log", "/k") == Path("/k")


@pytest.mark.parametrize(
    ("arguments", "environment", "text", "on"),
    [
        (["--dcgm-aliases"], {}, "dcgm-aliases: false", True),
        ([], {"NVCRE_DCGM_ALIASES": "1"}, "", True),
        ([], {"NVCRE_DCGM_ALIASES": "no"}, "dcgm-aliases: true", False),
        ([], {}, "dcgm-aliases: true", True),
        ([], {}, "# nothing but a comment", False),
    ],
)
def test_a_switch_is_a_flag_without_value_and_true_or_false_elsewhere(
    arguments: list[str], environment: dict[str, str], text: str, on: bool, tmp_path: Path
) -> None:
    file = str(file_of(tmp_path, text))
    assert parse(["--node-name", "n", "--config", file, *arguments], environment).dcgm_aliases is on


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--node-name"),
        (["--node-name", "n", "--coordinator", "c:1"], "--ca-file"),
        (["--node-name", "n", *STREAM[:4]], "--token-file"),
        (["--node-name", "n", *STREAM, "--coordinator", "nowhere"], "HOST:PORT"),
        (["--node-name", "n", "--listen", "x:99999"], "HOST:PORT"),
        (["--node-name", "n", "--heartbeat-interval", "soon"], "'soon'"),
        (["--node-name", "n", "--heartbeat-interval", "0"], "'0'"),
        (["--node-name", "n", "--log-level", "loud"], "'loud'"),
        (["--node-name", "n", "--config", "/no/such/file"], "/no/such/file: cannot be read"),
        (["--node-name", "n", "--no-such-flag"], "--no-such-flag"),
    ],
)
def test_usage_errors_end_with_2_and_name_the_flag(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments, {})
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("heartbeat_interval: 7", "agent.yaml:1: 'heartbeat_interval' is no setting; did you mean heartbeat-interval?"),
        ("zzz: 7", "agent.yaml:1: 'zzz' is no setting; known are node-name, "),
        ("\nlog-level: loud", "agent.yaml:2: log-level 'loud' must be debug, info, warning or error"),
        ("log-level: [debug]", "agent.yaml:1: log-level must be a single value, not a list or a mapping"),
        ("log-level:", "agent.yaml:1: log-level has no value; give one or remove the line"),
        ("log-level: info\nlog-level: debug", "agent.yaml:2: log-level is given twice; keep one"),
        ('outbox: "a\\0b"', "agent.yaml:1: outbox must be one line without control characters"),
        ("dcgm-aliases: maybe", "agent.yaml:1: dcgm-aliases 'maybe' must be true or false"),
        ("[a]: b", "agent.yaml:1: 'a key that is no text' is no setting; known are node-name"),
        ("- a", "agent.yaml: must map settings to values, such as `log-level: debug`"),
        ("a: b: c", "agent.yaml: is not YAML: mapping values are not allowed"),
        ("#" + "x" * config.MAX_FILE_BYTES, "agent.yaml: is larger than 65536 bytes"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_line_key_value_and_remedy(text: str, said: str, tmp_path: Path) -> None:
    file = file_of(tmp_path, text)
    [problem] = config.check_file(file)
    assert str(problem).removeprefix(f"{tmp_path}/").startswith(said)
    with pytest.raises(ConfigError) as refused:
        resolve({"config": str(file), "node-name": "n"}, {})
    assert refused.value.problems == (problem,)


def test_a_file_that_cannot_be_read_is_named_once(tmp_path: Path) -> None:
    [problem] = config.check_file(tmp_path / "none.yaml")
    assert str(problem) == f"{tmp_path}/none.yaml: cannot be read: No such file or directory"
    (tmp_path / "latin.yaml").write_bytes(b"\xff")
    [problem] = config.check_file(tmp_path / "latin.yaml")
    assert "cannot be read: 'utf-8' codec" in str(problem)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    file = file_of(tmp_path, "log-level: loud\nheartbeat-interval: -1\nno-such: 1\n")
    with pytest.raises(ConfigError) as refused:
        resolve({"config": str(file), "listen": "x"}, {"NVCRE_OUTBOX": "/o", "NVCRE_DCGM_ALIASES": "x"})
    wheres = [problem.where.rpartition("/")[2] for problem in refused.value.problems]
    assert wheres == [
        "agent.yaml:3:",
        "--listen",
        "NVCRE_DCGM_ALIASES",
        "agent.yaml:2: heartbeat-interval",
        "agent.yaml:1: log-level",
        "--node-name",
    ]


def test_a_reload_takes_over_live_settings_and_names_those_that_need_a_restart() -> None:
    before = parse(["--node-name", "n"], {})
    after = replace(before, log_level="debug", heartbeat_interval_s=5.0, outbox=Path("/other"))
    assert config.differences(before, after) == (["heartbeat-interval", "log-level"], ["outbox"])
    assert config.keeping(before, after) == replace(after, outbox=before.outbox)


def test_the_daemonset_starts_the_agent_with_flags_that_it_knows() -> None:
    manifest = yaml.safe_load((Path(__file__).parents[3] / "daemonset/agent.yaml").read_text())
    pod = manifest["spec"]["template"]["spec"]
    [container] = pod["containers"]
    got = parse([flag.replace("$(NODE_NAME)", "node-7") for flag in container["args"]], {})
    mounted = {one["mountPath"] for one in container["volumeMounts"]}
    assert got.node_name == "node-7"
    assert {str(config.DEFAULT_FILE.parent), str(got.control_socket.parent)} <= mounted


def test_every_setting_has_a_field_and_every_field_a_setting() -> None:
    assert [one.field for one in config.SETTINGS] == list(config.Config.__dataclass_fields__)[1:]
