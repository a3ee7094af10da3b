"""Our values survive the way over the wire, and every word has its counterpart there."""

import pytest
from nvcre_agent import __version__, wire
from nvcre_agent.checks.model import Component
from nvcre_agent.incidents.model import Change, ChangeKind, Incident, shortened
from nvcre_coordinator.fleet.wire import moment
from nvcre_protos import nvcre_agent_v1_pb2 as pb
from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, IncidentKind, RecoveredBy, Source


def incident(**changes: object) -> Incident:
    values: dict[str, object] = {
        "id": "i1",
        "kind": IncidentKind.XID,
        "code": 149,
        "fault_class": FaultClass.NEEDS_RESET,
        "blame": Blame.CONDITIONAL,
        "blame_condition": "the far end",
        "component": Component(ComponentKind.NVLINK, 7, "GPU-1", "00000000:3B:00.0", 3, 0),
        "mnemonic": "M",
        "message": "m",
        "remedy": "r",
        "sources": (Source.KERNEL_LOG, Source.NVML),
        "count": 3,
        "first_seen_s": 1_800_000_000.25,
        "last_seen_s": 1_800_000_001.5,
        "recovered_at_s": 1_800_000_002.0,
        "injected": True,
        "simulated": True,
        "pid": 7,
        "process": "p",
        "caused_by": 45,
        "effects": {45: 2, 154: 1},
        "check": "c",
        "raw": "raw",
        "unit": "GPC 1, TPC 3",
        "pod_uid": "pod",
        "container_id": "c0ffee",
        "recovered_by": RecoveredBy.REPLACED,
    }
    return Incident(**(values | changes))  # type: ignore[arg-type]


def test_an_incident_survives_the_round_trip() -> None:
    for one in (incident(), incident(recovered_at_s=None, recovered_by=None, component=Component(ComponentKind.NODE))):
        assert wire.incident_from(wire.incident(one)) == one


@pytest.mark.parametrize("kind", IncidentKind)
@pytest.mark.parametrize("fault_class", FaultClass)
def test_every_kind_and_class_has_its_word(kind: IncidentKind, fault_class: FaultClass) -> None:
    one = incident(kind=kind, fault_class=fault_class)
    assert wire.incident_from(wire.incident(one)) == one


def test_no_event_carries_the_unspecified_word() -> None:
    for kind in ChangeKind:
        assert wire.event(Change(kind, incident(), 1.0, 2.0), "b").kind != pb.EVENT_KIND_UNSPECIFIED


def test_times_and_numbers_out_of_range_are_cut_not_raised() -> None:
    message = wire.incident(incident(first_seen_s=-5.0, code=2**40, pid=2**40))
    assert (message.first_seen.seconds, message.code, message.pid) == (946_684_800, 2**32 - 1, 2**32 - 1)


@pytest.mark.parametrize("text", ["short", "ä" * 300, "x" * 1000, "\ud800broken"])
def test_texts_are_cut_by_bytes_between_characters(text: str) -> None:
    assert len(shortened(text).encode()) <= 256


def test_the_version_is_the_distribution_s() -> None:
    from importlib.metadata import version

    assert version("nvcre") == __version__


@pytest.mark.parametrize("clock_s", [0.0, 1e12, float(2**62)])
def test_35_no_wall_clock_is_so_wrong_that_the_coordinator_refuses_its_times(clock_s: float) -> None:
    stamp = wire.timestamp(clock_s)
    assert moment(stamp, "event.time").year in (2000, 2199)
