"""Reads the state of the InfiniBand and RoCE ports from sysfs: a few small files a port.

A read asks the NIC's firmware and may block as long as that hangs, so it does not belong into the event loop
(reading.py).  Virtual functions are left out: they come and go with the Pods that own them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nvcre_agent.host.model import IbPort
from nvcre_agent.nvml.snapshot import PciAddress

MAX_PORTS = 64  # nobody has more NICs; what is beyond is not read
_INTERFACE_UP = 0x1  # IFF_UP of /sys/class/net/*/flags, <linux/if.h>


def read_ports(sysfs: Path) -> tuple[IbPort, ...] | None:
    """Ports below `sysfs`/class/infiniband.  None where the directory is not there; a port that goes away meanwhile is
    left out."""
    try:
        devices = sorted((sysfs / "class/infiniband").iterdir())
    except OSError:
        return None
    ports: list[IbPort] = []
    for device in devices:
        if (device / "device/physfn").exists():
            continue
        for port in _ports_of(device):
            if len(ports) == MAX_PORTS:
                return tuple(ports)
            ports.append(port)
    return tuple(ports)


def has_ports(sysfs: Path) -> bool:
    return (sysfs / "class/infiniband").is_dir()


def _ports_of(device: Path) -> Iterator[IbPort]:
    try:
        numbers = sorted(entry.name for entry in (device / "ports").iterdir())
    except OSError:
        return
    for number in numbers:
        port = device / "ports" / number
        try:
            state = _word(port / "state")
            physical = _word(port / "phys_state")
        except OSError:
            continue
        active = state == "ACTIVE"
        yield IbPort(
            name=f"{device.name}/{number}",
            pci=_pci(device),
            active=active,
            state=state,
            physical=physical,
            planned_down=not active and _is_planned(device, port, physical),
        )


def _is_planned(device: Path, port: Path, physical: str) -> bool:
    """Did a person take the port down?

    InfiniBand says so itself.  An Ethernet port is "Disabled" whenever it has no carrier, so there its interface says.
    """
    try:
        ethernet = _word(port / "link_layer") == "Ethernet"
    except OSError:
        ethernet = False
    if not ethernet:
        return physical == "Disabled"
    try:
        flags = [int(_word(interface / "flags"), 16) for interface in (device / "device/net").iterdir()]
    except (OSError, ValueError):
        return False
    return bool(flags) and not any(one & _INTERFACE_UP for one in flags)


def _word(path: Path) -> str:
    """`4: ACTIVE` is ACTIVE."""
    with path.open("rb") as file:
        text = file.read(64).decode("ascii", "replace")
    return text.rpartition(":")[2].strip()


def _pci(device: Path) -> str:
    address = (device / "device").resolve().name
    try:
        return str(PciAddress.parse(address))[:-1] + address.rpartition(".")[2]
    except ValueError:
        return ""
