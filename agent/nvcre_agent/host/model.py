"""What the host says about its NICs and services, apart from NVML and the kernel log: plain values.

It neither reads (infiniband.py, fabric_manager.py) nor judges (checks/).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IbPort:
    """One port of an InfiniBand or RoCE device, as sysfs names it.

    `name` is device/port ("mlx5_0/1"), `pci` NVML's spelling with the NIC's function kept (00000000:19:00.1), empty
    where the device has none.  `planned_down`: a person disabled the port or its interface.
    """

    name: str
    pci: str
    active: bool
    state: str  # "DOWN", "INIT", "ARMED", "ACTIVE"
    physical: str  # "LinkUp", "Polling", "Disabled", ...
    planned_down: bool


@dataclass(frozen=True, slots=True)
class FabricManager:
    """The service that programs the NVSwitches.  `needed`: the driver lists NVSwitches on this node."""

    needed: bool
    running: bool


@dataclass(frozen=True, slots=True)
class Host:
    """One reading.  `ports` is None where they could not be read, `fabric_manager` where /proc could not."""

    ports: tuple[IbPort, ...] | None = ()
    fabric_manager: FabricManager | None = None


NOTHING = Host()
