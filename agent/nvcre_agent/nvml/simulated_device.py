"""What the device functions of the simulated NVML answer: ctypes arguments in, structs behind byref filled, a code out.

Each function gets the GPU and the C arguments after the device handle; which GPU a handle means, and what a lost or
failing one answers instead, is decided in simulated.py.  Values come from the GPU's readings (simulated_state.py), as
they are: garbage that a scenario sets is answered as garbage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml

from nvcre_agent.nvml.simulated_state import Description, SimulatedGpu
from nvcre_agent.nvml.snapshot import MigInstance

OK = int(pynvml.NVML_SUCCESS)
NOT_SUPPORTED = int(pynvml.NVML_ERROR_NOT_SUPPORTED)
_GARBLED = b"\xff\xfe\xfd"
_MIB = 1024 * 1024

Answer = Callable[..., int]

# C functions with one value behind one reference.
_ONE_VALUE = {
    "nvmlDeviceGetPerformanceState": "pstate",
    "nvmlDeviceGetCurrentClocksEventReasons": "clocks_event_reasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "clocks_event_reasons",
    "nvmlDeviceGetCurrPcieLinkGeneration": "pcie_generation",
    "nvmlDeviceGetCurrPcieLinkWidth": "pcie_width",
    "nvmlDeviceGetMaxPcieLinkGeneration": "pcie_generation_max",
    "nvmlDeviceGetMaxPcieLinkWidth": "pcie_width_max",
    "nvmlDeviceGetPowerUsage": "power_mw",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit_mw",
    "nvmlDeviceGetPersistenceMode": "persistence_mode",
}

# Field values; of readings that are a sum, the first field has it all and the second is 0.
_FIELDS = {
    pynvml.NVML_FI_DEV_ECC_CURRENT: "ecc_mode",
    pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL: "ecc_uncorrected_volatile",
    pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL: "ecc_uncorrected_aggregate",
    pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL: "ecc_corrected_volatile",
    pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL: "ecc_corrected_aggregate",
    pynvml.NVML_FI_DEV_RETIRED_SBE: "retired_pages",
    pynvml.NVML_FI_DEV_RETIRED_PENDING: "retired_pages_pending",
    pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL: "nvlink_crc_errors",
    pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL: "nvlink_replays",
    pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL: "nvlink_recoveries",
    pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER: "pcie_replays",
    pynvml.NVML_FI_DEV_MEMORY_TEMP: "temperature_memory_c",
    pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: "energy_mj",
    pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: "recovery_action",
    pynvml.NVML_FI_DEV_REMAPPED_COR: "remapped_correctable",
    pynvml.NVML_FI_DEV_REMAPPED_UNC: "remapped_uncorrectable",
    pynvml.NVML_FI_DEV_REMAPPED_PENDING: "remap_pending",
    pynvml.NVML_FI_DEV_REMAPPED_FAILURE: "remap_failure",
}
_SECOND_OF = {
    pynvml.NVML_FI_DEV_RETIRED_DBE: "retired_pages",
    pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL: "nvlink_crc_errors",
}
_REMAPPED = ("remapped_correctable", "remapped_uncorrectable", "remap_pending", "remap_failure")


def store_text(buffer: Any, text: str, size: int, *, garbled: bool = False) -> int:
    raw = _GARBLED if garbled else text.encode()
    if len(raw) >= size:
        return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    buffer.value = raw
    return OK


def _number(argument: Any) -> int:
    return int(getattr(argument, "value", argument))


def _store(gpu: SimulatedGpu, *pairs: tuple[str, Any, str]) -> int:
    """(reading, struct, member) each; NOT_SUPPORTED where the first is not."""
    if gpu.readings.get(pairs[0][0]) is None:
        return NOT_SUPPORTED
    for reading, target, member in pairs:
        setattr(target, member, gpu.readings.get(reading) or 0)
    return OK


def _remapped(gpu: SimulatedGpu, reading: str) -> int | None:
    """Not supported on a GPU with active MIG instances, https://docs.nvidia.com/deploy/nvml-api (RemappedRows)."""
    return None if gpu.mig_instances else gpu.readings.get(reading)


