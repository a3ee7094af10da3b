"""What the driver layer makes of the answers of NVML: real pynvml over the simulated C functions."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pynvml
import pytest
from nvcre_agent.nvml import simulated, simulated_device
from nvcre_agent.nvml.driver import Blind, Driver, open_driver
from nvcre_agent.nvml.snapshot import (
    READINGS,
    EventType,
    GpuIdentity,
    GpuSnapshot,
    Inventory,
    MigInstance,
    PciAddress,
    Snapshot,
    Unread,
    inventory_from_json,
    snapshot_from_json,
    to_json,
)

from tests.support.simulated_nvml import SimulationDirectory

DEVICE_FUNCTIONS = {
    name for name in {*dir(simulated_device.DeviceFunctions), *simulated_device._ONE_VALUE} if name.startswith("nvml")
}


@contextlib.contextmanager
def opened(simulation: SimulationDirectory, **description: object) -> Iterator[Driver]:
    simulation.describe(**description)
    simulated.install(simulation.description)
    driver = open_driver()
    assert isinstance(driver, Driver)
    yield driver
    simulated.uninstall()


def gpu_of(snapshot: Snapshot, index: int) -> GpuSnapshot:
    found = snapshot.gpu(f"GPU-{index}")
    assert found is not None
    return found


def test_the_inventory_names_every_gpu_and_the_driver(driver: Driver) -> None:
    inventory = driver.inventory()
    assert (inventory.driver_version, inventory.cuda_version) == ("570.133.20", "12.8")
    assert [gpu.uuid for gpu in inventory.gpus] == [f"GPU-{index}" for index in range(8)]
    assert inventory.gpus[5] == GpuIdentity(5, "GPU-5", PciAddress(0, 0x20, 0), "NVIDIA H100 80GB HBM3", "1655", 5)
    assert inventory.by_pci(PciAddress.parse("0000:20:00.0")) == inventory.by_uuid("GPU-5")


def test_a_healthy_gpu_is_read_completely(driver: Driver) -> None:
    gpu = gpu_of(driver.snapshot(), 0)
    assert gpu.access is None
    assert gpu.nvlinks == (1,) * 18
    assert (gpu.recovery_action, gpu.remap_pending, gpu.remap_failure, gpu.ecc_uncorrected_volatile) == (0, 0, 0, 0)
    assert (gpu.pcie_generation, gpu.pcie_width, gpu.memory_used_bytes, gpu.processes) == (5, 16, 4 << 20, ())
    assert Unread.NOT_SUPPORTED not in [getattr(gpu, name) for name in ("pstate", "power_mw", "temperature_c")]


def test_what_a_scenario_sets_is_read(driver: Driver, simulation: SimulationDirectory) -> None:
    simulation.set(2, recovery_action=1, ecc_uncorrected_volatile=3, remap_pending=True, nvlinks_down=[4])
    simulation.set(3, remap_failure=True, processes=[4711, 4712])
    snapshot = driver.snapshot()
    second, third = gpu_of(snapshot, 2), gpu_of(snapshot, 3)
    assert (second.recovery_action, second.ecc_uncorrected_volatile, second.remap_pending) == (1, 3, 1)
    assert second.nvlinks[4] == 0
    assert sum(link for link in second.nvlinks if isinstance(link, int)) == 17
    assert (third.remap_failure, third.processes) == (1, (4711, 4712))


def test_one_lost_gpu_hides_no_other_and_keeps_its_identity(driver: Driver, simulation: SimulationDirectory) -> None:
    before = driver.inventory()
    simulation.set(5, lost=True)
    driver.enumerate()
    snapshot = driver.snapshot()
    assert driver.inventory() == before
    assert [gpu.access for gpu in snapshot.gpus] == [Unread.LOST if index == 5 else None for index in range(8)]
    assert gpu_of(snapshot, 5).recovery_action is Unread.LOST
    assert driver.lost() == {5}


def test_a_gpu_lost_before_the_agent_started_is_counted_although_unknown(simulation: SimulationDirectory) -> None:
    simulation.set(5, lost=True)
    simulated.install(simulation.description)
    opened = open_driver()
    assert isinstance(opened, Driver)
    snapshot = opened.snapshot()
    simulated.uninstall()
    assert (snapshot.device_count, len(snapshot.gpus), snapshot.unidentified) == (8, 7, (Unread.LOST,))


def test_an_inventory_remembers_gpus_that_are_not_listed_any_more(driver: Driver) -> None:
    full = driver.inventory()
    seven = Inventory(full.gpus[:5] + full.gpus[6:], full.driver_version, full.cuda_version)
    assert seven.remembering(full) == full
    exchanged = replace(full.gpus[5], uuid="GPU-new")
    renewed = Inventory((*seven.gpus, exchanged), full.driver_version, full.cuda_version)
    assert renewed.remembering(full).by_uuid("GPU-5") is None
    assert full.remembering(None) == full


def test_a_gpu_that_comes_back_is_read_again(driver: Driver, simulation: SimulationDirectory) -> None:
    simulation.set(5, lost=True)
    driver.enumerate()
    simulation.set(5, lost=False)
    assert gpu_of(driver.snapshot(), 5).access is None
    assert driver.lost() == frozenset()


@pytest.mark.parametrize(
    ("code", "access"),
    [
        ("GPU_IS_LOST", Unread.LOST),
        ("RESET_REQUIRED", Unread.RESET_REQUIRED),
        ("NO_PERMISSION", Unread.NO_PERMISSION),
        ("UNKNOWN", Unread.FAILED),
    ],
)
def test_why_a_gpu_cannot_be_read_stays_distinguishable(
    driver: Driver, simulation: SimulationDirectory, code: str, access: Unread
) -> None:
    simulation.set(1, return_=code)
    assert gpu_of(driver.snapshot(), 1).access is access


def test_a_symbol_that_the_library_lacks_is_not_supported(simulation: SimulationDirectory) -> None:
    missing = ["nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetMarginTemperature", "nvmlDeviceGetMigMode"]
    missing += ["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetNvLinkState"]
    with opened(simulation, missing_functions=missing) as driver:
        gpu = gpu_of(driver.snapshot(), 0)
    assert gpu.access is None
    assert (gpu.fabric_state, gpu.fabric_health_summary, gpu.temperature_margin_c) == (Unread.NOT_SUPPORTED,) * 3
    assert (gpu.mig_mode, gpu.processes, gpu.nvlinks) == (Unread.NOT_SUPPORTED, Unread.NOT_SUPPORTED, ())


def test_without_any_of_the_symbols_that_one_may_do_without_the_gpus_still_answer(
    simulation: SimulationDirectory,
) -> None:
    needed = {
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetPerformanceState",
        "nvmlDeviceGetMemoryInfo",
    }
    with opened(simulation, missing_functions=sorted(DEVICE_FUNCTIONS - needed)) as driver:
        gpu = gpu_of(driver.snapshot(), 0)
    assert (gpu.access, gpu.pstate, gpu.memory_used_bytes) == (None, 0, 4 << 20)
    assert {getattr(gpu, name) for name in READINGS} == {Unread.NOT_SUPPORTED, 0, 4 << 20, (81559 << 20) - (4 << 20)}


def test_remapped_rows_come_by_the_older_call_where_the_driver_has_no_such_field(
    driver: Driver, simulation: SimulationDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(simulated_device._FIELDS, pynvml.NVML_FI_DEV_REMAPPED_FAILURE)
    simulation.set(2, remap_failure=True, remapped_uncorrectable=9)
    gpu = gpu_of(driver.snapshot(), 2)
    assert (gpu.remap_failure, gpu.remapped_uncorrectable) == (1, 9)


def test_a_field_that_the_driver_does_not_know_is_not_supported(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(simulated_device._FIELDS, pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)
    gpu = gpu_of(driver.snapshot(), 0)
    assert gpu.recovery_action is Unread.NOT_SUPPORTED
    assert gpu.nvlink_crc_errors == 0


def test_every_reading_that_a_scenario_sets_is_read_as_set(driver: Driver, simulation: SimulationDirectory) -> None:
    low = {"pcie_generation": 1, "pcie_width": 4, "pcie_generation_max": 2, "pcie_width_max": 8}
    wanted = {name: low.get(name, 1) for name in READINGS}
    simulation.set(6, **wanted)
    gpu = gpu_of(driver.snapshot(), 6)
    assert {name: getattr(gpu, name) for name in READINGS} == wanted


@pytest.mark.parametrize("garbage", [0x7FFFFFF2, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFF2, (1 << 64) - 1])
def test_a_blank_is_a_failed_reading_and_never_a_value(
    driver: Driver, simulation: SimulationDirectory, garbage: int
) -> None:
    simulation.set(6, **dict.fromkeys(READINGS, garbage))
    gpu = gpu_of(driver.snapshot(), 6)
    read = {name: getattr(gpu, name) for name in READINGS}
    # Masks may have any bits, and what C truncates may be anything that fits.
    assert {name for name, value in read.items() if value is not Unread.FAILED} <= {
        "clocks_event_reasons", "fabric_health_mask", "temperature_margin_c"}  # fmt: skip
    assert gpu.access is None


@pytest.mark.parametrize("code", [pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_INSUFFICIENT_SIZE])
def test_a_count_of_processes_that_cannot_be_is_a_failed_reading(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """pynvml's own call took 3 GB and 80 s for it, or raised MemoryError."""

    def ten_million(_device: object, count: Any, _found: object) -> int:
        count._obj.value = 10_000_000
        return code

    pynvml._nvmlGetFunctionPointer_cache.clear()
    monkeypatch.setattr(pynvml.nvmlLib, "nvmlDeviceGetComputeRunningProcesses_v3", ten_million, raising=False)
    gpu = driver.snapshot().gpus[0]
    assert (gpu.processes, gpu.access) == (Unread.FAILED, None)


