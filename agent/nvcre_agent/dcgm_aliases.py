"""The GPU's readings under dcgm-exporter's names, labels and units, for dashboards and alerts made for it.

Only what NVML really told; names that need DCGM's profiling (DCGM_FI_PROF_*) are left out rather than guessed. On a MIG
GPU every GPU instance has its series with the values of the whole GPU, as dcgm-exporter does; memory is left out there,
because it differs by instance. Names and units: etc/default-counters.csv of https://github.com/NVIDIA/dcgm-exporter.
"""

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from nvcre_agent.nvml.snapshot import GpuSnapshot, Snapshot

_MIB = 1 / (1024 * 1024)
_MEMORY = frozenset({"memory_used_bytes", "memory_free_bytes"})

# (name after DCGM_FI_DEV_, field of GpuSnapshot, scale to DCGM's unit, gauge or not, help)
_NAMES = (
    ("SM_CLOCK", "sm_clock_mhz", 1.0, True, "SM clock frequency (in MHz)."),
    ("MEM_CLOCK", "memory_clock_mhz", 1.0, True, "Memory clock frequency (in MHz)."),
    ("MEMORY_TEMP", "temperature_memory_c", 1.0, True, "Memory temperature (in C)."),
    ("GPU_TEMP", "temperature_c", 1.0, True, "GPU temperature (in C)."),
    ("POWER_USAGE", "power_mw", 1e-3, True, "Power draw (in W)."),
    ("TOTAL_ENERGY_CONSUMPTION", "energy_mj", 1.0, False, "Energy since the driver loaded (in mJ)."),
    ("PCIE_REPLAY_COUNTER", "pcie_replays", 1.0, False, "PCIe packets sent again."),
    ("GPU_UTIL", "utilization_gpu", 1.0, True, "GPU utilization (in %)."),
    ("MEM_COPY_UTIL", "utilization_memory", 1.0, True, "Memory utilization (in %)."),
    ("FB_FREE", "memory_free_bytes", _MIB, True, "Framebuffer memory free (in MiB)."),
    ("FB_USED", "memory_used_bytes", _MIB, True, "Framebuffer memory used (in MiB)."),
    ("UNCORRECTABLE_REMAPPED_ROWS", "remapped_uncorrectable", 1.0, False, "Rows remapped for uncorrectable errors."),
    ("CORRECTABLE_REMAPPED_ROWS", "remapped_correctable", 1.0, False, "Rows remapped for correctable errors."),
    ("ROW_REMAP_FAILURE", "remap_failure", 1.0, True, "Whether a row remap failed."),
    ("ROW_REMAP_PENDING", "remap_pending", 1.0, True, "Whether a row remap is pending."),
    ("ECC_SBE_VOL_TOTAL", "ecc_corrected_volatile", 1.0, False, "Single-bit errors since the driver loaded."),
    ("ECC_DBE_VOL_TOTAL", "ecc_uncorrected_volatile", 1.0, False, "Double-bit errors since the driver loaded."),
    ("ECC_SBE_AGG_TOTAL", "ecc_corrected_aggregate", 1.0, False, "Single-bit errors of the GPU's life."),
    ("ECC_DBE_AGG_TOTAL", "ecc_uncorrected_aggregate", 1.0, False, "Double-bit errors of the GPU's life."),
    ("RETIRED_PENDING", "retired_pages_pending", 1.0, True, "Pages whose retirement is pending."),
    ("NVLINK_REPLAY_ERROR_COUNT_TOTAL", "nvlink_replays", 1.0, False, "NVLink replays over all links."),
    ("NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "nvlink_recoveries", 1.0, False, "NVLink recoveries over all links."),
)


def families(
    hostname: str, driver_version: str, snapshot: Snapshot, last_xid: Mapping[str, tuple[int, str]]
) -> Iterator[Metric]:
    """`last_xid` has (code, mnemonic) by UUID; a GPU without one has 0, as with DCGM."""
    gpus = [
        (labels, gpu)
        for gpu in snapshot.gpus
        if gpu.access is None
        for labels in _labels(hostname, driver_version, gpu)
    ]
    for name, read, scale, is_gauge, text in _NAMES:
        # A counter of prometheus_client's would be called ..._total, which is not DCGM's name.
        family = Metric(f"DCGM_FI_DEV_{name}", text, "gauge" if is_gauge else "unknown")
        for labels, gpu in gpus:
            value = getattr(gpu, read)
            if isinstance(value, int) and not (read in _MEMORY and "GPU_I_ID" in labels):
                family.add_sample(family.name, labels, value * scale)
        yield family
    xid = Metric("DCGM_FI_DEV_XID_ERRORS", "Value of the last Xid.", "gauge")
    for labels, gpu in gpus:
        code, mnemonic = last_xid.get(gpu.identity.uuid, (0, ""))
        xid.add_sample(xid.name, {**labels, "err_code": str(code), "err_msg": mnemonic}, code)
    yield xid


def _labels(hostname: str, driver_version: str, gpu: GpuSnapshot) -> Iterator[dict[str, str]]:
    who = gpu.identity
    labels = {
        "gpu": str(who.index),
        "UUID": who.uuid,
        "pci_bus_id": str(who.pci),
        "device": f"nvidia{who.index if who.minor is None else who.minor}",
        "modelName": who.product,
        "Hostname": hostname,
        "DCGM_FI_DRIVER_VERSION": driver_version,
    }
    instances = gpu.mig_instances if gpu.mig_mode == 1 and isinstance(gpu.mig_instances, tuple) else ()
    profiles = {one.gpu_instance: one.profile for one in instances}
    for instance, profile in profiles.items():
        yield {**labels, "GPU_I_PROFILE": profile, "GPU_I_ID": str(instance)}
    if not profiles:
        yield labels
