"""What is known of one node, and what the API server has of it: the memory of fleet/node_health.py."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec
from nvcre_kube.resources import JsonObject

from nvcre_coordinator.core.escalation import judged
from nvcre_coordinator.core.incidents import Ledger, importance, maintenance_ended
from nvcre_coordinator.core.link_faults import LinkEvent
from nvcre_coordinator.core.localisation import ProbeResult
from nvcre_coordinator.core.node_verdict import Assessment, GpuVerdict, Monitor, Observed, Verdict, bad_gpus
from nvcre_coordinator.fleet.status import Inventory, NodeHealthStatus
from nvcre_coordinator.fleet.wire import cut
from nvcre_coordinator.fleet.write_budget import WriteBudget

MESSAGE_BYTES = 512
GPU_MESSAGE_BYTES = 256
TOLD_WITHIN = timedelta(seconds=5)  # of clocks, and from a maintenance's beginning until it is seen
DELETED = "deleted"  # instead of a version
KNOWN_VERSIONS = 32  # a watch lags behind a few writes at most; if it lags more, we read once too often


@dataclass(eq=False, slots=True)
class NodeRecord:
    """What is known of one node, and what the API server has of it."""

    name: str
    ledger: Ledger = field(default_factory=Ledger)
    reported: bool = False
    boot_id: str = ""
    agent_version: str = ""
    simulated: bool = False
    inventory: Inventory | None = None
    monitors: tuple[Monitor, ...] = ()
    probes: tuple[ProbeResult, ...] = ()  # newest first
    lost_since: datetime | None = None
    rebooted: bool = False  # since its agent was heard last; until the next snapshot
    maintained_since: datetime | None = None
    loaded: bool = False
    held: bool = False  # its verdict is held back by the circuit breaker
    stored: NodeHealthStatus = field(default_factory=NodeHealthStatus)
    attempted: NodeHealthStatus | None = None  # a write whose answer did not arrive
    metadata: JsonObject | None = None  # None: no NodeHealth exists
    versions: deque[str] = field(default_factory=lambda: deque(maxlen=KNOWN_VERSIONS))  # read or written by us
    doubted: str = ""  # the last version that a watch saw and that was none of them
    flush: bool = False
    budget: WriteBudget = field(default_factory=WriteBudget)
    cost_s: float = 0.0  # of judging and encoding it; its agent's messages are what it is done for

    def now_at(self, metadata: JsonObject) -> None:
        """This is what the API server has; read or written by us."""
        self.metadata = metadata
        self.versions.append(str(metadata.get("resourceVersion", "")))

    def take_over(self, status: NodeHealthStatus) -> None:
        """Start from what is stored."""
        self.stored = status
        self.ledger = Ledger(status.incidents, status.closed_incidents, status.cursors)
        self.boot_id, self.agent_version, self.simulated = status.boot_id, status.agent_version, status.simulated
        self.inventory, self.monitors, self.probes = status.inventory, status.monitors, status.probes
        self.reported = status.inventory is not None

    def booted(self, boot_id: str) -> None:
        """The agent names the boot it lives in; one that does not know it tells of no reboot."""
        if boot_id:
            self.rebooted |= bool(self.boot_id) and boot_id != self.boot_id
            self.boot_id = boot_id

    def unacked(self) -> int:
        """How far the newest outbox is folded beyond what is stored (seq may have gaps: at most so many events)."""
        if not self.ledger.cursors:
            return 0
        newest = self.ledger.cursors[-1]
        stored = next((each.seq for each in self.stored.cursors if each.outbox_id == newest.outbox_id), 0)
        return newest.seq - stored

    def maintained(self, marked: bool | None, now: datetime) -> bool:
        """Is the node in maintenance? `marked`: what its Node says; None where that is not known (yet): as before."""
        stored = self.stored.verdict is Verdict.MAINTENANCE
        if marked is False or (marked is None and not stored):
            self.maintained_since = None
            return False
        if self.maintained_since is None:
            self.maintained_since = (stored and self.stored.last_transition_time) or now
        return True

    def in_maintenance(self, began: datetime | None) -> bool:
        """What is told in a maintenance may have begun before it, and is what the maintenance is for."""
        since = self.maintained_since
        return since is not None and (began is None or began >= since - TOLD_WITHIN)

    def observed(self, *, maintenance: bool, link_event: LinkEvent | None) -> Observed:
        """What the rules see; a maintenance that has ended gives back for judgement what it left open."""
        if not maintenance:
            self.ledger = maintenance_ended(self.ledger)
        return Observed(
            reported=self.reported,
            open=judged(self.ledger.open, self.ledger.closed),
            closed=self.ledger.closed,
            monitors=self.monitors,
            probes=self.probes,
            gpus=self.inventory.gpus if self.inventory is not None else (),
            maintenance=maintenance,
            lost_since=self.lost_since,
            link_event=link_event,
        )

    def desired(
        self, seen: Observed, assessment: Assessment, gpus: tuple[GpuVerdict, ...], now: datetime
    ) -> NodeHealthStatus:
        """What should stand in the status; what matters most stands first."""
        changed = assessment.verdict != self.stored.verdict
        return NodeHealthStatus(
            verdict=assessment.verdict,
            message=cut(assessment.message, MESSAGE_BYTES),
            fault_class=assessment.fault_class,
            simulated=self.simulated,
            boot_id=self.boot_id,
            agent_version=self.agent_version,
            last_transition_time=now.replace(microsecond=0) if changed else self.stored.last_transition_time,
            gpu_count=len(self.inventory.gpus) if self.inventory is not None else None,
            bad_gpus=cut(bad_gpus(gpus), MESSAGE_BYTES),
            inventory=self.inventory,
            gpus=tuple(msgspec.structs.replace(gpu, message=cut(gpu.message, GPU_MESSAGE_BYTES)) for gpu in gpus),
            monitors=self.monitors,
            incidents=tuple(sorted(seen.open, key=importance)),
            closed_incidents=self.ledger.closed,
            probes=self.probes,
            cursors=self.ledger.cursors,
        )
