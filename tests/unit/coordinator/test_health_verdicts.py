"""Which incidents count against a node, and the entry they make."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from nvcre_coordinator.core.escalation import is_fault
from nvcre_coordinator.core.health_verdicts import blamed_incidents, failed_node, late_incidents, spared_incidents
from nvcre_coordinator.core.incidents import Component, Incident
from nvcre_coordinator.core.node_health import NodeHealth, node_health
from nvcre_coordinator.core.run_window import RunWindow
from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, IncidentKind, Source

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


def incident(**changes: Any) -> Incident:
    fields: dict[str, Any] = {
        "id": "i1", "kind": IncidentKind.XID, "code": 79, "mnemonic": "GPU_HAS_FALLEN_OFF_THE_BUS",
        "fault_class": FaultClass.FATAL_HARDWARE, "blame": Blame.YES, "first_seen": NOW,
        "component": Component(kind=ComponentKind.GPU, index=5, pci_bus_id="00000000:C8:00.0"),
        "sources": (Source.KERNEL_LOG, Source.NVML), "message": "GPU has fallen off the bus", "remedy": "Replace it",
    }  # fmt: skip
    return Incident(**fields | changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"fault_class": FaultClass.NEEDS_RESET}, True),
        ({"fault_class": FaultClass.NEEDS_REBOOT}, True),
        ({"fault_class": FaultClass.APPLICATION}, False),
        ({"fault_class": FaultClass.INFORMATIONAL}, False),
        ({"fault_class": FaultClass.UNKNOWN}, False),
        ({"blame": Blame.CONDITIONAL}, False),
        ({"blame": Blame.NO}, False),
        ({"injected": True}, False),
        ({"simulated": True}, True),
    ],
)
def test_only_real_hardware_faults_that_may_be_blamed_count(changes: dict[str, Any], expected: bool) -> None:
    assert is_fault(incident(**changes)) is expected


def test_the_entry_names_gpu_code_and_remedy_with_evidence() -> None:
    entry = failed_node("n1", (incident(),))
    assert entry.message == (
        "Xid 79 (GPU_HAS_FALLEN_OFF_THE_BUS) on GPU 5 (00000000:C8:00.0): GPU has fallen off the bus. Replace it"
    )
    assert entry.component is not None
    assert (entry.component.kind.value, entry.component.index) == ("GPU", 5)
    (line,) = entry.evidence
    assert (line.source, line.code, line.time) == ("kernel-log", 79, NOW)


def test_the_worst_and_earliest_speaks_for_the_node() -> None:
    reset = incident(id="i0", code=119, fault_class=FaultClass.NEEDS_RESET, first_seen=NOW - timedelta(minutes=1))
    health = NodeHealth(
        "n1", open=(reset, incident()), closed=(incident(id="old", recovered_at=NOW - timedelta(days=1)),)
    )
    assert [found.id for found in blamed_incidents(health, RunWindow(NOW))] == ["i1", "i0"]


def test_sizes_are_bounded_however_much_there_is() -> None:
    many = tuple(incident(id=str(number), message="x" * 5000, remedy="ü" * 5000) for number in range(40))
    entry = failed_node("n1", many)
    assert len(entry.message.encode()) <= 512
    assert len(entry.evidence) == 16
    assert all(len(line.message.encode()) <= 256 for line in entry.evidence)


def test_evidence_after_the_window_is_late_and_not_blamed() -> None:
    window = RunWindow(NOW - timedelta(hours=1), NOW - timedelta(minutes=1))
    health = NodeHealth("n1", open=(incident(),))
    assert blamed_incidents(health, window) == ()
    assert [late.id for late in late_incidents(health, window)] == ["i1"]


def test_a_fault_of_a_maintenance_is_told_to_the_run_that_it_hit_and_blames_nobody() -> None:
    window = RunWindow(NOW - timedelta(hours=1))
    over = incident(id="over", during_maintenance=True, recovered_at=NOW)
    health = NodeHealth(
        "n1",
        open=tuple(incident(id=f"open {blame}", during_maintenance=True, blame=blame) for blame in Blame),
        closed=(over, msgspec.structs.replace(over, id="before", recovered_at=NOW - timedelta(days=1))),
    )
    assert [spared.id for spared in spared_incidents(health, window)] == ["open Yes", "over"]
    assert blamed_incidents(health, window) == late_incidents(health, window) == ()


def test_a_blind_monitor_is_read_from_the_status() -> None:
    health = node_health(
        {
            "metadata": {"name": "n1"},
            "status": {"bootID": "b", "monitors": [{"name": "nvml", "state": "Blind", "message": "no library"}]},
        }
    )
    assert (health.boot_id, health.blind) == ("b", "nvml: no library")
