"""Whatever happens in whatever order, and wherever the agent crashes: no fault is lost, none is told twice."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvcre_agent.incidents.escalation import MAX_FAULTS, History
from nvcre_agent.incidents.model import ChangeKind
from nvcre_agent.incidents.reset_signs import ResetSigns
from nvcre_agent.nvml.snapshot import GpuSnapshot, Reading, Snapshot, Unread
from nvcre_agent.xid.classify import classify_xid
from nvcre_protos.vocabulary import FaultClass, IncidentKind
from support.faulty_node import GPUS, FaultyNode

CODES = [13, 31, 43, 45, 48, 63, 79, 94, 95, 109, 119, 149, 154, 171, 185]
GPU = st.integers(0, 2)
STEPS = st.one_of(
    st.tuples(st.just("prints"), st.sampled_from(CODES), GPU, st.sampled_from([0, 7, 8])),
    st.tuples(st.just("nvml"), st.sampled_from(CODES), GPU),
    st.tuples(st.just("finds"), st.sampled_from(["gpu_lost", "recovery_action", "ecc_uncorrected"]), GPU),
    st.tuples(st.just("finds no more"), st.sampled_from(["gpu_lost", "recovery_action", "ecc_uncorrected"]), GPU),
    st.tuples(st.just("reset"), GPU),
    st.tuples(st.just("snapshot"), st.sets(GPU)),
    st.tuples(st.just("wait"), st.sampled_from([0.5, 20.0, 100.0, 400.0])),
    st.tuples(st.just("clock jumps"), st.sampled_from([-3600.0, 3600.0])),
    st.tuples(
        st.just("commit"),
    ),
    st.tuples(st.just("restart"), st.booleans()),
    st.tuples(st.just("reboot"), st.booleans()),
)


def happens(node: FaultyNode, step: tuple[object, ...]) -> None:
    match step:
        case ("prints", int(code), int(gpu), int(pid)):
            node.xid(code, "text", gpu=gpu, pid=pid)
        case ("nvml", int(code), int(gpu)):
            node.nvml_xid(code, gpu=gpu)
        case ("finds", str(check), int(gpu)):
            node.finds(check, gpu=gpu, fault_class=FaultClass.NEEDS_RESET)
        case ("finds no more", str(check), int(gpu)):
            node.finds_no_more(check, gpu=gpu)
        case ("reset", int(gpu)):
            node.reset(gpu)
        case ("snapshot", set(lost)):
            node.snapshot([gpu for gpu in GPUS if gpu.index not in lost])
        case ("wait", float(seconds)):
            node.wait(seconds)
        case ("clock jumps", float(seconds)):
            node.wall_s += seconds
        case ("commit",):
            node.commit()
        case ("restart", bool(crash)):
            node.restart(crash=crash)
        case ("reboot", bool(crash)):
            node.reboot(crash=crash)


@settings(max_examples=150)
@given(st.lists(STEPS, max_size=40))
def test_no_history_loses_a_fault_or_tells_it_twice(steps: list[tuple[object, ...]]) -> None:
    node = FaultyNode()
    for step in steps:
        happens(node, step)
        incidents = node.open
        faults = Counter(
            (one.kind, one.code, one.check, one.component, one.pid if one.fault_class is FaultClass.APPLICATION else 0)
            for one in incidents
            if one.fault_class is not FaultClass.APPLICATION or one.pid
        )
        assert all(number == 1 for number in faults.values()), "one fault is open once"
        for one in incidents:
            assert one.count >= 1
            assert all(count >= 1 for count in one.effects.values())
            assert one.first_seen_s <= one.last_seen_s
        if step[0] == "prints":
            code, gpu = step[1], step[2]
            held = [
                one for one in incidents if one.component.index == gpu and (one.code == code or code in one.effects)
            ]
            assert held, "a printed Xid is in an open incident"


@settings(max_examples=150)
@given(st.lists(STEPS, max_size=40))
def test_each_incident_opens_once_and_recovers_once_wherever_the_agent_crashed(steps: list[tuple[object, ...]]) -> None:
    node = FaultyNode()
    for step in steps:
        happens(node, step)
    node.commit()
    told = Counter((one.kind, one.incident.id) for one in node.changes if one.kind is not ChangeKind.UPDATED)
    assert all(number == 1 for number in told.values())
    opened = {name for kind, name in told if kind is ChangeKind.OPENED}
    over = {name for kind, name in told if kind is ChangeKind.RECOVERED}
    assert over <= opened
    assert {one.id for one in node.open} == set(node.disk) == opened - over
    assert all((one.incident.recovered_by is not None) is (one.kind is ChangeKind.RECOVERED) for one in node.changes)


@settings(max_examples=100)
@given(st.lists(st.sampled_from(["line", "commit", "crash", "restart"]), max_size=40))
def test_no_crash_changes_how_often_a_fault_was_printed(steps: list[str]) -> None:
    node = FaultyNode()
    printed = 0
    for step in steps:
        match step:
            case "line":
                node.xid(95, "Uncontained")
                printed += 1
            case "commit":
                node.commit()
            case "crash" | "restart":
                node.restart(crash=step == "crash")
        assert [one.count for one in node.open] == ([printed] if printed else [])


# --- the history of a fault


def test_the_history_survives_its_own_writing() -> None:
    history = History().remedied("GPU-0/Xid 79", 1.5).seen("GPU-0/Xid 94", 94, 7, 2.5)
    assert History.from_json(history.to_json()) == history


def test_the_history_is_bounded_and_forgets_the_oldest() -> None:
    history = History()
    for number in range(MAX_FAULTS + 10):
        history = history.remedied(f"GPU-{number}/Xid 79", float(number))
    assert len(history.faults) == MAX_FAULTS
    assert "GPU-9/Xid 79" not in history.faults


@pytest.mark.parametrize("code", [13, 31, 45, 63, 74, 154, 185])
def test_what_accuses_nobody_by_itself_is_not_fatal_because_it_comes_back(code: int) -> None:
    history = History().remedied("GPU-0/x", 1.0).remedied("GPU-0/x", 2.0)
    verdict = classify_xid(code)
    assert history.escalated(verdict, "GPU-0/x", code, 0, 3.0) == verdict


def test_the_kinds_of_incident_are_all_named_by_device() -> None:
    node = FaultyNode()
    node.record("mlx5_core 0000:29:00.0: device's health compromised - reached miss count")
    node.reboot()
    node.snapshot()
    node.wait(100)
    node.record("mlx5_core 0000:29:00.0: device's health compromised - reached miss count")
    assert (node.only().kind, node.only().fault_class) == (IncidentKind.IB_LINK, FaultClass.FATAL_HARDWARE)


# --- was it reset?


def snapshot(access: Unread | None = None, action: Reading = 0, pending: Reading = 0) -> Snapshot:
    gpu = GpuSnapshot(GPUS[0], access=access, recovery_action=action, remap_pending=pending)
    return Snapshot(0.0, 0, 1, (gpu,))


NO_ACTION = Unread.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("seen", "reset"),
    [
        ([snapshot(), snapshot(action=1)], False),
        ([snapshot(action=1), snapshot(action=1)], False),
        ([snapshot(action=4), snapshot(action=1)], False),
        ([snapshot(action=1), snapshot()], True),
        ([snapshot(action=1), snapshot(action=Unread.FAILED)], False),
        ([snapshot(action=1), snapshot(action=Unread.FAILED), snapshot()], True),
        ([snapshot(action=1), snapshot(access=Unread.LOST), snapshot()], True),
        ([snapshot(pending=1), snapshot(pending=0)], True),
        ([snapshot(pending=1), snapshot(pending=Unread.FAILED)], False),
        ([snapshot(access=Unread.RESET_REQUIRED), snapshot()], True),
        ([snapshot(access=Unread.RESET_REQUIRED), snapshot(action=1)], False),
        ([snapshot(access=Unread.RESET_REQUIRED), snapshot(action=NO_ACTION)], True),
        ([snapshot(action=1), snapshot(action=NO_ACTION)], False),
        ([snapshot(action=1), snapshot(access=Unread.RESET_REQUIRED), snapshot(action=NO_ACTION)], False),
        ([snapshot(access=Unread.LOST), snapshot()], False),
        ([snapshot()], False),
    ],
)
def test_a_reset_shows_in_readings_that_only_a_reset_takes_back(seen: list[Snapshot], reset: bool) -> None:
    signs = ResetSigns()
    found: tuple[str, ...] = ()
    for one in seen:
        signs, found = ResetSigns.from_json(signs.to_json("boot-1"), "boot-1").step(one)
    assert found == ((GPUS[0].uuid,) if reset else ())


def test_how_a_gpu_looked_before_the_reboot_is_no_sign() -> None:
    before, _ = ResetSigns().step(snapshot(action=1))
    assert ResetSigns.from_json(before.to_json("boot-1"), "boot-2").step(snapshot())[1] == ()
