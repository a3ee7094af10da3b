"""Which GPUs a node misses, and which were only replaced."""

from dataclasses import replace

import pytest
from nvcre_agent.checks.baseline import CONFIRMED_AFTER, Baseline
from nvcre_agent.checks.rules import GPU_CHECKS
from nvcre_agent.nvml.snapshot import GpuSnapshot, Snapshot, Unread
from nvcre_protos.vocabulary import Blame, ComponentKind
from support.checked_node import findings, healthy, identity, snapshot, undecided

HEALTHY = snapshot(*(healthy(index) for index in range(8)))
BASELINE = Baseline().advance(HEALTHY)
SEVEN = snapshot(*(healthy(index) for index in range(7)))
EXCHANGED = snapshot(*(healthy(i) if i != 3 else healthy(3, identity=identity(3, "GPU-new")) for i in range(8)))


def advanced(baseline: Baseline, seen: Snapshot, times: int) -> Baseline:
    for _ in range(times):
        baseline = baseline.advance(seen)
    return baseline


def test_a_gpu_that_is_gone_is_missed_from_the_stored_inventory_by_slot_and_uuid() -> None:
    (found,) = findings(SEVEN, Baseline.from_json(BASELINE.to_json("boot-1"), "boot-2"))
    assert found.key == "gpu_missing/GPU-7"
    assert found.message == ("GPU 7 at 00000000:22:00.0 (GPU-7) is missing: NVML lists 7 GPUs, the node had 8")
    assert found.component.pci_bus_id == "00000000:22:00.0"


@pytest.mark.parametrize(
    ("nameless", "found"),
    [
        ((Unread.LOST,), ["gpu_lost/GPU-7"]),
        ((Unread.RESET_REQUIRED,), ["gpu_lost/GPU-7"]),
        ((Unread.FAILED,), ["gpu_unreadable/GPU-7"]),
        ((Unread.NO_PERMISSION,), []),  # its device file was not given to the container
        ((Unread.NO_PERMISSION, Unread.FAILED), ["gpu_unreadable/node"]),
        ((Unread.LOST, Unread.FAILED), ["gpu_lost/node", "gpu_unreadable/node"]),
        ((), ["gpu_missing/GPU-7"]),
    ],
)
def test_a_gpu_that_is_listed_without_a_name_is_not_missing(nameless: tuple[Unread, ...], found: list[str]) -> None:
    """The agent started again while one GPU did not answer."""
    seen = replace(SEVEN, device_count=7 + len(nameless), unidentified=nameless)
    assert [one.key for one in findings(seen, BASELINE)] == found
    assert "gpu_missing/GPU-7" in undecided(seen, BASELINE) or found


@pytest.mark.parametrize(
    ("why", "key", "blame"),
    [
        (Unread.LOST, "gpu_lost/node", Blame.YES),
        (Unread.RESET_REQUIRED, "gpu_lost/node", Blame.YES),
        (Unread.FAILED, "gpu_unreadable/node", Blame.CONDITIONAL),
    ],
)
def test_a_lost_gpu_that_an_agent_without_a_memory_never_knew_is_the_nodes_fault(
    why: Unread, key: str, blame: Blame
) -> None:
    seen = replace(SEVEN, device_count=8, unidentified=(why,))
    [found] = findings(seen, Baseline())
    assert (found.key, found.blame, found.component.kind) == (key, blame, ComponentKind.NODE)
    assert found.message.startswith("1 of 8 GPUs that NVML lists: ")


def test_a_gpu_that_answers_nothing_while_no_other_does_either_is_the_monitors_trouble() -> None:
    silent = snapshot(*(GpuSnapshot.unanswered(identity(index), Unread.FAILED) for index in range(8)))
    assert findings(silent, BASELINE) == []


def test_without_a_count_nobody_is_missing() -> None:
    unread = replace(SEVEN, device_count=Unread.FAILED)
    assert findings(unread, BASELINE) == []
    assert "gpu_missing/GPU-7" in undecided(unread, BASELINE)


def test_a_missing_gpu_leaves_its_other_findings_undecided() -> None:
    checks = {check.__name__ for check in GPU_CHECKS} - {"gpu_missing"}
    assert {f"{check}/GPU-7" for check in checks} <= undecided(SEVEN, BASELINE).keys()


def test_until_a_replacement_is_confirmed_the_old_gpu_is_neither_missing_nor_forgotten() -> None:
    once = BASELINE.advance(EXCHANGED)
    assert "GPU-3" in once.gpus
    assert "GPU-new" not in once.gpus
    assert findings(EXCHANGED, BASELINE) == []
    assert undecided(EXCHANGED, BASELINE)["gpu_missing/GPU-3"] == ""
    assert advanced(once, HEALTHY, 1) == BASELINE  # a wrong reading is forgotten


def test_a_confirmed_replacement_takes_the_place_in_the_inventory() -> None:
    after = advanced(BASELINE, EXCHANGED, CONFIRMED_AFTER)
    assert after.replaced == {"GPU-3"}
    assert after.gpus.keys() == {f"GPU-{index}" for index in range(8) if index != 3} | {"GPU-new"}
    assert findings(EXCHANGED, after) == []
    assert after.advance(EXCHANGED).replaced == frozenset()


def test_the_confirmation_goes_on_over_a_restart() -> None:
    begun = Baseline.from_json(advanced(BASELINE, EXCHANGED, CONFIRMED_AFTER - 1).to_json("boot-1"), "boot-1")
    assert begun.advance(EXCHANGED).replaced == {"GPU-3"}


def test_a_card_that_moved_into_the_slot_of_a_missing_one_does_not_hide_it() -> None:
    """GPU-7's card was put where GPU-3 was: GPU-3 is what the node misses."""
    moved = replace(healthy(7), identity=replace(identity(7), pci=identity(3).pci))
    seen = snapshot(*(healthy(index) for index in (0, 1, 2, 4, 5, 6)), moved)
    (found,) = findings(seen, advanced(BASELINE, seen, 5))
    assert found.key == "gpu_missing/GPU-3"
