"""The fault scenarios of the reference note (section 8) that are about the life of an incident: what is one, when it
is over, and what it becomes when it comes back. Each under its number, without processes; over real agent processes
see tests/component/agent/test_boots.py.
"""

import pytest
from nvcre_agent.checks.baseline import CONFIRMED_AFTER
from nvcre_agent.checks.model import Component
from nvcre_agent.incidents import folding
from nvcre_agent.incidents.escalation import ladder
from nvcre_agent.incidents.model import ChangeKind
from nvcre_agent.nvml.snapshot import GpuIdentity, PciAddress
from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, RecoveredBy, Source
from support.faulty_node import BUS_LOST, GPUS, WALL, FaultyNode

DAY_S = 24 * 3600.0
OUT_OF_RANGE = "Graphics SM Warp Exception on (GPC {gpc}, TPC {tpc}, SM 0): Out Of Range Address"
LINK_DOWN = "NETIR_LINK_DOWN Fatal XC0 i0 Link 11 (0x00a00011 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"


def recovered(node: FaultyNode) -> None:
    """The remedy helped: NVML sees all GPUs, and it stays quiet."""
    node.snapshot()
    node.wait(folding.REMEDY_QUIET_S + 1)


# --- 1


def test_01_a_lost_gpu_is_one_incident_whoever_tells_it() -> None:
    node = FaultyNode()
    node.xid(79, BUS_LOST, gpu=5)
    node.nvml_xid(79, gpu=5)
    for text in (
        "NVRM: GPU 0000:40:00.0: GPU has fallen off the bus.",
        "NVRM: GPU 0000:40:00.0: RmInitAdapter failed! (0x24:0x72:1568)",
        "nvidia 0000:40:00.0: AER: can't recover (no error_detected callback)",
    ):
        node.record(text)
    node.finds("gpu_lost", gpu=5)
    node.finds("recovery_action", gpu=5)
    one = node.only()
    assert (one.code, one.fault_class, one.blame, one.count) == (79, FaultClass.NEEDS_REBOOT, Blame.YES, 1)
    assert one.component == Component(ComponentKind.GPU, 5, "GPU-5", "00000000:40:00.0")
    assert set(one.sources) == {Source.KERNEL_LOG, Source.NVML}


def test_01_it_is_over_after_the_reboot_and_fatal_when_it_comes_back() -> None:
    node = FaultyNode()
    node.xid(79, BUS_LOST)
    node.reboot()
    recovered(node)
    assert (node.open, node.closed()) == ((), [(79, RecoveredBy.REBOOT)])
    node.restart()
    node.wait(DAY_S)
    node.xid(79, BUS_LOST)
    one = node.only()
    assert (one.fault_class, one.blame) == (FaultClass.FATAL_HARDWARE, Blame.YES)
    assert "replace" in one.remedy
    node.reboot()
    recovered(node)
    assert [one.code for one in node.open] == [79], "another reboot is no cure"


def test_01_it_is_the_same_fault_under_the_name_of_the_plain_bus_loss() -> None:
    node = FaultyNode()
    node.xid(79, BUS_LOST)
    node.reboot()
    recovered(node)
    node.record(f"NVRM: GPU 0000:3b:00.0: {BUS_LOST}")
    assert node.only().fault_class is FaultClass.FATAL_HARDWARE


def test_01_it_is_fatal_at_once_when_the_reboot_did_not_help() -> None:
    node = FaultyNode()
    node.xid(79, BUS_LOST)
    node.reboot()
    node.xid(79, BUS_LOST)
    assert node.only().fault_class is FaultClass.FATAL_HARDWARE


def test_01_a_gpu_that_stays_away_after_the_reboot_is_fatal() -> None:
    node = FaultyNode()
    node.xid(79, BUS_LOST)
    node.reboot()
    node.snapshot(GPUS[1:])
    [told] = node.finds("gpu_missing")
    assert (told.kind, node.only().fault_class) == (ChangeKind.UPDATED, FaultClass.FATAL_HARDWARE)


