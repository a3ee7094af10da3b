"""All checks together: the shape of a finding, what must not look like one, that each is registered and has limits."""

import inspect
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvcre_agent.checks import (
    clocks,
    configuration,
    fabric,
    infiniband,
    memory,
    nvlink,
    pcie,
    presence,
)
from nvcre_agent.checks import limits as limits_file
from nvcre_agent.checks.baseline import Baseline
from nvcre_agent.checks.rules import GPU_CHECKS, HOST_CHECKS, evaluate
from nvcre_agent.host.model import NOTHING, FabricManager, Host
from nvcre_agent.nvml.snapshot import READINGS, GpuSnapshot, Unread
from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass
from support.checked_node import findings, healthy, identity, port, snapshot, undecided

HEALTHY = snapshot(*(healthy(index) for index in range(8)))
BASELINE = Baseline().advance(HEALTHY)


def with_gpu(index: int, gpu: GpuSnapshot) -> Any:
    return snapshot(*(gpu if i == index else healthy(i) for i in range(8)))


def test_a_healthy_node_has_no_findings() -> None:
    assert findings(HEALTHY, BASELINE) == []
    assert not [key for key, because in undecided(HEALTHY, BASELINE).items() if not because]


def test_every_check_is_registered_and_has_its_numbers_in_the_data_file() -> None:
    registered = {check.__name__ for check in (*GPU_CHECKS, *HOST_CHECKS)}
    topics = (clocks, configuration, fabric, infiniband, memory, nvlink, pcie, presence)
    written = {
        name
        for topic in topics
        for name, function in inspect.getmembers(topic, inspect.isfunction)
        if function.__module__ == topic.__name__
        and {"baseline", "limits"} <= inspect.signature(function).parameters.keys()
    }
    assert written == registered == set(limits_file.shipped().hysteresis)


LOST = GpuSnapshot.unanswered(identity(5), Unread.LOST)
FAULTS = [
    (LOST, "gpu_lost", FaultClass.NEEDS_REBOOT, Blame.YES, "off the bus"),
    (
        GpuSnapshot.unanswered(identity(5), Unread.RESET_REQUIRED),
        "gpu_lost",
        FaultClass.NEEDS_RESET,
        Blame.YES,
        "reset",
    ),
    (
        GpuSnapshot.unanswered(identity(5), Unread.FAILED),
        "gpu_unreadable",
        FaultClass.NEEDS_REBOOT,
        Blame.CONDITIONAL,
        "every NVML call on it fails",
    ),
    (healthy(5, recovery_action=1), "recovery_action", FaultClass.NEEDS_RESET, Blame.YES, "GPU reset required"),
    (healthy(5, recovery_action=2), "recovery_action", FaultClass.NEEDS_REBOOT, Blame.YES, "reboot"),
    (healthy(5, recovery_action=4), "recovery_action", FaultClass.NEEDS_RESET, Blame.CONDITIONAL, "drain and reset"),
    (healthy(5, recovery_action=42), "recovery_action", FaultClass.UNKNOWN, Blame.NO, "unknown action 42"),
    (healthy(5, ecc_uncorrected_volatile=3), "ecc_uncorrected", FaultClass.NEEDS_RESET, Blame.YES, "3 uncorrectable"),
    (healthy(5, remap_failure=1), "row_remap_failure", FaultClass.FATAL_HARDWARE, Blame.YES, "remap"),
    (healthy(5, remap_pending=1), "row_remap_pending", FaultClass.INFORMATIONAL, Blame.NO, "waiting for a reset"),
    (
        healthy(5, remapped_correctable=500, remapped_uncorrectable=12),
        "row_remap_limit",
        FaultClass.FATAL_HARDWARE,
        Blame.YES,
        "512 memory rows",
    ),
    (healthy(5, retired_pages=63), "retired_pages", FaultClass.FATAL_HARDWARE, Blame.YES, "63 retired"),
    (healthy(5, retired_pages=15), "retired_pages", FaultClass.INFORMATIONAL, Blame.NO, "63 are the limit"),
    (healthy(5, retired_pages_pending=1), "page_retirement_pending", FaultClass.INFORMATIONAL, Blame.NO, "waits"),
    (
        healthy(5, utilization_gpu=90, pcie_generation=1),
        "pcie_link",
        FaultClass.NEEDS_REBOOT,
        Blame.YES,
        "generation 1 x16 under load, it could do 5 x16",
    ),
    (healthy(5, utilization_gpu=90, pcie_width=8), "pcie_link", FaultClass.NEEDS_REBOOT, Blame.YES, "5 x8 under load"),
    (healthy(5, temperature_margin_c=-2), "temperature_margin", FaultClass.INFORMATIONAL, Blame.CONDITIONAL, "hot"),
    (healthy(5, persistence_mode=0), "persistence_mode", FaultClass.INFORMATIONAL, Blame.NO, "persistence mode off"),
    (healthy(5, ecc_mode=0), "ecc_mode", FaultClass.INFORMATIONAL, Blame.NO, "ECC off"),
    (healthy(5, mig_mode=1), "mig", FaultClass.INFORMATIONAL, Blame.NO, "without an instance"),
]


