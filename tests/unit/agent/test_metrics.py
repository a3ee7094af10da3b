"""What /metrics says: names, labels, types, and that nothing is claimed that was not read."""

import re
from dataclasses import replace

import pytest
from nvcre_agent.checks.model import Component
from nvcre_agent.incidents.model import Change, ChangeKind, Incident, Signal
from nvcre_agent.metrics import MAX_XID_SERIES, Metrics, Readings
from nvcre_agent.nvml.snapshot import GpuIdentity, GpuSnapshot, Inventory, MigInstance, PciAddress, Snapshot, Unread
from nvcre_agent.xid.classify import classify_xid
from nvcre_protos.vocabulary import ComponentKind, IncidentKind, Source

GPU = GpuIdentity(3, "GPU-3", PciAddress(0, 0x3B, 0), "NVIDIA H100 80GB HBM3", "1", minor=4)
INVENTORY = Inventory((GPU,), "570.133.20", "12.8")
READ = GpuSnapshot(
    GPU,
    access=None,
    temperature_c=41,
    power_mw=70500,
    sm_clock_mhz=1980,
    memory_clock_mhz=2619,
    utilization_gpu=93,
    memory_used_bytes=2 * 1024**3,
    memory_free_bytes=1024**3,
    energy_mj=5000,
    pcie_replays=7,
    ecc_uncorrected_volatile=0,
    recovery_action=0,
    nvlinks=(1, 0, 1, Unread.FAILED),
)
OURS = f'{{UUID="GPU-3",gpu="3",modelName="{GPU.product}",node="n",pci_bus_id="00000000:3B:00.0"}}'
# Grafana 12239, its variables included; the tensor panel needs DCGM's profiling.
DASHBOARD_12239 = (
    'DCGM_FI_DEV_GPU_TEMP{instance=~"$instance", gpu=~"$gpu"}',
    'avg(DCGM_FI_DEV_GPU_TEMP{instance=~"$instance", gpu=~"$gpu"})',
    'DCGM_FI_DEV_POWER_USAGE{instance=~"$instance", gpu=~"$gpu"}',
    'sum(DCGM_FI_DEV_POWER_USAGE{instance=~"$instance", gpu=~"$gpu"})',
    'DCGM_FI_DEV_SM_CLOCK{instance=~"$instance", gpu=~"$gpu"} * 1000000',
    'DCGM_FI_DEV_GPU_UTIL{instance=~"$instance", gpu=~"$gpu"}',
    'DCGM_FI_DEV_FB_USED{instance=~"$instance", gpu=~"$gpu"}',
    'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{instance=~"$instance", gpu=~"$gpu"}',
    "label_values(DCGM_FI_DEV_GPU_TEMP, instance)",
    "label_values(DCGM_FI_DEV_GPU_TEMP, gpu)",
)


def metrics_of(*gpus: GpuSnapshot, aliases: bool = False) -> Metrics:
    metrics = Metrics("n", "1.2")
    metrics.dcgm_aliases = aliases
    metrics.inventory_seen(INVENTORY)
    metrics.snapshot_seen(Snapshot(1000.0, 0, len(gpus), gpus))
    return metrics


def samples(metrics: Metrics) -> dict[str, float]:
    """By name and labels, the labels in order of their names."""
    found = {}
    for line in metrics.scrape().decode().splitlines():
        if not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            found[series] = float(value)
    return found


def xid(code: int, *, source: Source = Source.KERNEL_LOG, pci: str = str(GPU.pci), injected: bool = False) -> Signal:
    component = Component(ComponentKind.GPU, 3, "GPU-3", pci)
    verdict = classify_xid(code)
    return Signal(IncidentKind.XID, code, pci, component, source, verdict, "m", 1.0, 1.0, injected=injected)