def test_01_long_after_it_is_a_first_time_again() -> None:
    node = FaultyNode()
    node.xid(79, BUS_LOST)
    node.reboot()
    recovered(node)
    node.wait(ladder().window_s + 3600)
    node.xid(79, BUS_LOST)
    assert node.only().fault_class is FaultClass.NEEDS_REBOOT


def test_01_the_neighbour_s_reboot_is_not_its_remedy() -> None:
    node = FaultyNode()
    node.xid(79, BUS_LOST, gpu=1)
    node.reboot()
    recovered(node)
    node.xid(79, BUS_LOST, gpu=2)
    assert node.only().fault_class is FaultClass.NEEDS_REBOOT


# --- 5


def test_05_an_exception_names_the_part_of_the_gpu_the_same_way_each_time() -> None:
    node = FaultyNode()
    node.xid(13, OUT_OF_RANGE.format(gpc=1, tpc=3), pid=7)
    node.xid(13, "Graphics Exception: ESR 0x50df30=0xc0e", pid=7)
    assert (node.only().unit, node.only().pid, node.only().process) == ("GPC 1, TPC 3", 7, "train")
    node.wait(DAY_S / 2)
    node.xid(13, "Graphics SM Global Exception on (GPC 1, TPC 3, SM 1): Multiple Warp Errors", pid=99)
    assert (node.only().unit, node.only().pid) == ("GPC 1, TPC 3", 99), "another job is another incident"


def test_05_an_exception_all_over_the_gpu_names_no_part_alone() -> None:
    node = FaultyNode()
    for tpc in range(6):
        node.xid(13, OUT_OF_RANGE.format(gpc=0, tpc=tpc), pid=7)
    assert node.only().unit.startswith("GPC 0, TPC 0; GPC 0, TPC 1")


def test_05_a_page_fault_of_two_jobs_is_two_incidents_of_one_gpu() -> None:
    node = FaultyNode()
    text = "Ch 00000007, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_6 faulted @ 0x7f5a_e7504000."
    for pid in (7, 8):
        node.xid(31, text, pid=pid)
    assert [(one.code, one.pid, one.component.uuid, one.unit) for one in node.open] == [
        (31, 7, "GPU-0", "GPCCLIENT_T1_6"),
        (31, 8, "GPU-0", "GPCCLIENT_T1_6"),
    ]


# --- 7


@pytest.mark.parametrize(("pid", "after_s"), [(6, 1.0), (5, 60.0), (6, 1200.0)])
def test_07_a_second_contained_error_soon_after_accuses_the_gpu(pid: int, after_s: float) -> None:
    node = FaultyNode()
    node.xid(94, "Contained: SM (0x1)", pid=5)
    assert node.only().blame is Blame.CONDITIONAL
    node.restart()
    node.wait(after_s)
    node.xid(94, "Contained: SM (0x1)", pid=pid)
    assert (FaultClass.NEEDS_RESET, Blame.YES) in [(one.fault_class, one.blame) for one in node.open]


def test_07_one_contained_error_in_several_lines_and_both_sources_does_not() -> None:
    node = FaultyNode()
    node.nvml_xid(94)
    for _ in range(3):
        node.xid(94, "Contained: SM (0x1)", pid=5)
        node.nvml_xid(94)
    assert (node.only().fault_class, node.only().blame) == (FaultClass.APPLICATION, Blame.CONDITIONAL)


def test_07_a_second_contained_error_much_later_or_on_another_gpu_does_not() -> None:
    node = FaultyNode()
    node.xid(94, "Contained", pid=5)
    node.wait(60)
    node.xid(94, "Contained", pid=6, gpu=1)
    node.wait(DAY_S)
    node.xid(94, "Contained", pid=7)
    assert all(change.incident.blame is not Blame.YES for change in node.changes)


# --- 8, 39, 40


def test_08_a_failed_remap_outlives_restart_and_reboot() -> None:
    node = FaultyNode()
    node.xid(64, "Row Remapper: failed")
    node.restart()
    node.reboot()
    recovered(node)
    assert node.only().fault_class is FaultClass.FATAL_HARDWARE