@pytest.mark.parametrize(("gpu", "check", "fault_class", "blame", "words"), FAULTS)
def test_one_fault_gives_one_finding_that_names_the_gpu(
    gpu: GpuSnapshot, check: str, fault_class: FaultClass, blame: Blame, words: str
) -> None:
    (found,) = findings(with_gpu(5, gpu), BASELINE)
    assert (found.key, found.check) == (f"{check}/GPU-5", check)
    assert (found.fault_class, found.blame, bool(found.blame_condition)) == (
        fault_class,
        blame,
        blame is Blame.CONDITIONAL,
    )
    assert (found.component.kind, found.component.index, found.component.uuid) == (ComponentKind.GPU, 5, "GPU-5")
    assert found.component.pci_bus_id == "00000000:20:00.0"
    assert words in found.message
    assert found.message.startswith("GPU 5 ")
    assert found.remedy


@pytest.mark.parametrize(
    "gpu",
    [
        healthy(5, retired_pages=14),
        healthy(5, remapped_correctable=500, remapped_uncorrectable=11),
        healthy(5, temperature_margin_c=-1),
        healthy(5, pcie_generation=1),  # idle
        healthy(5, pcie_generation=1, utilization_gpu=90, pstate=8),
        healthy(5, pcie_generation=1, utilization_gpu=29),
        healthy(5, clocks_event_reasons=0x4),  # software power cap
    ],
)
def test_what_is_within_its_limit_is_no_finding(gpu: GpuSnapshot) -> None:
    assert findings(with_gpu(5, gpu), BASELINE) == []


def test_a_setting_that_all_gpus_have_is_one_note_about_the_node() -> None:
    (found,) = findings(snapshot(*(healthy(i, persistence_mode=0) for i in range(8))), BASELINE)
    assert (found.key, found.component.kind) == ("persistence_mode/node", ComponentKind.NODE)
    assert found.message == "all 8 GPUs alike: GPU 0 has its persistence mode off"


@pytest.mark.parametrize("reading", READINGS)
def test_a_value_that_cannot_be_read_never_accuses(reading: str) -> None:
    for why in (Unread.FAILED, Unread.NO_PERMISSION, Unread.NOT_SUPPORTED):
        assert findings(with_gpu(5, healthy(5, **{reading: why})), BASELINE) == []


@pytest.mark.parametrize(("gpu", "check"), [(gpu, check) for gpu, check, *_ in FAULTS if gpu.access is None])
@pytest.mark.parametrize("why", [Unread.FAILED, Unread.NOT_SUPPORTED])
def test_what_was_found_never_goes_away_because_a_call_fails(gpu: GpuSnapshot, check: str, why: Unread) -> None:
    """Whatever reading a finding rests on, all of them or one; a driver in trouble says "not supported" too."""
    rests_on = [name for name in READINGS if getattr(gpu, name) != getattr(healthy(5), name)]
    for names in (rests_on, *([name] for name in rests_on)):
        seen = with_gpu(5, replace(gpu, **dict.fromkeys(names, why)))
        still = undecided(seen, BASELINE).keys() | {found.key for found in findings(seen, BASELINE)}
        assert f"{check}/GPU-5" in still, names


def test_links_that_are_not_told_any_more_are_not_up() -> None:
    for links in ((), (1,) * 3, (1, Unread.FAILED)):
        assert "nvlink_down/GPU-5" in undecided(with_gpu(5, healthy(5, nvlinks=links)), BASELINE)


@pytest.mark.parametrize("why", [Unread.LOST, Unread.RESET_REQUIRED, Unread.FAILED, Unread.NO_PERMISSION])
def test_of_a_gpu_that_does_not_answer_everything_else_is_undecided(why: Unread) -> None:
    silent = with_gpu(1, GpuSnapshot.unanswered(identity(1), why))
    checks = {check.__name__ for check in GPU_CHECKS} - {"gpu_missing", "gpu_lost", "gpu_unreadable"}
    assert {f"{check}/GPU-1" for check in checks} <= undecided(silent, BASELINE).keys()


VALUES = st.one_of(st.sampled_from(list(Unread)), st.integers(-(2**31), 2**64))


@given(st.lists(st.fixed_dictionaries(dict.fromkeys(READINGS, VALUES)), max_size=3))
def test_no_value_at_all_breaks_a_check(rows: list[dict[str, Any]]) -> None:
    baseline = BASELINE
    for number, row in enumerate(rows):
        seen = replace(with_gpu(5, healthy(5, **row)), monotonic_ns=number * 30 * 10**9)
        host = Host((port(),), FabricManager(needed=True, running=False)) if number else NOTHING
        baseline = baseline.advance(seen, host)
        evaluate(seen, baseline, limits_file.shipped(), host)
