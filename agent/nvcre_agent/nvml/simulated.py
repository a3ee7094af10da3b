"""The simulated NVML library: one object in the place of `pynvml.nvmlLib`.

It answers at the level of the NVML C functions: ctypes arguments in, structs behind byref filled, a return code out.
So everything above, pynvml included, is the code that runs on a real node.  It exists only where `--simulate` asks for
it.  State and scenario lines: simulated_state.py; a C function that is not here is one that pynvml reports as missing.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import wraps
from importlib import resources
from pathlib import Path
from typing import Any

import pynvml
import yaml

from nvcre_agent.nvml.file_watch import FileWatch
from nvcre_agent.nvml.simulated_state import SimulatedGpu, SimulatedNode
from nvcre_agent.nvml.snapshot import EventType

_HANG_POLL_S = 0.05
_DEVICE_BASE = 0x1000  # handles are addresses that nobody follows
_SET_BASE = 0x9000
_QUEUE_LIMIT = 1024  # per event set, the oldest go first

RETURN_CODES: dict[str, int] = {"SUCCESS": pynvml.NVML_SUCCESS} | {
    name.removeprefix("NVML_ERROR_"): value
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int)
}

_ECC = {
    (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC): "ecc_uncorrected_volatile",
    (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_AGGREGATE_ECC): "ecc_uncorrected_aggregate",
    (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC): "ecc_corrected_volatile",
    (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_AGGREGATE_ECC): "ecc_corrected_aggregate",
}


def install(description: Path) -> SimulatedNvml:
    """Put a simulated library under pynvml.  BadDescription where driver.json cannot be used."""
    library = SimulatedNvml(description)
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()
    return library


def uninstall() -> None:
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()


def _number(argument: Any) -> int:
    return int(getattr(argument, "value", argument))


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _store_handle(reference: Any, value: int) -> None:
    ctypes.cast(reference, ctypes.POINTER(ctypes.c_void_p))[0] = value


def _store_text(buffer: Any, text: str, size: Any) -> int:
    if len(text.encode()) >= _number(size):
        return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    buffer.value = text.encode()
    return int(pynvml.NVML_SUCCESS)


def _device_call(body: Callable[..., int]) -> Callable[..., int]:
    """A C function whose first argument is a device: a lost or failing device answers for itself."""

    @wraps(body)
    def call(self: SimulatedNvml, device: Any, *arguments: Any) -> int:
        self._refresh()
        index = _address(device) - _DEVICE_BASE
        if not 0 <= index < len(self._node.gpus):
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        gpu = self._node.gpus[index]
        return _condition(gpu) or body(self, gpu, *arguments)

    return call


def _condition(gpu: SimulatedGpu) -> int:
    return int(pynvml.NVML_ERROR_GPU_IS_LOST) if gpu.lost else RETURN_CODES[gpu.return_name]


class _EventSet:
    def __init__(self) -> None:
        self.masks: dict[int, int] = {}  # by device index
        self.queue: deque[tuple[int, int, int]] = deque(maxlen=_QUEUE_LIMIT)  # device index, event type, data


class SimulatedNvml:
    """Attributes named nvml* are the C functions; the rest is for install() and tests."""

    def __init__(self, description: Path) -> None:
        self._node = SimulatedNode(description, return_names=frozenset(RETURN_CODES))
        text = resources.files(__package__).joinpath("profile_h100.yaml").read_text(encoding="utf-8")
        self._profile: dict[str, int] = yaml.safe_load(text)
        self._watch = FileWatch(self._node.events_path)
        self._sets: dict[int, _EventSet] = {}
        self._lock = threading.Lock()
        self._next_set = _SET_BASE

    @property
    def bad_lines(self) -> int:
        return self._node.bad_lines

    def interrupted_by_signals(self) -> None:
        """Let any signal end a wait early, as with the driver; Python itself would resume it.  Main thread only."""
        readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        self._watch.interrupted_by(readable)

    def _refresh(self) -> None:
        with self._lock:
            self._node.follow(self._deliver_xid)
        self._hang()

    def _hang(self) -> None:
        while (left := self._node.hang_until_s - time.time()) > 0:
            time.sleep(min(left, _HANG_POLL_S))

    def _deliver_xid(self, index: int, code: int) -> None:
        self._deliver(index, EventType.XID, code)

    def _deliver(self, index: int, event: EventType, data: int) -> None:
        for event_set in self._sets.values():
            if event_set.masks.get(index, 0) & event:
                event_set.queue.append((index, int(event), data))

    # --- library and system ---------------------------------------------------------------------------------------

    def nvmlInitWithFlags(self, _flags: Any) -> int:
        self._refresh()
        return int(pynvml.NVML_SUCCESS)

    def nvmlShutdown(self) -> int:
        return int(pynvml.NVML_SUCCESS)

    def nvmlSystemGetDriverVersion(self, buffer: Any, size: Any) -> int:
        return _store_text(buffer, self._node.description.driver_version, size)

    def nvmlSystemGetCudaDriverVersion_v2(self, version: Any) -> int:
        version._obj.value = self._node.description.cuda_driver_version
        return int(pynvml.NVML_SUCCESS)

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        self._refresh()
        count._obj.value = len(self._node.gpus)
        return int(pynvml.NVML_SUCCESS)

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> int:
        self._refresh()
        number = _number(index)
        if not 0 <= number < len(self._node.gpus):
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        _store_handle(device, _DEVICE_BASE + number)
        return _condition(self._node.gpus[number])

    # --- device ---------------------------------------------------------------------------------------------------

    @_device_call
    def nvmlDeviceGetUUID(self, gpu: SimulatedGpu, buffer: Any, size: Any) -> int:
        return _store_text(buffer, gpu.uuid, size)

    @_device_call
    def nvmlDeviceGetSerial(self, gpu: SimulatedGpu, buffer: Any, size: Any) -> int:
        return _store_text(buffer, gpu.serial, size)

    @_device_call
    def nvmlDeviceGetName(self, _gpu: SimulatedGpu, buffer: Any, size: Any) -> int:
        return _store_text(buffer, self._node.description.product, size)

    @_device_call
    def nvmlDeviceGetMinorNumber(self, gpu: SimulatedGpu, minor: Any) -> int:
        minor._obj.value = gpu.minor
        return int(pynvml.NVML_SUCCESS)

    @_device_call
    def nvmlDeviceGetPciInfo_v3(self, gpu: SimulatedGpu, info: Any) -> int:
        info._obj.domain, info._obj.bus, info._obj.device = gpu.pci.domain, gpu.pci.bus, gpu.pci.device
        info._obj.busId = str(gpu.pci)
        return int(pynvml.NVML_SUCCESS)

    @_device_call
    def nvmlDeviceGetTotalEccErrors(self, gpu: SimulatedGpu, kind: Any, counter: Any, count: Any) -> int:
        count._obj.value = getattr(gpu, _ECC[_number(kind), _number(counter)])
        return int(pynvml.NVML_SUCCESS)

    @_device_call
    def nvmlDeviceGetRemappedRows(self, gpu: SimulatedGpu, *references: Any) -> int:
        values = (0, int(gpu.remap_pending or gpu.remap_failure), gpu.remap_pending, gpu.remap_failure)
        for reference, value in zip(references, values, strict=True):
            reference._obj.value = int(value)
        return int(pynvml.NVML_SUCCESS)

    @_device_call
    def nvmlDeviceGetNvLinkState(self, gpu: SimulatedGpu, link: Any, active: Any) -> int:
        if _number(link) >= self._node.description.nvlinks:
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        active._obj.value = int(_number(link) not in gpu.nvlinks_down)
        return int(pynvml.NVML_SUCCESS)

    @_device_call
    def nvmlDeviceGetFieldValues(self, gpu: SimulatedGpu, count: Any, values: Any) -> int:
        for field in values._obj[: _number(count)]:
            field.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            field.nvmlReturn = pynvml.NVML_SUCCESS
            match field.fieldId:
                case pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION:
                    field.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
                    field.value.uiVal = gpu.recovery_action
                case (
                    pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL
                    | pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL
                    | pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL
                    | pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL
                ):
                    field.value.ullVal = 0
                case _:
                    field.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
        return int(pynvml.NVML_SUCCESS)

    @_device_call
    def nvmlDeviceGetMemoryInfo(self, _gpu: SimulatedGpu, memory: Any) -> int:
        mib = 1024 * 1024
        memory._obj.total = self._node.description.memory_mib * mib
        memory._obj.used = self._profile["memory_used_mib"] * mib
        memory._obj.free = memory._obj.total - memory._obj.used
        return int(pynvml.NVML_SUCCESS)

    @_device_call
    def nvmlDeviceGetComputeRunningProcesses_v3(self, gpu: SimulatedGpu, count: Any, processes: Any) -> int:
        room, count._obj.value = count._obj.value, len(gpu.processes)
        if room < len(gpu.processes):
            return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        for slot, pid in enumerate(gpu.processes):
            processes[slot].pid = pid
        return int(pynvml.NVML_SUCCESS)

    def _from_profile(self, name: str, reference: Any) -> int:
        reference._obj.value = self._profile[name]
        return int(pynvml.NVML_SUCCESS)

    @_device_call
    def nvmlDeviceGetPerformanceState(self, _gpu: SimulatedGpu, pstate: Any) -> int:
        return self._from_profile("pstate", pstate)

    @_device_call
    def nvmlDeviceGetCurrentClocksEventReasons(self, _gpu: SimulatedGpu, reasons: Any) -> int:
        return self._from_profile("clocks_event_reasons", reasons)

    @_device_call
    def nvmlDeviceGetCurrPcieLinkGeneration(self, _gpu: SimulatedGpu, generation: Any) -> int:
        return self._from_profile("pcie_generation", generation)

    @_device_call
    def nvmlDeviceGetCurrPcieLinkWidth(self, _gpu: SimulatedGpu, width: Any) -> int:
        return self._from_profile("pcie_width", width)

    @_device_call
    def nvmlDeviceGetTemperature(self, _gpu: SimulatedGpu, _sensor: Any, temperature: Any) -> int:
        return self._from_profile("temperature_c", temperature)

    @_device_call
    def nvmlDeviceGetPowerUsage(self, _gpu: SimulatedGpu, power: Any) -> int:
        return self._from_profile("power_mw", power)

    # --- events ---------------------------------------------------------------------------------------------------

    @_device_call
    def nvmlDeviceGetSupportedEventTypes(self, _gpu: SimulatedGpu, types: Any) -> int:
        return self._from_profile("supported_events", types)

    @_device_call
    def nvmlDeviceRegisterEvents(self, gpu: SimulatedGpu, mask: Any, event_set: Any) -> int:
        registered = self._sets.get(_address(event_set))
        if registered is None:
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        if _number(mask) & ~self._profile["supported_events"]:
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        with self._lock:
            index = self._node.gpus.index(gpu)
            registered.masks[index] = registered.masks.get(index, 0) | _number(mask)
        return int(pynvml.NVML_SUCCESS)

    def nvmlEventSetCreate(self, event_set: Any) -> int:
        self._hang()
        with self._lock:
            self._next_set += 1
            self._sets[self._next_set] = _EventSet()
            _store_handle(event_set, self._next_set)
        return int(pynvml.NVML_SUCCESS)

    def nvmlEventSetFree(self, event_set: Any) -> int:
        with self._lock:
            known = self._sets.pop(_address(event_set), None)
        return int(pynvml.NVML_SUCCESS if known else pynvml.NVML_ERROR_INVALID_ARGUMENT)

    def nvmlEventSetWait_v2(self, event_set: Any, data: Any, timeout_ms: Any) -> int:
        """Like the driver: GPU_IS_LOST again and again while a lost GPU is registered, TIMEOUT early on a signal."""
        deadline = time.monotonic() + _number(timeout_ms) / 1000
        waiting = self._sets.get(_address(event_set))
        if waiting is None:
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        while True:
            self._watch.arm()
            self._refresh()
            if waiting.queue:
                index, event, value = waiting.queue.popleft()
                data._obj.device = ctypes.cast(_DEVICE_BASE + index, pynvml.c_nvmlDevice_t)
                data._obj.eventType, data._obj.eventData = event, value
                data._obj.gpuInstanceId = data._obj.computeInstanceId = 0xFFFFFFFF
                return int(pynvml.NVML_SUCCESS)
            for index in waiting.masks:
                if code := _condition(self._node.gpus[index]):
                    return code
            left = deadline - time.monotonic()
            if left <= 0:
                return int(pynvml.NVML_ERROR_TIMEOUT)
            if self._watch.wait(left):
                return int(pynvml.NVML_ERROR_TIMEOUT)