def test_09_a_reset_that_did_not_last_asks_for_a_reboot_and_then_for_an_inspection() -> None:
    node = FaultyNode()
    seen = []
    for remedy in (node.reset, node.reboot, node.reboot):
        node.xid(119, "Timeout after 6s of waiting for RPC response from GPU0 GSP!")
        seen.append(node.only().fault_class)
        remedy()
        recovered(node)
        node.wait(3600)
    assert seen == [FaultClass.NEEDS_RESET, FaultClass.NEEDS_REBOOT, FaultClass.FATAL_HARDWARE]


def test_16_a_link_that_dies_again_after_the_reset_is_fatal() -> None:
    node = FaultyNode()
    node.xid(149, LINK_DOWN)
    assert (node.only().fault_class, node.only().blame) == (FaultClass.NEEDS_RESET, Blame.YES)
    node.reset()
    recovered(node)
    assert node.open == ()
    node.xid(149, LINK_DOWN)
    assert node.only().fault_class is FaultClass.FATAL_HARDWARE


def test_39_a_gpu_that_was_replaced_takes_its_incidents_and_its_past_with_it() -> None:
    node = FaultyNode()
    node.xid(64, "Row Remapper: failed")
    node.finds("row_remap_failure", fault_class=FaultClass.FATAL_HARDWARE)
    node.xid(79, BUS_LOST, gpu=1)
    node.gpus = (GpuIdentity(0, "GPU-new", PciAddress(0, 0x3B, 0), "NVIDIA H100 80GB HBM3", "n"), *GPUS[1:])
    node.reboot()
    for _ in range(CONFIRMED_AFTER - 1):
        node.snapshot()
        assert node.closed() == [], "not confirmed"
    node.snapshot()
    assert sorted(node.closed()) == [(0, RecoveredBy.REPLACED), (64, RecoveredBy.REPLACED)]
    assert [one.component.uuid for one in node.open] == ["GPU-1"]


def test_39_a_gpu_that_moved_to_another_slot_keeps_its_incident() -> None:
    node = FaultyNode()
    node.xid(64, "Row Remapper: failed", gpu=0)
    node.gpus = (GpuIdentity(0, "GPU-0", PciAddress(0, 0x9B, 0), "NVIDIA H100 80GB HBM3", "s0"),)
    node.reboot()
    node.snapshot()
    node.snapshot()
    assert node.only().component == Component(ComponentKind.GPU, 0, "GPU-0", "00000000:9B:00.0")
    node.xid(64, "Row Remapper: failed", gpu=0x60)
    assert node.only().count == 2


def test_40_a_reset_by_hand_ends_the_fault_after_a_quiet_time_without_a_reboot() -> None:
    node = FaultyNode()
    node.snapshot()
    node.xid(95, "Uncontained")
    node.finds("recovery_action", fault_class=FaultClass.NEEDS_RESET)
    node.wait(3600)
    assert len(node.open) == 1
    node.reset()
    node.wait(folding.REMEDY_QUIET_S + 1)
    assert len(node.open) == 1, "the driver still asks for it"
    node.finds_no_more("recovery_action")
    node.wait(1)
    assert node.closed() == [(95, RecoveredBy.RESET)]


def test_40_a_new_xid_in_the_quiet_time_keeps_it_open() -> None:
    node = FaultyNode()
    node.snapshot()
    node.xid(95, "Uncontained")
    node.reset()
    node.wait(folding.REMEDY_QUIET_S / 2)
    node.xid(95, "Uncontained")
    node.wait(10 * folding.REMEDY_QUIET_S)
    assert node.only().fault_class is FaultClass.NEEDS_REBOOT


def test_40_a_restart_of_the_agent_in_the_quiet_time_changes_nothing() -> None:
    node = FaultyNode()
    node.xid(95, "Uncontained")
    node.reset()
    node.restart()
    recovered(node)
    assert node.closed() == [(95, RecoveredBy.RESET)]


def test_40_a_person_may_vouch_for_a_gpu_but_not_against_a_check() -> None:
    node = FaultyNode()
    node.xid(64, "Row Remapper: failed")
    node.xid(79, BUS_LOST, gpu=1)
    node.finds("gpu_lost", gpu=1)
    ids = [one.id for one in node.folding.open_incidents]
    node.folding.set_healthy(ids, None, said="set healthy by ada", **node.now)
    assert [(one.check, one.component.uuid) for one in node.open] == [("gpu_lost", "GPU-1")]


