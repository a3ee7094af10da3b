"""NVLinks, the fabric behind them and its manager: what is a fault, what only waits, and whom it may accuse."""

import pytest
from nvcre_agent.checks.baseline import Baseline
from nvcre_agent.host.model import FabricManager, Host
from nvcre_agent.nvml.snapshot import Snapshot, Unread
from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, Source
from support.checked_node import findings, healthy, snapshot, undecided

HEALTHY = snapshot(*(healthy(index) for index in range(8)))
BASELINE = Baseline().advance(HEALTHY)


def with_gpu(index: int, **changes: object) -> Snapshot:
    return snapshot(*(healthy(i, **changes) if i == index else healthy(i) for i in range(8)))


def all_gpus(**changes: object) -> Snapshot:
    return snapshot(*(healthy(i, **changes) for i in range(8)))


# --- links


def test_links_that_are_down_are_one_finding_that_names_the_first_link() -> None:
    (found,) = findings(with_gpu(2, nvlinks=tuple(0 if link in (4, 7) else 1 for link in range(18))), BASELINE)
    assert (found.component.kind, found.component.index, found.component.uuid) == (ComponentKind.NVLINK, 4, "GPU-2")
    assert found.blame is Blame.CONDITIONAL
    assert found.blame_condition
    assert "NVLink 4, 7 of 18 down" in found.message


def test_a_node_whose_links_never_were_up_is_not_bridged_and_not_sick() -> None:
    dark = all_gpus(nvlinks=(0,) * 12)
    assert findings(dark, Baseline()) == []


def test_all_links_of_the_node_down_is_a_fault_where_they_were_up_before() -> None:
    found = findings(all_gpus(nvlinks=(0,) * 18), BASELINE)
    assert {one.component.uuid for one in found} == {f"GPU-{index}" for index in range(8)}


def test_a_gpu_without_nvlink_has_no_link_to_lose() -> None:
    assert findings(snapshot(healthy(0, nvlinks=())), Baseline()) == []


@pytest.mark.parametrize("state", [1, 2])
def test_links_are_inactive_while_the_fabric_comes_up(state: int) -> None:
    coming_up = all_gpus(nvlinks=(0,) * 18, fabric_state=state)
    assert {one.check for one in findings(coming_up, BASELINE)} == {"fabric_registration"}
    assert undecided(coming_up, BASELINE)["nvlink_down/GPU-0"] == "the fabric is still coming up"


# --- registration and health


@pytest.mark.parametrize(
    ("changes", "check", "words"),
    [
        ({"fabric_state": 1}, "fabric_registration", "not started"),
        ({"fabric_state": 2}, "fabric_registration", "in progress"),
        ({"fabric_status": 999}, "fabric_status", "NVML error 999"),
        ({"fabric_health_mask": 0x1}, "fabric_health", "bandwidth is degraded"),
        ({"fabric_health_mask": 0x1 << 4}, "fabric_health", "a route is unhealthy"),
        ({"fabric_health_mask": 0x2 << 8}, "fabric_health", "wrong system GUID"),
        ({"fabric_health_mask": 0x3 << 8}, "fabric_health", "wrong chassis serial number"),
        ({"fabric_health_mask": 0x4 << 8}, "fabric_health", "no partition"),
        ({"fabric_health_mask": 0x5 << 8}, "fabric_health", "too few NVLinks"),
        ({"fabric_health_mask": 0x6 << 8}, "fabric_health", "incompatible GPU firmware"),
        ({"fabric_health_mask": 0x2 << 14}, "fabric_health", "fabric manager is disconnected"),
        ({"fabric_health_summary": 2}, "fabric_health", "unhealthy"),
        ({"fabric_health_summary": 3}, "fabric_health", "limited capacity"),
        ({"fabric_health_mask": 0x11, "fabric_health_summary": 2}, "fabric_health", "degraded, a route is unhealthy"),
    ],
)
def test_a_fabric_fault_of_one_gpu_names_it(changes: dict[str, int], check: str, words: str) -> None:
    (found,) = findings(with_gpu(4, **changes), BASELINE)
    assert (found.key, found.component.kind) == (f"{check}/GPU-4", ComponentKind.FABRIC)
    assert (found.fault_class, found.blame) == (FaultClass.NEEDS_RESET, Blame.YES)
    assert words in found.message


