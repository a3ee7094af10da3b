"""Flags and environment of nvcre-coordinator."""

import pytest
from nvcre_coordinator.config import parse


def test_defaults() -> None:
    config = parse([], {})
    assert (config.namespace, config.grpc_address, config.leader_elect) == ("nvcre-system", "0.0.0.0:9443", True)
    assert (config.metrics_address, config.health_address) == (("0.0.0.0", 8080), ("0.0.0.0", 8081))
    assert (config.probe_max_bytes, config.probe_runs) == (4 << 30, 3)
    assert config.kubeconfig is None


def test_the_environment_gives_defaults_and_flags_win() -> None:
    environment = {"NVCRE_NAMESPACE": "a", "NVCRE_PROBE_RUNS": "5", "NVCRE_LEADER_ELECT": "false", "POD_IP": "10.0.0.7"}
    config = parse(["--namespace", "b"], environment)
    assert (config.namespace, config.probe_runs, config.leader_elect) == ("b", 5, False)
    assert config.advertised_host == "10.0.0.7"
    assert parse(["--grpc-address", "127.0.0.1:0"], environment).advertised_host == "127.0.0.1"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--grpc-address", "nowhere"],
        ["--metrics-address", "host:99999"],
        ["--probe-runs", "0"],
        ["--probe-min-bytes", "64", "--probe-max-bytes", "32"],
        ["--agent-heartbeat", "soon"],
        ["--log-level", "loud"],
        ["--surprise"],
    ],
)
def test_a_usage_error_is_code_2_and_a_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments, {})
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err
