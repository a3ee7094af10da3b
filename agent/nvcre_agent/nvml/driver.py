"""A thin, typed layer over pynvml: identities, snapshots and event sets of the GPUs of this node.

Used only inside the NVML child process (worker.py): any call here can block for ever.  One dead GPU never hides the
others: devices are enumerated one by one, and the last good identity of each stays known.  Every value that cannot be
read comes back as an `Unread`.  It neither judges nor retries; events are in event_set.py.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pynvml

from nvcre_agent.nvml.snapshot import (
    GpuIdentity,
    GpuSnapshot,
    Inventory,
    PciAddress,
    Reading,
    Snapshot,
    Unread,
)

T = TypeVar("T")

_RECOVERY_ACTION = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
# Totals over the links of a GPU; one call for all of them, because each call takes the driver's global lock.
_CRC_FIELDS = (
    pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
)
_REPLAY_FIELD = pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL
_RECOVERY_FIELD = pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL
_FIELDS = (_RECOVERY_ACTION, *_CRC_FIELDS, _REPLAY_FIELD, _RECOVERY_FIELD)

_FIELD_MEMBER = {
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}


@dataclass(frozen=True, slots=True)
class Blind:
    """NVML cannot be used.  `reason` is a CamelCase word, `message` names the remedy."""

    reason: str
    message: str


_BLIND = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: Blind(
        "LibraryNotFound",
        "libnvidia-ml.so.1 was not found; run the agent with the NVIDIA container runtime (runtimeClassName: nvidia)",
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: Blind(
        "DriverNotLoaded",
        "the NVIDIA kernel driver is not loaded; load it (modprobe nvidia) or look at dmesg for why not",
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: Blind(
        "DriverMismatch",
        "the NVML library and the loaded kernel driver have different versions; reload the driver or reboot the node",
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: Blind(
        "NoPermission", "NVML refuses access; run the agent privileged and with access to /dev/nvidia*"
    ),
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: Blind(
        "LibraryTooOld", "libnvidia-ml.so.1 lacks a function that the agent needs; driver 450 or newer is required"
    ),
}

_UNREAD = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: Unread.NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: Unread.NOT_SUPPORTED,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: Unread.NOT_SUPPORTED,
    pynvml.NVML_ERROR_GPU_IS_LOST: Unread.LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED: Unread.RESET_REQUIRED,
    pynvml.NVML_ERROR_NO_PERMISSION: Unread.NO_PERMISSION,
}


def unread(code: int) -> Unread:
    return _UNREAD.get(code, Unread.FAILED)


def read(call: Callable[..., T], *args: object) -> T | Unread:
    """The answer of one NVML call or why there is none."""
    try:
        return call(*args)
    except pynvml.NVMLLibraryMismatchError:  # what pynvml makes of a missing symbol behind an unversioned name
        return Unread.NOT_SUPPORTED
    except pynvml.NVMLError as error:
        return unread(error.value)
    except UnicodeDecodeError:  # a string that is not text, seen on dying InfoROMs
        return Unread.FAILED


def open_driver() -> Driver | Blind:
    """Load and initialise NVML, once per process."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return _BLIND.get(
            error.value,
            Blind("InitFailed", f"nvmlInit returned {error.value}; look at dmesg and run nvidia-smi on the node"),
        )
    driver = Driver()
    driver.enumerate()
    why = driver.failing()
    if driver.device_count == 0:
        blind = Blind("NoGPUs", "NVML loads but lists no GPU; check that /dev/nvidia* are visible to the agent")
    elif why is not None:
        blind = Blind(
            "DevicesUnreadable",
            f"no GPU can be read ({why.value}); check that the agent's container has its NVIDIA devices and restart it",
        )
    else:
        return driver
    driver.close()
    return blind


