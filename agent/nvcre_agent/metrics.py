"""What /metrics exposes, under the prefix `nvcre_agent_`; labels are spelled as dcgm-exporter does, so joins work.

What happens is counted here as it happens. What lives elsewhere, the last snapshot of the GPUs and the counts of
outbox, kernel log and stream, is read when somebody scrapes (`Readings`), so a GPU that is gone has no series and a
value that could not be read is never a zero. Nothing is exposed per process, and the number of series is bounded
whatever the kernel log says. The DCGM_FI_* names are dcgm_aliases.py.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from nvcre_protos.vocabulary import IncidentKind, Source
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from nvcre_agent import dcgm_aliases
from nvcre_agent.incidents.model import Change, ChangeKind, Signal
from nvcre_agent.nvml.snapshot import GpuIdentity, GpuSnapshot, Inventory, Snapshot
from nvcre_agent.nvml.timing import CALL_SECONDS

_PREFIX = "nvcre_agent_"
_NODE = ("node",)
_GPU = ("node", "gpu", "UUID", "pci_bus_id", "modelName")
_SOURCE = {Source.NVML: "nvml", Source.KERNEL_LOG: "kmsg", Source.HOST: "host"}
MAX_XID_SERIES = 512
OTHER = "other"

# (name, field of GpuSnapshot, scale to the base unit, help)
_GAUGES = (
    ("temperature_celsius", "temperature_c", 1.0, "GPU temperature"),
    ("memory_temperature_celsius", "temperature_memory_c", 1.0, "Memory temperature"),
    ("temperature_margin_celsius", "temperature_margin_c", 1.0, "Distance to the temperature where clocks go down"),
    ("power_watts", "power_mw", 1e-3, "Power draw"),
    ("power_limit_watts", "power_limit_mw", 1e-3, "Power limit in force"),
    ("utilization_gpu_ratio", "utilization_gpu", 1e-2, "Share of the last sample period in which a kernel ran"),
    ("utilization_memory_ratio", "utilization_memory", 1e-2, "Share in which device memory was read or written"),
    ("sm_clock_hertz", "sm_clock_mhz", 1e6, "SM clock"),
    ("memory_clock_hertz", "memory_clock_mhz", 1e6, "Memory clock"),
    ("memory_used_bytes", "memory_used_bytes", 1.0, "Device memory in use"),
    ("memory_free_bytes", "memory_free_bytes", 1.0, "Device memory that is free"),
    ("row_remap_pending", "remap_pending", 1.0, "1 while a row remap waits for a reset"),
    ("row_remap_failure", "remap_failure", 1.0, "1 after a row remap failed"),
    ("retired_pages_pending", "retired_pages_pending", 1.0, "1 while a page retirement waits for a reboot"),
    ("recovery_action", "recovery_action", 1.0, "Recovery action that the driver asks for (0 none, 1 reset, 2 reboot)"),
    ("clocks_event_reasons", "clocks_event_reasons", 1.0, "Bits of why clocks are limited"),
    ("pstate", "pstate", 1.0, "Performance state, 0 is the highest"),
    ("pcie_generation", "pcie_generation", 1.0, "Current PCIe generation"),
    ("pcie_generation_max", "pcie_generation_max", 1.0, "PCIe generation that GPU and slot can do"),
    ("pcie_width", "pcie_width", 1.0, "Current PCIe lanes"),
    ("pcie_width_max", "pcie_width_max", 1.0, "PCIe lanes that GPU and slot can do"),
    ("ecc_mode", "ecc_mode", 1.0, "1 while ECC is on"),
    ("persistence_mode", "persistence_mode", 1.0, "1 while persistence mode is on"),
    ("mig_mode", "mig_mode", 1.0, "1 while MIG is on"),
    ("fabric_state", "fabric_state", 1.0, "Fabric: 0 not supported, 1 not started, 2 in progress, 3 completed"),
    ("fabric_status", "fabric_status", 1.0, "NVML return code of the fabric registration once it is completed"),
    ("fabric_health_summary", "fabric_health_summary", 1.0, "0 not supported, 1 healthy, 2 unhealthy, 3 limited"),
)
_COUNTERS = (
    ("energy_joules", "energy_mj", 1e-3, "Energy since the driver loaded"),
    ("pcie_replays", "pcie_replays", 1.0, "PCIe packets sent again"),
    ("ecc_uncorrected_volatile", "ecc_uncorrected_volatile", 1.0, "Uncorrected ECC errors since the driver loaded"),
    ("ecc_corrected_volatile", "ecc_corrected_volatile", 1.0, "Corrected ECC errors since the driver loaded"),
    ("ecc_uncorrected_aggregate", "ecc_uncorrected_aggregate", 1.0, "Uncorrected ECC errors of the GPU's life"),
    ("ecc_corrected_aggregate", "ecc_corrected_aggregate", 1.0, "Corrected ECC errors of the GPU's life"),
    ("remapped_rows_correctable", "remapped_correctable", 1.0, "Rows remapped for correctable errors"),
    ("remapped_rows_uncorrectable", "remapped_uncorrectable", 1.0, "Rows remapped for uncorrectable errors"),
    ("retired_pages", "retired_pages", 1.0, "Pages retired (before Ampere)"),
    ("nvlink_crc_errors", "nvlink_crc_errors", 1.0, "NVLink CRC errors over all links"),
    ("nvlink_replays", "nvlink_replays", 1.0, "NVLink replays over all links"),
    ("nvlink_recoveries", "nvlink_recoveries", 1.0, "NVLink recoveries over all links"),
)


@dataclass(frozen=True, slots=True)
class Readings:
    """What the agent's parts count themselves, at one moment."""

    events_queued: int = 0
    events_dropped: Mapping[str, int] = field(default_factory=dict)  # by reason
    outbox_bytes: int = 0
    outbox_in_memory: bool = False
    slow_commits: int = 0
    open_incidents: int = 0
    kmsg_records: int = 0
    kmsg_skipped: int = 0
    kmsg_overruns: int = 0
    kmsg_gaps: int = 0
    connected: bool = False
    connects: int = 0
    stream_ends: Mapping[str, int] = field(default_factory=dict)  # by reason
    state_dropped: int = 0
    nvml_hung: bool = False
    nvml_hung_calls: int = 0
    nvml_restarts: int = 0
    nvml_calls_within: Sequence[int] = (0,) * (len(CALL_SECONDS) + 1)  # by CALL_SECONDS
    nvml_call_seconds: float = 0.0
    config_reload_success: bool = True


