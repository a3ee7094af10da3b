"""The simulation directory: which lines are understood, and what becomes of the others."""

from pathlib import Path

import pytest
from nvcre_agent.nvml.simulated_state import (
    MAX_LINE_BYTES,
    BadDescription,
    SetLine,
    SimulatedNode,
    XidLine,
    parse_line,
    read_description,
)

from tests.unit.agent.nvml.conftest import SimulationDirectory


def node_of(simulation: SimulationDirectory) -> SimulatedNode:
    return SimulatedNode(simulation.description, return_names=frozenset({"SUCCESS", "UNKNOWN"}))


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        (b'{"gpu": 5, "event": "xid", "code": 79}', XidLine(5, 79)),
        (b'{"gpu": 5, "set": {"lost": true}}', SetLine(5, {"lost": True})),
        (b'{"set": {"hang_s": 60}}', SetLine(None, {"hang_s": 60})),
        (b'{"gpu": 2, "set": {"nvlinks_down": [4], "return": "UNKNOWN"}}',
         SetLine(2, {"nvlinks_down": [4], "return": "UNKNOWN"})),
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
        (b'{"gpu": 5, "event": "sxid", "code": 79}', "needs"),
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
    node, xids = node_of(simulation), []
    simulation.append(
        "rubbish", "[" * 50_000, {"gpu": 1, "event": "xid", "code": 31}, {"gpu": 0, "set": {"return": "NONSENSE"}}
    )
    node.follow(lambda gpu, code: xids.append((gpu, code)))
    assert (xids, node.bad_lines) == ([(1, 31)], 3)


def test_a_line_counts_once_it_is_complete(simulation: SimulationDirectory) -> None:
    node, xids = node_of(simulation), []
    for piece in ('{"gpu": 1, "event": ', '"xid", "code": 31}', "\n"):
        with simulation.events.open("a") as events:
            events.write(piece)
        assert xids == []
        node.follow(lambda gpu, code: xids.append((gpu, code)))
    assert xids == [(1, 31)]


def test_what_was_set_before_the_start_holds_and_what_happened_before_is_over(simulation: SimulationDirectory) -> None:
    simulation.xid(5, 79)
    simulation.set(5, lost=True)
    node, xids = node_of(simulation), []
    node.follow(lambda gpu, code: xids.append((gpu, code)))
    assert (node.gpus[5].lost, xids) == (True, [])


def test_an_endless_line_is_dropped_and_counted(simulation: SimulationDirectory) -> None:
    node = node_of(simulation)
    with simulation.events.open("a") as events:
        events.write("x" * (MAX_LINE_BYTES + 1))
    node.follow(lambda gpu, code: None)
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
