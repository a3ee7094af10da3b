"""The simulated NVML library: one object in the place of `pynvml.nvmlLib`.

It answers at the level of the NVML C functions: ctypes arguments in, structs behind byref filled, a return code out.
So everything above, pynvml included, is the code that runs on a real node.  It exists only where `--simulate` asks for
it.  Here: the library itself, device handles, events, and the faults that can befall any call (a return code, a hang, a
driver that is gone).  State and scenario lines: simulated_state.py; the answers of a device: simulated_device.py.  A C
function that is in neither is one that pynvml reports as missing.
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pynvml

from nvcre_agent.nvml.file_watch import FileWatch
from nvcre_agent.nvml.simulated_device import NOT_SUPPORTED, OK, DeviceFunctions, MigDeviceFunctions, store_text
from nvcre_agent.nvml.simulated_state import EventLine, SimulatedGpu, SimulatedNode

_HANG_POLL_S = 0.05
# Handles are addresses that nobody follows: generation, device index and, for MIG devices, slot + 1.
_GENERATION, _DEVICE, _SLOTS = 1 << 24, 1 << 12, 1 << 8
_SET_BASE = 0x9000
_QUEUE_LIMIT = 1024  # per event set, the oldest go first

INVALID_ARGUMENT = int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
RETURN_CODES: dict[str, int] = {"SUCCESS": OK} | {
    name.removeprefix("NVML_ERROR_"): value
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int)
}
_DRIVER_CODES = {
    "loaded": OK,
    "unloaded": int(pynvml.NVML_ERROR_DRIVER_NOT_LOADED),
    "mismatch": int(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH),
}
_FREE_ANYTIME = frozenset({"nvmlShutdown", "nvmlEventSetFree"})  # work on a driver that is gone, too


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


def _condition(gpu: SimulatedGpu) -> int:
    return int(pynvml.NVML_ERROR_GPU_IS_LOST) if gpu.lost else RETURN_CODES[gpu.return_name]


class _EventSet:
    def __init__(self) -> None:
        self.masks: dict[int, int] = {}  # by device index
        self.queue: deque[EventLine] = deque(maxlen=_QUEUE_LIMIT)


class SimulatedNvml:
    """Attributes named nvml* are the C functions; the rest is for install() and tests.  For one thread."""

    def __init__(self, description: Path) -> None:
        self._node = SimulatedNode(description, return_names=frozenset(RETURN_CODES))
        self._watch = FileWatch(self._node.events_path)
        self._sets: dict[int, _EventSet] = {}
        self._next_set = _SET_BASE
        self._of_device = DeviceFunctions(self._node.description)
        self._of_mig_device = MigDeviceFunctions(self._node.description.product)
        self._of_library: dict[str, Callable[..., int]] = {
            "nvmlInitWithFlags": self._init,
            "nvmlShutdown": lambda: OK,
            "nvmlSystemGetDriverVersion": self._driver_version,
            "nvmlSystemGetCudaDriverVersion_v2": self._cuda_version,
            "nvmlDeviceGetCount_v2": self._device_count,
            "nvmlDeviceGetHandleByIndex_v2": self._device_by_index,
            "nvmlEventSetCreate": self._create_set,
            "nvmlEventSetFree": self._free_set,
            "nvmlEventSetWait_v2": self._wait,
        }
        self._of_handle: dict[str, Callable[..., int]] = {
            "nvmlDeviceRegisterEvents": self._register,
            "nvmlDeviceGetMigDeviceHandleByIndex": self._mig_device_by_index,
        }

    @property
    def bad_lines(self) -> int:
        return self._node.bad_lines

    def interrupted_by(self, fd: int) -> None:
        """End a wait early when `fd` becomes readable, as a signal does with the driver."""
        self._watch.interrupted_by(fd)

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("nvml") or name in self._node.description.missing_functions:
            raise AttributeError(name)
        if name in self._of_library:
            return partial(self._library_call, name, self._of_library[name])
        if name in self._of_handle or self._of_device.get(name) or self._of_mig_device.get(name):
            return partial(self._device_call, name)
        raise AttributeError(name)

    def _library_call(self, name: str, body: Callable[..., int], *arguments: Any) -> int:
        self._follow(name)
        if (code := RETURN_CODES[self._node.calls.get(name, "SUCCESS")]) != OK:
            return code
        if (code := _DRIVER_CODES[self._node.driver]) != OK and name not in _FREE_ANYTIME:
            return code
        return body(*arguments)

    def _device_call(self, name: str, device: Any, *arguments: Any) -> int:
        """A C function whose first argument is a device: a lost or failing device answers for itself."""
        self._follow(name)
        generation, place = divmod(_address(device), _GENERATION)
        index, slot = divmod(place - _DEVICE, _SLOTS)
        if generation != self._node.generation or not 0 <= index < len(self._node.gpus):
            return INVALID_ARGUMENT
        gpu = self._node.gpus[index]
        forced = gpu.calls.get(name) or self._node.calls.get(name, "SUCCESS")
        code = _DRIVER_CODES[self._node.driver] or _condition(gpu) or RETURN_CODES[forced]
        return code or self._answer(name, index, slot, arguments)

    def _answer(self, name: str, index: int, slot: int, arguments: tuple[Any, ...]) -> int:
        gpu = self._node.gpus[index]
        if slot > len(gpu.mig_instances):
            return INVALID_ARGUMENT
        if slot:
            of_mig = self._of_mig_device.get(name)
            return of_mig(gpu.mig_instances[slot - 1], *arguments) if of_mig else NOT_SUPPORTED
        if (of_handle := self._of_handle.get(name)) is not None:
            return of_handle(index, *arguments)
        answer = self._of_device.get(name)
        return answer(gpu, *arguments) if answer else NOT_SUPPORTED

    def _follow(self, name: str) -> None:
        self._node.follow(self._deliver)
        until = self._node.hang_until_s
        while (left := max(until.get("", 0.0), until.get(name, 0.0)) - time.time()) > 0:
            time.sleep(min(left, _HANG_POLL_S))
            self._node.follow(self._deliver)

    def _deliver(self, event: EventLine) -> None:
        for event_set in self._sets.values():
            if event_set.masks.get(event.gpu, 0) & event.event:
                event_set.queue.append(event)

    # --- library and system ---------------------------------------------------------------------------------------

    def _init(self, _flags: Any) -> int:
        time.sleep(self._node.init_s)
        return OK

    def _driver_version(self, buffer: Any, size: Any) -> int:
        return store_text(buffer, self._node.description.driver_version, _number(size))

    def _cuda_version(self, version: Any) -> int:
        version._obj.value = self._node.description.cuda_driver_version
        return OK

    def _device_count(self, count: Any) -> int:
        count._obj.value = len(self._node.gpus)
        return OK

    def _handle(self, index: int, slot: int = 0) -> int:
        return self._node.generation * _GENERATION + _DEVICE + index * _SLOTS + slot

    def _device_by_index(self, index: Any, device: Any) -> int:
        number = _number(index)
        if not 0 <= number < len(self._node.gpus):
            return INVALID_ARGUMENT
        gpu = self._node.gpus[number]
        _store_handle(device, self._handle(number))
        return _condition(gpu) or RETURN_CODES[gpu.calls.get("nvmlDeviceGetHandleByIndex_v2", "SUCCESS")]

    def _mig_device_by_index(self, index: int, slot: Any, device: Any) -> int:
        if _number(slot) >= len(self._node.gpus[index].mig_instances):
            return int(pynvml.NVML_ERROR_NOT_FOUND)
        _store_handle(device, self._handle(index, _number(slot) + 1))
        return OK

    # --- events ---------------------------------------------------------------------------------------------------

    def _register(self, index: int, mask: Any, event_set: Any) -> int:
        registered = self._sets.get(_address(event_set))
        if registered is None:
            return INVALID_ARGUMENT
        if _number(mask) & ~self._node.description.profile.supported_events:
            return NOT_SUPPORTED
        registered.masks[index] = registered.masks.get(index, 0) | _number(mask)
        return OK

    def _create_set(self, event_set: Any) -> int:
        self._next_set += 1
        self._sets[self._next_set] = _EventSet()
        _store_handle(event_set, self._next_set)
        return OK

    def _free_set(self, event_set: Any) -> int:
        return OK if self._sets.pop(_address(event_set), None) else INVALID_ARGUMENT

    def _wait(self, event_set: Any, data: Any, timeout_ms: Any) -> int:
        """Like the driver: GPU_IS_LOST again and again while a lost GPU is registered, TIMEOUT early on a signal."""
        deadline = time.monotonic() + _number(timeout_ms) / 1000
        waiting = self._sets.get(_address(event_set))
        if waiting is None:
            return INVALID_ARGUMENT
        while True:
            self._watch.arm()
            self._follow("nvmlEventSetWait_v2")
            if waiting.queue:
                event = waiting.queue.popleft()
                data._obj.device = ctypes.cast(self._handle(event.gpu), pynvml.c_nvmlDevice_t)
                data._obj.eventType, data._obj.eventData = event.event, event.data
                data._obj.gpuInstanceId = event.gpu_instance
                data._obj.computeInstanceId = event.compute_instance
                return OK
            if code := self._wait_failure(waiting):
                return code
            left = deadline - time.monotonic()
            if left <= 0:
                return int(pynvml.NVML_ERROR_TIMEOUT)
            if self._watch.wait(left):
                return int(pynvml.NVML_ERROR_TIMEOUT)

    def _wait_failure(self, waiting: _EventSet) -> int:
        """The driver's, that of the call, or that of one GPU in the set, lost or named for this call."""
        name = "nvmlEventSetWait_v2"
        if code := _DRIVER_CODES[self._node.driver] or RETURN_CODES[self._node.calls.get(name, "SUCCESS")]:
            return code
        members = (self._node.gpus[index] for index in waiting.masks)
        codes = (_condition(gpu) or RETURN_CODES[gpu.calls.get(name, "SUCCESS")] for gpu in members)
        return next((code for code in codes if code), OK)
