"""Nothing that is written grows beyond what etcd takes."""

from datetime import UTC, datetime

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from nvcre_coordinator.api.job import Component, Evidence, FailedNode, FailedNodeReason, JobStatus
from nvcre_coordinator.core import limits
from nvcre_protos.vocabulary import ComponentKind

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


@given(st.text(max_size=400), st.integers(8, 64))
def test_a_clipped_text_fits_and_is_whole_when_it_fitted(text: str, limit: int) -> None:
    cut = limits.clip(text, limit)
    assert len(cut.encode()) <= limit
    if len(text.encode(errors="replace")) <= limit:
        assert cut == text.encode(errors="replace").decode()


def entries(count: int, *, component: bool, evidence: int) -> tuple[FailedNode, ...]:
    return tuple(
        FailedNode(
            name=f"node-{number:05}" + "x" * 60,
            reason=FailedNodeReason.WORKLOAD_FAILED,
            message="m" * 600,
            component=Component(ComponentKind.GPU, 1) if component else None,
            evidence=tuple(Evidence("nvml", "e" * 300, NOW, 79) for _ in range(evidence)),
        )
        for number in range(count)
    )


def test_a_small_status_is_only_clipped() -> None:
    status, overflow = limits.fit(JobStatus(failed_nodes=entries(3, component=True, evidence=20)))
    assert overflow == ()
    assert [len(entry.evidence) for entry in status.failed_nodes] == [16, 16, 16]
    assert len(status.failed_nodes[0].message.encode()) == 512


def test_evidence_goes_first() -> None:
    status, overflow = limits.fit(JobStatus(failed_nodes=entries(500, component=True, evidence=16)))
    assert overflow == ()
    assert len(status.failed_nodes) == 500
    assert all(entry.evidence == () for entry in status.failed_nodes)
    assert limits.status_bytes(status) <= limits.STATUS_BYTES


def test_then_group_wide_entries_move_out_and_named_ones_stay() -> None:
    named = entries(10, component=True, evidence=1)
    group = tuple(msgspec.structs.replace(e, name="g" + e.name) for e in entries(6000, component=False, evidence=0))
    status, overflow = limits.fit(JobStatus(failed_nodes=named + group))
    assert limits.status_bytes(status) <= limits.STATUS_BYTES
    assert {entry.name for entry in named} <= {entry.name for entry in status.failed_nodes}
    assert len(status.failed_nodes) + len(overflow) == 6010
    assert all(entry.component is None for entry in overflow)
