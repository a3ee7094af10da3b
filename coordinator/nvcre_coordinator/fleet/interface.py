"""What the job side of the coordinator may ask the fleet side; it never talks to agents itself.

Two small protocols. Both are level triggered: call again as often as you like, and look again when a subscription
calls back. All of it runs in the coordinator's one event loop; callbacks are called there and must not block. Answers
are only meaningful on the leader: a follower has no agents.

`fleet/service.py: FleetService` carries both:

    fleet = FleetService(
        client,                      # nvcre_kube KubeClient; informers it needs (Nodes, reservation Pods) are its own
        FleetSettings(namespace="nvcre-system", grpc_address="0.0.0.0:9443",
                      node_selector="nvidia.com/gpu.present=true", heartbeat_interval_s=30.0,
                      probes=ProbeSettings(min_bytes=..., max_bytes=4 << 30, runs=3)),
        leader_address=lookup,       # () -> "host:port" of the leader's gRPC service or None, asked by followers
        events=recorder,             # nvcre_kube EventRecorder
        registry=registry,           # prometheus CollectorRegistry for the nvcre_fleet_ metrics
    )
    await fleet.run()                # every replica, for ever: certificates, gRPC server; a follower refuses streams
    await fleet.lead()               # the elected replica, until cancelled: accepts agents, writes NodeHealth, probes
    await fleet.wait_serving()       # after it `fleet.grpc_address` ("host:port") is the bound address
    fleet.confirmations, fleet.probes

Without leader election: run() and lead() side by side. Cancelling lead() sends Drain to the agents and returns when
nothing is being written any more; cancelling run() stops the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from nvcre_coordinator.core.clock_offset import ClockOffset
from nvcre_coordinator.core.incidents import Cursor
from nvcre_coordinator.core.localisation import ProbeKind, ProbeResult, ProbeState, ProbeVerdict, SizeBandwidth

__all__ = [
    "Confirmations",
    "ProbeKind",
    "ProbeRequest",
    "ProbeResult",
    "ProbeRound",
    "ProbeState",
    "ProbeVerdict",
    "Probes",
    "SizeBandwidth",
]


class Confirmations(Protocol):
    """Have the agents told everything up to a moment?"""

    def confirmed_through(self, node: str) -> datetime | None:
        """Up to this moment (coordinator's clock) everything the agent saw is stored; None: nothing is confirmed."""
        ...

    def confirmed_cursor(self, node: str) -> Cursor | None:
        """The position in the agent's outbox that belongs to it; None: no agent connected.

        A NodeHealth read from a cache holds what was confirmed only once its own cursor has come this far.
        """
        ...

    def clock_offset(self, node: str) -> ClockOffset | None:
        """Of the node's clock, as its agent's heartbeats showed last; None: this leader never heard the agent."""
        ...

    def request(self, nodes: Iterable[str]) -> None:
        """Ask the agents to read their sources to the end now; subscribers hear when answers come. Rate limited."""
        ...

    def subscribe(self, callback: Callable[[str], None]) -> None:
        """`callback(node)` on every change of `confirmed_through(node)`, and when an agent comes or goes."""
        ...


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """Probes of the nodes of one Job. `job_uid` identifies the round: the same one again is the same round."""

    job_namespace: str
    job_name: str
    job_uid: str
    nodes: tuple[str, ...]
    kinds: tuple[ProbeKind, ...] = (ProbeKind.NVLINK_ALL_REDUCE, ProbeKind.NIC_LOOPBACK)


@dataclass(frozen=True, slots=True)
class ProbeRound:
    """How far the probes of a Job are. `results` has each node's in the order of the request's kinds.

    With `done`, every node has a result of every kind, the measured ones are judged (`verdict`, `comparison`), and all
    of it is stored in NodeHealth.
    """

    done: bool
    waiting: tuple[str, ...]
    results: Mapping[str, tuple[ProbeResult, ...]]


class Probes(Protocol):
    """Per-node probes after a slow run; level triggered, safe to call again."""

    def ensure(self, request: ProbeRequest) -> ProbeRound:
        """Start or continue the round of this Job and say how far it is; returns at once."""
        ...

    def subscribe(self, callback: Callable[[str, str], None]) -> None:
        """`callback(job namespace, job name)` on every change of a round."""
        ...
