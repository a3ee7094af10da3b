"""View of NodeHealth (daemonset/crds/nodehealths.yaml), as the job side and the fleet side read it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from nvcre_coordinator.api.job import Component, Int32
from nvcre_coordinator.api.meta import ObjectMeta


class Verdict(StrEnum):
    HEALTHY = "Healthy"
    SUSPECT = "Suspect"
    FAULTY = "Faulty"
    BLIND = "Blind"
    MAINTENANCE = "Maintenance"
    UNKNOWN = "Unknown"


class IncidentKind(StrEnum):
    XID = "Xid"
    SXID = "SXid"
    BUS_DROP = "BusDrop"
    RM_INIT_FAILED = "RmInitFailed"
    PCIE_AER = "PcieAer"
    IB_LINK = "IbLink"
    OOM_KILL = "OomKill"
    MACHINE_CHECK = "MachineCheck"
    HEALTH_CHECK = "HealthCheck"


class FaultClass(StrEnum):
    FATAL_HARDWARE = "FatalHardware"
    NEEDS_RESET = "NeedsReset"
    NEEDS_REBOOT = "NeedsReboot"
    APPLICATION = "Application"
    INFORMATIONAL = "Informational"
    UNKNOWN = "Unknown"


class Blame(StrEnum):
    YES = "Yes"
    NO = "No"
    CONDITIONAL = "Conditional"


class Gpu(msgspec.Struct, frozen=True, omit_defaults=True):
    index: Int32
    uuid: str = ""
    pci_bus_id: str = msgspec.field(default="", name="pciBusId")
    product: str = ""
    serial: str = ""


class Inventory(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    driver_version: str = ""
    cuda_version: str = ""
    nccl_tests: str = ""
    infiniband: bool = False
    gpus: tuple[Gpu, ...] = ()


class MonitorState(StrEnum):
    WATCHING = "Watching"
    BLIND = "Blind"


class Monitor(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    state: MonitorState
    reason: str = ""
    message: str = ""


class Effect(msgspec.Struct, frozen=True, omit_defaults=True):
    code: int
    count: int = 0


class Incident(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    id: str
    kind: IncidentKind
    code: int = 0
    mnemonic: str = ""
    fault_class: FaultClass = FaultClass.UNKNOWN
    blame: Blame = Blame.NO
    blame_condition: str = ""
    component: Component | None = None
    message: str = ""
    remedy: str = ""
    sources: tuple[str, ...] = ()
    count: int = 0
    first_seen: datetime | None = None
    last_seen: datetime | None = None
    recovered_at: datetime | None = None
    injected: bool = False
    simulated: bool = False
    pid: int = 0
    process: str = ""
    caused_by_code: int = 0
    effects: tuple[Effect, ...] = ()
    check: str = ""
    raw: str = ""
    time_uncertain: bool = False


class ProbeKind(StrEnum):
    NVLINK_ALL_REDUCE = "NVLinkAllReduce"
    NIC_LOOPBACK = "NICLoopback"


class ProbeState(StrEnum):
    MEASURED = "Measured"
    NOT_TESTED = "NotTested"
    ERROR = "Error"


class ProbeVerdict(StrEnum):
    PASS = "Pass"  # noqa: S105  (a verdict)
    SLOW = "Slow"
    CANNOT_COMPARE = "CannotCompare"
    NONE = ""


class ProbeSize(msgspec.Struct, frozen=True, omit_defaults=True):
    size_bytes: int = msgspec.field(name="sizeBytes")
    alg_bw: str = msgspec.field(default="", name="algBW")
    bus_bw: str = msgspec.field(default="", name="busBW")


class NodeProbe(msgspec.Struct, frozen=True, omit_defaults=True):
    probe_id: str = msgspec.field(name="probeID")
    kind: ProbeKind
    state: ProbeState
    reason: str = ""
    message: str = ""
    job_namespace: str = msgspec.field(default="", name="jobNamespace")
    job_name: str = msgspec.field(default="", name="jobName")
    job_uid: str = msgspec.field(default="", name="jobUID")
    bus_bandwidth_gbps: str = msgspec.field(default="", name="busBandwidthGBps")
    results: tuple[ProbeSize, ...] = ()
    verdict: ProbeVerdict = ProbeVerdict.NONE
    comparison: str = ""
    gpu_product: str = msgspec.field(default="", name="gpuProduct")
    driver_version: str = msgspec.field(default="", name="driverVersion")
    nccl_version: str = msgspec.field(default="", name="ncclVersion")
    arguments: str = ""
    simulated: bool = False
    started_at: datetime | None = msgspec.field(default=None, name="startedAt")
    finished_at: datetime | None = msgspec.field(default=None, name="finishedAt")


class OutboxCursor(msgspec.Struct, frozen=True):
    outbox_id: str = msgspec.field(name="outboxID")
    seq: int


class NodeHealthStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    verdict: Verdict = Verdict.UNKNOWN
    message: str = ""
    simulated: bool = False
    boot_id: str = msgspec.field(default="", name="bootID")
    agent_version: str = msgspec.field(default="", name="agentVersion")
    last_transition_time: datetime | None = msgspec.field(default=None, name="lastTransitionTime")
    gpu_count: Int32 = msgspec.field(default=0, name="gpuCount")
    inventory: Inventory | None = None
    monitors: tuple[Monitor, ...] = ()
    incidents: tuple[Incident, ...] = ()
    closed_incidents: tuple[Incident, ...] = msgspec.field(default=(), name="closedIncidents")
    probes: tuple[NodeProbe, ...] = ()
    cursors: tuple[OutboxCursor, ...] = ()


class NodeHealth(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    status: NodeHealthStatus = NodeHealthStatus()