def test_texts_that_are_no_text_leave_the_identity_that_was_known(
    driver: Driver, simulation: SimulationDirectory
) -> None:
    before = driver.inventory()
    simulation.set(3, garbled=True)
    driver.enumerate()
    assert driver.inventory() == before
    assert gpu_of(driver.snapshot(), 3).access is None


def test_two_gpus_that_give_one_uuid_are_not_both_it(
    driver: Driver, library: simulated.SimulatedNvml, simulation: SimulationDirectory
) -> None:
    """Else the one that is not named would be missing, and blamed."""
    before = driver.inventory()
    library._node.gpus[4].uuid = "GPU-3"
    driver.enumerate()
    assert (driver.inventory(), driver.unidentified) == (before, ())
    assert gpu_of(driver.snapshot(), 4).access is None
    anew = Driver()
    anew.enumerate()
    assert [gpu.index for gpu in anew.inventory().gpus] == [0, 1, 2, 5, 6, 7]
    assert anew.unidentified == (Unread.FAILED, Unread.FAILED)


@pytest.mark.parametrize(
    ("product", "nvlinks", "generation", "margin", "summary", "replays", "events"),
    [
        ("NVIDIA A100-SXM4-80GB", 12, 4, Unread.NOT_SUPPORTED, Unread.NOT_SUPPORTED, 0, 2),
        ("NVIDIA H100 80GB HBM3", 18, 5, 55, 0, 0, 8),
        ("NVIDIA H200", 18, 5, 55, 0, 0, 8),
        ("NVIDIA B200", 18, 6, 55, 1, Unread.NOT_SUPPORTED, 8),
        ("NVIDIA GB200", 18, 6, 55, 1, Unread.NOT_SUPPORTED, 8),
    ],
)
def test_each_product_answers_as_it_does(
    simulation: SimulationDirectory,
    product: str,
    nvlinks: int,
    generation: int,
    margin: int | Unread,
    summary: int | Unread,
    replays: int | Unread,
    events: int,
) -> None:
    with opened(simulation, product=product, nvlinks=nvlinks) as driver:
        gpu = gpu_of(driver.snapshot(), 0)
        mask = pynvml.nvmlDeviceGetSupportedEventTypes(driver.handles()[0])
    assert (gpu.identity.product, len(gpu.nvlinks), gpu.pcie_generation_max) == (product, nvlinks, generation)
    assert (gpu.temperature_margin_c, gpu.fabric_health_summary, gpu.nvlink_replays) == (margin, summary, replays)
    assert (gpu.retired_pages, gpu.remap_failure, gpu.mig_instances) == (Unread.NOT_SUPPORTED, 0, ())
    assert sum(bool(mask & kind) for kind in EventType) == events


