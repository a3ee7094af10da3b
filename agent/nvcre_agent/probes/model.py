"""The words of a probe: what was ordered and what came out, independent of the wire.

Enum members carry the wire contract's names (protos/nvcre_agent_v1.proto).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ProbeKind(enum.Enum):
    NVLINK_ALL_REDUCE = "NVLINK_ALL_REDUCE"
    NIC_LOOPBACK = "NIC_LOOPBACK"


class ProbeState(enum.Enum):
    RUNNING = "RUNNING"
    MEASURED = "MEASURED"
    NOT_TESTED = "NOT_TESTED"  # never a pass, never slow
    ERROR = "ERROR"


class ProbeReason(enum.Enum):
    """Why nothing was measured; the values are the CamelCase words of ProbeUpdate.reason."""

    NONE = ""
    TOOL_NOT_FOUND = "ToolNotFound"
    FOREIGN_PROCESSES = "ForeignProcesses"
    TIMEOUT = "Timeout"
    CANCELLED = "Cancelled"
    WRONG_RESULTS = "WrongResults"
    TOOL_FAILED = "ToolFailed"
    NO_OUTPUT = "NoOutput"
    NO_INFINIBAND = "NoInfiniBand"
    NO_GPUS = "NoGPUs"
    BUSY = "Busy"  # too many probes are waiting already
    BAD_ORDER = "BadOrder"


@dataclass(frozen=True, slots=True)
class Order:
    """ProbeOrder of the wire contract.  `timeout_s` is for all runs together."""

    probe_id: str
    kind: ProbeKind
    min_bytes: int
    max_bytes: int
    step_factor: int
    iterations: int
    runs: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class SizeBandwidth:
    """Out-of-place columns of one message size."""

    size_bytes: int
    algbw_gbps: float
    busbw_gbps: float
    time_us: float


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """`wrong_elements` counts both sides of all sizes; `exit_code` is negative for a signal."""

    sizes: tuple[SizeBandwidth, ...]
    wrong_elements: int
    exit_code: int


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """ProbeUpdate of the wire contract, without what the caller knows anyway (product, driver version, simulated).

    `arguments` is the command line and the NCCL environment, for comparison between peers.  Times are Unix seconds.
    """

    probe_id: str
    kind: ProbeKind
    state: ProbeState
    reason: ProbeReason = ProbeReason.NONE
    message: str = ""
    runs: tuple[ProbeRun, ...] = ()
    nccl_version: str = ""
    arguments: str = ""
    started_at_s: float | None = None
    finished_at_s: float | None = None
