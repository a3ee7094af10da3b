"""What each check says about a snapshot: the table of faults a GPU can have, and what must not look like one."""

from dataclasses import replace

import pytest
from nvcre_agent.checks import limits as limits_file
from nvcre_agent.checks.baseline import Baseline
from nvcre_agent.checks.model import Finding, Undecided
from nvcre_agent.checks.rules import CHECKS, evaluate
from nvcre_agent.nvml.snapshot import GpuIdentity, GpuSnapshot, PciAddress, Snapshot, Unread
from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass

LIMITS = limits_file.shipped()


def identity(index: int, uuid: str | None = None) -> GpuIdentity:
    return GpuIdentity(
        index, uuid or f"GPU-{index}", PciAddress(0, 0x1B + index, 0), "NVIDIA H100 80GB HBM3", str(index)
    )


def healthy(index: int, **changes: object) -> GpuSnapshot:
    sound = GpuSnapshot(
        identity(index),
        access=None,
        ecc_uncorrected_volatile=0,
        remap_pending=0,
        remap_failure=0,
        nvlinks=(1,) * 18,
        recovery_action=0,
    )
    return replace(sound, **changes)  # type: ignore[arg-type]


def node(*gpus: GpuSnapshot, device_count: int | Unread | None = None) -> Snapshot:
    return Snapshot(0.0, 0, len(gpus) if device_count is None else device_count, gpus)


HEALTHY = node(*(healthy(index) for index in range(8)))
BASELINE = Baseline().advance(HEALTHY)


def with_gpu(index: int, gpu: GpuSnapshot) -> Snapshot:
    return node(*(gpu if i == index else healthy(i) for i in range(8)))


def findings(snapshot: Snapshot, baseline: Baseline = BASELINE) -> list[Finding]:
    return [said for said in evaluate(snapshot, baseline, LIMITS) if isinstance(said, Finding)]


def undecided(snapshot: Snapshot, baseline: Baseline = BASELINE) -> set[str]:
    return {said.key for said in evaluate(snapshot, baseline, LIMITS) if isinstance(said, Undecided)}


def test_a_healthy_node_has_no_findings() -> None:
    assert evaluate(HEALTHY, BASELINE, LIMITS) == ()


@pytest.mark.parametrize(
    ("gpu", "check", "fault_class", "blame", "words"),
    [
        (
            GpuSnapshot.unanswered(identity(5), Unread.LOST),
            "gpu_lost",
            FaultClass.NEEDS_REBOOT,
            Blame.YES,
            "off the bus",
        ),
        (
            GpuSnapshot.unanswered(identity(5), Unread.RESET_REQUIRED),
            "gpu_lost",
            FaultClass.NEEDS_RESET,
            Blame.YES,
            "reset",
        ),
        (healthy(5, remap_failure=1), "row_remap_failure", FaultClass.FATAL_HARDWARE, Blame.YES, "remap"),
        (healthy(5, remap_pending=1), "row_remap_pending", FaultClass.INFORMATIONAL, Blame.NO, "waiting for a reset"),
        (
            healthy(5, ecc_uncorrected_volatile=3),
            "ecc_uncorrected",
            FaultClass.NEEDS_RESET,
            Blame.YES,
            "3 uncorrectable",
        ),
        (healthy(5, recovery_action=1), "recovery_action", FaultClass.NEEDS_RESET, Blame.YES, "GPU reset required"),
        (healthy(5, recovery_action=2), "recovery_action", FaultClass.NEEDS_REBOOT, Blame.YES, "reboot"),
        (healthy(5, recovery_action=42), "recovery_action", FaultClass.UNKNOWN, Blame.NO, "unknown action 42"),
    ],
)
def test_one_fault_gives_one_finding_that_names_the_gpu(
    gpu: GpuSnapshot, check: str, fault_class: FaultClass, blame: Blame, words: str
) -> None:
    (found,) = findings(with_gpu(5, gpu))
    assert found.key == f"{check}/GPU-5"
    assert (found.check, found.fault_class, found.blame) == (check, fault_class, blame)
    assert (found.component.kind, found.component.index, found.component.uuid) == (ComponentKind.GPU, 5, "GPU-5")
    assert found.component.pci_bus_id == "00000000:20:00.0"
    assert words in found.message
    assert found.message.startswith("GPU 5 ")
    assert found.remedy


