"""What NVML said: GPU identities, snapshots, events and whether the monitor can see at all.

Plain values for everybody above the driver (checks, incident folding, metrics, probes), with a JSON form for the pipe
between the NVML child process and the agent. It neither calls NVML nor judges what was read.

A value that could not be read is an `Unread`, never a zero and never None: only two of its members accuse the GPU.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias


class Unread(enum.Enum):
    """Why a value is missing.  LOST and RESET_REQUIRED accuse the GPU, the others do not."""

    NOT_SUPPORTED = "NotSupported"
    LOST = "Lost"
    RESET_REQUIRED = "ResetRequired"
    NO_PERMISSION = "NoPermission"
    FAILED = "Failed"


Reading: TypeAlias = int | Unread

MOST_GPUS = 128  # that a node is believed to have had; a driver may make up new ones for ever

_PCI = re.compile(
    r"(?:(?P<domain>[0-9a-f]{1,8}):)?(?P<bus>[0-9a-f]{1,2}):(?P<device>[0-9a-f]{1,2})(?:\.[0-7])?", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, order=True)
class PciAddress:
    """A GPU's slot as (domain, bus, device); NVML writes 8 digits of domain, the kernel 4, both are the same GPU."""

    domain: int
    bus: int
    device: int

    @classmethod
    def parse(cls, text: str) -> PciAddress:
        """`0008:06:00`, `00000008:06:00.0` and `06:00.0` (domain 0); ValueError names anything else."""
        match = _PCI.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"PCI address {text!r} is not of the form [domain:]bus:device[.function]")
        return cls(int(match["domain"] or "0", 16), int(match["bus"], 16), int(match["device"], 16))

    def __str__(self) -> str:
        """NVML's form, as the wire contract wants it: 00000000:3B:00.0."""
        return f"{self.domain:08X}:{self.bus:02X}:{self.device:02X}.0"


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """Who a GPU is; the last good one stays known after the GPU is lost."""

    index: int
    uuid: str
    pci: PciAddress
    product: str
    serial: str
    minor: int | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """The GPUs of the node as last seen in good order, and the driver."""

    gpus: tuple[GpuIdentity, ...]
    driver_version: str
    cuda_version: str

    def remembering(self, before: Inventory | None) -> Inventory:
        """With the GPUs of `before` that are not listed any more, unless another one took their slot.

        A new NVML process cannot identify a GPU that was lost before it started; faults are still attributed to it.
        """
        if before is None:
            return self
        gone = [gpu for gpu in before.gpus if self.by_uuid(gpu.uuid) is None and self.by_pci(gpu.pci) is None]
        gpus = sorted((*self.gpus, *gone)[:MOST_GPUS], key=lambda gpu: (gpu.index, gpu.uuid))
        return Inventory(tuple(gpus), self.driver_version, self.cuda_version)

    def by_uuid(self, uuid: str) -> GpuIdentity | None:
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)

    def by_pci(self, pci: PciAddress) -> GpuIdentity | None:
        return next((gpu for gpu in self.gpus if gpu.pci == pci), None)


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A slice of a MIG GPU.  `profile` is NVML's name of its size, such as 1g.10gb; empty where it cannot be read."""

    gpu_instance: int
    compute_instance: int
    uuid: str
    profile: str


