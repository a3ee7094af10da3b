"""Views of BandwidthMeasurement and GoodputMeasurement (daemonset/crds).

Of a GoodputMeasurement's status only what stalls and restarts of its Job ask about is here.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, TypeAlias

import msgspec

from nvcre_coordinator.api.conditions import Condition, ConditionType, is_true
from nvcre_coordinator.api.job import Int32
from nvcre_coordinator.api.meta import ObjectMeta

# A person may fill a status by hand, and the API server accepts a time without a zone: that one cannot be compared.
Moment: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]


class JobRef(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    kind: str
    name: str
    api_group: str | None = None


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
    start_time: datetime | None = None
    completion_time: datetime | None = None

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


class GoodputMeasurementStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    start_time: Moment | None = None
    application_start_time: Moment | None = None
    last_step_timestamp: Moment | None = None
    avg_step_time_sec: str | None = None
    log_interval: Int32 | None = None
    last_checkpoint_step: int | None = None


class GoodputMeasurement(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: GoodputMeasurementSpec
    status: GoodputMeasurementStatus = GoodputMeasurementStatus()
