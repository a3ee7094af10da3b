"""What a BandwidthMeasurement needs of a LogProfile: compiled once, applied to blocks of whole lines.

Also what is wrong with a LogProfile, for its own status.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from nvcre_logs import profile_problems
from nvcre_logs.go_time import LayoutError, compile_layout
from nvcre_logs.patterns import LinePattern, LogProfileError, compile_pattern
from nvcre_logs.profile import LOG_FORMAT, NCCL_TESTS
from nvcre_logs.profile_problems import BANDWIDTH_CAPTURES, REQUIRED

from nvcre_coordinator.api.log_profile import LogProfile
from nvcre_coordinator.core.bandwidth import MAX_INT64, BandwidthRow


@dataclass(frozen=True, slots=True)
class CompiledProfile:
    name: str
    replicated_job: str
    container: str
    bandwidth: LinePattern
    transport: LinePattern | None
    reads_tables: bool  # of nccl-tests, by their own reader; `bandwidth` is for the logs of other programs


def compile_bandwidth_profile(profile: LogProfile) -> CompiledProfile:
    """What a BandwidthMeasurement needs of a profile.  Raises LogProfileError."""
    patterns = profile.spec.patterns
    if patterns.bandwidth_result is None:
        raise LogProfileError("it has no spec.patterns.bandwidthResult")
    try:
        compile_layout(profile.spec.timestamp.layout)
    except LayoutError as error:
        raise LogProfileError(f"spec.timestamp.layout: {error}") from error
    strategy = profile.spec.worker_strategy
    transport = patterns.network_transport
    return CompiledProfile(
        name=profile.metadata.name,
        replicated_job=(strategy.replicated_job_name if strategy is not None else "") or "node",
        container=profile.spec.container_name,
        bandwidth=compile_pattern(patterns.bandwidth_result, "spec.patterns.bandwidthResult", BANDWIDTH_CAPTURES),
        transport=None
        if transport is None
        else compile_pattern(transport, "spec.patterns.networkTransport", REQUIRED["network_transport"]),
        reads_tables=profile.metadata.annotations.get(LOG_FORMAT) == NCCL_TESTS,
    )


def problems(profile: LogProfile) -> list[str]:
    """Everything that keeps a profile from being used, each naming its field; empty for a profile that works."""
    return profile_problems.problems(profile.spec)


def bandwidth_rows(pattern: LinePattern, text: bytes) -> list[BandwidthRow]:
    """Rows of whole lines; a row whose figures are no finite numbers (N/A) is none."""
    rows = []
    for size, algbw, busbw in pattern.scan(text):
        if size is None or algbw is None or busbw is None or len(size) > 19 or len(algbw) > 32 or len(busbw) > 32:
            continue
        try:
            row = BandwidthRow(int(size), float(algbw), float(busbw))
        except ValueError:
            continue
        if math.isfinite(row.algbw_gbps) and math.isfinite(row.busbw_gbps) and 0 <= row.size_bytes <= MAX_INT64:
            rows.append(row)
    return rows