def test_40_a_finding_that_a_person_vouches_for_is_closed_by_name_and_its_check_may_raise_it_anew() -> None:
    node = FaultyNode()
    node.finds("gpu_lost", gpu=1)
    [one] = node.folding.open_incidents
    changes, findings = node.folding.set_healthy([one.id, "unknown"], ("GPU-1",), said="set healthy by ada", **node.now)
    [told] = [change.incident for change in changes]
    assert (told.recovered_by, told.message.partition("; ")[0]) == (RecoveredBy.SET_HEALTHY, "set healthy by ada")
    assert findings == {"gpu_lost/GPU-1"}
    assert node.folding.is_empty


# --- 10, 11, 12


def test_10_a_fault_from_before_the_agent_s_start_has_its_own_time_and_is_told_once() -> None:
    node = FaultyNode()
    node.prints(f"NVRM: Xid (PCI:0000:3b:00): 79, {BUS_LOST}")
    node.clock_s += 600
    node.wall_s += 600
    node.restart()
    assert (node.only().first_seen_s, node.changes[-1].time_uncertain) == (WALL, True)
    for _ in range(3):
        node.restart()
    assert [change.kind for change in node.changes] == [ChangeKind.OPENED]


def test_11_a_restart_with_the_fault_in_the_ring_buffer_repeats_nothing_and_stays_unhealthy() -> None:
    node = FaultyNode()
    node.xid(79, BUS_LOST)
    node.restart()
    node.restart()
    node.snapshot(GPUS[1:])
    node.wait(3600)
    assert (node.only().count, node.only().blame) == (1, Blame.YES)
    assert [change.kind for change in node.changes] == [ChangeKind.OPENED]


def test_12_a_fault_of_the_boot_before_is_not_told_again() -> None:
    node = FaultyNode()
    node.xid(13, OUT_OF_RANGE.format(gpc=1, tpc=3), pid=7)
    node.xid(79, BUS_LOST, gpu=1)
    node.reboot(down_s=DAY_S)
    assert sorted(one.code for one in node.open) == [13, 79]
    recovered(node)
    assert dict(node.closed()) == {13: RecoveredBy.QUIET, 79: RecoveredBy.REBOOT}
    assert [change.incident.code for change in node.changes if change.kind is ChangeKind.OPENED] == [13, 79]


def test_12_what_is_too_old_when_it_is_first_read_is_history_and_accuses_nobody() -> None:
    node = FaultyNode()
    node.prints("NVRM: Xid (PCI:0000:3b:00): 95, Uncontained")
    node.clock_s += folding.ACT_WITHIN_S + 10
    node.wall_s += folding.ACT_WITHIN_S + 10
    node.restart()
    assert (node.only().blame, node.only().first_seen_s) == (Blame.NO, WALL)
    node.wait(1)
    [last] = [change for change in node.changes if change.kind is ChangeKind.RECOVERED]
    assert last.incident.recovered_at_s == WALL + folding.QUIET_S
    node.xid(95, "Uncontained")
    assert node.only().blame is Blame.YES


# --- 13, 14


def test_13_a_storm_of_an_hour_is_one_incident_a_handful_of_events_and_nothing_in_memory() -> None:
    node = FaultyNode()
    node.xid(95, "Uncontained: LTC TAG (0x2,0x0)")
    for _ in range(3600):
        for _ in range(10):
            node.nvml_xid(95)
        node.xid(95, "Uncontained: LTC TAG (0x2,0x0)")
        node.wait(1.0)
    one = node.only()
    assert (one.count, one.last_seen_s - one.first_seen_s) == (3601, 3599.0)
    assert len(node.changes) <= 24
    node.commit()
    assert len(node.disk) == 1


def test_14_what_the_kernel_log_lost_is_told_by_nvml() -> None:
    node = FaultyNode()
    node.nvml_xid(95)
    assert (node.only().blame, node.only().sources) == (Blame.YES, (Source.NVML,))
    node.finds("recovery_action", fault_class=FaultClass.NEEDS_REBOOT)
    assert node.only().fault_class is FaultClass.NEEDS_REBOOT, "what the driver asks for raises the verdict"