class Metrics:
    """`read` is asked before each scrape."""

    def __init__(self, node: str, version: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.read: Callable[[], Readings] = Readings
        self.dcgm_aliases = False
        self._node = node
        self._blind_labels: set[tuple[str, str, str]] = set()
        self._by_pci: dict[str, GpuIdentity] = {}
        self._driver_version = ""
        self._snapshot: Snapshot | None = None
        self._told_by_both: set[str] = set()
        self._xid_series: set[tuple[str, ...]] = set()
        self._last_xid: dict[str, tuple[int, str]] = {}
        self._xid = self._counter("xid", "Xid messages as each source told them", (*_GPU, "xid", "class", "source"))
        self._lines = self._counter("kernel_events", "Recognised kernel lines that are no Xid", ("node", "kind"))
        self._injected = self._counter("injected_signals", "Signals of test injections", _NODE)
        self._blind = self._gauge("monitor_blind", "1 while a source cannot be read", ("node", "monitor", "reason"))
        self._probe = self._gauge(
            "probe_busbw_gbps", "Bus bandwidth of the last probe in GB/s", ("node", "test", "size", "peer_group")
        )
        self._probe_seconds = Histogram(
            f"{_PREFIX}probe_seconds",
            "How long probes took",
            ("node", "test", "state"),
            buckets=(1, 5, 15, 60, 300),
            registry=self.registry,
        )
        self._gauge("build_info", "Version of the agent", ("node", "version")).labels(node, version).set(1)
        self.registry.register(_AtScrape(self._at_scrape))

    # --- what happens

    def signal_seen(self, signal: Signal) -> None:
        if signal.injected:
            self._injected.labels(self._node).inc()
        elif signal.kind is IncidentKind.XID:
            self._count_xid(
                signal.subject,
                signal.component.uuid,
                signal.code,
                signal.verdict.fault_class.value,
                _SOURCE[signal.source],
            )
            if (gpu := self._by_pci.get(signal.subject)) is not None:
                self._last_xid[gpu.uuid] = (signal.code, signal.verdict.mnemonic)
        else:
            self._lines.labels(self._node, signal.kind.value).inc()

    def changes_told(self, changes: Iterable[Change]) -> None:
        """Counts an Xid incident under `both` when the second source has told it."""
        for change in changes:
            one = change.incident
            if change.kind is ChangeKind.RECOVERED:
                self._told_by_both.discard(one.id)
            elif (
                one.kind is IncidentKind.XID
                and len(one.sources) > 1
                and not one.injected
                and one.id not in self._told_by_both
            ):
                self._told_by_both.add(one.id)
                component = one.component
                self._count_xid(component.pci_bus_id, component.uuid, one.code, one.fault_class.value, "both")

    def monitor_changed(self, monitor: str, blind_reason: str) -> None:
        """An empty reason means it sees."""
        for labels in [key for key in self._blind_labels if key[1] == monitor]:
            self._blind.remove(*labels)
            self._blind_labels.discard(labels)
        if blind_reason:
            labels = (self._node, monitor, blind_reason)
            self._blind_labels.add(labels)
            self._blind.labels(*labels).set(1)
            if monitor == "nvml":
                self._snapshot = None  # numbers that nobody reads any more must not look fresh

    def inventory_seen(self, inventory: Inventory | None) -> None:
        self._by_pci = {str(gpu.pci): gpu for gpu in (inventory.gpus if inventory else ())}
        self._driver_version = inventory.driver_version if inventory else ""
        known = {gpu.uuid for gpu in self._by_pci.values()}
        self._last_xid = {uuid: told for uuid, told in self._last_xid.items() if uuid in known}

    def snapshot_seen(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def probe_finished(
        self, test: str, state: str, seconds: float, busbw_by_size: Mapping[int, float], peer_group: str
    ) -> None:
        """`peer_group` is what the coordinator compares within: GPU, driver and NCCL."""
        self._probe_seconds.labels(self._node, test, state).observe(seconds)
        for size, busbw_gbps in busbw_by_size.items():
            self._probe.labels(self._node, test, str(size), peer_group).set(busbw_gbps)

    def scrape(self) -> bytes:
        return generate_latest(self.registry)

    # --- what is read at scrape time

    def _at_scrape(self) -> Iterator[Metric]:
        yield from _of_the_agent(self._node, self.read())
        yield from _of_the_gpus(self._node, self._snapshot)
        if self.dcgm_aliases and self._snapshot is not None:
            yield from dcgm_aliases.families(self._node, self._driver_version, self._snapshot, self._last_xid)

    def _count_xid(self, pci: str, uuid: str, code: int, fault_class: str, source: str) -> None:
        gpu = self._by_pci.get(pci)
        labels = (*(_labels(self._node, gpu) if gpu else (self._node, "", uuid, pci, "")), str(code), fault_class)
        if labels not in self._xid_series:
            if len(self._xid_series) >= MAX_XID_SERIES:
                labels = (self._node, "", "", "", "", OTHER, OTHER)
            self._xid_series.add(labels)
        self._xid.labels(*labels, source).inc()

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(f"{_PREFIX}{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...]) -> Gauge:
        return Gauge(f"{_PREFIX}{name}", text, labels, registry=self.registry)


class _AtScrape(Collector):
    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Metric]:
        return self._collect()

    def describe(self) -> Iterable[Metric]:
        return ()


def _of_the_agent(node: str, now: Readings) -> Iterator[Metric]:
    gauges = (
        ("events_queued", float(now.events_queued), "Events that the coordinator has not acknowledged"),
        ("outbox_bytes", float(now.outbox_bytes), "Size of those events"),
        ("outbox_in_memory", float(now.outbox_in_memory), "1 while events would not survive a restart"),
        ("open_incidents", float(now.open_incidents), "Incidents that are open"),
        ("connected", float(now.connected), "1 while the stream to the coordinator is open"),
        ("nvml_hung", float(now.nvml_hung), "1 while a call has not come back from NVML"),
        ("config_reload_success", float(now.config_reload_success), "0 after a reload that was refused"),
    )
    counters = (
        ("outbox_slow_commits", now.slow_commits, "Commits that took over 50 ms"),
        ("connects", now.connects, "Streams opened since start"),
        ("state_dropped", now.state_dropped, "Heartbeats, snapshots, probe states a newer one replaced before sending"),
        ("nvml_hung_calls", now.nvml_hung_calls, "NVML calls that did not come back in time"),
        ("nvml_restarts", now.nvml_restarts, "Times the NVML process had to be started again"),
        ("kmsg_records", now.kmsg_records, "Kernel log records read"),
        ("kmsg_skipped", now.kmsg_skipped, "What was in the kernel log and is no record"),
        ("kmsg_overrun", now.kmsg_overruns, "Times the kernel overwrote records that were not read"),
        ("kmsg_gaps", now.kmsg_gaps, "Kernel log records that never came"),
    )
    for name, value, text in gauges:
        family = GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=_NODE)
        family.add_metric((node,), value)
        yield family
    for name, count, text in counters:
        counter = CounterMetricFamily(f"{_PREFIX}{name}", text, labels=_NODE)
        counter.add_metric((node,), count)
        yield counter
    calls = HistogramMetricFamily(f"{_PREFIX}nvml_call_seconds", "How long NVML calls took", labels=_NODE)
    bounds = [*map(str, CALL_SECONDS), "+Inf"]
    calls.add_metric((node,), list(zip(bounds, accumulate(now.nvml_calls_within), strict=True)), now.nvml_call_seconds)
    yield calls
    by_reason = (
        ("events_dropped", now.events_dropped, "Events given up, by reason"),
        ("stream_ends", now.stream_ends, "Streams that ended or did not come to be, by reason"),
    )
    for name, counts, text in by_reason:
        counter = CounterMetricFamily(f"{_PREFIX}{name}", text, labels=("node", "reason"))
        for reason, count in counts.items():
            counter.add_metric((node, str(reason)), count)
        yield counter


def _of_the_gpus(node: str, snapshot: Snapshot | None) -> Iterator[Metric]:
    taken = GaugeMetricFamily(f"{_PREFIX}nvml_snapshot_timestamp_seconds", "When NVML was last read", labels=_NODE)
    if snapshot is not None:
        taken.add_metric((node,), snapshot.time_s)
    yield taken
    gpus = [(_labels(node, gpu.identity), gpu) for gpu in (snapshot.gpus if snapshot else ())]
    yield _gauge("gpu_reachable", "1 while NVML can read the GPU", gpus, lambda gpu: float(gpu.access is None))
    yield _gauge("nvlinks_down", "NVLinks that are not up", gpus, _links_down)
    for name, read, scale, text in _GAUGES:
        yield _gauge(name, text, gpus, _reader(read, scale))
    for name, read, scale, text in _COUNTERS:
        family = CounterMetricFamily(f"{_PREFIX}{name}", text, labels=_GPU)
        for labels, gpu in gpus:
            if (value := _reader(read, scale)(gpu)) is not None:
                family.add_metric(labels, value)
        yield family


def _gauge(
    name: str,
    text: str,
    gpus: Iterable[tuple[tuple[str, ...], GpuSnapshot]],
    read: Callable[[GpuSnapshot], float | None],
) -> Metric:
    family = GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=_GPU)
    for labels, gpu in gpus:
        if (value := read(gpu)) is not None:
            family.add_metric(labels, value)
    return family


def _reader(name: str, scale: float) -> Callable[[GpuSnapshot], float | None]:
    def read(gpu: GpuSnapshot) -> float | None:
        value = getattr(gpu, name)
        return value * scale if isinstance(value, int) else None

    return read


def _links_down(gpu: GpuSnapshot) -> float | None:
    links = [link for link in gpu.nvlinks if isinstance(link, int)]
    return float(links.count(0)) if links else None


def _labels(node: str, gpu: GpuIdentity) -> tuple[str, str, str, str, str]:
    return node, str(gpu.index), gpu.uuid, str(gpu.pci), gpu.product
