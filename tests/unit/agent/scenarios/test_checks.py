"""The fault scenarios of the reference note (section 8) that NVML snapshots and the host's files decide, by number.

Snapshots at the agent's pace, on a clock of their own; what the coordinator makes of them is tested there.
"""

from dataclasses import replace

import pytest
from nvcre_agent.checks.baseline import CONFIRMED_AFTER
from nvcre_agent.host.model import FabricManager
from nvcre_agent.nvml.snapshot import MigInstance, Unread
from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, IncidentKind, RecoveredBy, Source
from support.checked_node import CheckedNode, healthy, identity, port

HW_THERMAL, SW_POWER_CAP = 0x40, 0x4
NOT_STARTED, IN_PROGRESS, COMPLETED = 1, 2, 3


# --- 3


def test_03_a_gpu_absent_after_a_reboot_is_named_by_slot_and_uuid_from_the_stored_inventory() -> None:
    node = CheckedNode()
    node.watch(60)
    del node.gpus[5]
    node.restart(boot_id="boot-2")
    node.watch(60)
    assert node.checks == [], "one failed enumeration is not a lost GPU"
    node.watch(30)
    one = node.only()
    assert (one.check, one.fault_class, one.blame) == ("gpu_missing", FaultClass.NEEDS_REBOOT, Blame.YES)
    assert (one.component.uuid, one.component.pci_bus_id) == ("GPU-5", "00000000:20:00.0")
    assert "00000000:20:00.0 (GPU-5) is missing: NVML lists 7 GPUs, the node had 8" in one.message
    node.gpus[5] = healthy(5)
    node.watch(120)
    assert node.checks == []


# --- 8


def test_08_a_pending_row_remap_waits_for_the_next_drain_and_clears_with_the_reset() -> None:
    node = CheckedNode()
    node.look()
    node.set(5, remap_pending=1, remapped_correctable=1)
    node.watch(30)
    one = node.only()
    assert (one.check, one.fault_class, one.blame) == ("row_remap_pending", FaultClass.INFORMATIONAL, Blame.NO)
    assert "the next time the node is drained" in one.remedy
    node.restart()
    node.watch(3600)
    assert node.only().id == one.id, "it survives a restart of the agent"
    node.set(5, remap_pending=0)
    node.watch(120)
    assert node.checks == []


def test_08_a_failed_row_remap_is_broken_hardware() -> None:
    node = CheckedNode()
    node.set(5, remap_failure=1)
    node.watch(30)
    assert (node.only().fault_class, node.only().blame) == (FaultClass.FATAL_HARDWARE, Blame.YES)


def test_08_mig_instances_hide_the_rows_and_end_nothing() -> None:
    node = CheckedNode()
    node.set(5, remap_pending=1)
    node.watch(30)
    hidden = dict.fromkeys(("remap_pending", "remap_failure", "remapped_uncorrectable"), Unread.NOT_SUPPORTED)
    node.set(5, mig_mode=1, mig_instances=(MigInstance(1, 0, "MIG-1", "1g.10gb"),), **hidden)
    node.watch(3600)
    assert node.checks == ["row_remap_pending"]


# --- 22


def coming_up(state: int) -> CheckedNode:
    node = CheckedNode(now_s=10.0)  # the node has just booted
    for index in node.gpus:
        node.set(index, nvlinks=(0,) * 18, fabric_state=state)
    node.look()
    return node


@pytest.mark.parametrize("state", [NOT_STARTED, IN_PROGRESS])
def test_22_links_that_are_inactive_while_the_fabric_comes_up_are_waited_for(state: int) -> None:
    node = coming_up(state)
    for _ in range(3):
        node.now_s += 15
        node.look()
    assert node.open == ()
    assert {found.check for found in node.tracker.waiting} == {"fabric_registration"}
    for index in node.gpus:
        node.set(index, nvlinks=(1,) * 18, fabric_state=COMPLETED)
    node.now_s += 15
    node.look()
    assert (node.open, node.tracker.waiting) == ((), ())


