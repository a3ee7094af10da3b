"""Flags of nvcre-agent and their environment."""

from pathlib import Path

import pytest
from nvcre_agent.config import parse

STREAM = ["--coordinator", "c:9443", "--ca-file", "ca", "--token-file", "t"]


def test_flags_win_over_the_environment() -> None:
    config = parse(["--node-name", "flag"], {"NVCRE_NODE_NAME": "env", "NVCRE_OUTBOX": "/x", "NCCL_TESTS_DIR": "/n"})
    assert (config.node_name, config.outbox, config.nccl_tests_dir) == ("flag", Path("/x"), Path("/n"))
    assert (config.kernel_log, config.listen, config.heartbeat_interval_s) == (Path("/dev/kmsg"), ("0.0.0.0", 9465), 30)
    assert (config.coordinator, config.simulate, config.xid_catalogue) == (None, None, None)


def test_the_xid_catalogue_comes_from_the_environment_too() -> None:
    assert parse(["--node-name", "n"], {"NVCRE_XID_CATALOGUE": "/etc/xid.yaml"}).xid_catalogue == Path("/etc/xid.yaml")


def test_help_names_the_other_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--help"], {})
    assert ended.value.code == 0
    assert "nvcre-agent kernel-log FILE" in capsys.readouterr().out


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
