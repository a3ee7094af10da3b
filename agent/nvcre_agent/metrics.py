"""What /metrics exposes, under the prefix `nvcre_agent_`; labels are spelled as dcgm-exporter does, so joins work.

Counters that live elsewhere (outbox, kernel log) are read at scrape time through `refresh`.
"""

from collections.abc import Callable
from contextlib import suppress

from nvcre_protos.vocabulary import IncidentKind, Source
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from nvcre_agent.incidents.model import Signal
from nvcre_agent.nvml.snapshot import GpuIdentity, GpuSnapshot, Inventory, Snapshot

_GPU = ("node", "gpu", "UUID", "pci_bus_id", "modelName")
_SOURCE = {Source.NVML: "nvml", Source.KERNEL_LOG: "kmsg"}
_PER_GPU = (
    ("temperature_celsius", "temperature_c", 1.0, "GPU temperature"),
    ("power_watts", "power_mw", 1e-3, "Power draw"),
    ("memory_used_bytes", "memory_used_bytes", 1.0, "Device memory in use"),
    ("ecc_uncorrected_volatile", "ecc_uncorrected_volatile", 1.0, "Uncorrected ECC errors since the driver loaded"),
    ("ecc_corrected_volatile", "ecc_corrected_volatile", 1.0, "Corrected ECC errors since the driver loaded"),
    ("row_remap_pending", "remap_pending", 1.0, "1 while a row remap waits for a reset"),
    ("row_remap_failure", "remap_failure", 1.0, "1 after a row remap failed"),
    ("recovery_action", "recovery_action", 1.0, "Recovery action that the driver asks for (0 none, 1 reset, 2 reboot)"),
    ("clocks_event_reasons", "clocks_event_reasons", 1.0, "Bits of why clocks are limited"),
    ("pcie_generation", "pcie_generation", 1.0, "Current PCIe generation"),
    ("pcie_width", "pcie_width", 1.0, "Current PCIe lanes"),
)


