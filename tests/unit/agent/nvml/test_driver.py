"""What the driver layer makes of the answers of NVML: real pynvml over the simulated C functions."""

from dataclasses import replace

import pynvml
import pytest
from nvcre_agent.nvml import simulated
from nvcre_agent.nvml.driver import Blind, Driver, open_driver
from nvcre_agent.nvml.snapshot import (
    GpuIdentity,
    GpuSnapshot,
    Inventory,
    PciAddress,
    Snapshot,
    Unread,
    inventory_from_json,
    snapshot_from_json,
    to_json,
)

from tests.unit.agent.nvml.conftest import SimulationDirectory


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


def test_a_symbol_that_the_library_lacks_is_not_supported(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(simulated.SimulatedNvml, "nvmlDeviceGetRemappedRows")
    monkeypatch.delattr(simulated.SimulatedNvml, "nvmlDeviceGetComputeRunningProcesses_v3")
    pynvml._nvmlGetFunctionPointer_cache.clear()
    gpu = gpu_of(driver.snapshot(), 0)
    assert gpu.access is None
    assert (gpu.remap_failure, gpu.processes) == (Unread.NOT_SUPPORTED, Unread.NOT_SUPPORTED)


def test_a_field_that_the_driver_does_not_know_is_not_supported(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pynvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", 100_000)  # what the simulation answers to
    gpu = gpu_of(driver.snapshot(), 0)
    assert gpu.recovery_action is Unread.NOT_SUPPORTED
    assert gpu.nvlink_crc_errors == 0


def test_a_card_without_nvlink_has_no_links(simulation: SimulationDirectory) -> None:
    simulation.describe(nvlinks=0)
    simulated.install(simulation.description)
    opened = open_driver()
    assert isinstance(opened, Driver)
    assert gpu_of(opened.snapshot(), 0).nvlinks == ()
    simulated.uninstall()


def test_a_snapshot_survives_the_pipe(driver: Driver, simulation: SimulationDirectory) -> None:
    simulation.set(5, lost=True)
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
    library: simulated.SimulatedNvml, monkeypatch: pytest.MonkeyPatch, code: int, reason: str
) -> None:
    monkeypatch.setattr(library, "nvmlInitWithFlags", lambda _flags: code)
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


@pytest.mark.parametrize("text", ["0008:06:00", "00000008:06:00.0", "8:6:0"])
def test_one_slot_has_one_address_however_it_is_written(text: str) -> None:
    assert PciAddress.parse(text) == PciAddress(8, 6, 0)
    assert str(PciAddress.parse(text)) == "00000008:06:00.0"


@pytest.mark.parametrize("text", ["", "gpu0", "0000:06", "0000:06:00.9", "000000008:06:00"])
def test_what_is_no_pci_address_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="PCI address"):
        PciAddress.parse(text)