# --- 35


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_35_a_jump_of_the_wall_clock_neither_splits_nor_ends_an_incident(jump_s: float) -> None:
    node = FaultyNode()
    node.xid(13, "x", pid=7)
    node.wall_s += jump_s
    node.wait(5)
    node.nvml_xid(13)
    node.xid(13, "x", pid=7)
    assert node.only().count == 2
    node.wait(folding.QUIET_S)
    [*_, last] = node.changes
    assert last.kind is ChangeKind.RECOVERED
    incident = last.incident
    assert incident.first_seen_s <= incident.last_seen_s <= (incident.recovered_at_s or 0)
    assert [change.monotonic_s for change in node.changes] == sorted(change.monotonic_s for change in node.changes)


# --- 36


def test_36_a_fault_of_a_mig_instance_is_not_its_neighbour_s() -> None:
    node = FaultyNode()
    for instance in (3, 5):
        node.record(f"NVRM: Xid (PCI:0000:3b:00 GPU-I:{instance:02d} GPU-CI:00): 95, pid=5, name=a, Uncontained")
    assert [one.component for one in node.open] == [
        Component(ComponentKind.GPU, 0, "GPU-0", "00000000:3B:00.0", instance, 0) for instance in (3, 5)
    ]
    node.xid(95, "Uncontained")
    whole = node.open[-1].component
    assert (whole.gpu_instance, whole.compute_instance) == (None, None), "without ids it is every instance of the GPU"


@pytest.mark.parametrize("nvml_first", [True, False])
def test_36_nvml_s_instance_and_the_line_without_one_are_one_fault(nvml_first: bool) -> None:
    node = FaultyNode()
    tell = [lambda: node.nvml_xid(95, instance=4), lambda: node.xid(95, "Uncontained", pid=5)]
    for one in tell if nvml_first else reversed(tell):
        one()
    assert (node.only().component.gpu_instance, node.only().pid, node.only().count) == (4, 5, 1)


# --- 45, 47


def test_45_a_fault_of_a_far_pci_domain_clears_with_the_gpu_that_nvml_prints_long() -> None:
    node = FaultyNode()
    node.gpus = (GpuIdentity(0, "GPU-g", PciAddress(8, 6, 0), "NVIDIA GH200 480GB", "s"),)
    node.record(f"NVRM: Xid (PCI:0008:06:00): 79, {BUS_LOST}")
    assert node.only().component == Component(ComponentKind.GPU, 0, "GPU-g", "00000008:06:00.0")
    node.reboot()
    recovered(node)
    assert node.closed() == [(79, RecoveredBy.REBOOT)]


@pytest.mark.parametrize(
    "forged",
    [
        "NVRM: The NVIDIA GPU 0000:3b:00.0",  # would take the end of the next loss for its own
        "NVRM: is not supported by this driver",  # would end the loss of the kernel's first line
    ],
)
def test_47_what_the_kernel_tells_in_three_records_is_neither_begun_nor_ended_by_a_process(forged: str) -> None:
    node = FaultyNode()
    if "GPU 0000" in forged:
        node.record(forged, facility=1)
    node.record("NVRM: The NVIDIA GPU 0000:3e:00.0")
    if "not supported" in forged:
        node.record(forged, facility=1)
    node.record("NVRM: (PCI ID: 10de:2330) installed in this system has")
    node.record("NVRM: fallen off the bus and is not responding to commands.")
    assert (node.only().component.uuid, node.only().injected, node.only().blame) == ("GPU-3", False, Blame.YES)


def test_47_a_forged_line_neither_accuses_nor_escalates_nor_stays() -> None:
    node = FaultyNode()
    forged = f"NVRM: Xid (PCI:0000:3b:00): 79, {BUS_LOST}"
    node.record(forged, facility=1)
    assert (node.only().injected, node.only().blame) == (True, Blame.NO)
    node.reboot()
    recovered(node)
    node.wait(folding.QUIET_S)
    assert node.closed() == [(79, RecoveredBy.QUIET)]
    node.xid(79, BUS_LOST)
    assert node.only().fault_class is FaultClass.NEEDS_REBOOT
