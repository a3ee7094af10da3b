"""Everything an agent sends is bounded, checked and put on our clock before a rule sees it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st
from nvcre_coordinator.core.clock_offset import ClockOffset
from nvcre_coordinator.core.localisation import ProbeKind, ProbeVerdict
from nvcre_coordinator.fleet import wire
from nvcre_protos import nvcre_agent_v1_pb2 as pb
from nvcre_protos.vocabulary import Blame, FaultClass, IncidentKind

SURE = ClockOffset(timedelta(0), timedelta(0))
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def stamp(at: datetime = NOW) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(at)
    return stamp


@given(st.text(max_size=200), st.integers(1, 64))
def test_cut_never_exceeds_its_limit_nor_splits_a_character(text: str, limit: int) -> None:
    cut = wire.cut(text, limit)
    assert len(cut.encode()) <= limit
    assert "\x00" not in cut


@pytest.mark.parametrize("text", ["\x1b[2J", "\x9b2J", "\u202eegdirb", "\u2067", "a\x7f", "\ufffe", "\ud800"])
def test_cut_leaves_nothing_that_steers_a_terminal_or_turns_a_line_around(text: str) -> None:
    assert "\N{REPLACEMENT CHARACTER}" in wire.cut(text, 64)
    assert not set(text) & set(wire.cut(text, 64)) - set("[2Jegdirba")


def test_cut_makes_one_line_of_many() -> None:
    assert wire.cut("NVRM: Xid\r\nnode-7\tFaulty", 64) == "NVRM: Xid  node-7 Faulty"


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "ä", "-a", "a\n"])
def test_an_identifier_is_plain(name: str) -> None:
    with pytest.raises(wire.BadMessage, match="outbox_id"):
        wire.identifier(name, "outbox_id")


@pytest.mark.parametrize("seconds", [-62135596800, 0, 253402300799, (1 << 63) - 1])
def test_a_time_outside_of_our_world_is_refused(seconds: int) -> None:
    with pytest.raises(wire.BadMessage, match=r"event\.time"):
        wire.moment(Timestamp(seconds=seconds), "event.time")


def test_times_are_put_on_our_clock() -> None:
    ahead = ClockOffset(timedelta(seconds=60), timedelta(seconds=1))
    told = wire.incident(pb.Incident(id="a", first_seen=stamp(NOW + timedelta(seconds=60))), ahead)
    assert told.first_seen == NOW
    assert not told.time_uncertain


def test_no_clock_makes_a_time_from_before_our_world() -> None:
    ahead = ClockOffset(timedelta(days=190 * 365), timedelta(seconds=1))
    assert wire.incident(pb.Incident(id="a", first_seen=stamp(NOW)), ahead).first_seen == wire.EARLIEST


def test_an_unsure_clock_makes_times_uncertain() -> None:
    assert wire.incident(pb.Incident(id="a"), ClockOffset(timedelta(0), timedelta(seconds=3))).time_uncertain


def test_what_only_a_newer_agent_knows_warns_and_never_blames() -> None:
    told = wire.incident(pb.Incident(id="a", kind=99, blame=pb.BLAME_YES, fault_class=99, code=7), SURE)  # type: ignore[arg-type]
    assert (told.kind, told.blame, told.fault_class) == (IncidentKind.HEALTH_CHECK, Blame.NO, FaultClass.UNKNOWN)
    assert told.check == "UnknownIncidentKind99"


def test_every_value_of_the_wire_has_a_word_in_the_api() -> None:
    for kind in pb.IncidentKind.values():
        if kind:
            told = wire.incident(pb.Incident(id="a", kind=kind, blame=pb.BLAME_YES), SURE)
            assert (told.blame, told.check) == (Blame.YES, "")
    assert {*wire.PROBE_KINDS} == {*ProbeKind}


def test_monitors_are_unique_by_name_and_an_unknown_state_is_blind() -> None:
    monitors = wire.monitors([pb.Monitor(name="nvml", state=1), pb.Monitor(name="nvml", state=9), pb.Monitor(name="")])
    assert [(monitor.name, monitor.state) for monitor in monitors] == [("nvml", "Blind")]


def update(*figures: float, state: int = pb.PROBE_STATE_MEASURED, **run: int) -> pb.ProbeUpdate:
    return pb.ProbeUpdate(
        probe_id="p-nvlink",
        state=state,  # type: ignore[arg-type]
        runs=[
            pb.ProbeRun(
                sizes=[
                    pb.SizeBandwidth(size_bytes=4 << 30, algbw_gbps=figure / 2, busbw_gbps=figure),
                    pb.SizeBandwidth(size_bytes=1 << 20, algbw_gbps=1, busbw_gbps=999),
                ],
                **run,
            )
            for figure in figures
        ],
    )


def test_29_the_best_run_counts_at_its_largest_size_and_a_cold_first_one_stays_visible() -> None:
    result = wire.probe_result(update(170.0, 481.239, 460.0), ProbeKind.NVLINK_ALL_REDUCE, SURE)
    assert result is not None
    assert result.bus_bandwidth_gbps == "481.24"
    assert result.runs == ("170.00", "481.24", "460.00")
    assert [row.size_bytes for row in result.results] == [1 << 20, 4 << 30]


@pytest.mark.parametrize(
    "message",
    [
        update(),
        update(float("nan")),
        update(float("inf")),
        update(-1.0),
        update(1e12),
        update(480.0, wrong_elements=1),
        update(480.0, exit_code=1),
    ],
)
def test_30_a_measurement_without_a_plausible_run_is_an_error_neither_pass_nor_fail(message: pb.ProbeUpdate) -> None:
    result = wire.probe_result(message, ProbeKind.NVLINK_ALL_REDUCE, SURE)
    assert result is not None
    assert (result.state, result.reason, result.bus_bandwidth_gbps) == ("Error", "NoUsableRun", "")
    assert result.verdict is ProbeVerdict.NONE


@pytest.mark.parametrize("state", [pb.PROBE_STATE_UNSPECIFIED, pb.PROBE_STATE_RUNNING, 99])
def test_a_running_probe_has_no_result(state: int) -> None:
    assert wire.probe_result(update(1.0, state=state), ProbeKind.NVLINK_ALL_REDUCE, SURE) is None


@given(st.binary(max_size=400))
def test_no_bytes_break_the_conversion(payload: bytes) -> None:
    """Whatever parses as a message is taken or refused with BadMessage, nothing else."""
    message = pb.AgentMessage()
    try:
        message.ParseFromString(payload)
    except Exception:  # noqa: BLE001 - not protobuf at all; gRPC refuses it before us
        return
    try:
        wire.events(message.event_batch, SURE)
        wire.snapshot(message.snapshot, SURE)
        wire.monitors(message.heartbeat.monitors)
        wire.probe_result(message.probe_update, ProbeKind.NIC_LOOPBACK, SURE)
    except wire.BadMessage:
        pass