class Metrics:
    """`refresh` is called before each scrape."""

    def __init__(self, node: str, version: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.refresh: Callable[[], None] = lambda: None
        self._node = node
        self._blind_labels: set[tuple[str, str, str]] = set()
        self._gpus: dict[str, GpuIdentity] = {}
        self._by_pci: dict[str, GpuIdentity] = {}
        counter, gauge = self._counter, self._gauge
        self._xid = counter("xid", "Xid messages as each source told them", (*_GPU, "xid", "class", "source"))
        self._lines = counter("kernel_events", "Recognised kernel lines that are no Xid", ("node", "kind"))
        self._injected = counter("injected_signals", "Signals of test injections", ("node",))
        self._blind = gauge("monitor_blind", "1 while a source cannot be read", ("node", "monitor", "reason"))
        self._gauges = [(gauge(name, text, _GPU), field, scale) for name, field, scale, text in _PER_GPU]
        self._links_down = gauge("nvlinks_down", "NVLinks that are not up", _GPU)
        self._reachable = gauge("gpu_reachable", "1 while NVML can read the GPU", _GPU)
        self._snapshot_time = gauge("nvml_snapshot_timestamp_seconds", "When NVML was last read", ("node",))
        self.outbox_depth = gauge("outbox_events", "Events that the coordinator has not acknowledged", ("node",))
        self.events_dropped = gauge("events_dropped", "Events given up because the outbox was full", ("node",))
        self.slow_commits = gauge("outbox_slow_commits", "Commits that took over 50 ms", ("node",))
        self.open_incidents = gauge("open_incidents", "Incidents that are open", ("node",))
        self.kmsg_overruns = gauge("kmsg_overruns", "Times the kernel overwrote records that were not read", ("node",))
        self.kmsg_gaps = gauge("kmsg_gaps", "Kernel log records that never came", ("node",))
        self.kmsg_skipped = gauge("kmsg_skipped", "What was in the kernel log and is no record", ("node",))
        self.kmsg_records = gauge("kmsg_records", "Kernel log records read", ("node",))
        self.connected = gauge("connected", "1 while the stream to the coordinator is open", ("node",))
        self.connects = gauge("connects", "Streams opened since start", ("node",))
        self._probe = gauge("probe_busbw_gbps", "Bus bandwidth of the last probe in GB/s", ("node", "test", "size"))
        self._probe_seconds = Histogram(
            "nvcre_agent_probe_seconds",
            "How long probes took",
            ("node", "test", "state"),
            buckets=(1, 5, 15, 60, 300),
            registry=self.registry,
        )
        gauge("build_info", "Version of the agent", ("node", "version")).labels(node, version).set(1)

    def signal_seen(self, signal: Signal) -> None:
        if signal.injected:
            self._injected.labels(self._node).inc()
        elif signal.kind is IncidentKind.XID:
            gpu = self._by_pci.get(signal.subject)
            labels = self._labels(gpu) if gpu else (self._node, "", signal.component.uuid, signal.subject, "")
            self._xid.labels(*labels, str(signal.code), signal.verdict.fault_class.name, _SOURCE[signal.source]).inc()
        else:
            self._lines.labels(self._node, signal.kind.value).inc()

    def monitor_changed(self, monitor: str, blind_reason: str) -> None:
        """An empty reason means it sees."""
        for labels in [key for key in self._blind_labels if key[1] == monitor]:
            self._blind.remove(*labels)
            self._blind_labels.discard(labels)
        if blind_reason:
            labels = (self._node, monitor, blind_reason)
            self._blind_labels.add(labels)
            self._blind.labels(*labels).set(1)

    def inventory_seen(self, inventory: Inventory | None) -> None:
        self._by_pci = {str(gpu.pci): gpu for gpu in (inventory.gpus if inventory else ())}

    def snapshot_seen(self, snapshot: Snapshot) -> None:
        """Gauges of the last snapshot; what could not be read has no series, never a zero."""
        self._snapshot_time.labels(self._node).set(snapshot.time_s)
        present = {gpu.identity.uuid for gpu in snapshot.gpus}
        for uuid in [known for known in self._gpus if known not in present]:
            self._forget(self._gpus.pop(uuid))
        for gpu in snapshot.gpus:
            self._gpus[gpu.identity.uuid] = gpu.identity
            self._gpu_seen(gpu)

    def probe_finished(self, test: str, state: str, seconds: float, busbw_by_size: dict[int, float]) -> None:
        self._probe_seconds.labels(self._node, test, state).observe(seconds)
        for size, busbw_gbps in busbw_by_size.items():
            self._probe.labels(self._node, test, str(size)).set(busbw_gbps)

    def set(self, gauge: Gauge, value: float) -> None:
        gauge.labels(self._node).set(value)

    def scrape(self) -> bytes:
        self.refresh()
        return generate_latest(self.registry)

    def _gpu_seen(self, gpu: GpuSnapshot) -> None:
        labels = self._labels(gpu.identity)
        self._reachable.labels(*labels).set(0 if gpu.access else 1)
        for gauge, field, scale in self._gauges:
            value = getattr(gpu, field)
            if isinstance(value, int):
                gauge.labels(*labels).set(value * scale)
            else:
                _remove(gauge, labels)
        links = [link for link in gpu.nvlinks if isinstance(link, int)]
        if links:
            self._links_down.labels(*labels).set(links.count(0))
        else:
            _remove(self._links_down, labels)

    def _forget(self, gpu: GpuIdentity) -> None:
        for gauge in (*(gauge for gauge, _, _ in self._gauges), self._links_down, self._reachable):
            _remove(gauge, self._labels(gpu))

    def _labels(self, gpu: GpuIdentity) -> tuple[str, str, str, str, str]:
        return self._node, str(gpu.index), gpu.uuid, str(gpu.pci), gpu.product

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(f"nvcre_agent_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...]) -> Gauge:
        return Gauge(f"nvcre_agent_{name}", text, labels, registry=self.registry)


def _remove(gauge: Gauge, labels: tuple[str, ...]) -> None:
    with suppress(KeyError):
        gauge.remove(*labels)