MIG = [
    {"gpu_instance": 1, "compute_instance": 0, "uuid": "MIG-a", "profile": "3g.40gb"},
    {"gpu_instance": 5, "compute_instance": 0, "uuid": "MIG-b", "profile": "1g.10gb"},
]


def test_mig_instances_are_listed_under_their_gpu(driver: Driver, simulation: SimulationDirectory) -> None:
    simulation.set(2, mig_instances=MIG)
    gpu = gpu_of(driver.snapshot(), 2)
    assert gpu.mig_mode == 1
    assert gpu.mig_instances == (MigInstance(1, 0, "MIG-a", "3g.40gb"), MigInstance(5, 0, "MIG-b", "1g.10gb"))
    assert (gpu.remap_failure, gpu.utilization_gpu) == (Unread.NOT_SUPPORTED, Unread.NOT_SUPPORTED)
    assert gpu_of(driver.snapshot(), 3).mig_instances == ()


def test_mig_instances_that_cannot_be_listed_are_not_no_instances(
    driver: Driver, simulation: SimulationDirectory
) -> None:
    simulation.set(2, mig_instances=MIG, calls={"nvmlDeviceGetMigDeviceHandleByIndex": "NO_PERMISSION"})
    assert gpu_of(driver.snapshot(), 2).mig_instances is Unread.NO_PERMISSION