class DeviceFunctions:
    """Attributes named nvml* are the C functions."""

    def __init__(self, node: Description) -> None:
        self._node = node

    def get(self, name: str) -> Answer | None:
        """By the name of the C function; None for one that is not simulated."""
        if (reading := _ONE_VALUE.get(name)) is not None:
            return lambda gpu, reference: _store(gpu, (reading, reference._obj, "value"))
        answer: Answer | None = getattr(self, name, None)
        return answer

    def nvmlDeviceGetUUID(self, gpu: SimulatedGpu, buffer: Any, size: Any) -> int:
        return store_text(buffer, gpu.uuid, _number(size), garbled=gpu.garbled)

    def nvmlDeviceGetSerial(self, gpu: SimulatedGpu, buffer: Any, size: Any) -> int:
        return store_text(buffer, gpu.serial, _number(size), garbled=gpu.garbled)

    def nvmlDeviceGetName(self, gpu: SimulatedGpu, buffer: Any, size: Any) -> int:
        return store_text(buffer, self._node.product, _number(size), garbled=gpu.garbled)

    def nvmlDeviceGetMinorNumber(self, gpu: SimulatedGpu, reference: Any) -> int:
        reference._obj.value = gpu.minor
        return OK

    def nvmlDeviceGetPciInfo_v3(self, gpu: SimulatedGpu, info: Any) -> int:
        info._obj.domain, info._obj.bus, info._obj.device = gpu.pci.domain, gpu.pci.bus, gpu.pci.device
        info._obj.busId = _GARBLED if gpu.garbled else str(gpu.pci)
        return OK

    def nvmlDeviceGetRemappedRows(self, gpu: SimulatedGpu, *references: Any) -> int:
        values = [_remapped(gpu, reading) for reading in _REMAPPED]
        if values[0] is None:
            return NOT_SUPPORTED
        for reference, value in zip(references, values, strict=True):
            reference._obj.value = value or 0
        return OK

    def nvmlDeviceGetNvLinkState(self, gpu: SimulatedGpu, link: Any, active: Any) -> int:
        if _number(link) >= self._node.nvlinks:
            return NOT_SUPPORTED
        active._obj.value = int(_number(link) not in gpu.nvlinks_down)
        return OK

    def nvmlDeviceGetFieldValues(self, gpu: SimulatedGpu, count: Any, values: Any) -> int:
        for answer in values._obj[: _number(count)]:
            reading = _FIELDS.get(answer.fieldId)
            value = _remapped(gpu, reading) if reading in _REMAPPED else gpu.readings.get(reading or "")
            if (whole := _SECOND_OF.get(answer.fieldId)) is not None and gpu.readings.get(whole) is not None:
                value = 0
            answer.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            answer.nvmlReturn = NOT_SUPPORTED if value is None else OK
            answer.value.ullVal = value or 0
        return OK

    def nvmlDeviceGetMemoryInfo(self, gpu: SimulatedGpu, info: Any) -> int:
        used = gpu.readings.get("memory_used_bytes")
        if used is None:
            return NOT_SUPPORTED
        free = gpu.readings.get("memory_free_bytes")
        info._obj.total = self._node.memory_mib * _MIB
        info._obj.used = used
        info._obj.free = self._node.memory_mib * _MIB - used if free is None else free
        return OK

    def nvmlDeviceGetComputeRunningProcesses_v3(self, gpu: SimulatedGpu, count: Any, found: Any) -> int:
        room, count._obj.value = count._obj.value, len(gpu.processes)
        if room < len(gpu.processes):
            return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        for slot, pid in enumerate(gpu.processes):
            found[slot].pid = pid
        return OK

    def nvmlDeviceGetUtilizationRates(self, gpu: SimulatedGpu, rates: Any) -> int:
        if gpu.mig_instances:
            return NOT_SUPPORTED
        return _store(gpu, ("utilization_gpu", rates._obj, "gpu"), ("utilization_memory", rates._obj, "memory"))

    def nvmlDeviceGetTemperature(self, gpu: SimulatedGpu, _sensor: Any, reference: Any) -> int:
        return _store(gpu, ("temperature_c", reference._obj, "value"))

    def nvmlDeviceGetMarginTemperature(self, gpu: SimulatedGpu, info: Any) -> int:
        return _store(gpu, ("temperature_margin_c", info._obj, "marginTemperature"))

    def nvmlDeviceGetClockInfo(self, gpu: SimulatedGpu, kind: Any, reference: Any) -> int:
        reading = "memory_clock_mhz" if _number(kind) == pynvml.NVML_CLOCK_MEM else "sm_clock_mhz"
        return _store(gpu, (reading, reference._obj, "value"))

    def nvmlDeviceGetMigMode(self, gpu: SimulatedGpu, current: Any, pending: Any) -> int:
        return _store(gpu, ("mig_mode", current._obj, "value"), ("mig_mode", pending._obj, "value"))

    def nvmlDeviceGetMaxMigDeviceCount(self, _gpu: SimulatedGpu, count: Any) -> int:
        count._obj.value = self._node.profile.mig_slots
        return OK

    def nvmlDeviceGetGpuFabricInfoV(self, gpu: SimulatedGpu, info: Any) -> int:
        struct = info._obj
        stored = [("fabric_state", struct, "state"), ("fabric_status", struct, "status")]
        stored.append(("fabric_health_mask", struct, "healthMask"))
        if hasattr(struct, "healthSummary"):
            stored.append(("fabric_health_summary", struct, "healthSummary"))
        return _store(gpu, *stored)

    def nvmlDeviceGetSupportedEventTypes(self, _gpu: SimulatedGpu, types: Any) -> int:
        types._obj.value = self._node.profile.supported_events
        return OK


class MigDeviceFunctions:
    """What a MIG device's own handle answers; everything else is NOT_SUPPORTED for it."""

    def __init__(self, product: str) -> None:
        self._product = product

    def get(self, name: str) -> Answer | None:
        answer: Answer | None = getattr(self, name, None)
        return answer

    def nvmlDeviceGetUUID(self, one: MigInstance, buffer: Any, size: Any) -> int:
        return store_text(buffer, one.uuid, _number(size))

    def nvmlDeviceGetName(self, one: MigInstance, buffer: Any, size: Any) -> int:
        return store_text(buffer, f"{self._product} MIG {one.profile}", _number(size))

    def nvmlDeviceGetGpuInstanceId(self, one: MigInstance, reference: Any) -> int:
        reference._obj.value = one.gpu_instance
        return OK

    def nvmlDeviceGetComputeInstanceId(self, one: MigInstance, reference: Any) -> int:
        reference._obj.value = one.compute_instance
        return OK