@dataclass(frozen=True, slots=True)
class GpuSnapshot:
    """One GPU at one moment.  `access` is None where the device answers, else why nothing else could be read.

    Every reading is within the range that plausible.py gives it.  Units: temperatures in degrees Celsius, the margin
    being the distance to the slowdown temperature (0 or less while it slows down, and on some H100); power in mW,
    energy in mJ since the driver loaded, clocks in MHz, memory in bytes, utilization in percent of the last sample
    period, PCIe width in lanes.  ECC totals are uncorrected (double-bit) and corrected errors, volatile since the
    driver loaded and aggregate over the lifetime; `retired_pages` counts both kinds, before Ampere only.
    Modes, `pending` and `failure` are 0 or 1.  `nvlinks` holds one reading a link (1 up, 0 down); empty where the GPU
    has no NVLink.  `fabric_state` is 0 not supported, 1 not started, 2 in progress, 3 completed, and only when
    completed does `fabric_status` (an nvmlReturn) mean anything; `fabric_health_summary` is 0 not supported, 1 healthy,
    2 unhealthy, 3 limited capacity.
    """

    identity: GpuIdentity
    access: Unread | None
    ecc_uncorrected_volatile: Reading = Unread.NOT_SUPPORTED
    ecc_uncorrected_aggregate: Reading = Unread.NOT_SUPPORTED
    ecc_corrected_volatile: Reading = Unread.NOT_SUPPORTED
    ecc_corrected_aggregate: Reading = Unread.NOT_SUPPORTED
    remap_pending: Reading = Unread.NOT_SUPPORTED
    remap_failure: Reading = Unread.NOT_SUPPORTED
    remapped_correctable: Reading = Unread.NOT_SUPPORTED
    remapped_uncorrectable: Reading = Unread.NOT_SUPPORTED
    nvlinks: tuple[Reading, ...] = ()
    nvlink_crc_errors: Reading = Unread.NOT_SUPPORTED
    nvlink_replays: Reading = Unread.NOT_SUPPORTED
    nvlink_recoveries: Reading = Unread.NOT_SUPPORTED
    recovery_action: Reading = Unread.NOT_SUPPORTED
    clocks_event_reasons: Reading = Unread.NOT_SUPPORTED
    pstate: Reading = Unread.NOT_SUPPORTED
    pcie_generation: Reading = Unread.NOT_SUPPORTED
    pcie_width: Reading = Unread.NOT_SUPPORTED
    pcie_generation_max: Reading = Unread.NOT_SUPPORTED
    pcie_width_max: Reading = Unread.NOT_SUPPORTED
    pcie_replays: Reading = Unread.NOT_SUPPORTED
    utilization_gpu: Reading = Unread.NOT_SUPPORTED
    utilization_memory: Reading = Unread.NOT_SUPPORTED
    temperature_c: Reading = Unread.NOT_SUPPORTED
    temperature_memory_c: Reading = Unread.NOT_SUPPORTED
    temperature_margin_c: Reading = Unread.NOT_SUPPORTED
    sm_clock_mhz: Reading = Unread.NOT_SUPPORTED
    memory_clock_mhz: Reading = Unread.NOT_SUPPORTED
    power_mw: Reading = Unread.NOT_SUPPORTED
    power_limit_mw: Reading = Unread.NOT_SUPPORTED
    energy_mj: Reading = Unread.NOT_SUPPORTED
    memory_used_bytes: Reading = Unread.NOT_SUPPORTED
    memory_free_bytes: Reading = Unread.NOT_SUPPORTED
    retired_pages: Reading = Unread.NOT_SUPPORTED
    retired_pages_pending: Reading = Unread.NOT_SUPPORTED
    ecc_mode: Reading = Unread.NOT_SUPPORTED
    persistence_mode: Reading = Unread.NOT_SUPPORTED
    mig_mode: Reading = Unread.NOT_SUPPORTED
    fabric_state: Reading = Unread.NOT_SUPPORTED
    fabric_status: Reading = Unread.NOT_SUPPORTED
    fabric_health_mask: Reading = Unread.NOT_SUPPORTED
    fabric_health_summary: Reading = Unread.NOT_SUPPORTED
    mig_instances: tuple[MigInstance, ...] | Unread = ()
    processes: tuple[int, ...] | Unread = Unread.NOT_SUPPORTED

    @classmethod
    def unanswered(cls, identity: GpuIdentity, why: Unread) -> GpuSnapshot:
        """A device that does not answer: every reading says so."""
        readings: dict[str, Any] = dict.fromkeys(READINGS, why)
        return cls(identity, access=why, processes=why, mig_instances=why, **readings)


