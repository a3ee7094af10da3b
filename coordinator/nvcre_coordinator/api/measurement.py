"""View of BandwidthMeasurement (daemonset/crds/bandwidthmeasurements.yaml).

GoodputMeasurement objects are only created so far: `GoodputMeasurementSpec` is what is written.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from nvcre_coordinator.api.conditions import Condition, ConditionType, is_true
from nvcre_coordinator.api.job import Int32
from nvcre_coordinator.api.meta import ObjectMeta


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
