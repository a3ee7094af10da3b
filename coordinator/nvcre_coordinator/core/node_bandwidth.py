"""The bus bandwidth of a run's slowest node, for minNodeBusBandwidthGBps: from NVLink probes after the run.

A node that was not measured may be the slowest one, so then there is no value, and the reason names it.  Who is to
blame for a low value is slow_nodes.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from nvcre_coordinator.api.job import Job
from nvcre_coordinator.core.localisation import ProbeKind, ProbeResult
from nvcre_coordinator.core.observed import Measured, ProbeProgress
from nvcre_coordinator.core.thresholds import MIN_NODE_BUS_BANDWIDTH

MOST_NAMED = 3


def measured_nodes(job: Job, group: Iterable[str], progress: ProbeProgress | None) -> Measured:
    if MIN_NODE_BUS_BANDWIDTH not in job.spec.thresholds:
        return Measured()
    if progress is None or not progress.done:
        return Measured(pending={MIN_NODE_BUS_BANDWIDTH: "the probes of the run's nodes have not ended"})
    figures, untested = [], []
    for node in sorted(group):
        probe = _nvlink(progress.results.get(node, ()))
        if probe is not None and probe.busbw_gbps is not None:
            figures.append(probe.busbw_gbps)
        else:
            untested.append(f"{node}{_why(probe)}")
    if untested or not figures:
        more = f" and {len(untested) - MOST_NAMED} more" if len(untested) > MOST_NAMED else ""
        return Measured(lost={MIN_NODE_BUS_BANDWIDTH: f"not measured: {', '.join(untested[:MOST_NAMED])}{more}"})
    return Measured({MIN_NODE_BUS_BANDWIDTH: min(figures)})


def _nvlink(results: Iterable[ProbeResult]) -> ProbeResult | None:
    return next((result for result in results if result.kind is ProbeKind.NVLINK_ALL_REDUCE), None)


def _why(probe: ProbeResult | None) -> str:
    said = probe.message or probe.reason if probe is not None else ""
    return f" ({said})" if said else ""
