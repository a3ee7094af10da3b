"""NodeHealth.status as a typed view, field for field as in daemonset/crds/nodehealths.yaml.

Built from JSON and turned into JSON here only. What the server holds but we do not know is not kept: we are its only
writer (DESIGN 4).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from nvcre_protos.vocabulary import FaultClass

from nvcre_coordinator.core.incidents import Cursor, Incident
from nvcre_coordinator.core.localisation import ProbeResult
from nvcre_coordinator.core.node_verdict import Gpu, GpuVerdict, Monitor, Verdict

MAX_PROBES = 8
MAX_GPUS = 64


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    driver_version: str = msgspec.field(name="driverVersion", default="")
    cuda_version: str = msgspec.field(name="cudaVersion", default="")
    nccl_tests: str = msgspec.field(name="ncclTests", default="")
    infiniband: bool = False
    gpus: tuple[Gpu, ...] = ()


def another_machine(before: Inventory | None, now: Inventory) -> bool:
    """After a reboot: is none of the GPUs that were there there any more, though others are?

    Machines are exchanged under a Node's name; what the old one's GPUs did says nothing about the new one.
    """
    old = {gpu.uuid for gpu in before.gpus} - {""} if before is not None else set()
    new = {gpu.uuid for gpu in now.gpus} - {""}
    return bool(old and new) and old.isdisjoint(new)


class NodeHealthStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    verdict: Verdict | None = None
    message: str = ""
    fault_class: FaultClass | None = msgspec.field(name="faultClass", default=None)
    simulated: bool = False
    boot_id: str = msgspec.field(name="bootID", default="")
    agent_version: str = msgspec.field(name="agentVersion", default="")
    last_transition_time: datetime | None = msgspec.field(name="lastTransitionTime", default=None)
    gpu_count: int | None = msgspec.field(name="gpuCount", default=None)
    bad_gpus: str = msgspec.field(name="badGPUs", default="")
    inventory: Inventory | None = None
    gpus: tuple[GpuVerdict, ...] = ()
    monitors: tuple[Monitor, ...] = ()
    incidents: tuple[Incident, ...] = ()
    closed_incidents: tuple[Incident, ...] = msgspec.field(name="closedIncidents", default=())
    probes: tuple[ProbeResult, ...] = ()
    cursors: tuple[Cursor, ...] = ()

    def to_json(self) -> dict[str, Any]:
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built

    def news(self) -> NodeHealthStatus:
        """Without what nobody waits for: how often and how lately, and how far the outbox is taken over."""
        quiet = (msgspec.structs.replace(each, count=0, last_seen=None, effects=()) for each in self.incidents)
        return msgspec.structs.replace(self, cursors=(), incidents=tuple(quiet))

    @classmethod
    def from_json(cls, status: Any) -> NodeHealthStatus:
        """Raises msgspec.ValidationError naming the field where the stored status is not what we would have written."""
        return msgspec.convert(status or {}, cls)
