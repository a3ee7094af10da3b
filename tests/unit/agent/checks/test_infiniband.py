"""When a port's outages are a fault, told by samples of sysfs and by lines of the kernel."""

import pytest
from nvcre_agent.checks.ports import MAX_OUTAGES, Ports
from nvcre_agent.kernel.model import KernelEvent, KernelEventKind
from support.checked_node import CheckedNode, port

PCI = "00000000:19:00.0"


def node_with_a_port() -> CheckedNode:
    node = CheckedNode()
    node.ports = (port(), port("mlx5_1/1", pci="00000000:19:00.1"))
    node.look()
    return node


def go(node: CheckedNode, state: str, seconds: float, *, planned: bool = False) -> None:
    """The first port is in `state` from the next snapshot on, for `seconds`."""
    node.ports = (port(state=state, planned=planned), port("mlx5_1/1", pci="00000000:19:00.1"))
    node.watch(seconds)


@pytest.mark.parametrize("state", ["DOWN", "INIT"])
def test_a_port_is_down_when_it_was_so_for_four_minutes_and_recovers_when_it_is_up(state: str) -> None:
    node = node_with_a_port()
    go(node, state, 240)
    assert node.checks == []
    go(node, state, 30)
    assert (node.only().check, node.only().component.pci_bus_id) == ("ib_port_down", PCI)
    assert state in node.only().message
    go(node, "ACTIVE", 120)
    assert node.checks == []


def test_a_port_that_sysfs_does_not_list_any_more_is_down() -> None:
    node = node_with_a_port()
    node.ports = node.ports[1:] if node.ports else ()
    node.watch(300)
    assert "gone from /sys" in node.only().message


def test_a_device_that_was_renamed_or_replaced_at_its_address_is_not_missed() -> None:
    node = node_with_a_port()
    node.ports = (port("mlx5_renamed/1", pci=PCI), port("mlx5_1/1", pci="00000000:19:00.1"))
    node.watch(600)
    assert node.checks == []
    assert node.baseline.ports.known.keys() == {"mlx5_renamed/1", "mlx5_1/1"}


def test_a_port_that_was_never_active_is_unused() -> None:
    node = CheckedNode()
    node.ports = (port(state="DOWN"),)
    node.watch(3600)
    assert node.checks == []


def test_a_port_that_stayed_away_after_a_reboot_is_down() -> None:
    node = node_with_a_port()
    node.restart(boot_id="boot-2")
    go(node, "DOWN", 300)
    assert node.checks == ["ib_port_down"]


def test_ports_that_cannot_be_read_leave_everything_as_it_is() -> None:
    node = node_with_a_port()
    go(node, "DOWN", 300)
    node.ports = None
    node.watch(3600)
    assert node.checks == ["ib_port_down"]


def test_three_outages_are_flapping_until_an_hour_was_quiet() -> None:
    node = node_with_a_port()
    for _ in range(2):
        go(node, "DOWN", 60)
        go(node, "ACTIVE", 7200)
    assert node.checks == []
    go(node, "DOWN", 60)
    go(node, "ACTIVE", 30)
    assert node.only().check == "ib_port_flapping"
    assert "3 times within 12 hours" in node.only().message
    go(node, "ACTIVE", 3500)
    assert node.checks == ["ib_port_flapping"]
    go(node, "ACTIVE", 240)
    assert node.checks == []


def test_outages_are_forgotten_after_twelve_hours() -> None:
    node = node_with_a_port()
    for _ in range(4):
        go(node, "DOWN", 60)
        go(node, "ACTIVE", 5 * 3600)
        assert node.checks == []


def test_outages_are_remembered_over_a_restart_and_forgotten_by_a_reboot() -> None:
    for boot_id, expected in ((None, ["ib_port_flapping"]), ("boot-2", [])):
        node = node_with_a_port()
        for _ in range(2):
            go(node, "DOWN", 60)
            go(node, "ACTIVE", 600)
        node.restart(boot_id=boot_id)
        go(node, "DOWN", 60)
        go(node, "ACTIVE", 30)
        assert node.checks == expected


def test_a_port_that_a_person_took_down_has_no_outage() -> None:
    node = node_with_a_port()
    for _ in range(4):
        go(node, "DOWN", 600, planned=True)
        go(node, "ACTIVE", 60)
    assert node.checks == []


def test_taking_a_broken_port_down_does_not_mend_it() -> None:
    node = node_with_a_port()
    go(node, "DOWN", 300)
    go(node, "DOWN", 3600, planned=True)
    assert node.checks == ["ib_port_down"]


# --- what the kernel's lines add


def sampled(at_s: float = 0.0) -> Ports:
    return Ports().sampled([port(), port("mlx5_1/1", pci="00000000:19:00.1")], at_s)


def test_the_kernel_has_the_exact_times() -> None:
    ports = sampled().told(PCI, up=False, at_s=31).sampled([port(state="DOWN")], 60).told(PCI, up=True, at_s=62)
    [outage] = ports.known["mlx5_0/1"].outages
    assert (outage.ended_s, outage.lasted_s) == (62, 31)
    assert ports.sampled([port()], 90).known["mlx5_0/1"].outages == (outage,)
    assert ports.known["mlx5_1/1"].outages == ()


def test_a_line_older_than_the_last_sample_tells_nothing_new() -> None:
    assert sampled(at_s=500).told(PCI, up=False, at_s=100).known["mlx5_0/1"].down_since_s is None


def test_a_line_with_a_name_only_is_given_the_address() -> None:
    event = KernelEvent(KernelEventKind.IB_LINK, "Link DOWN", "raw", device="mlx5_1", state="DOWN")
    assert sampled().located(event).pci == "00000000:19:00.1"
    assert sampled().told("mlx5_1", up=False, at_s=5).known["mlx5_1/1"].down_since_s == 5


def test_memory_of_a_port_is_bounded() -> None:
    ports = sampled()
    for second in range(1, 1000, 2):
        ports = ports.told(PCI, up=False, at_s=second).told(PCI, up=True, at_s=second + 1)
    assert len(ports.known["mlx5_0/1"].outages) == MAX_OUTAGES