READINGS: tuple[str, ...] = tuple(f.name for f in fields(GpuSnapshot) if f.type == "Reading")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All GPUs at one moment: those that answer, and those of the last good identity map that do not.

    `unidentified` says why, for each enumerated device that gave no identity and had none from before.
    """

    time_s: float  # wall clock, Unix seconds
    monotonic_ns: int
    device_count: Reading
    gpus: tuple[GpuSnapshot, ...]
    unidentified: tuple[Unread, ...] = ()

    def gpu(self, uuid: str) -> GpuSnapshot | None:
        return next((gpu for gpu in self.gpus if gpu.identity.uuid == uuid), None)


class EventType(enum.IntEnum):
    """NVML event bits that we register for (https://docs.nvidia.com/deploy/nvml-api/group__nvmlEventType.html)."""

    DOUBLE_BIT_ECC = 0x2
    XID = 0x8
    DRAM_RETIREMENT = 0x400
    DRAM_RETIREMENT_FAILURE = 0x800
    NON_FATAL_POISON = 0x1000
    FATAL_POISON = 0x2000
    GPU_UNAVAILABLE = 0x4000
    RECOVERY_ACTION = 0x8000


@dataclass(frozen=True, slots=True)
class NvmlEvent:
    """One event of the event set.  `gpu` is None for a device handle that was never identified.

    `data` is the Xid for XID events and 0 otherwise; the Xid may be 0 too.  `gpu_instance` and `compute_instance` are
    None for the whole GPU.  `event_type` is the raw bit where NVML has a type that we do not know.
    """

    gpu: GpuIdentity | None
    event_type: EventType | int
    data: int
    gpu_instance: int | None
    compute_instance: int | None
    time_s: float
    monotonic_ns: int


class Sight(enum.Enum):
    WATCHING = "Watching"
    BLIND = "Blind"


@dataclass(frozen=True, slots=True)
class MonitorState:
    """Can the monitor see?  Never a verdict about a GPU.  `reason` is a CamelCase word, empty while watching."""

    sight: Sight
    reason: str = ""
    message: str = ""


# --- JSON, for the pipe between the NVML child and the agent -------------------------------------------------------


def to_json(value: object) -> Any:
    """Dataclasses become objects, `Unread` its name, PCI addresses text; the `*_from_json` functions undo it."""
    match value:
        case PciAddress():
            return str(value)
        case Unread():
            return value.value
        case None | bool() | int() | float() | str():
            return value
        case tuple():
            return [to_json(item) for item in value]
    return {f.name: to_json(getattr(value, f.name)) for f in fields(value)}  # type: ignore[arg-type]


def _reading(raw: Any) -> Reading:
    return Unread(raw) if isinstance(raw, str) else int(raw)


def identity_from_json(raw: Mapping[str, Any]) -> GpuIdentity:
    return GpuIdentity(
        index=int(raw["index"]),
        uuid=str(raw["uuid"]),
        pci=PciAddress.parse(raw["pci"]),
        product=str(raw["product"]),
        serial=str(raw["serial"]),
        minor=None if raw["minor"] is None else int(raw["minor"]),
    )


def inventory_from_json(raw: Mapping[str, Any]) -> Inventory:
    return Inventory(
        gpus=tuple(identity_from_json(gpu) for gpu in raw["gpus"]),
        driver_version=str(raw["driver_version"]),
        cuda_version=str(raw["cuda_version"]),
    )


def _gpu_from_json(raw: Mapping[str, Any]) -> GpuSnapshot:
    processes, instances = raw["processes"], raw["mig_instances"]
    return GpuSnapshot(
        identity=identity_from_json(raw["identity"]),
        access=None if raw["access"] is None else Unread(raw["access"]),
        nvlinks=tuple(_reading(link) for link in raw["nvlinks"]),
        processes=Unread(processes) if isinstance(processes, str) else tuple(int(pid) for pid in processes),
        mig_instances=Unread(instances)
        if isinstance(instances, str)
        else tuple(MigInstance(**one) for one in instances),
        **{name: _reading(raw[name]) for name in READINGS},
    )


def snapshot_from_json(raw: Mapping[str, Any]) -> Snapshot:
    return Snapshot(
        time_s=float(raw["time_s"]),
        monotonic_ns=int(raw["monotonic_ns"]),
        device_count=_reading(raw["device_count"]),
        gpus=tuple(_gpu_from_json(gpu) for gpu in raw["gpus"]),
        unidentified=tuple(Unread(why) for why in raw["unidentified"]),
    )


def event_type(bit: int) -> EventType | int:
    try:
        return EventType(bit)
    except ValueError:
        return bit


def event_from_json(raw: Mapping[str, Any]) -> NvmlEvent:
    return NvmlEvent(
        gpu=None if raw["gpu"] is None else identity_from_json(raw["gpu"]),
        event_type=event_type(int(raw["event_type"])),
        data=int(raw["data"]),
        gpu_instance=raw["gpu_instance"],
        compute_instance=raw["compute_instance"],
        time_s=float(raw["time_s"]),
        monotonic_ns=int(raw["monotonic_ns"]),
    )
