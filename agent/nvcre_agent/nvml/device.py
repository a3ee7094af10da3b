"""Everything that is read of one GPU: who it is, and its readings for a snapshot.

Used only inside the NVML child process.  Each call takes the driver's global lock and can delay the workload, so what
NVML offers as field values is read in one call.  Which devices there are, and whether one answers at all, is decided in
driver.py.
"""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml

from nvcre_agent.nvml.calls import call, read, read_newer, unread
from nvcre_agent.nvml.plausible import (
    plausible,
    plausible_instance,
    plausible_link,
    plausible_pids,
    plausible_readings,
    plausible_slot,
)
from nvcre_agent.nvml.snapshot import GpuIdentity, GpuSnapshot, MigInstance, PciAddress, Reading, Unread

# Field ids behind each reading, https://docs.nvidia.com/deploy/nvml-api/group__nvmlFieldValueEnums.html; a reading of
# several fields is their sum (CRC errors of flits and data; retired pages of single and double bit errors).
_FIELDS_OF: dict[str, tuple[int, ...]] = {
    "recovery_action": (pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,),
    "ecc_mode": (pynvml.NVML_FI_DEV_ECC_CURRENT,),
    "ecc_uncorrected_volatile": (pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL,),
    "ecc_uncorrected_aggregate": (pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL,),
    "ecc_corrected_volatile": (pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL,),
    "ecc_corrected_aggregate": (pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL,),
    "remapped_correctable": (pynvml.NVML_FI_DEV_REMAPPED_COR,),
    "remapped_uncorrectable": (pynvml.NVML_FI_DEV_REMAPPED_UNC,),
    "remap_pending": (pynvml.NVML_FI_DEV_REMAPPED_PENDING,),
    "remap_failure": (pynvml.NVML_FI_DEV_REMAPPED_FAILURE,),
    "retired_pages": (pynvml.NVML_FI_DEV_RETIRED_SBE, pynvml.NVML_FI_DEV_RETIRED_DBE),
    "retired_pages_pending": (pynvml.NVML_FI_DEV_RETIRED_PENDING,),
    "nvlink_crc_errors": (
        pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
        pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
    ),
    "nvlink_replays": (pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,),
    "nvlink_recoveries": (pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,),
    "pcie_replays": (pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER,),
    "temperature_memory_c": (pynvml.NVML_FI_DEV_MEMORY_TEMP,),
    "energy_mj": (pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,),
}
_FIELDS = tuple(field for fields in _FIELDS_OF.values() for field in fields)

_FIELD_MEMBER = {
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}

_MOST_LINKS = 64  # room above pynvml.NVML_NVLINK_MAX_LINKS, which is the newest product at its release
_MOST_INSTANCES = 64
_MOST_PROCESSES = 1024  # of one GPU
_Processes = pynvml.c_nvmlProcessInfo_v3_t * _MOST_PROCESSES


def identify(index: int, handle: Any) -> GpuIdentity | Unread:
    uuid = read(pynvml.nvmlDeviceGetUUID, handle)
    pci = read(pynvml.nvmlDeviceGetPciInfo, handle)
    if isinstance(uuid, Unread):
        return uuid
    if isinstance(pci, Unread):
        return pci
    if not uuid or not plausible_slot(pci.bus, pci.device):
        return Unread.FAILED
    minor = read(pynvml.nvmlDeviceGetMinorNumber, handle)
    return GpuIdentity(
        index=index,
        uuid=uuid,
        pci=PciAddress(int(pci.domain), int(pci.bus), int(pci.device)),
        product=text(read(pynvml.nvmlDeviceGetName, handle)),
        serial=text(read(pynvml.nvmlDeviceGetSerial, handle)),
        minor=None if isinstance(minor, Unread) else minor,
    )


