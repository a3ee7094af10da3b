"""View of the Job resource (daemonset/crds/jobs.yaml); a test compares it with the schema field by field."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from nvcre_protos.vocabulary import ComponentKind

from nvcre_coordinator.api import names
from nvcre_coordinator.api.conditions import Condition, ConditionType, is_true
from nvcre_coordinator.api.meta import Moment, ObjectMeta, OwnerReference, check_year

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class WorkloadSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    train_job: dict[str, Any] | None = None  # Kubeflow Trainer's TrainJobSpec, passed through


class WorkloadMetadata(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    labels: dict[str, str] = {}


class AgentMode(StrEnum):
    BLAME = "Blame"
    OBSERVE = "Observe"


class CelMonitor(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    expression: str


class AgentMonitor(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    mode: AgentMode = AgentMode.BLAME


class NodeHealthMonitor(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    cel: CelMonitor | None = None
    agent: AgentMonitor | None = None


class Checkpoint(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    pvc_name: str
    max_restarts: Int32 = 0


class GoodputTemplate(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    log_profile_ref: str
    sample_interval: str | None = None


class BandwidthTemplate(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    log_profile_ref: str
    sample_interval: str | None = None
    test_type: str | None = None


class SlowNodeSearch(StrEnum):
    """What looks for the slow node of a run that violated a threshold."""

    OFF = "Off"
    NODE_PROBES = "NodeProbes"
    NODE_PAIRS = "NodePairs"  # after the probes, where these name nobody


class JobSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    workload: WorkloadSpec
    workload_metadata: WorkloadMetadata | None = None
    node_health_monitor: NodeHealthMonitor | None = None
    checkpoint: Checkpoint | None = None
    stall_multiplier: Int32 | None = None
    startup_stall_timeout_seconds: Int32 = 1200
    scheduling_stall_grace_seconds: Int32 = 300
    goodput_measurement: GoodputTemplate | None = None
    bandwidth_measurement: BandwidthTemplate | None = None
    thresholds: dict[str, str] = {}
    measurement_timeout: str | None = None
    slow_node_search: SlowNodeSearch = SlowNodeSearch.NODE_PROBES

    @property
    def agent_mode(self) -> AgentMode:
        """Evidence of the agents counts unless the monitor says Observe (DESIGN 4)."""
        if self.node_health_monitor is None or self.node_health_monitor.agent is None:
            return AgentMode.BLAME
        return self.node_health_monitor.agent.mode

    @property
    def node_expression(self) -> str | None:
        if self.node_health_monitor is None or self.node_health_monitor.cel is None:
            return None
        return self.node_health_monitor.cel.expression


class FailedNodeReason(StrEnum):
    HARDWARE_FAILURE_DETECTED = "HardwareFailureDetected"
    THRESHOLD_VIOLATION = "ThresholdViolation"
    WORKLOAD_FAILED = "WorkloadFailed"


class Component(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: ComponentKind
    index: Int32 | None = None
    uuid: str | None = None
    pci_bus_id: str | None = msgspec.field(default=None, name="pciBusId")


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    source: str  # nvml, kernel-log, cel, workload, probe, node
    message: str
    time: Moment
    code: int | None = None


class FailedNode(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    reason: FailedNodeReason
    message: str = ""
    component: Component | None = None
    evidence: tuple[Evidence, ...] = ()


class WorkloadRef(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    api_version: str
    kind: str
    name: str
    namespace: str | None = None


class FailureLog(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    pod_name: str
    node_name: str
    exit_code: Int32
    reason: str | None = None
    tail: str | None = None


class JobStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    conditions: tuple[Condition, ...] = ()
    failed_nodes: tuple[FailedNode, ...] = ()
    workload_ref: WorkloadRef | None = None
    workload_start_time: Moment | None = None
    scheduling_blocked_since: Moment | None = None
    scheduling_resumed_time: Moment | None = None
    restart_count: Int32 | None = None
    last_restart_time: Moment | None = None
    failure_log: FailureLog | None = None

    def __post_init__(self) -> None:
        check_year(self.workload_start_time, "workloadStartTime")
        check_year(self.scheduling_blocked_since, "schedulingBlockedSince")
        check_year(self.scheduling_resumed_time, "schedulingResumedTime")
        check_year(self.last_restart_time, "lastRestartTime")

    @property
    def terminal(self) -> bool:
        return is_true(self.conditions, ConditionType.SUCCEEDED) or is_true(self.conditions, ConditionType.FAILED)


class Job(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: JobSpec
    status: JobStatus = JobStatus()

    @property
    def key(self) -> tuple[str, str]:
        return self.metadata.namespace, self.metadata.name

    @property
    def searching_job(self) -> OwnerReference | None:
        """Of a pair of nodes that is tested: the Job whose slow node is searched for."""
        if names.LABEL_PAIR_OF not in self.metadata.labels:
            return None
        own = (owner for owner in self.metadata.owner_references if owner.api_version == names.API_VERSION)
        return next((owner for owner in own if owner.controller and owner.kind == "Job"), None)