class Driver:
    """The GPUs of this node.  One thread enumerates and takes snapshots; another may ask the rest meanwhile."""

    def __init__(self) -> None:
        self._handles: dict[int, Any] = {}  # by index, only devices that gave a handle in the last enumeration
        self._known: dict[int, GpuIdentity] = {}  # by index, the last good identity
        self._by_address: dict[int, GpuIdentity] = {}  # by handle, for events; old handles stay
        self.device_count: Reading = Unread.FAILED
        self.unidentified: tuple[Unread, ...] = ()
        self._driver_version = _text(read(pynvml.nvmlSystemGetDriverVersion))
        cuda = read(pynvml.nvmlSystemGetCudaDriverVersion_v2)
        self._cuda_version = f"{cuda // 1000}.{cuda % 1000 // 10}" if isinstance(cuda, int) else ""

    def inventory(self) -> Inventory:
        return Inventory(
            tuple(self._known[index] for index in sorted(self._known)), self._driver_version, self._cuda_version
        )

    def enumerate(self) -> None:
        """Look at every index by itself; a device that fails keeps the identity it had."""
        count = read(pynvml.nvmlDeviceGetCount)
        self.device_count = count
        if isinstance(count, Unread):
            return
        handles: dict[int, Any] = {}
        fresh: dict[int, GpuIdentity] = {}
        silent: dict[int, Unread] = {}
        for index in range(count):
            handle = read(pynvml.nvmlDeviceGetHandleByIndex, index)
            if isinstance(handle, Unread):
                silent[index] = handle
                continue
            handles[index] = handle
            identity = _identify(index, handle)
            if isinstance(identity, Unread):
                silent[index] = identity
                continue
            fresh[index] = identity
            self._by_address[address(handle)] = identity
        moved = {gpu.uuid for gpu in fresh.values()}
        # An index above the count is gone: the driver drops a dead GPU when it is loaded again.
        kept = {i: gpu for i, gpu in self._known.items() if i < count and i not in fresh and gpu.uuid not in moved}
        # The event thread reads these two, so they are replaced and never changed in place.
        self._known, self._handles = kept | fresh, handles
        self.unidentified = tuple(why for index, why in silent.items() if index not in self._known)

    def lost(self) -> frozenset[int]:
        """Indices of GPUs that say themselves that they are lost; a cheap call that reaches the device."""
        return frozenset(
            index
            for index in self._known
            if index not in self._handles
            or read(pynvml.nvmlDeviceGetPerformanceState, self._handles[index]) is Unread.LOST
        )

    def failing(self) -> Unread | None:
        """Why no GPU at all can be read although none is lost: a container without its devices, a broken driver."""
        if not isinstance(self.device_count, int):
            return self.device_count
        answers: set[Unread | None] = set()
        for index in range(self.device_count):
            handle = read(pynvml.nvmlDeviceGetHandleByIndex, index)
            answer = handle if isinstance(handle, Unread) else read(pynvml.nvmlDeviceGetPerformanceState, handle)
            answers.add(answer if isinstance(answer, Unread) else None)
        blameless = answers & {Unread.FAILED, Unread.NO_PERMISSION}
        return next(iter(blameless)) if blameless == answers and answers else None

    def handles(self) -> dict[int, Any]:
        return dict(self._handles)

    def identity_of(self, handle: Any) -> GpuIdentity | None:
        return self._by_address.get(address(handle))

    def snapshot(self) -> Snapshot:
        """Read everything.  Devices that did not answer before are looked for again first."""
        if len(self._handles) != self.device_count or self.unidentified:
            self.enumerate()
        return Snapshot(
            time_s=time.time(),
            monotonic_ns=time.monotonic_ns(),
            device_count=read(pynvml.nvmlDeviceGetCount),
            gpus=tuple(self._snapshot_of(self._known[index]) for index in sorted(self._known)),
            unidentified=self.unidentified,
        )

    def _snapshot_of(self, gpu: GpuIdentity) -> GpuSnapshot:
        handle = self._handles.get(gpu.index)
        if handle is None:
            handle = read(pynvml.nvmlDeviceGetHandleByIndex, gpu.index)
            return GpuSnapshot.unanswered(gpu, handle if isinstance(handle, Unread) else Unread.FAILED)
        # Two calls that reach the device: one that accuses is enough, but only both together mean "does not answer".
        pstate = read(pynvml.nvmlDeviceGetPerformanceState, handle)
        memory = read(pynvml.nvmlDeviceGetMemoryInfo, handle)
        for answer in (pstate, memory):
            if answer in (Unread.LOST, Unread.RESET_REQUIRED):
                return GpuSnapshot.unanswered(gpu, answer)
        if isinstance(pstate, Unread) and isinstance(memory, Unread) and memory is not Unread.NOT_SUPPORTED:
            return GpuSnapshot.unanswered(gpu, memory)
        return _read_device(gpu, handle, pstate, memory)

    def close(self) -> None:
        pynvml.nvmlShutdown()