def test_links_that_are_down_are_one_finding_that_names_the_first_link() -> None:
    links = tuple(0 if link in (4, 7) else 1 for link in range(18))
    (found,) = findings(with_gpu(2, healthy(2, nvlinks=links)))
    assert (found.component.kind, found.component.index, found.component.uuid) == (ComponentKind.NVLINK, 4, "GPU-2")
    assert found.blame is Blame.CONDITIONAL
    assert found.blame_condition
    assert "NVLink 4, 7 of 18 down" in found.message


def test_a_node_whose_links_never_were_up_is_not_bridged_and_not_sick() -> None:
    dark = node(*(healthy(index, nvlinks=(0,) * 12) for index in range(2)))
    assert findings(dark, Baseline().advance(dark)) == []


def test_all_links_of_the_node_down_is_a_fault_where_they_were_up_before() -> None:
    dark = node(*(healthy(index, nvlinks=(0,) * 18) for index in range(8)))
    assert {found.component.uuid for found in findings(dark)} == {f"GPU-{index}" for index in range(8)}


def test_a_gpu_without_nvlink_has_no_link_to_lose() -> None:
    pcie = node(healthy(0, nvlinks=()))
    assert evaluate(pcie, Baseline().advance(pcie), LIMITS) == ()


def test_a_gpu_that_is_gone_is_missed_from_the_stored_inventory() -> None:
    after_reboot = node(*(healthy(index) for index in range(7)))
    (found,) = findings(after_reboot, Baseline.from_json(BASELINE.to_json()))
    assert found.key == "gpu_missing/GPU-7"
    assert "7 GPUs, the node had 8" in found.message


def test_a_gpu_lost_before_the_agent_started_is_lost_and_not_missing() -> None:
    answering = node(*(healthy(index) for index in range(7)), device_count=8)
    (found,) = findings(replace(answering, unidentified=(Unread.LOST,)))
    assert found.key == "gpu_lost/GPU-7"


def test_a_missing_gpu_leaves_its_other_findings_undecided() -> None:
    after_reboot = node(*(healthy(index) for index in range(7)))
    assert undecided(after_reboot) == {f"{check.__name__}/GPU-7" for check in CHECKS} - {"gpu_missing/GPU-7"}


def test_a_replaced_gpu_is_neither_missing_nor_remembered() -> None:
    exchanged = with_gpu(3, replace(healthy(3), identity=identity(3, "GPU-new")))
    assert evaluate(exchanged, BASELINE, LIMITS) == ()
    assert set(BASELINE.advance(exchanged).gpus) == {f"GPU-{index}" for index in range(8) if index != 3} | {"GPU-new"}


@pytest.mark.parametrize("why", [Unread.NO_PERMISSION, Unread.FAILED])
def test_a_device_that_cannot_be_read_is_not_accused(why: Unread) -> None:
    snapshot = with_gpu(1, GpuSnapshot.unanswered(identity(1), why))
    assert findings(snapshot) == []
    assert "gpu_lost/GPU-1" in undecided(snapshot)


def test_what_a_lost_gpu_had_before_stays_undecided() -> None:
    snapshot = with_gpu(1, GpuSnapshot.unanswered(identity(1), Unread.LOST))
    assert {"ecc_uncorrected/GPU-1", "nvlink_down/GPU-1", "recovery_action/GPU-1"} <= undecided(snapshot)


def test_a_value_the_gpu_does_not_support_says_nothing() -> None:
    old = with_gpu(0, healthy(0, recovery_action=Unread.NOT_SUPPORTED, remap_failure=Unread.NOT_SUPPORTED))
    assert evaluate(old, BASELINE, LIMITS) == ()


def test_ecc_errors_from_before_the_baseline_are_old_news() -> None:
    old = node(healthy(0, ecc_uncorrected_volatile=7))
    assert findings(old, Baseline().advance(old)) == []


def test_a_reset_counter_counts_from_its_new_start() -> None:
    before = Baseline().advance(node(healthy(0, ecc_uncorrected_volatile=7)))
    after = before.advance(node(healthy(0, ecc_uncorrected_volatile=0)))
    (found,) = findings(node(healthy(0, ecc_uncorrected_volatile=1)), after)
    assert "1 uncorrectable ECC error " in found.message


def test_a_fault_does_not_become_its_own_baseline() -> None:
    faulty = with_gpu(5, healthy(5, ecc_uncorrected_volatile=3))
    assert findings(faulty, BASELINE.advance(faulty).advance(faulty))


def test_the_baseline_survives_a_restart() -> None:
    assert Baseline.from_json(BASELINE.to_json()) == BASELINE


def test_every_check_has_its_numbers_in_the_data_file() -> None:
    assert set(LIMITS.hysteresis) == {check.__name__ for check in CHECKS}