def test_readings_come_in_base_units_and_counters_are_counters() -> None:
    metrics = metrics_of(READ)
    got = samples(metrics)
    assert got[f"nvcre_agent_temperature_celsius{OURS}"] == 41
    assert got[f"nvcre_agent_power_watts{OURS}"] == 70.5
    assert got[f"nvcre_agent_sm_clock_hertz{OURS}"] == 1.98e9
    assert got[f"nvcre_agent_utilization_gpu_ratio{OURS}"] == pytest.approx(0.93)
    assert got[f"nvcre_agent_energy_joules_total{OURS}"] == 5
    assert got[f"nvcre_agent_nvlinks_down{OURS}"] == 1
    assert got[f"nvcre_agent_recovery_action{OURS}"] == 0
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", metrics.scrape().decode(), re.MULTILINE))
    assert {name for name, kind in types.items() if name.endswith("_total") != (kind == "counter")} == set()


def test_what_could_not_be_read_has_no_series_and_a_lost_gpu_is_only_unreachable() -> None:
    lost = GpuSnapshot.unanswered(GPU, Unread.LOST)
    got = {name for name in samples(metrics_of(lost)) if "GPU-3" in name}
    assert got == {f"nvcre_agent_gpu_reachable{OURS}"}
    assert not any(name.startswith("nvcre_agent_pcie_width") for name in samples(metrics_of(READ)))


def test_while_nvml_is_blind_no_old_number_looks_fresh() -> None:
    metrics = metrics_of(READ, aliases=True)
    metrics.monitor_changed("nvml", "NvmlUnresponsive")
    got = samples(metrics)
    assert got['nvcre_agent_monitor_blind{monitor="nvml",node="n",reason="NvmlUnresponsive"}'] == 1
    assert not any("GPU-3" in name for name in got)
    metrics.monitor_changed("nvml", "")
    assert not any("monitor_blind" in name for name in samples(metrics))


def test_xids_are_counted_by_source_and_once_more_where_both_told_the_same_incident() -> None:
    metrics = metrics_of(READ)
    for source in (Source.NVML, Source.KERNEL_LOG, Source.KERNEL_LOG):
        metrics.signal_seen(xid(79, source=source))
    incident = Incident(
        "i", IncidentKind.XID, 79, classify_xid(79).fault_class, classify_xid(79).blame, xid(79).component, "m", 1, 1
    )
    both = replace(incident, sources=(Source.NVML, Source.KERNEL_LOG))
    for change in (both, both):
        metrics.changes_told([Change(ChangeKind.UPDATED, change, 1, 1)])
    got = {series: value for series, value in samples(metrics).items() if "xid_total" in series}
    series = f'nvcre_agent_xid_total{{UUID="GPU-3",class="NeedsReboot",gpu="3",modelName="{GPU.product}"'
    series += ',node="n",pci_bus_id="00000000:3B:00.0",source="%s",xid="79"}'
    assert got == {series % "nvml": 1, series % "kmsg": 2, series % "both": 1}


def test_an_injected_xid_is_counted_apart() -> None:
    metrics = metrics_of(READ)
    metrics.signal_seen(xid(79, injected=True))
    got = samples(metrics)
    assert got['nvcre_agent_injected_signals_total{node="n"}'] == 1
    assert not any("xid_total" in name for name in got)


def test_a_log_full_of_made_up_xids_does_not_make_endless_series() -> None:
    metrics = metrics_of(READ)
    for number in range(3 * MAX_XID_SERIES):
        metrics.signal_seen(xid(1000 + number))
    got = {series: value for series, value in samples(metrics).items() if "xid_total" in series}
    assert len(got) == MAX_XID_SERIES + 1
    assert max(got.values()) == 2 * MAX_XID_SERIES


def test_what_the_parts_count_is_read_at_each_scrape() -> None:
    metrics = metrics_of(READ)
    metrics.read = lambda: Readings(
        events_queued=4,
        events_dropped={"full": 2},
        kmsg_overruns=1,
        nvml_hung=True,
        nvml_calls_within=(5, 3, 0, 0, 0, 0, 1),
        nvml_call_seconds=12.5,
    )
    got = samples(metrics)
    assert got['nvcre_agent_nvml_call_seconds_bucket{le="0.001",node="n"}'] == 8
    assert got['nvcre_agent_nvml_call_seconds_count{node="n"}'] == 9
    assert got['nvcre_agent_nvml_call_seconds_sum{node="n"}'] == 12.5
    assert got['nvcre_agent_events_queued{node="n"}'] == 4
    assert got['nvcre_agent_events_dropped_total{node="n",reason="full"}'] == 2
    assert got['nvcre_agent_kmsg_overrun_total{node="n"}'] == 1
    assert got['nvcre_agent_nvml_hung{node="n"}'] == 1
    assert got['nvcre_agent_config_reload_success{node="n"}'] == 1
    assert got['nvcre_agent_build_info{node="n",version="1.2"}'] == 1


