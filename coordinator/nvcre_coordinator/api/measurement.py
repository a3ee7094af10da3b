"""Views of BandwidthMeasurement and GoodputMeasurement (daemonset/crds)."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from nvcre_coordinator.api.conditions import Condition, ConditionType, is_true
from nvcre_coordinator.api.job import Int32
from nvcre_coordinator.api.meta import Moment, ObjectMeta


class JobRef(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    kind: str
    name: str
    api_group: str | None = None


class GapReason(StrEnum):
    ROTATED = "Rotated"  # while nobody was connected
    POD_GONE = "PodGone"  # before its log was read to the end
    UNREAD = "Unread"  # whoever has it did not give it in time, or it broke our reader


class LogGap(msgspec.Struct, frozen=True, omit_defaults=True):
    """Lines that may have been lost: between two times, or all after the first where there is no second."""

    pod: str
    reason: GapReason
    after: Moment | None = None
    before: Moment | None = None


MAX_GAPS = 16  # maxItems of status.logGaps


class BandwidthMeasurementSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    log_profile_ref: str
    job_ref: JobRef | None = None
    sample_interval: str = "60s"
    test_type: str | None = None


class BandwidthResult(msgspec.Struct, frozen=True):
    size_bytes: int = msgspec.field(name="sizeBytes")
    alg_bw: str = msgspec.field(name="algBW")  # GB/s, two decimals
    bus_bw: str = msgspec.field(name="busBW")
    samples: Int32


class BandwidthMeasurementStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    conditions: tuple[Condition, ...] = ()
    results: tuple[BandwidthResult, ...] = ()
    transport: tuple[str, ...] = ()
    log_gaps: tuple[LogGap, ...] = ()
    start_time: Moment | None = None
    completion_time: Moment | None = None

    @property
    def complete(self) -> bool:
        return is_true(self.conditions, ConditionType.COMPLETE)


class BandwidthMeasurement(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: BandwidthMeasurementSpec
    status: BandwidthMeasurementStatus = BandwidthMeasurementStatus()

    @property
    def key(self) -> tuple[str, str]:
        return self.metadata.namespace, self.metadata.name


class GoodputMeasurementSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    log_profile_ref: str
    job_ref: JobRef | None = None
    sample_interval: str = "60s"


class PendingInterruption(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Until the next run's first step is seen."""

    t_checkpoint: Moment | None = None
    t_interrupt: Moment | None = None
    checkpoint_step: int | None = None
    last_step: int | None = None
    t_ch: str | None = None  # seconds of lost work
    reason: str | None = None


class PastInterruption(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """`resumed_at`: the first step after it; absent while there is none."""

    at: Moment
    reason: str
    lost_work_sec: str
    step: int | None = None
    resumed_at: Moment | None = None
    reschedule_sec: str | None = None
    resume_sec: str | None = None


class StepTime(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The mean of so many `steps` that were logged, up to `step`."""

    step: int
    step_time_sec: str
    time: Moment | None = None
    steps: int = 1


class GoodputMeasurementStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Seconds and ratios are strings with six decimals."""

    conditions: tuple[Condition, ...] = ()
    result: str | None = None
    current_step: int | None = None
    highest_step: int | None = None
    training_time_sec: str | None = None
    lost_work_time_sec: str | None = None
    reschedule_time_sec: str | None = None
    resume_time_sec: str | None = None
    checkpoint_save_time_sec: str | None = None
    interruption_count: Int32 | None = None
    last_checkpoint_step: int | None = None
    last_checkpoint_time: Moment | None = None
    start_time: Moment | None = None
    completion_time: Moment | None = None
    last_step_timestamp: Moment | None = None
    avg_step_time_sec: str | None = None
    log_interval: Int32 | None = None
    warmup_base_step: int | None = None
    warmup_time_sec: str | None = None
    non_warmup_time_sec: str | None = None
    last_non_warmup_step: int | None = None
    prior_warmup_time_sec: str | None = None
    prior_non_warmup_time_sec: str | None = None
    avg_tflops_per_gpu: str | None = msgspec.field(default=None, name="avgTFLOPSPerGPU")
    application_start_time: Moment | None = None
    application_stop_time: Moment | None = None
    pending_interruption: PendingInterruption | None = None
    interruptions: tuple[PastInterruption, ...] = ()
    step_times: tuple[StepTime, ...] = ()
    log_gaps: tuple[LogGap, ...] = ()

    @property
    def complete(self) -> bool:
        return is_true(self.conditions, ConditionType.COMPLETE)


class GoodputMeasurement(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: GoodputMeasurementSpec
    status: GoodputMeasurementStatus = GoodputMeasurementStatus()
