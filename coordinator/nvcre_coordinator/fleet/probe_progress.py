"""The memory of probe rounds: what was ordered and reserved by this leader. Lost with it, and then observed anew."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from nvcre_coordinator.core import probe_rounds as rounds
from nvcre_coordinator.core.localisation import Limits, ProbeKind, ProbeResult, ProbeState, ProbeVerdict
from nvcre_coordinator.fleet.interface import ProbeRequest
from nvcre_coordinator.fleet.registry import ConnectedAgent
from nvcre_coordinator.fleet.reservation import probe_hash

_SHORT = {ProbeKind.NVLINK_ALL_REDUCE: "nvlink", ProbeKind.NIC_LOOPBACK: "nic"}


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    min_bytes: int = 8 << 20
    max_bytes: int = 4 << 30
    runs: int = 3
    step_factor: int = 2
    iterations: int = 20
    parallel: int = 64  # reservations at once
    image: str = "busybox:1.37"  # of reservations: small, everywhere, and with `sleep infinity`
    patience: rounds.Patience = field(default_factory=rounds.Patience)
    limits: Limits = field(default_factory=Limits)


@dataclass(eq=False, slots=True)
class SentOrder:
    at: datetime
    agent: ConnectedAgent
    answer: ProbeResult | None = None


@dataclass(eq=False, slots=True)
class NodeProgress:
    """One node of a round; lost with the leader, and then observed anew."""

    started_at: datetime
    reserved_at: datetime | None = None
    running_since: datetime | None = None
    orders: dict[ProbeKind, SentOrder] = field(default_factory=dict)
    finished: bool = False


@dataclass(eq=False, slots=True)
class RunningRound:
    request: ProbeRequest
    asked_at: datetime
    nodes: dict[str, NodeProgress] = field(default_factory=dict)


Key = tuple[str, str]
"""(job uid, node)"""


def probe_id(key: Key, kind: ProbeKind) -> str:
    return f"{probe_hash(*key)}-{_SHORT[kind]}"


def split_probe_id(text: str) -> tuple[str, ProbeKind | None]:
    probe, _, short = text.rpartition("-")
    return probe, next((kind for kind, name in _SHORT.items() if name == short), None)


def with_job(result: ProbeResult, request: ProbeRequest) -> ProbeResult:
    return msgspec.structs.replace(
        result, job_namespace=request.job_namespace, job_name=request.job_name, job_uid=request.job_uid
    )


def of_round(probes: tuple[ProbeResult, ...], request: ProbeRequest) -> dict[ProbeKind, ProbeResult]:
    return {probe.kind: probe for probe in reversed(probes) if probe.job_uid == request.job_uid}


def unjudged(result: ProbeResult) -> bool:
    return result.state is ProbeState.MEASURED and result.verdict is ProbeVerdict.NONE