def test_22_without_fabric_readings_forty_seconds_of_inactive_links_are_no_fault_either() -> None:
    node = CheckedNode()
    node.look()
    for index in node.gpus:
        node.set(index, nvlinks=(0,) * 18, fabric_state=0)
    node.restart(boot_id="boot-2")
    node.watch(40)
    for index in node.gpus:
        node.set(index, nvlinks=(1,) * 18)
    node.watch(600)
    assert node.changes == []


def test_22_a_fabric_that_does_not_come_up_is_a_fault_after_the_grace_period() -> None:
    node = coming_up(IN_PROGRESS)
    node.watch(node.limits.hysteresis["fabric_registration"].raise_after_s - 30)
    assert node.open == ()
    node.watch(30)
    one = node.only()
    assert (one.check, one.blame, one.component.kind) == ("fabric_registration", Blame.YES, ComponentKind.FABRIC)
    assert one.component.uuid == "", "of all GPUs at once none is the culprit"


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"fabric_status": 999}, "fabric_status"),
        ({"fabric_health_summary": 2}, "fabric_health"),
        ({"fabric_health_mask": 0x1}, "fabric_health"),
    ],
)
def test_22_a_completed_registration_with_an_error_or_bad_health_is_a_fault(
    changes: dict[str, int], check: str
) -> None:
    node = CheckedNode()
    node.set(4, **changes)
    node.watch(60)
    one = node.only()
    assert (one.check, one.blame, one.component.uuid) == (check, Blame.YES, "GPU-4")


# --- 23


def test_23_a_dead_fabric_manager_is_the_nodes_fault_with_a_service_to_restart() -> None:
    node = CheckedNode()
    node.fabric_manager = FabricManager(needed=True, running=True)
    node.watch(60)
    node.fabric_manager = FabricManager(needed=True, running=False)
    node.watch(30)
    node.fabric_manager = FabricManager(needed=True, running=True)
    node.watch(60)
    assert node.changes == [], "a restart of the service is not its death"
    node.fabric_manager = FabricManager(needed=True, running=False)
    node.watch(90)
    one = node.only()
    assert (one.check, one.component.kind, one.component.uuid) == ("fabric_manager", ComponentKind.FABRIC, "")
    assert (one.blame, one.sources) == (Blame.YES, (Source.HOST,))
    assert "restart the service" in one.remedy
    assert "the GPUs themselves are fine" in one.message
    node.restart()
    node.watch(600)
    assert node.only().id == one.id
    node.fabric_manager = FabricManager(needed=True, running=True)
    node.watch(60)
    assert node.open == ()


# --- 24


def test_24_an_idle_gpu_at_pcie_generation_1_is_nothing() -> None:
    node = CheckedNode()
    node.set(3, pcie_generation=1, pstate=8)
    node.watch(3600)
    node.set(3, pcie_generation=1, pstate=0, utilization_gpu=5)
    node.watch(3600)
    assert node.changes == []


def test_24_a_link_that_is_still_training_when_the_load_begins_is_nothing() -> None:
    node = CheckedNode()
    node.set(3, pcie_generation=1, pstate=0, utilization_gpu=95)
    node.watch(60)
    node.set(3, pcie_generation=5)
    node.watch(600)
    assert node.changes == []


def test_24_a_slow_link_under_load_for_several_samples_is_a_fault_with_both_numbers() -> None:
    node = CheckedNode()
    node.set(3, pcie_generation=2, pcie_width=8, pstate=0, utilization_gpu=95)
    node.watch(90)
    one = node.only()
    assert (one.check, one.blame, one.component.uuid) == ("pcie_link", Blame.YES, "GPU-3")
    assert "generation 2 x8 under load, it could do 5 x16" in one.message
    node.set(3, utilization_gpu=0, pstate=8)
    node.watch(3600)
    assert node.checks == ["pcie_link"], "an idle GPU proves nothing"
    node.set(3, pcie_generation=5, pcie_width=16, utilization_gpu=95, pstate=0)
    node.watch(120)
    assert node.open == ()


