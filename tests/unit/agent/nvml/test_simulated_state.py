"""The simulation directory: which lines are understood, and what becomes of the others."""

from pathlib import Path

import pytest
from nvcre_agent.nvml.simulated_state import (
    MAX_LINE_BYTES,
    SETTABLE,
    BadDescription,
    EventLine,
    SetLine,
    SimulatedNode,
    parse_line,
    profile_of,
    read_description,
)
from nvcre_local.scenario_file import driver_keys, products

from tests.support.simulated_nvml import SimulationDirectory


def node_of(simulation: SimulationDirectory) -> SimulatedNode:
    return SimulatedNode(simulation.description, return_names=frozenset({"SUCCESS", "UNKNOWN"}))


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        (b'{"gpu": 5, "event": "xid", "code": 79}', EventLine(5, 0x8, 79)),
        (b'{"gpu": 5, "set": {"lost": true}}', SetLine(5, {"lost": True})),
        (b'{"set": {"hang_s": 60}}', SetLine(None, {"hang_s": 60})),
        (b'{"gpu": 2, "set": {"nvlinks_down": [4], "return": "UNKNOWN"}}',
         SetLine(2, {"nvlinks_down": [4], "return": "UNKNOWN"})),
        (b'{"gpu": 1, "event": "xid", "code": 31, "gpu_instance": 3, "compute_instance": 0}',
         EventLine(1, 8, 31, 3, 0)),
        (b'{"gpu": 1, "event": "fatal_poison"}', EventLine(1, 0x2000)),
        (b'{"gpu": 1, "set": {"temperature_c": 99, "temperature_margin_c": null, "remap_pending": 1}}',
         SetLine(1, {"temperature_c": 99, "temperature_margin_c": None, "remap_pending": 1})),
        (b'{"set": {"driver": "mismatch", "hang": {"nvmlDeviceGetMemoryInfo": 60}}}',
         SetLine(None, {"driver": "mismatch", "hang": {"nvmlDeviceGetMemoryInfo": 60}})),
    ],
)  # fmt: skip
def test_the_lines_of_the_contract_are_understood(line: bytes, meaning: object) -> None:
    assert parse_line(line, 8) == meaning


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"not json", "Expecting value"),
        (b"[]", "needs"),
        (b'{"gpu": 8, "event": "xid", "code": 79}', "gpu 8"),
        (b'{"gpu": true, "event": "xid", "code": 79}', "gpu True"),
        (b'{"gpu": 5, "event": "xid", "code": -1}', "code -1"),
        (b'{"gpu": 5, "event": "xid", "code": 79, "pid": 1}', "no other key"),
        (b'{"gpu": 5, "event": "sxid", "code": 79}', "event 'sxid'"),
        (b'{"gpu": 5, "event": "xid"}', "needs its number"),
        (b'{"gpu": 5, "event": "xid", "code": 31, "gpu_instance": "3"}', "gpu_instance '3'"),
        (b'{"set": {"driver": "gone"}}', "loaded, unloaded, mismatch"),
        (b'{"set": {"hang": {"nvmlInitWithFlags": "long"}}}', "hang.nvmlInitWithFlags"),
        (b'{"gpu": 5, "set": {"mig_instances": [{"gpu_instance": 1}]}}', "compute_instance"),
        (b'{"gpu": 5, "set": {"losst": true}}', "unknown key 'losst'"),
        (b'{"gpu": 5, "set": {"lost": 1}}', "lost 1: must be bool"),
        (b'{"gpu": 5, "set": {"nvlinks_down": ["4"]}}', "list of numbers"),
        (b'{"gpu": 5, "set": {"ecc_uncorrected_volatile": true}}', "must be int"),
        (b"\xff\xfe\x00\x81", "codec|value"),
    ],
)
def test_a_bad_line_says_what_is_wrong_with_it(line: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"(?i){complaint}"):
        parse_line(line, 8)


def test_bad_lines_are_counted_and_the_others_count(simulation: SimulationDirectory) -> None:
    node = node_of(simulation)
    xids: list[tuple[int, int]] = []
    simulation.append(
        "rubbish",
        "[" * 50_000,
        {"gpu": 1, "event": "xid", "code": 31},
        {"gpu": 0, "set": {"return": "NONSENSE"}},
        {"gpu": 0, "set": {"calls": {"nvmlDeviceGetName": "NONSENSE"}}},
    )
    node.follow(lambda event: xids.append((event.gpu, event.data)))
    assert (xids, node.bad_lines) == ([(1, 31)], 4)


def test_a_line_counts_once_it_is_complete(simulation: SimulationDirectory) -> None:
    node = node_of(simulation)
    xids: list[tuple[int, int]] = []
    for piece in ('{"gpu": 1, "event": ', '"xid", "code": 31}', "\n"):
        with simulation.events.open("a") as events:
            events.write(piece)
        assert xids == []
        node.follow(lambda event: xids.append((event.gpu, event.data)))
    assert xids == [(1, 31)]


def test_what_was_set_before_the_start_holds_and_what_happened_before_is_over(simulation: SimulationDirectory) -> None:
    simulation.xid(5, 79)
    simulation.set(5, lost=True)
    node = node_of(simulation)
    xids: list[tuple[int, int]] = []
    node.follow(lambda event: xids.append((event.gpu, event.data)))
    assert (node.gpus[5].lost, xids) == (True, [])


def test_an_endless_line_is_dropped_and_counted(simulation: SimulationDirectory) -> None:
    node = node_of(simulation)
    with simulation.events.open("a") as events:
        events.write("x" * (MAX_LINE_BYTES + 1))
    node.follow(lambda _event: None)
    assert node.bad_lines == 1


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"product": "x"}', "\xff"])
def test_a_bad_description_names_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "driver.json"
    path.write_text(text)
    with pytest.raises(BadDescription, match=r"driver\.json"):
        read_description(path)


@pytest.mark.parametrize("gpu", [{}, {"uuid": "u", "pci": "nonsense", "serial": "", "minor": 0}])
def test_a_bad_gpu_in_the_description_is_named(simulation: SimulationDirectory, gpu: dict[str, object]) -> None:
    simulation.describe(gpus=[gpu])
    with pytest.raises(BadDescription, match=r"uuid|nonsense"):
        read_description(simulation.description)


def test_a_product_without_a_profile_is_refused_with_those_there_are(simulation: SimulationDirectory) -> None:
    simulation.describe(product="NVIDIA GH200 480GB")
    with pytest.raises(BadDescription, match=r"GH200.*no profile.*H100"):
        read_description(simulation.description)


def test_every_product_of_the_local_cluster_has_a_profile() -> None:
    for product in products().values():
        assert profile_of(product.product).readings["recovery_action"] == 0


def test_a_scenario_file_may_set_what_the_simulated_driver_can_be_set_to() -> None:
    assert driver_keys() == set(SETTABLE)
