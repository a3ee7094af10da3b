"""What a Job reconcile knows when it decides, and what it may decide: the two ends of core/job_lifecycle.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from nvcre_coordinator.api.job import FailedNode, Job, JobStatus
from nvcre_coordinator.api.measurement import GoodputMeasurement
from nvcre_coordinator.core.attribution import NodeFacts
from nvcre_coordinator.core.last_steps import LogEnd
from nvcre_coordinator.core.localisation import ProbeResult
from nvcre_coordinator.core.node_health import NodeHealth
from nvcre_coordinator.core.pair_search import PairSearch, PlannedPair
from nvcre_coordinator.core.pods import PodRecord


class WorkloadPhase(StrEnum):
    PENDING = "Pending"  # held back, for example by Kueue
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload as its adapter reads it; `title` is what messages call it (TrainJob/my-job-workload)."""

    title: str
    phase: WorkloadPhase
    message: str = ""
    uid: str = ""
    restart: int = 0  # which restart of its Job this is
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Gone:
    """The workload does not exist; only an uncached read may say so."""

    title: str

    @property
    def sentence(self) -> str:
        return f"Workload {self.title} was deleted"


@dataclass(frozen=True, slots=True)
class Measured:
    """Threshold values that are final, why others will never come, and why others are not there yet."""

    values: Mapping[str, float] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    pending: Mapping[str, str] = field(default_factory=dict)

    def __or__(self, other: Measured) -> Measured:
        return Measured({**self.values, **other.values}, {**self.lost, **other.lost}, {**self.pending, **other.pending})


@dataclass(frozen=True, slots=True)
class ProbeProgress:
    done: bool
    results: Mapping[str, tuple[ProbeResult, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observed:
    job: Job
    workload: Workload | Gone | None = None  # None: nothing was created yet, or nothing is known
    node_expression_error: str | None = None
    pods: tuple[PodRecord, ...] = ()
    live_pods: int = 0  # pods in the cache that have not finished
    unschedulable: str | None = None  # what the scheduler says of a pod that it cannot place
    group: tuple[str, ...] = ()
    nodes: Mapping[str, NodeFacts] = field(default_factory=dict)
    healths: Mapping[str, NodeHealth] = field(default_factory=dict)
    hardware: tuple[FailedNode, ...] = ()  # what the detectors accept now
    measured: Measured = Measured()
    probes: ProbeProgress | None = None
    pairs: PairSearch | None = None  # of a slow run whose nodes are to be tested in pairs
    search_over: bool = False  # of the Job of a pair: nobody waits for it any more
    tails: Mapping[str, str] = field(default_factory=dict)  # log tails by pod uid
    log_ends: Mapping[str, LogEnd] | None = None  # of a stalled run, by pod uid; None: not read (yet)
    observing_since: datetime | None = None  # when this coordinator began to lead
    bandwidth_exists: bool = False
    goodput_exists: bool = False
    goodputs: tuple[GoodputMeasurement, ...] = ()  # all that refer to the Job, its own one first


class Action(StrEnum):
    ADD_FINALIZER = "AddFinalizer"
    REMOVE_FINALIZER = "RemoveFinalizer"
    CREATE_WORKLOAD = "CreateWorkload"
    DELETE_WORKLOAD = "DeleteWorkload"
    END_ATTEMPT = "EndAttempt"  # whatever the pods seen so far do is no cause of what comes
    DROP_ENDED_PODS = "DropEndedPods"  # the same of those that have ended; the living may be the next attempt's
    CREATE_BANDWIDTH_MEASUREMENT = "CreateBandwidthMeasurement"
    CREATE_GOODPUT_MEASUREMENT = "CreateGoodputMeasurement"
    REQUEST_CONFIRMATIONS = "RequestConfirmations"


@dataclass(frozen=True, slots=True)
class ProgressReset:
    """GoodputMeasurements that tell of an attempt that is given up, and the start they get instead."""

    measurements: tuple[str, ...]
    start: datetime | None


@dataclass(frozen=True, slots=True)
class Decision:
    """The status to write (if it differs), what to do afterwards, and when to look again at the latest."""

    status: JobStatus
    actions: tuple[Action, ...] = ()
    requeue_after: timedelta | None = None
    unconfirmed: tuple[str, ...] = ()  # nodes of REQUEST_CONFIRMATIONS
    overflow: tuple[FailedNode, ...] = ()  # entries for the ConfigMap, beyond the status' budget
    doomed: str = ""  # uid of the workload of DELETE_WORKLOAD
    progress_reset: ProgressReset | None = None
    start_pairs: tuple[PlannedPair, ...] = ()
    pair_gpu_jobs: tuple[str, ...] = ()  # the replicated jobs of the workload whose pods have the GPUs