def test_24_mig_hides_the_load_and_ends_nothing() -> None:
    node = CheckedNode()
    node.set(3, pcie_width=8, utilization_gpu=95)
    node.watch(90)
    node.set(3, pcie_width=16, mig_mode=1, utilization_gpu=Unread.NOT_SUPPORTED)
    node.watch(600)
    assert "pcie_link" in node.checks


# --- 25 and 26


def test_25_a_gpu_slowed_down_by_heat_six_times_in_ten_minutes_is_an_event_and_no_accusation() -> None:
    node = CheckedNode()
    node.look()
    for _ in range(5):
        node.set(2, clocks_event_reasons=HW_THERMAL)
        node.watch(30)
        node.set(2, clocks_event_reasons=0)
        node.watch(60)
    assert node.changes == []
    node.set(2, clocks_event_reasons=HW_THERMAL)
    node.watch(30)
    one = node.only()
    assert (one.check, one.fault_class, one.blame) == ("hw_slowdown", FaultClass.INFORMATIONAL, Blame.CONDITIONAL)
    assert "slowed down by heat" in one.message
    assert "probe" in one.blame_condition
    node.watch(3600)
    assert node.changes == ["opened hw_slowdown"], "told once, however long it lasts"
    node.set(2, clocks_event_reasons=0)
    node.watch(1200)
    assert node.open == ()


def test_25_snapshots_on_demand_do_not_make_it_more() -> None:
    node = CheckedNode()
    node.set(2, clocks_event_reasons=HW_THERMAL)
    for _ in range(20):
        node.look()
        node.now_s += 1
    assert node.changes == []


def test_26_a_software_power_cap_is_never_an_event() -> None:
    node = CheckedNode()
    for toggled in range(200):
        node.set(2, clocks_event_reasons=SW_POWER_CAP if toggled % 2 else 0, power_mw=700_000)
        node.watch(30)
    assert node.changes == []


# --- 31

NIC = "00000000:19:00.0"
DOWN = "mlx5_core 0000:19:00.0: Port: 1 Link DOWN"
UP = "mlx5_core 0000:19:00.0: Port: 1 Link ACTIVE"


def node_with_a_nic() -> CheckedNode:
    node = CheckedNode()
    node.ports = (port(pci=NIC),)
    node.look()
    return node


def outage(node: CheckedNode, seconds: float, *, kernel: bool) -> None:
    if kernel:
        node.kernel(DOWN)
    node.ports = (port(pci=NIC, state="DOWN"),)
    node.watch(seconds)
    node.ports = (port(pci=NIC),)
    if kernel:
        node.kernel(UP)


@pytest.mark.parametrize("kernel", [True, False])
def test_31_three_outages_of_half_a_minute_in_twelve_hours_are_flapping(kernel: bool) -> None:
    node = node_with_a_nic()
    for _ in range(2):
        outage(node, 30, kernel=kernel)
        node.watch(4 * 3600)
    assert node.open == ()
    outage(node, 30, kernel=kernel)
    node.watch(30)
    one = node.only()
    assert (one.check, one.blame, one.component.kind) == ("ib_port_flapping", Blame.YES, ComponentKind.NIC)
    assert one.component.pci_bus_id == NIC
    outage(node, 30, kernel=kernel)
    node.watch(30)
    assert node.only().id == one.id, "further outages are the same incident"
    node.watch(2 * 3600)
    assert node.open == (), "it clears by itself after a quiet time"


def test_31_a_retrained_link_is_no_outage_the_kernel_knows_how_long_it_took() -> None:
    node = node_with_a_nic()
    for _ in range(10):
        outage(node, 4, kernel=True)
        node.watch(600)
    assert node.open == ()


