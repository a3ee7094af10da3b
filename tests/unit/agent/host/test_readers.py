"""What is read of a node's /sys and /proc: real directory trees, as the kernel lays them out."""

import asyncio
import os
from pathlib import Path

import pytest
from nvcre_agent.host.fabric_manager import SEARCH_EVERY, FabricManagerReader
from nvcre_agent.host.infiniband import MAX_PORTS, read_ports
from nvcre_agent.host.model import FabricManager, IbPort
from nvcre_agent.host.reading import HostReader, host_reader
from support.eventually import eventually


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def device(
    sysfs: Path,
    name: str = "mlx5_0",
    *,
    address: str = "0000:19:00.1",
    state: str = "4: ACTIVE",
    physical: str = "5: LinkUp",
    layer: str = "InfiniBand",
    interface_flags: str | None = None,
    virtual: bool = False,
) -> None:
    pci = sysfs / "devices/pci0000:16" / address
    port = pci / "infiniband" / name / "ports/1"
    write(port / "state", f"{state}\n")
    write(port / "phys_state", f"{physical}\n")
    write(port / "link_layer", f"{layer}\n")
    if interface_flags is not None:
        write(pci / "net/eth0/flags", f"{interface_flags}\n")
    if virtual:
        (pci / "physfn").mkdir()
    link = pci / "infiniband" / name / "device"
    link.symlink_to(pci)
    (sysfs / "class/infiniband").mkdir(parents=True, exist_ok=True)
    (sysfs / "class/infiniband" / name).symlink_to(pci / "infiniband" / name)


def only(sysfs: Path) -> IbPort:
    [port] = read_ports(sysfs) or ()
    return port


def test_a_port_is_named_by_device_number_and_pci_function(tmp_path: Path) -> None:
    device(tmp_path)
    assert only(tmp_path) == IbPort("mlx5_0/1", "00000000:19:00.1", True, "ACTIVE", "LinkUp", planned_down=False)


@pytest.mark.parametrize(
    ("physical", "layer", "flags", "planned"),
    [
        ("2: Polling", "InfiniBand", None, False),
        ("3: Disabled", "InfiniBand", None, True),  # ibportstate disable
        ("3: Disabled", "Ethernet", "0x1003", False),  # the cable is out
        ("3: Disabled", "Ethernet", "0x1002", True),  # ip link set down
        ("3: Disabled", "Ethernet", None, False),
        ("3: Disabled", "Ethernet", "garbage", False),
    ],
)
def test_a_port_that_is_down_was_taken_down_or_not(
    tmp_path: Path, physical: str, layer: str, flags: str | None, planned: bool
) -> None:
    device(tmp_path, state="1: DOWN", physical=physical, layer=layer, interface_flags=flags)
    assert (only(tmp_path).active, only(tmp_path).state, only(tmp_path).planned_down) == (False, "DOWN", planned)


def test_virtual_functions_are_left_out(tmp_path: Path) -> None:
    device(tmp_path)
    device(tmp_path, "mlx5_9", address="0000:19:00.5", virtual=True)
    assert only(tmp_path).name == "mlx5_0/1"


def test_a_node_without_infiniband_has_no_ports_to_read(tmp_path: Path) -> None:
    assert read_ports(tmp_path) is None


def test_a_device_that_goes_away_or_is_odd_is_left_out(tmp_path: Path) -> None:
    device(tmp_path)
    (tmp_path / "class/infiniband/broken").symlink_to(tmp_path / "nowhere")
    write(tmp_path / "class/infiniband/half/ports/1/state", "4: ACTIVE")
    write(tmp_path / "class/infiniband/loose/ports/1/state", "\xff" * 10_000)
    write(tmp_path / "class/infiniband/loose/ports/1/phys_state", "")
    names = {port.name: port for port in read_ports(tmp_path) or ()}
    assert names.keys() == {"mlx5_0/1", "loose/1"}
    assert (names["loose/1"].active, names["loose/1"].pci) == (False, "")


def test_the_number_of_ports_is_bounded(tmp_path: Path) -> None:
    for number in range(MAX_PORTS + 5):
        write(tmp_path / f"class/infiniband/rxe{number}/ports/1/state", "4: ACTIVE")
        write(tmp_path / f"class/infiniband/rxe{number}/ports/1/phys_state", "5: LinkUp")
    assert len(read_ports(tmp_path) or ()) == MAX_PORTS