def test_a_card_without_nvlink_has_no_links(simulation: SimulationDirectory) -> None:
    with opened(simulation, nvlinks=0) as driver:
        assert gpu_of(driver.snapshot(), 0).nvlinks == ()


def test_a_snapshot_survives_the_pipe(driver: Driver, simulation: SimulationDirectory) -> None:
    simulation.set(5, lost=True)
    simulation.set(2, mig_instances=MIG)
    snapshot = driver.snapshot()
    assert snapshot_from_json(to_json(snapshot)) == snapshot
    assert inventory_from_json(to_json(driver.inventory())) == driver.inventory()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "LibraryNotFound"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "DriverNotLoaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "DriverMismatch"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "NoPermission"),
        (pynvml.NVML_ERROR_UNKNOWN, "InitFailed"),
    ],
)
def test_nvml_that_does_not_come_up_is_blind_with_its_reason(
    library: simulated.SimulatedNvml, simulation: SimulationDirectory, code: int, reason: str
) -> None:
    names = {value: name for name, value in simulated.RETURN_CODES.items()}
    simulation.set(None, calls={"nvmlInitWithFlags": names[code]})
    opened = open_driver()
    assert isinstance(opened, Blind)
    assert opened.reason == reason
    assert opened.message


def test_a_driver_without_gpus_is_blind(simulation: SimulationDirectory) -> None:
    simulation.describe(gpus=[])
    simulated.install(simulation.description)
    opened = open_driver()
    simulated.uninstall()
    assert isinstance(opened, Blind)
    assert opened.reason == "NoGPUs"


def test_a_driver_that_lists_no_gpu_any_more_is_blind_and_misses_none(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    pynvml._nvmlGetFunctionPointer_cache.clear()
    none = lambda _count: pynvml.NVML_SUCCESS  # noqa: E731
    monkeypatch.setattr(pynvml.nvmlLib, "nvmlDeviceGetCount_v2", none, raising=False)
    driver.enumerate()
    assert driver.snapshot().gpus == ()
    blind = driver.trouble()
    assert blind is not None
    assert blind.reason == "NoGPUs"


@pytest.mark.parametrize("text", ["0008:06:00", "00000008:06:00.0", "8:6:0"])
def test_one_slot_has_one_address_however_it_is_written(text: str) -> None:
    assert PciAddress.parse(text) == PciAddress(8, 6, 0)
    assert str(PciAddress.parse(text)) == "00000008:06:00.0"


@pytest.mark.parametrize("text", ["", "gpu0", "0000:06", "0000:06:00.9", "000000008:06:00"])
def test_what_is_no_pci_address_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="PCI address"):
        PciAddress.parse(text)