@pytest.mark.parametrize(
    "changes",
    [
        {"fabric_state": 0},  # no fabric
        {"fabric_state": 0, "fabric_status": 999},  # means nothing before the registration is over
        {"fabric_health_summary": 0},  # H100
        {"fabric_health_summary": 1, "fabric_health_mask": 0x2 | 0x2 << 2 | 0x2 << 4 | 0x2 << 6 | 0x1 << 8 | 0x1 << 14},
    ],
)
def test_a_sound_fabric_and_none_say_nothing(changes: dict[str, int]) -> None:
    assert findings(with_gpu(4, **changes), BASELINE) == []


@pytest.mark.parametrize("mask", [0x1 << 2, 0x1 << 6])
def test_what_the_fabric_recovers_from_by_itself_is_a_note(mask: int) -> None:
    (found,) = findings(with_gpu(4, fabric_health_mask=mask), BASELINE)
    assert (found.fault_class, found.blame) == (FaultClass.INFORMATIONAL, Blame.NO)


@pytest.mark.parametrize("changes", [{"fabric_state": 2}, {"fabric_status": 999}, {"fabric_health_mask": 1}])
def test_what_all_gpus_say_is_one_fault_of_the_node_and_accuses_none_of_them(changes: dict[str, int]) -> None:
    (found,) = findings(all_gpus(**changes), BASELINE)
    assert found.key.endswith("/node")
    assert (found.component.kind, found.component.uuid, found.blame) == (ComponentKind.FABRIC, "", Blame.YES)
    assert found.message.startswith("all 8 GPUs alike: GPU 0 ")


def test_it_stays_one_fault_while_a_gpu_cannot_be_read() -> None:
    some = snapshot(*(healthy(i, fabric_state=Unread.FAILED if i == 3 else 2) for i in range(8)))
    assert "fabric_registration/node" in undecided(some, BASELINE)


def test_without_its_manager_no_gpu_is_asked_why_it_did_not_register() -> None:
    dead = Host(fabric_manager=FabricManager(needed=True, running=False))
    found = findings(all_gpus(fabric_state=1, nvlinks=(0,) * 18), BASELINE, dead)
    assert [one.check for one in found] == ["fabric_manager"]


# --- the manager


DEAD, ALIVE = FabricManager(needed=False, running=False), FabricManager(needed=False, running=True)
SEEN_ALIVE = BASELINE.advance(HEALTHY, Host(fabric_manager=ALIVE))


def test_a_fabric_manager_that_died_is_the_nodes_fault_and_no_gpus() -> None:
    (found,) = findings(HEALTHY, Baseline.from_json(SEEN_ALIVE.to_json("1"), "2"), Host(fabric_manager=DEAD))
    assert (found.component.kind, found.component.uuid, found.blame) == (ComponentKind.FABRIC, "", Blame.YES)
    assert found.source is Source.HOST
    assert "systemctl restart nvidia-fabricmanager" in found.remedy


def test_a_node_with_nvswitches_needs_it_even_if_it_never_ran() -> None:
    (found,) = findings(HEALTHY, BASELINE, Host(fabric_manager=FabricManager(needed=True, running=False)))
    assert found.key == "fabric_manager/node"


def test_a_node_that_never_had_one_misses_nothing() -> None:
    assert findings(HEALTHY, BASELINE, Host(fabric_manager=DEAD)) == []


def test_a_process_list_that_cannot_be_read_decides_nothing() -> None:
    assert undecided(HEALTHY, SEEN_ALIVE, Host(fabric_manager=None))["fabric_manager/node"] == ""