def read_device(gpu: GpuIdentity, handle: Any, pstate: Reading, memory: Any) -> GpuSnapshot:
    """A device that answers; `pstate` and `memory` were read to find that out."""
    utilization = read(pynvml.nvmlDeviceGetUtilizationRates, handle)
    mig = read(pynvml.nvmlDeviceGetMigMode, handle)
    mig_mode = mig if isinstance(mig, Unread) else int(mig[0])
    fields = _field_values(handle)
    readings: dict[str, Any] = {
        **fields,
        **_remapped_rows(handle, fields),
        **_fabric(handle),
        "clocks_event_reasons": _clocks_event_reasons(handle),
        "pstate": pstate,
        "pcie_generation": read(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
        "pcie_width": read(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        "pcie_generation_max": read(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        "pcie_width_max": read(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        "utilization_gpu": utilization if isinstance(utilization, Unread) else int(utilization.gpu),
        "utilization_memory": utilization if isinstance(utilization, Unread) else int(utilization.memory),
        "temperature_c": read(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        "temperature_margin_c": read_newer("nvmlDeviceGetMarginTemperature", handle),
        "sm_clock_mhz": read(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        "memory_clock_mhz": read(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        "power_mw": read(pynvml.nvmlDeviceGetPowerUsage, handle),
        "power_limit_mw": read(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle),
        "memory_used_bytes": memory if isinstance(memory, Unread) else int(memory.used),
        "memory_free_bytes": memory if isinstance(memory, Unread) else int(memory.free),
        "persistence_mode": read(pynvml.nvmlDeviceGetPersistenceMode, handle),
        "mig_mode": mig_mode,
    }
    processes = read(nvmlDeviceGetComputeRunningProcesses, handle)
    return GpuSnapshot(
        identity=gpu,
        access=None,
        nvlinks=_nvlinks(handle),
        mig_instances=_mig_instances(handle) if mig_mode == 1 else (),
        processes=processes if isinstance(processes, Unread) else plausible_pids(processes),
        **plausible_readings(readings),
    )


def nvmlDeviceGetComputeRunningProcesses(handle: Any) -> list[int]:
    """Process ids.  pynvml's own believes any count of the driver and makes room for it: gigabytes, or MemoryError.

    Named as the call, because a call that hangs is told by the name of its function.
    """
    function = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetComputeRunningProcesses_v3")
    count, found = ctypes.c_uint(_MOST_PROCESSES), _Processes()
    pynvml._nvmlCheckReturn(function(handle, ctypes.byref(count), found))
    if count.value > _MOST_PROCESSES:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
    return [int(found[at].pid) for at in range(count.value)]


def _field_values(handle: Any) -> dict[str, Reading]:
    """Every field has its own return code and value type."""
    answers = read(pynvml.nvmlDeviceGetFieldValues, handle, list(_FIELDS))
    if isinstance(answers, Unread):
        return dict.fromkeys(_FIELDS_OF, answers)
    values = {field: _field_value(answer) for field, answer in zip(_FIELDS, answers, strict=True)}
    return {name: _sum([plausible(name, values[field]) for field in fields]) for name, fields in _FIELDS_OF.items()}


def _field_value(answer: Any) -> Reading:
    if answer.nvmlReturn != pynvml.NVML_SUCCESS:
        # A field id that the driver does not know comes back as an invalid argument.
        invalid = answer.nvmlReturn == pynvml.NVML_ERROR_INVALID_ARGUMENT
        return Unread.NOT_SUPPORTED if invalid else unread(answer.nvmlReturn)
    member = _FIELD_MEMBER.get(answer.valueType)
    return int(getattr(answer.value, member)) if member else Unread.FAILED


def _sum(values: list[Reading]) -> Reading:
    """Of those that the product has; one that failed fails the sum, which must never seem to fall."""
    have = [value for value in values if value is not Unread.NOT_SUPPORTED]
    failed = next((value for value in have if isinstance(value, Unread)), None)
    if failed is not None or not have:
        return failed or Unread.NOT_SUPPORTED
    return sum(value for value in have if isinstance(value, int))


def _remapped_rows(handle: Any, fields: dict[str, Reading]) -> dict[str, Reading]:
    """By the older call where the driver has no such field; neither answers for a GPU with active MIG instances."""
    if fields["remap_failure"] is not Unread.NOT_SUPPORTED:
        return {}
    rows = read(pynvml.nvmlDeviceGetRemappedRows, handle)
    names = ("remapped_correctable", "remapped_uncorrectable", "remap_pending", "remap_failure")
    return dict.fromkeys(names, rows) if isinstance(rows, Unread) else dict(zip(names, map(int, rows), strict=True))


def _clocks_event_reasons(handle: Any) -> Reading:
    reasons: Reading = read(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if reasons is Unread.NOT_SUPPORTED:  # drivers before 535 know only the old name
        return read(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return reasons


def _nvlinks(handle: Any) -> tuple[Reading, ...]:
    """NOT_SUPPORTED is the presence test: PCIe cards say so for link 0, others behind their last link."""
    links: list[Reading] = []
    for link in range(_MOST_LINKS):
        try:
            links.append(plausible_link(int(call(pynvml.nvmlDeviceGetNvLinkState, handle, link))))
        except pynvml.NVMLError as error:
            if error.value in (pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                break
            if (why := unread(error.value)) is Unread.NOT_SUPPORTED:
                break
            links.append(why)
            break
    return tuple(links)


def _fabric(handle: Any) -> dict[str, Reading]:
    """The newest struct that library and driver share; version 2 has no summary.  No symbol before driver 550."""
    for struct in ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t"):
        if (kind := getattr(pynvml, struct, None)) is None:
            continue
        info = kind()
        answer = read_newer("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info))
        if not isinstance(answer, Unread):
            summary = getattr(info, "healthSummary", None)
            return {
                "fabric_state": int(info.state),
                "fabric_status": int(info.status),
                "fabric_health_mask": int(info.healthMask),
                "fabric_health_summary": Unread.NOT_SUPPORTED if summary is None else int(summary),
            }
        if answer not in (Unread.NOT_SUPPORTED, Unread.FAILED):
            break
    return dict.fromkeys(("fabric_state", "fabric_status", "fabric_health_mask", "fabric_health_summary"), answer)


def _mig_instances(handle: Any) -> tuple[MigInstance, ...] | Unread:
    slots = read(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)
    if isinstance(slots, Unread):
        return slots
    found: list[MigInstance] = []
    for slot in range(min(slots, _MOST_INSTANCES)):
        try:
            instance = call(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:  # an empty slot
                continue
            return unread(error.value)
        one = _mig_instance(instance)
        if isinstance(one, Unread):
            return one
        found.append(one)
    return tuple(found)


def _mig_instance(device: Any) -> MigInstance | Unread:
    answers: list[Any] = []
    for function in (
        pynvml.nvmlDeviceGetGpuInstanceId,
        pynvml.nvmlDeviceGetComputeInstanceId,
        pynvml.nvmlDeviceGetUUID,
    ):
        answer = read(function, device)
        if isinstance(answer, Unread):
            return answer
        answers.append(answer)
    name = text(read(pynvml.nvmlDeviceGetName, device))  # NVIDIA A100-SXM4-80GB MIG 1g.10gb
    gpu_instance, compute_instance, uuid = answers
    one = MigInstance(gpu_instance, compute_instance, uuid, name.rpartition(" MIG ")[2])
    return one if plausible_instance(one) else Unread.FAILED


def text(value: Any) -> str:
    return value if isinstance(value, str) else ""
