"""minNodeBusBandwidthGBps: the slowest node by its probe, or which node was not measured."""

from typing import Any

import pytest
from nvcre_coordinator.core.localisation import ProbeKind, ProbeResult, ProbeState
from nvcre_coordinator.core.node_bandwidth import measured_nodes
from nvcre_coordinator.core.observed import Measured, ProbeProgress

KEY = "minNodeBusBandwidthGBps"
GROUP = ("node-0", "node-1")


def probe(gbps: str = "", state: ProbeState = ProbeState.MEASURED, reason: str = "") -> tuple[ProbeResult, ...]:
    nvlink, nic = ProbeKind.NVLINK_ALL_REDUCE, ProbeKind.NIC_LOOPBACK
    return (
        ProbeResult(probe_id="n", kind=nic, state=ProbeState.MEASURED, bus_bandwidth_gbps="1.00"),
        ProbeResult(probe_id="p", kind=nvlink, state=state, reason=reason, bus_bandwidth_gbps=gbps),
    )


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (None, Measured(pending={KEY: "the probes of the run's nodes have not ended"})),
        (
            ProbeProgress(False, {"node-0": probe("480.00")}),
            Measured(pending={KEY: "the probes of the run's nodes have not ended"}),
        ),
        (ProbeProgress(True, {"node-0": probe("480.00"), "node-1": probe("311.25")}), Measured({KEY: 311.25})),
        (
            ProbeProgress(
                True, {"node-0": probe("480.00"), "node-1": probe(state=ProbeState.NOT_TESTED, reason="Busy")}
            ),
            Measured(lost={KEY: "not measured: node-1 (Busy)"}),
        ),
        (ProbeProgress(True, {"node-0": probe("480.00")}), Measured(lost={KEY: "not measured: node-1"})),
    ],
    ids=["nothing yet", "still probing", "the slowest counts", "a busy node", "a node without an answer"],
)
def test_the_slowest_node(build: Any, progress: ProbeProgress | None, expected: Measured) -> None:
    assert measured_nodes(build.started(thresholds={KEY: "value >= 300"}), GROUP, progress) == expected


def test_without_the_threshold_nothing_is_said_of_it(build: Any) -> None:
    assert measured_nodes(build.started(), GROUP, None) == Measured()