def _read_device(gpu: GpuIdentity, handle: Any, pstate: Reading, memory: Any) -> GpuSnapshot:
    def ecc(kind: int, counter: int) -> Reading:
        return read(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, counter)

    uncorrected, corrected = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
    volatile, aggregate = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC
    remapped = read(pynvml.nvmlDeviceGetRemappedRows, handle)
    correctable, uncorrectable, pending, failure = (remapped,) * 4 if isinstance(remapped, Unread) else remapped
    field = _field_values(handle)
    crc = [field[name] for name in _CRC_FIELDS]
    numbers = [value for value in crc if isinstance(value, int)]
    processes = read(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return GpuSnapshot(
        identity=gpu,
        access=None,
        ecc_uncorrected_volatile=ecc(uncorrected, volatile),
        ecc_uncorrected_aggregate=ecc(uncorrected, aggregate),
        ecc_corrected_volatile=ecc(corrected, volatile),
        ecc_corrected_aggregate=ecc(corrected, aggregate),
        remap_pending=pending,
        remap_failure=failure,
        remapped_correctable=correctable,
        remapped_uncorrectable=uncorrectable,
        nvlinks=_nvlinks(handle),
        nvlink_crc_errors=sum(numbers) if numbers else crc[0],
        nvlink_replays=field[_REPLAY_FIELD],
        nvlink_recoveries=field[_RECOVERY_FIELD],
        recovery_action=field[_RECOVERY_ACTION],
        clocks_event_reasons=_clocks_event_reasons(handle),
        pstate=pstate,
        pcie_generation=read(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
        pcie_width=read(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        temperature_c=read(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        power_mw=read(pynvml.nvmlDeviceGetPowerUsage, handle),
        memory_used_bytes=memory if isinstance(memory, Unread) else int(memory.used),
        processes=processes if isinstance(processes, Unread) else tuple(int(p.pid) for p in processes),
    )


def _clocks_event_reasons(handle: Any) -> Reading:
    reasons: Reading = read(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if reasons is Unread.NOT_SUPPORTED:  # drivers before 535 know only the old name
        return read(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return reasons


def _nvlinks(handle: Any) -> tuple[Reading, ...]:
    """NOT_SUPPORTED is the presence test: PCIe cards say so for link 0, others behind their last link."""
    links: list[Reading] = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            links.append(int(pynvml.nvmlDeviceGetNvLinkState(handle, link)))
        except pynvml.NVMLError as error:
            if error.value in (pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                break
            if (why := unread(error.value)) is Unread.NOT_SUPPORTED:
                break
            links.append(why)
            break
    return tuple(links)


def _field_values(handle: Any) -> dict[int, Reading]:
    """Every field has its own return code and value type."""
    answers = read(pynvml.nvmlDeviceGetFieldValues, handle, list(_FIELDS))
    if isinstance(answers, Unread):
        return dict.fromkeys(_FIELDS, answers)
    values: dict[int, Reading] = {}
    for name, answer in zip(_FIELDS, answers, strict=True):
        member = _FIELD_MEMBER.get(answer.valueType)
        if answer.nvmlReturn != pynvml.NVML_SUCCESS:
            # A field id that the driver does not know comes back as an invalid argument.
            invalid = answer.nvmlReturn == pynvml.NVML_ERROR_INVALID_ARGUMENT
            values[name] = Unread.NOT_SUPPORTED if invalid else unread(answer.nvmlReturn)
        else:
            values[name] = int(getattr(answer.value, member)) if member else Unread.FAILED
    return values


def _identify(index: int, handle: Any) -> GpuIdentity | Unread:
    uuid = read(pynvml.nvmlDeviceGetUUID, handle)
    pci = read(pynvml.nvmlDeviceGetPciInfo, handle)
    if isinstance(uuid, Unread):
        return uuid
    if isinstance(pci, Unread):
        return pci
    minor = read(pynvml.nvmlDeviceGetMinorNumber, handle)
    return GpuIdentity(
        index=index,
        uuid=uuid,
        pci=PciAddress(int(pci.domain), int(pci.bus), int(pci.device)),
        product=_text(read(pynvml.nvmlDeviceGetName, handle)),
        serial=_text(read(pynvml.nvmlDeviceGetSerial, handle)),
        minor=None if isinstance(minor, Unread) else minor,
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