async def test_a_read_that_hangs_leaves_the_ports_unread_and_is_not_repeated(tmp_path: Path) -> None:
    """The state of a port is a FIFO that nobody writes to, as a NIC whose firmware is gone: open() blocks."""
    device(tmp_path)
    state = tmp_path / "class/infiniband/mlx5_0/ports/1/state"
    state.unlink()
    os.mkfifo(state)
    reader = HostReader(tmp_path, tmp_path / "proc", patience_s=0.05)
    assert (await reader.read()).ports is None
    stuck = state.rename(tmp_path / "stuck")
    write(state, "4: ACTIVE\n")
    assert (await reader.read()).ports is None  # the first one still hangs
    stuck.write_text("1: DOWN\n")  # and now it answers

    async def ports() -> tuple[IbPort, ...] | None:
        return (await reader.read()).ports

    assert [port.state for port in await eventually(ports)] == ["DOWN"]
    assert [port.state for port in await eventually(ports)] == ["ACTIVE"]


async def test_ports_are_read_beside_the_event_loop(tmp_path: Path) -> None:
    device(tmp_path)
    host = await HostReader(tmp_path, tmp_path / "proc", patience_s=30).read()
    assert [port.name for port in host.ports or ()] == ["mlx5_0/1"]
    assert host.fabric_manager is None


def test_a_simulated_node_never_shows_this_machine(tmp_path: Path) -> None:
    simulated = host_reader(None, None, tmp_path / "driver.json")
    device(tmp_path / "sys")
    assert [port.name for port in asyncio.run(simulated.read()).ports or ()] == ["mlx5_0/1"]


# --- the fabric manager


def process(proc: Path, pid: int, comm: str) -> None:
    write(proc / str(pid) / "comm", f"{comm}\n")


def switch(proc: Path) -> None:
    """A host with an NVSwitch."""
    process(proc, 2, "kthreadd")
    write(proc / "driver/nvidia-nvswitch/devices/0000:05:00.0/information", "")


def test_the_fabric_manager_is_found_by_its_short_name(tmp_path: Path) -> None:
    process(tmp_path, 1, "systemd")
    switch(tmp_path)
    reader = FabricManagerReader(tmp_path)
    assert reader.read(seen_before=False) == FabricManager(needed=True, running=False)
    process(tmp_path, 4711, "nv-fabricmanage")
    assert reader.read(seen_before=False) == FabricManager(needed=True, running=True)
    process(tmp_path, 4711, "bash")  # it died, and its number was given away
    assert reader.read(seen_before=False) == FabricManager(needed=True, running=False)
    process(tmp_path, 5000, "nv-fabricmanage")
    assert reader.read(seen_before=False) == FabricManager(needed=True, running=True)


def test_where_nothing_needs_it_it_is_searched_for_now_and_then(tmp_path: Path) -> None:
    process(tmp_path, 2, "kthreadd")
    reader = FabricManagerReader(tmp_path)
    assert reader.read(seen_before=False) == FabricManager(needed=False, running=False)
    process(tmp_path, 4711, "nv-fabricmanage")
    seen = [reader.read(seen_before=False) for _ in range(SEARCH_EVERY)]
    assert FabricManager(needed=False, running=True) in seen[-2:]
    assert FabricManager(needed=False, running=True) not in seen[: SEARCH_EVERY - 2]


def test_where_it_once_ran_its_return_is_seen_at_once(tmp_path: Path) -> None:
    """By an agent that started while it was dead, too."""
    process(tmp_path, 2, "kthreadd")
    reader = FabricManagerReader(tmp_path)
    assert reader.read(seen_before=True) == FabricManager(needed=False, running=False)
    process(tmp_path, 4711, "nv-fabricmanage")
    assert reader.read(seen_before=True) == FabricManager(needed=False, running=True)


def test_a_container_of_its_own_sees_no_service_of_the_host_and_misses_none(tmp_path: Path) -> None:
    switch(tmp_path)
    process(tmp_path, 2, "nvcre-agent")
    assert FabricManagerReader(tmp_path).read(seen_before=True) is None


def test_without_a_process_list_nothing_is_said(tmp_path: Path) -> None:
    assert FabricManagerReader(tmp_path / "proc").read(seen_before=True) is None
