"""NVML event sets: which devices report, and the next event of any of them.

Used only inside the NVML child process, by its event thread.  When to rebuild a set, and when to give up, is decided
there (worker.py).
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable
from typing import Any

import pynvml

from nvcre_agent.nvml.calls import call, read
from nvcre_agent.nvml.driver import Driver
from nvcre_agent.nvml.snapshot import EventType, NvmlEvent, Unread, event_type

_WHOLE_GPU = 0xFFFFFFFF  # instance ids of an event that concerns the whole GPU


class WaitFailure(enum.Enum):
    GPU_LOST = "GpuLost"
    FAILED = "Failed"


class EventSet:
    """One NVML event set over the given devices.  Events are delivered only while it exists."""

    def __init__(self, handle: Any, driver: Driver, members: frozenset[int], refused: dict[int, Unread]) -> None:
        self._handle = handle
        self._driver = driver
        self.members = members  # indices that report
        self.refused = refused  # indices that cannot report; that says nothing about their health

    @classmethod
    def create(cls, driver: Driver, indices: Iterable[int]) -> EventSet | Unread:
        handle = read(pynvml.nvmlEventSetCreate)
        if isinstance(handle, Unread):
            return handle
        devices = driver.handles()
        members: set[int] = set()
        refused: dict[int, Unread] = {}
        for index in indices:
            outcome = _register(devices[index], handle) if index in devices else Unread.LOST
            if outcome is None:
                members.add(index)
            else:
                refused[index] = outcome
        return cls(handle, driver, frozenset(members), refused)

    def wait(self, timeout_ms: int) -> NvmlEvent | WaitFailure | None:
        """The next event, or None when there was none; NVML may return early."""
        if not self.members:  # of which NVML does not say whether it waits or answers at once
            time.sleep(timeout_ms / 1000)
            return None
        try:
            data = call(pynvml.nvmlEventSetWait_v2, self._handle, timeout_ms, timed=False)
        except pynvml.NVMLError as error:
            match error.value:
                case pynvml.NVML_ERROR_TIMEOUT:
                    return None
                case pynvml.NVML_ERROR_GPU_IS_LOST:
                    return WaitFailure.GPU_LOST
            return WaitFailure.FAILED
        return NvmlEvent(
            gpu=self._driver.identity_of(data.device),
            event_type=event_type(int(data.eventType)),
            data=int(data.eventData),
            gpu_instance=None if data.gpuInstanceId == _WHOLE_GPU else int(data.gpuInstanceId),
            compute_instance=None if data.computeInstanceId == _WHOLE_GPU else int(data.computeInstanceId),
            time_s=time.time(),
            monotonic_ns=time.monotonic_ns(),
        )

    def free(self) -> None:
        read(pynvml.nvmlEventSetFree, self._handle)


def lost_alone(driver: Driver, indices: Iterable[int]) -> frozenset[int]:
    """Which of these answers GPU_IS_LOST to a wait in a set of its own: the culprit where none says so itself."""
    found: set[int] = set()
    for index in indices:
        alone = EventSet.create(driver, (index,))
        if isinstance(alone, Unread):
            continue
        if alone.wait(0) is WaitFailure.GPU_LOST:
            found.add(index)
        alone.free()
    return frozenset(found)


def _register(device: Any, event_set: Any) -> Unread | None:
    supported = read(pynvml.nvmlDeviceGetSupportedEventTypes, device)
    if isinstance(supported, Unread):
        return supported
    mask = supported & sum(EventType)
    if not mask:
        return Unread.NOT_SUPPORTED
    outcome = read(pynvml.nvmlDeviceRegisterEvents, device, mask, event_set)
    return outcome if isinstance(outcome, Unread) else None
