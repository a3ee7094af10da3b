"""Which command a probe order means."""

from dataclasses import replace
from pathlib import Path

import pytest
from nvcre_agent.probes.command import command, invalid
from nvcre_agent.probes.model import Order, ProbeKind

ORDER = Order("p1", ProbeKind.NVLINK_ALL_REDUCE, 8, 4 * 1024**3, 2, 20, 3, 300.0)
TOOL = Path("/opt/nccl-tests/all_reduce_perf")


def test_an_nvlink_probe_runs_all_reduce_over_all_gpus_without_nvlink_sharp() -> None:
    ready = command(ORDER, tool=TOOL, gpus=8, inherited={"PATH": "/bin"})
    assert ready.argv == (str(TOOL), *["-b", "8", "-e", "4294967296", "-f", "2", "-n", "20", "-g", "8", "-c", "1"])
    assert ready.environment == {"PATH": "/bin", "NCCL_NVLS_ENABLE": "0"}


def test_a_nic_probe_has_no_other_way_than_the_nics() -> None:
    ready = command(replace(ORDER, kind=ProbeKind.NIC_LOOPBACK), tool=TOOL, gpus=8, inherited={})
    assert ready.environment == {"NCCL_NVLS_ENABLE": "0", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}


def test_the_environment_is_clean_but_for_the_sites_network_description() -> None:
    inherited = {
        "NCCL_IB_HCA": "mlx5_0",
        "NCCL_DEBUG": "INFO",
        "NCCL_NVLS_ENABLE": "1",
        "NCCL_TESTS_MIN_BW": "400",
        "NVCRE_TOKEN_FILE": "/token",
        "SECRET": "x",
    }
    ready = command(ORDER, tool=TOOL, gpus=8, inherited=inherited)
    assert ready.environment == {"NCCL_IB_HCA": "mlx5_0", "NCCL_NVLS_ENABLE": "0"}


def test_the_simulation_may_pass_its_own_variables() -> None:
    inherited = {"NVCRE_SIMULATION": "/sim", "NVCRE_NODE_NAME": "node-0"}
    assert (
        command(ORDER, tool=TOOL, gpus=8, inherited=inherited, also_inherit=("NVCRE_*",)).environment.items()
        > inherited.items()
    )


def test_arguments_are_comparable_between_nodes_whatever_directory_the_tool_is_in() -> None:
    one = command(ORDER, tool=TOOL, gpus=8, inherited={"HOME": "/root"})
    two = command(ORDER, tool=Path("/usr/bin/all_reduce_perf"), gpus=8, inherited={})
    assert (
        one.arguments == two.arguments == "NCCL_NVLS_ENABLE=0 all_reduce_perf -b 8 -e 4294967296 -f 2 -n 20 -g 8 -c 1"
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("probe_id", ""),
        ("min_bytes", 0),
        ("min_bytes", 8 * 1024**3),
        ("max_bytes", 1024**5),
        ("step_factor", 1),
        ("iterations", 0),
        ("runs", 0),
        ("runs", 1000),
        ("timeout_s", 0.0),
    ],
)
def test_an_order_that_makes_no_sense_names_its_field(field: str, value: object) -> None:
    assert invalid(ORDER) is None
    assert field.removesuffix("_s") in (invalid(replace(ORDER, **{field: value})) or "")  # type: ignore[arg-type]
