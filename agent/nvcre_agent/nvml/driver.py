"""The GPUs of this node: which there are, who is who, which of them answer, and a snapshot of all.

Used only inside the NVML child process (worker.py): any call here can block for ever.  One dead GPU never hides the
others: devices are enumerated one by one, and the last good identity of each stays known.  What is read of one device
is in device.py, events are in event_set.py.  It neither judges nor retries.
"""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pynvml

from nvcre_agent.nvml.calls import call, code_of, ledger, read, unread
from nvcre_agent.nvml.device import identify, read_device, text
from nvcre_agent.nvml.plausible import MOST_DEVICES, plausible_count
from nvcre_agent.nvml.snapshot import GpuIdentity, GpuSnapshot, Inventory, Reading, Snapshot, Unread


@dataclass(frozen=True, slots=True)
class Blind:
    """NVML cannot be used.  `reason` is a CamelCase word, `message` names the remedy."""

    reason: str
    message: str


_BLIND = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: Blind(
        "LibraryNotFound",
        "libnvidia-ml.so.1 was not found; install the NVIDIA driver, or in a Pod set runtimeClassName: nvidia",
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


_GONE = {
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: Blind(
        "DriverReload",
        "the driver was unloaded under the agent; NVML is released and taken up again once a driver is loaded",
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: _BLIND[pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH],
}
# Answers to a call with a handle that NVML itself gave: the driver behind it is another one now.
_STALE = frozenset({pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_UNINITIALIZED})
_RELOADED = Blind(
    "DriverReload",
    "the driver was unloaded or reloaded under the agent; NVML is released and taken up again, nothing has to be done",
)
_UNREADABLE = (
    "no GPU can be read ({why}) although none is lost; the agent's container has lost its NVIDIA devices (a systemd"
    " reload takes them away) or never had them: restart the agent's Pod"
)
_NO_GPUS = Blind("NoGPUs", "NVML loads but lists no GPU; check that /dev/nvidia* are visible to the agent")
_MOST_HANDLES = 4 * MOST_DEVICES
_ACCUSING = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})


def open_driver() -> Driver | Blind:
    """Load and initialise NVML, once per process."""
    try:
        call(pynvml.nvmlInit)
    except pynvml.NVMLError as error:
        return _BLIND.get(
            error.value,
            Blind("InitFailed", f"nvmlInit returned {error.value}; look at dmesg and run nvidia-smi on the node"),
        )
    driver = Driver()
    driver.enumerate()
    blind = driver.trouble()
    if blind is None:
        return driver
    driver.close()
    return blind


