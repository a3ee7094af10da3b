"""Which nodes a run that was too slow names, by what its probes said."""

from datetime import UTC, datetime

import pytest
from nvcre_coordinator.api.conditions import Reason
from nvcre_coordinator.api.job import FailedNodeReason
from nvcre_coordinator.core.localisation import ProbeKind, ProbeResult, ProbeState, ProbeVerdict
from nvcre_coordinator.core.slow_nodes import attribute_slowness
from nvcre_protos.vocabulary import ComponentKind

NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)
GROUP = ("node-0", "node-1", "node-2", "node-3")
VIOLATION = 'Threshold "busBandwidthGBps" violated: measured 211.5900, expression: value >= 300.0'
NVLINK, NIC = ProbeKind.NVLINK_ALL_REDUCE, ProbeKind.NIC_LOOPBACK


def probe(kind: ProbeKind, verdict: ProbeVerdict, comparison: str = "the numbers") -> ProbeResult:
    return ProbeResult(
        probe_id="p", kind=kind, state=ProbeState.MEASURED, verdict=verdict, comparison=comparison,
        bus_bandwidth_gbps="162.08",
    )  # fmt: skip


def not_tested(kind: ProbeKind, reason: str, message: str = "") -> ProbeResult:
    return ProbeResult(probe_id="p", kind=kind, state=ProbeState.NOT_TESTED, reason=reason, message=message)


PASSES = (probe(NVLINK, ProbeVerdict.PASS), not_tested(NIC, "NoInfiniBand"))


def attribute(**results: tuple[ProbeResult, ...]):
    everywhere = dict.fromkeys(GROUP, PASSES) | {name.replace("_", "-"): found for name, found in results.items()}
    return attribute_slowness(GROUP, everywhere, {}, VIOLATION, NOW, finished=True)


@pytest.mark.parametrize(
    ("kind", "component"), [(NVLINK, ComponentKind.NVLINK), (NIC, ComponentKind.NIC)], ids=["nvlink", "nic"]
)
def test_the_slow_node_alone_is_named_with_its_part_and_what_to_do(kind, component):
    found = attribute(node_2=(probe(kind, ProbeVerdict.SLOW, "56 % below its peers"),))
    assert (found.attributed, found.reason) == (True, Reason.NODES_NAMED)
    (entry,) = found.entries
    assert (entry.name, entry.reason) == ("node-2", FailedNodeReason.THRESHOLD_VIOLATION)
    assert entry.component is not None
    assert entry.component.kind is component
    assert entry.evidence[0].source == "probe"
    assert "56 % below its peers" in entry.message
    assert "Cordon the node" in entry.message


@pytest.mark.parametrize(
    ("results", "said", "not_said"),
    [
        pytest.param({}, "every node passes alone, so the fabric between them is suspected", "not tested", id="fabric"),
        pytest.param(
            {"node_1": (not_tested(NVLINK, "ForeignProcesses"), probe(NIC, ProbeVerdict.PASS))},
            "not tested: node-1 (ForeignProcesses)",
            "every node passes",
            id="a busy node is no pass, whatever its NIC says",
        ),
        pytest.param(
            {"node_1": (probe(NVLINK, ProbeVerdict.CANNOT_COMPARE, "2 peers, 3 needed"),)},
            "cannot compare: node-1's NVLink all-reduce (2 peers, 3 needed)",
            "every node passes",
            id="too few peers",
        ),
    ],
)
def test_without_a_slow_node_the_group_is_named_and_the_message_says_why(results, said, not_said):
    found = attribute(**results)
    assert (found.attributed, found.reason) == (False, Reason.NOT_NARROWED)
    assert [entry.name for entry in found.entries] == list(GROUP)
    for text in (found.message, *(entry.message for entry in found.entries)):
        assert said in text
        assert not_said not in text
    assert all(entry.component is None and not entry.evidence for entry in found.entries)
    assert all("Drain none of them" in entry.message for entry in found.entries)


def test_28_what_kept_a_node_from_being_tested_is_named_and_is_no_bandwidth_failure():
    found = attribute(node_1=(not_tested(NVLINK, "GPUsMissing", "the node has 7 GPUs, others of the run have 8"),))
    assert found.reason is Reason.NOT_NARROWED
    assert "not tested: node-1 (GPUsMissing: the node has 7 GPUs, others of the run have 8)" in found.message


def test_probes_that_did_not_end_are_not_tested():
    found = attribute_slowness(GROUP, {"node-0": PASSES}, {}, VIOLATION, NOW, finished=False)
    assert "not tested: node-1, node-2, node-3" in found.message
    assert "the probes did not end in time" in found.message
