"""The nvcre_fleet_ metrics: what an operator sees of the agents' side. One object, registered where it is made."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class FleetMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.agents_connected = Gauge("nvcre_fleet_agents_connected", "Agents with a live stream.", registry=registry)
        self.leading = Gauge("nvcre_fleet_leading", "1 while this replica accepts agents.", registry=registry)
        self.streams = Counter(
            "nvcre_fleet_streams_total", "Streams by how they ended.", ["outcome"], registry=registry
        )
        self.events_received = Counter(
            "nvcre_fleet_events_received_total", "Fault and recovery events, resends included.", registry=registry
        )
        self.snapshots_received = Counter(
            "nvcre_fleet_snapshots_received_total", "Snapshots of agents.", registry=registry
        )
        self.heartbeats_received = Counter(
            "nvcre_fleet_heartbeats_received_total", "Heartbeats of agents.", registry=registry
        )
        self.acks_sent = Counter("nvcre_fleet_acks_sent_total", "Acks sent to agents.", registry=registry)
        self.bad_messages = Counter(
            "nvcre_fleet_bad_messages_total",
            "Messages that ended their stream because they cannot be used.",
            registry=registry,
        )
        self.node_health_writes = Counter(
            "nvcre_fleet_node_health_writes_total", "Status writes of NodeHealth.", ["result"], registry=registry
        )
        self.node_health_write_seconds = Histogram(
            "nvcre_fleet_node_health_write_seconds",
            "Duration of one NodeHealth write.",
            registry=registry,
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
        )
        self.node_verdicts = Gauge(
            "nvcre_fleet_node_verdicts", "Nodes by verdict, as last written.", ["verdict"], registry=registry
        )
        self.breaker_open = Gauge(
            "nvcre_fleet_circuit_breaker_open",
            "1 while verdicts are held back because many nodes turned bad at once.",
            registry=registry,
        )
        self.verdicts_held = Counter(
            "nvcre_fleet_verdicts_held_total", "Verdicts that the circuit breaker held back.", registry=registry
        )
        self.alarms = Counter(
            "nvcre_fleet_alarms_total",
            "Alarms about many nodes at once: CircuitBreakerOpen, NVLinkEvent, FacilityHeat.",
            ["reason"],
            registry=registry,
        )
        self.token_reviews = Counter(
            "nvcre_fleet_token_reviews_total", "Answers about agents' tokens.", ["result"], registry=registry
        )
        self.probe_results = Counter(
            "nvcre_fleet_probe_results_total", "Stored probe results.", ["kind", "state"], registry=registry
        )
        self.reservations = Gauge(
            "nvcre_fleet_probe_reservations", "Reservation Pods that exist now.", registry=registry
        )
        self.clock_offset_seconds = Histogram(
            "nvcre_fleet_agent_clock_offset_seconds",
            "Absolute clock offset of agents, a sample a heartbeat.",
            registry=registry,
            buckets=(0.01, 0.1, 0.5, 1, 2, 5, 10, 60, 600, 3600),
        )
        self.certificate_expiry_timestamp = Gauge(
            "nvcre_fleet_certificate_expiry_timestamp_seconds", "When the serving certificate ends.", registry=registry
        )