def test_probe_figures_name_the_peers_they_may_be_compared_with() -> None:
    metrics = metrics_of(READ)
    metrics.probe_finished("NVLinkAllReduce", "Measured", 12.0, {1024: 480.5}, "H100; driver 570; NCCL 2.27")
    got = samples(metrics)
    labels = '{node="n",peer_group="H100; driver 570; NCCL 2.27",size="1024",test="NVLinkAllReduce"}'
    assert got[f"nvcre_agent_probe_busbw_gbps{labels}"] == 480.5


# --- DCGM's names


def dcgm(metrics: Metrics) -> dict[str, float]:
    return {series: value for series, value in samples(metrics).items() if series.startswith("DCGM_")}


@pytest.mark.parametrize("query", DASHBOARD_12239)
def test_every_query_of_dashboard_12239_finds_its_series(query: str) -> None:
    [name] = re.findall(r"DCGM_\w+", query)
    found = [series for series in dcgm(metrics_of(READ, aliases=True)) if series.startswith(f"{name}{{")]
    if name.startswith("DCGM_FI_PROF_"):
        assert not found, "needs DCGM's profiling; left out rather than guessed"
    else:
        assert all('gpu="3"' in series for series in found), "instance is Prometheus' own"
        assert found


def test_dcgm_names_have_dcgm_exporters_labels_and_units() -> None:
    got = dcgm(metrics_of(READ, aliases=True))
    labels = (
        'DCGM_FI_DRIVER_VERSION="570.133.20",Hostname="n",UUID="GPU-3",device="nvidia4",%sgpu="3",'
        f'modelName="{GPU.product}",pci_bus_id="00000000:3B:00.0"'
    )
    plain = labels % ""
    assert got[f"DCGM_FI_DEV_POWER_USAGE{{{plain}}}"] == 70.5
    assert got[f"DCGM_FI_DEV_SM_CLOCK{{{plain}}}"] == 1980
    assert got[f"DCGM_FI_DEV_FB_USED{{{plain}}}"] == 2048
    assert got[f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{plain}}}"] == 5000
    assert got[f"DCGM_FI_DEV_GPU_UTIL{{{plain}}}"] == 93
    no_xid = labels % 'err_code="0",err_msg="",'
    assert got[f"DCGM_FI_DEV_XID_ERRORS{{{no_xid}}}"] == 0
    assert not any("MEMORY_TEMP" in series for series in got), "was not read"


def test_the_last_xid_stays_as_dcgm_has_it_and_test_injections_are_not_in_it() -> None:
    metrics = metrics_of(READ, aliases=True)
    metrics.signal_seen(xid(94))
    metrics.signal_seen(xid(79, injected=True))
    [(series, value)] = [(s, v) for s, v in dcgm(metrics).items() if "XID_ERRORS" in s]
    assert value == 94
    assert 'err_code="94"' in series


def test_every_instance_of_a_mig_gpu_has_the_gpus_values_and_no_memory_that_nobody_measured() -> None:
    instances = (
        MigInstance(7, 0, "MIG-a", "1g.10gb"),
        MigInstance(7, 1, "MIG-b", "1g.10gb"),
        MigInstance(9, 0, "", ""),
    )
    got = dcgm(metrics_of(replace(READ, mig_mode=1, mig_instances=instances), aliases=True))
    temperatures = [series for series in got if "GPU_TEMP" in series]
    assert [re.findall(r'GPU_I_ID="(\d+)",GPU_I_PROFILE="([^"]*)"', series) for series in temperatures] == [
        [("7", "1g.10gb")],
        [("9", "")],
    ]
    assert not any("FB_USED" in series for series in got)


def test_without_the_switch_there_are_no_dcgm_names() -> None:
    assert dcgm(metrics_of(READ)) == {}
