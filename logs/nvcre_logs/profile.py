"""What a LogProfile says (spec of daemonset/crds/logprofiles.yaml): which log lines of a framework mean what."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

LOG_FORMAT = "nvcre.nvidia.com/log-format"
"""Annotation of a LogProfile: the program whose log it reads.  nccl-tests selects the reader of its tables."""
NCCL_TESTS = "nccl-tests"

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class DurationUnit(StrEnum):
    SECONDS = "s"
    MILLISECONDS = "ms"
    MICROSECONDS = "us"


class EventPattern(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    regex: str  # RE2 with named groups
    example: str = ""
    units: dict[str, DurationUnit] = {}


class Patterns(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    training_step: EventPattern | None = None
    checkpoint_save: EventPattern | None = None
    checkpoint_done: EventPattern | None = None
    checkpoint_restore: EventPattern | None = None
    checkpoint_loaded: EventPattern | None = None
    application_start: EventPattern | None = None
    warmup_step: EventPattern | None = None
    bandwidth_result: EventPattern | None = None
    network_transport: EventPattern | None = None


class Timestamp(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    layout: str  # Go reference-time layout


class WorkerStrategyType(StrEnum):
    SINGLE = "Single"
    MULTI = "Multi"


class PodPosition(StrEnum):
    FIRST = "first"
    LAST = "last"


class WorkerStrategy(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    type: WorkerStrategyType = WorkerStrategyType.SINGLE
    lifecycle_pod: PodPosition = PodPosition.FIRST
    training_step_pod: PodPosition = PodPosition.FIRST
    replicated_job_name: str = "trainer"


class LogProfileSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    timestamp: Timestamp
    patterns: Patterns
    worker_strategy: WorkerStrategy | None = None
    container_name: str = ""
    warmup_steps: Int32 | None = None
    log_interval: Int32 | None = None