@pytest.mark.parametrize("kernel", [True, False])
def test_31_four_minutes_down_are_one_incident_whoever_saw_it(kernel: bool) -> None:
    node = node_with_a_nic()
    if kernel:
        node.kernel(DOWN)
        assert (node.only().kind, node.only().blame) == (IncidentKind.IB_LINK, Blame.CONDITIONAL)
    node.ports = (port(pci=NIC, state="DOWN"),)
    node.watch(300)
    one = node.only()
    assert (one.check, one.fault_class, one.blame) == ("ib_port_down", FaultClass.NEEDS_RESET, Blame.YES)
    assert one.sources == ((Source.KERNEL_LOG, Source.HOST) if kernel else (Source.HOST,))
    node.kernel(DOWN)
    assert node.only().id == one.id
    told = len(node.changes)
    node.restart()
    node.watch(3600)
    assert (node.only().id, len(node.changes)) == (one.id, told), "a restart has nothing new to tell"
    node.ports = (port(pci=NIC),)
    node.kernel(UP)
    assert node.only().id == one.id, "the check says when it is over"
    node.watch(120)
    assert node.open == ()


def test_31_a_port_taken_down_for_maintenance_is_nobodys_fault() -> None:
    node = node_with_a_nic()
    for _ in range(4):
        node.ports = (port(pci=NIC, state="DOWN", planned=True),)
        node.watch(3600)
        node.ports = (port(pci=NIC),)
        node.watch(60)
    assert node.changes == []


# --- 39


def test_39_a_replaced_gpu_takes_its_faults_with_it_once_it_is_confirmed() -> None:
    node = CheckedNode()
    node.look()
    node.set(3, remap_failure=1, ecc_uncorrected_volatile=2)
    node.watch(30)
    assert node.checks == ["ecc_uncorrected", "row_remap_failure"]
    node.gpus[3] = healthy(3, identity=identity(3, "GPU-new"), nvlink_replays=9, ecc_uncorrected_volatile=5)
    node.restart(boot_id="boot-2")
    node.watch(30 * CONFIRMED_AFTER)
    assert node.open == (), "and what the new one counted elsewhere is not held against it"
    assert node.ended == [RecoveredBy.REPLACED] * 2
    assert "GPU-new" in node.baseline.gpus
    assert "GPU-3" not in node.baseline.gpus
    node.watch(3600)
    assert node.open == ()


def test_39_one_wrong_uuid_replaces_nothing() -> None:
    node = CheckedNode()
    node.look()
    node.set(3, remap_failure=1)
    node.watch(30)
    right = node.gpus[3]
    node.gpus[3] = healthy(3, identity=identity(3, "GPU-garbled"))
    node.watch(30)
    node.gpus[3] = right
    node.watch(600)
    assert node.checks == ["row_remap_failure"]
    assert "GPU-garbled" not in node.baseline.gpus


def test_39_a_neighbour_that_a_reboot_moves_into_the_address_of_a_lost_gpu_replaces_nothing() -> None:
    node = CheckedNode()
    node.look()
    node.set(3, remap_failure=1)
    node.watch(30)
    address = node.gpus.pop(3).identity.pci
    node.set(4, identity=replace(node.gpus[4].identity, pci=address))
    node.restart(boot_id="boot-2")
    node.watch(3600)
    assert RecoveredBy.REPLACED not in node.ended
    assert {one.component.uuid for one in node.open} == {"GPU-3"}


# --- 40


def test_40_a_reset_by_hand_ends_what_the_checks_found_when_the_driver_asks_for_nothing_more() -> None:
    node = CheckedNode()
    node.look()
    node.set(6, ecc_uncorrected_volatile=1, recovery_action=1)
    node.watch(30)
    assert node.checks == ["ecc_uncorrected", "recovery_action"]
    node.set(6, ecc_uncorrected_volatile=0)
    node.watch(600)
    assert node.checks == ["recovery_action"], "while field 230 asks for a reset it is not over"
    node.set(6, recovery_action=0)
    node.watch(30)
    assert node.checks == ["recovery_action"], "0 is believed after a quiet time only"
    node.watch(60)
    assert node.open == ()