class Driver:
    """The GPUs of this node, for one thread."""

    def __init__(self) -> None:
        self._handles: dict[int, Any] = {}  # by index, only devices that gave a handle in the last enumeration
        self._known: dict[int, GpuIdentity] = {}  # by index, the last good identity
        self._by_address: dict[int, GpuIdentity] = {}  # by handle, for events; old handles stay
        self.device_count: Reading = Unread.FAILED
        self.unidentified: tuple[Unread, ...] = ()
        self._driver_version = text(read(pynvml.nvmlSystemGetDriverVersion))
        cuda = read(pynvml.nvmlSystemGetCudaDriverVersion_v2)
        self._cuda_version = f"{cuda // 1000}.{cuda % 1000 // 10}" if isinstance(cuda, int) else ""

    def inventory(self) -> Inventory:
        return Inventory(
            tuple(self._known[index] for index in sorted(self._known)), self._driver_version, self._cuda_version
        )

    def enumerate(self) -> None:
        """Look at every index by itself; a device that fails keeps the identity it had."""
        self.device_count = plausible_count(read(pynvml.nvmlDeviceGetCount))
        indices = self._indices()
        handles: dict[int, Any] = {}
        fresh: dict[int, GpuIdentity] = {}
        silent: dict[int, Unread] = {}
        for index in indices:
            ledger.gpu = index
            handle = read(pynvml.nvmlDeviceGetHandleByIndex, index)
            if isinstance(handle, Unread):
                silent[index] = handle
                continue
            handles[index] = handle
            identity = identify(index, handle)
            if isinstance(identity, Unread):
                silent[index] = identity
                continue
            fresh[index] = identity
        ledger.gpu = -1
        for index in self._impostors(fresh):
            del fresh[index]
            silent[index] = Unread.FAILED
        for index, identity in fresh.items():
            self._remember(handles[index], identity)
        moved = {gpu.uuid for gpu in fresh.values()}
        # An index above the count is gone: the driver drops a dead GPU when it is loaded again.
        kept = {i: gpu for i, gpu in self._known.items() if i in indices and i not in fresh and gpu.uuid not in moved}
        self._known, self._handles = kept | fresh, handles
        self.unidentified = tuple(why for index, why in silent.items() if index not in self._known)

    def _impostors(self, fresh: dict[int, GpuIdentity]) -> list[int]:
        """Indices that give the UUID or slot of another one, which both cannot have; who had it before is believed."""
        names = Counter(name for gpu in fresh.values() for name in (gpu.uuid, gpu.pci))
        return [i for i, gpu in fresh.items() if max(names[gpu.uuid], names[gpu.pci]) > 1 and self._known.get(i) != gpu]

    def _remember(self, handle: Any, identity: GpuIdentity) -> None:
        self._by_address[address(handle)] = identity
        if len(self._by_address) > _MOST_HANDLES:
            del self._by_address[next(iter(self._by_address))]

    def _indices(self) -> range:
        """Without a count, which one lost GPU can take from all: those known before, else as far as handles go."""
        if isinstance(self.device_count, int):
            return range(self.device_count)
        if self._known:
            return range(max(self._known) + 1)
        there = _ACCUSING | {pynvml.NVML_SUCCESS}
        return range(next(i for i in range(MOST_DEVICES) if i == MOST_DEVICES - 1 or _handle_code(i) not in there))

    def lost(self) -> frozenset[int]:
        """Indices of GPUs that say themselves that they are lost; a cheap call that reaches the device."""
        return frozenset(
            index
            for index in self._known
            if index not in self._handles
            or read(pynvml.nvmlDeviceGetPerformanceState, self._handles[index]) is Unread.LOST
        )

    def trouble(self) -> Blind | None:
        """Why no GPU at all can be read although none accuses itself: the driver, or a container without devices."""
        codes = {_device_code(index) for index in self._indices()} or {code_of(pynvml.nvmlDeviceGetCount)}
        held = {code_of(pynvml.nvmlDeviceGetPerformanceState, handle) for handle in self._handles.values()}
        if gone := (codes | held) & set(_GONE):
            return _GONE[gone.pop()]
        if held and held <= _STALE:
            return _RELOADED
        if self.device_count == 0:
            return _NO_GPUS
        if codes & (_ACCUSING | {pynvml.NVML_SUCCESS}):
            return None
        whys = {unread(code) for code in codes} - {Unread.NOT_SUPPORTED}
        return Blind("DevicesUnreadable", _UNREADABLE.format(why=whys.pop().value)) if whys else None

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
            device_count=plausible_count(read(pynvml.nvmlDeviceGetCount)),
            gpus=tuple(self._snapshot_of(self._known[index]) for index in sorted(self._known)),
            unidentified=self.unidentified,
        )

    def _snapshot_of(self, gpu: GpuIdentity) -> GpuSnapshot:
        ledger.gpu = gpu.index
        try:
            return self._read(gpu)
        finally:
            ledger.gpu = -1

    def _read(self, gpu: GpuIdentity) -> GpuSnapshot:
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
        return read_device(gpu, handle, pstate, memory)

    def close(self) -> None:
        read(pynvml.nvmlShutdown)


def _handle_code(index: int) -> int:
    return code_of(pynvml.nvmlDeviceGetHandleByIndex, index)


def _device_code(index: int) -> int:
    """As a process sees it that asks anew: handles from before may answer longer than the device files are there."""
    try:
        handle = call(pynvml.nvmlDeviceGetHandleByIndex, index)
    except pynvml.NVMLError as error:
        return int(error.value)
    return code_of(pynvml.nvmlDeviceGetPerformanceState, handle)


def address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
