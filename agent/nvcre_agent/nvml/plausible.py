"""Which values a reading can have at all: whatever is outside was not read, however well the call went.

Dying GPUs and drivers answer SUCCESS with garbage, and missing values are marked with huge numbers: DCGM's blanks
(dcgm_structs.h in https://github.com/NVIDIA/DCGM: 0x7ffffff0 and 0x7ffffffffffffff0 upwards) and NVML's
NVML_VALUE_NOT_AVAILABLE (all bits set).  The ranges are what hardware can do with room for the next generations; they
are not limits of health, which are in checks/.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nvcre_agent.nvml.snapshot import READINGS, MigInstance, Reading, Unread

_BLANKS = (range(0x7FFFFFF0, 0x80000000), range(0xFFFFFFF0, 0x100000000))
_ANY_COUNT = (0, 1 << 62)
_FLAG = (0, 1)

_RANGES: dict[str, tuple[int, int]] = {
    "remap_pending": _FLAG,
    "remap_failure": _FLAG,
    "retired_pages_pending": _FLAG,
    "ecc_mode": _FLAG,
    "persistence_mode": _FLAG,
    "mig_mode": _FLAG,
    "recovery_action": (0, 255),  # 0-7 have names; a value of a newer driver is still an answer
    "clocks_event_reasons": (0, (1 << 48) - 1),
    "pstate": (0, 15),  # 32 is NVML's "unknown"
    "pcie_generation": (1, 10),
    "pcie_generation_max": (1, 10),
    "pcie_width": (1, 32),
    "pcie_width_max": (1, 32),
    "utilization_gpu": (0, 100),
    "utilization_memory": (0, 100),
    "temperature_c": (-50, 200),
    "temperature_memory_c": (-50, 200),
    "temperature_margin_c": (-150, 200),
    "sm_clock_mhz": (0, 20_000),
    "memory_clock_mhz": (0, 100_000),
    "power_mw": (0, 20_000_000),
    "power_limit_mw": (0, 20_000_000),
    "memory_used_bytes": (0, 1 << 50),
    "memory_free_bytes": (0, 1 << 50),
    "fabric_state": (0, 3),
    "fabric_status": (0, 999),
    "fabric_health_mask": (0, (1 << 32) - 1),
    "fabric_health_summary": (0, 3),
}
_MASKS = frozenset({"clocks_event_reasons", "fabric_health_mask"})  # any bits may be set, so no number is a blank
_MOST_PROCESSES = 4096
MOST_DEVICES = 64
_MOST_INSTANCES = 64


def plausible(name: str, value: Reading) -> Reading:
    """The reading, or FAILED where `name` cannot have this value."""
    if isinstance(value, Unread):
        return value
    low, high = _RANGES.get(name, _ANY_COUNT)
    if not low <= value <= high:
        return Unread.FAILED
    return Unread.FAILED if name not in _MASKS and any(value in blank for blank in _BLANKS) else value


def plausible_readings(readings: dict[str, Any]) -> dict[str, Reading]:
    """All of GpuSnapshot's readings; those that are not given were not supported."""
    return {name: plausible(name, readings.get(name, Unread.NOT_SUPPORTED)) for name in READINGS}


def plausible_link(value: Reading) -> Reading:
    return value if value in (0, 1) or isinstance(value, Unread) else Unread.FAILED


def plausible_pids(pids: Iterable[int]) -> tuple[int, ...] | Unread:
    """Process ids as the kernel has them (at most 2**22)."""
    found = tuple(pids)
    return found if len(found) <= _MOST_PROCESSES and all(0 < pid <= 1 << 22 for pid in found) else Unread.FAILED


def plausible_instance(instance: MigInstance) -> bool:
    """Instance ids are small: at most 7 or 8 of each kind on a GPU."""
    return 0 <= instance.gpu_instance < _MOST_INSTANCES and 0 <= instance.compute_instance < _MOST_INSTANCES


def plausible_slot(bus: int, device: int) -> bool:
    return 0 <= bus <= 0xFF and 0 <= device <= 0x1F


def plausible_count(devices: Reading) -> Reading:
    """Devices of a node."""
    return devices if isinstance(devices, Unread) or 0 <= devices <= MOST_DEVICES else Unread.FAILED
