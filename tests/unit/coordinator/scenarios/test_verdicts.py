"""Fault scenarios of the reference note (section 8): what the coordinator makes of one node, each under its number.

What the agent sends is written down here as it arrives; that it arrives so is tested in tests/unit/agent/scenarios and
tests/component.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from nvcre_coordinator.core.breaker import Breaker
from nvcre_coordinator.core.escalation import is_fault, judged
from nvcre_coordinator.core.health_verdicts import blamed_incidents
from nvcre_coordinator.core.incidents import (
    Component,
    Event,
    EventKind,
    Incident,
    Ledger,
    Snapshot,
    fold_events,
    fold_snapshot,
    maintenance_ended,
)
from nvcre_coordinator.core.localisation import ProbeKind, ProbeResult, ProbeState, ProbeVerdict
from nvcre_coordinator.core.node_health import NodeHealth
from nvcre_coordinator.core.node_verdict import (
    Assessment,
    Gpu,
    GpuVerdict,
    Monitor,
    MonitorState,
    Observed,
    Rules,
    Verdict,
    assess,
    assess_gpus,
    bad_gpus,
)
from nvcre_coordinator.core.run_window import RunWindow
from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, IncidentKind, RecoveredBy

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
RULES = Rules()
GPUS = tuple(
    Gpu(index=index, uuid=f"GPU-{index}", pci_bus_id=f"00000000:{0x1B + index:02X}:00.0") for index in range(8)
)
WATCHING = Monitor(name="nvml", state=MonitorState.WATCHING)
RUN = RunWindow(NOW - timedelta(hours=1))


def gpu(number: int = 5, **fields: Any) -> Component:
    place = {"index": number, "uuid": f"GPU-{number}", "pci_bus_id": GPUS[number].pci_bus_id}
    return Component(**{"kind": ComponentKind.GPU, **place, **fields})


def xid(code: int, fault_class: FaultClass, blame: Blame = Blame.YES, *, at: datetime = NOW, **fields: Any) -> Incident:
    told: dict[str, Any] = {
        "id": f"{code}-{at.isoformat()}", "kind": IncidentKind.XID, "code": code, "component": gpu(),
        "first_seen": at, "last_seen": at, "count": 1, "message": f"Xid {code} happened",
    }  # fmt: skip
    return Incident(fault_class=fault_class, blame=blame, **told | fields)


def check(name: str, fault_class: FaultClass, blame: Blame, **fields: Any) -> Incident:
    told = xid(0, fault_class, blame, **fields)
    return msgspec.structs.replace(told, id=name, kind=IncidentKind.HEALTH_CHECK, check=name)


def ended(incident: Incident, by: RecoveredBy, after: timedelta = timedelta(minutes=20)) -> Incident:
    assert incident.first_seen is not None
    return msgspec.structs.replace(incident, recovered_at=incident.first_seen + after, recovered_by=by)


def seen(*open_now: Incident, closed: tuple[Incident, ...] = (), **fields: Any) -> Observed:
    known = {"reported": True, "monitors": (WATCHING,), "gpus": GPUS, **fields}
    return Observed(open=judged(open_now, closed), closed=closed, **known)


def verdict(*open_now: Incident, at: datetime = NOW, **fields: Any) -> Assessment:
    return assess(seen(*open_now, **fields), at, RULES)


def blamed(*open_now: Incident, closed: tuple[Incident, ...] = ()) -> tuple[Incident, ...]:
    """What a Job that has run for an hour makes of it."""
    return blamed_incidents(NodeHealth("node-1", open=judged(open_now, closed), closed=closed), RUN)


def lost(at: datetime = NOW, **fields: Any) -> Incident:
    return xid(79, FaultClass.NEEDS_REBOOT, at=at, **fields)


def test_01_a_lost_gpu_whose_index_is_another_ones_since_the_driver_was_loaded_again_is_told_by_its_uuid() -> None:
    gone, here = (
        GpuVerdict(index=5, uuid=uuid, verdict=verdict)
        for uuid, verdict in (("GPU-gone", Verdict.FAULTY), ("GPU-here", Verdict.HEALTHY))
    )
    sound = GpuVerdict(index=6, uuid="GPU-6", verdict=Verdict.SUSPECT)
    assert bad_gpus((gone, sound)) == "5,6"
    assert bad_gpus((gone, here, sound)) == "GPU-gone,6"


def test_01_a_lost_gpu_needs_a_reboot_and_is_broken_hardware_when_it_is_lost_again() -> None:
    first = verdict(lost())
    assert (first.verdict, first.fault_class) == (Verdict.FAULTY, FaultClass.NEEDS_REBOOT)
    assert bad_gpus(assess_gpus(seen(lost()), NOW, RULES)) == "5"  # the other seven are fine

    healed = ended(lost(), RecoveredBy.REBOOT)
    later = NOW + timedelta(hours=3)
    assert verdict(closed=(healed,), at=later).verdict is Verdict.HEALTHY

    again = verdict(lost(later), closed=(healed,), at=later)
    assert (again.verdict, again.fault_class) == (Verdict.FAULTY, FaultClass.FATAL_HARDWARE)
    assert "came back after a reboot" in again.message
    assert "replace" in again.message
    assert [told.fault_class for told in blamed(lost(later), closed=(healed,))] == [
        FaultClass.FATAL_HARDWARE,
        FaultClass.NEEDS_REBOOT,
    ]


@pytest.mark.parametrize(
    ("before", "again"),
    [
        pytest.param(ended(lost(), RecoveredBy.REBOOT), lost(NOW + timedelta(hours=73)), id="days later"),
        pytest.param(ended(lost(), RecoveredBy.REPLACED), lost(NOW + timedelta(hours=1)), id="another GPU"),
        pytest.param(
            ended(lost(), RecoveredBy.REBOOT), lost(NOW + timedelta(hours=1), component=gpu(4)), id="another slot"
        ),
        pytest.param(
            ended(lost(during_maintenance=True), RecoveredBy.REBOOT), lost(NOW + timedelta(hours=1)), id="maintenance"
        ),
        pytest.param(ended(lost(injected=True), RecoveredBy.QUIET), lost(NOW + timedelta(hours=1)), id="a test"),
        pytest.param(ended(lost(), RecoveredBy.REBOOT), lost(), id="the agent's second telling of the same loss"),
    ],
)
def test_01_no_second_loss_of_the_same_gpu(before: Incident, again: Incident) -> None:
    assert judged([again], [before])[0].fault_class is FaultClass.NEEDS_REBOOT


def test_01_a_bus_loss_is_the_same_fault_however_it_was_found_out() -> None:
    silent = ended(check("gpu_missing", FaultClass.NEEDS_REBOOT, Blame.YES), RecoveredBy.REBOOT)
    assert judged([lost(NOW + timedelta(hours=2))], [silent])[0].fault_class is FaultClass.FATAL_HARDWARE


@pytest.mark.parametrize(
    ("fault", "gpus", "expected"),
    [
        pytest.param(ended(lost(), RecoveredBy.REBOOT), GPUS[:5] + GPUS[6:], Verdict.SUSPECT, id="away"),
        pytest.param(ended(lost(), RecoveredBy.REBOOT), GPUS, Verdict.HEALTHY, id="back"),
        pytest.param(
            ended(lost(), RecoveredBy.REBOOT),
            (*GPUS[:5], msgspec.structs.replace(GPUS[5], uuid="GPU-new"), *GPUS[6:]),
            Verdict.HEALTHY,
            id="another in its slot",
        ),
        pytest.param(ended(lost(), RecoveredBy.REPLACED), GPUS[:5] + GPUS[6:], Verdict.HEALTHY, id="taken out"),
        pytest.param(
            ended(lost(), RecoveredBy.SET_HEALTHY), GPUS[:5] + GPUS[6:], Verdict.HEALTHY, id="a person says so"
        ),
        pytest.param(ended(lost(injected=True), RecoveredBy.REBOOT), GPUS[:5] + GPUS[6:], Verdict.HEALTHY, id="a test"),
        pytest.param(ended(lost(), RecoveredBy.REBOOT), (), Verdict.HEALTHY, id="no inventory yet"),
    ],
)
def test_01_a_reboot_does_not_cure_a_gpu_that_is_not_there_after_it(
    fault: Incident, gpus: tuple[Gpu, ...], expected: Verdict
) -> None:
    """The node's disk is made anew by a boot: its agent knows of seven GPUs and of nothing else."""
    assert verdict(closed=(fault,), gpus=gpus, at=NOW + timedelta(hours=2)).verdict is expected
    assert verdict(closed=(fault,), gpus=gpus, at=NOW + timedelta(days=4)).verdict is Verdict.HEALTHY


@pytest.mark.parametrize("blame", [Blame.CONDITIONAL, Blame.NO])
def test_07_a_contained_error_is_told_and_the_node_stays_schedulable(blame: Blame) -> None:
    contained = xid(94, FaultClass.APPLICATION, blame, pid=5, process="train")
    assert verdict(contained).verdict is Verdict.HEALTHY
    assert "Xid 94 happened" in verdict(contained).message
    assert blamed(contained) == ()


def test_08_a_pending_row_remap_is_shown_and_accuses_nobody_and_a_failed_one_does() -> None:
    pending = check("row_remap_pending", FaultClass.INFORMATIONAL, Blame.NO, message="reset at next drain")
    found = verdict(pending)
    assert (found.verdict, found.fault_class) == (Verdict.HEALTHY, None)
    assert "reset at next drain" in found.message
    assert "reset at next drain" in assess_gpus(seen(pending), NOW, RULES)[5].message
    failure = check("row_remap_failure", FaultClass.FATAL_HARDWARE, Blame.YES)
    assert verdict(pending, failure).fault_class is FaultClass.FATAL_HARDWARE


def test_09_a_gpu_whose_firmware_hangs_is_faulty_and_blind_then_needs_a_reboot_then_a_person() -> None:
    hung = Monitor(name="nvml", state=MonitorState.BLIND, reason="Unresponsive", message="a call has hung for 60 s")

    def at(hours: int) -> Incident:
        return xid(119, FaultClass.NEEDS_RESET, at=NOW + timedelta(hours=hours))

    first = verdict(at(0), monitors=(hung,))
    assert (first.verdict, first.fault_class) == (Verdict.FAULTY, FaultClass.NEEDS_RESET)
    assert "Also blind: nvml: a call has hung for 60 s" in first.message
    gpus = assess_gpus(seen(at(0), monitors=(hung,)), NOW, RULES)
    assert [each.verdict for each in gpus] == [Verdict.FAULTY if n == 5 else Verdict.BLIND for n in range(8)]

    reset = ended(at(0), RecoveredBy.RESET)
    assert verdict(at(1), closed=(reset,)).fault_class is FaultClass.NEEDS_REBOOT
    raised = msgspec.structs.replace(at(1), fault_class=FaultClass.NEEDS_REBOOT)
    assert judged([raised], [reset]) == (raised,)  # the agent has gone up itself
    reboot = ended(raised, RecoveredBy.REBOOT)
    assert verdict(at(2), closed=(reboot, reset)).fault_class is FaultClass.FATAL_HARDWARE


def test_16_a_link_that_dies_again_after_the_reset_is_broken_hardware() -> None:
    link = gpu(5, kind=ComponentKind.NVLINK, index=11)

    def dead(hours: int) -> Incident:
        return xid(149, FaultClass.NEEDS_RESET, at=NOW + timedelta(hours=hours), component=link, remedy="reset the GPU")

    assert verdict(dead(0)).fault_class is FaultClass.NEEDS_RESET
    again = verdict(dead(2), closed=(ended(dead(0), RecoveredBy.RESET),))
    assert again.fault_class is FaultClass.FATAL_HARDWARE
    assert "cable" in again.message
    other = msgspec.structs.replace(dead(2), component=gpu(5, kind=ComponentKind.NVLINK, index=3))
    assert verdict(other, closed=(ended(dead(0), RecoveredBy.RESET),)).fault_class is FaultClass.NEEDS_RESET


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(lost(injected=True), id="a lost GPU"),
        pytest.param(xid(149, FaultClass.NEEDS_RESET, injected=True), id="a link"),
        pytest.param(xid(48, FaultClass.NEEDS_RESET, Blame.CONDITIONAL, injected=True), id="a condition"),
    ],
)
def test_20_an_injected_fault_is_stored_and_accuses_nobody_not_in_a_job_either(told: Incident) -> None:
    assert verdict(told).verdict is Verdict.HEALTHY
    assert verdict(told).message.startswith("only a test injection, which accuses nobody: Xid ")
    assert blamed(told) == ()
    assert {each.verdict for each in assess_gpus(seen(told), NOW, RULES)} == {Verdict.HEALTHY}
    assert fold_events(Ledger(), "o", [Event(1, EventKind.OPENED, told, NOW)]).open == (told,)


def test_23_a_dead_fabric_manager_is_the_node_s_fault_and_no_gpu_s() -> None:
    fabric = check(
        "fabric_manager", FaultClass.NEEDS_RESET, Blame.YES, component=Component(kind=ComponentKind.FABRIC),
        message="the fabric manager does not run", remedy="restart the service nvidia-fabricmanager",
    )  # fmt: skip
    found = verdict(fabric)
    assert found.verdict is Verdict.FAULTY
    assert found.message == (
        "fabric_manager on Fabric: the fabric manager does not run. Restart the service nvidia-fabricmanager"
    )
    assert {each.verdict for each in assess_gpus(seen(fabric), NOW, RULES)} == {Verdict.HEALTHY}
    again = judged([fabric], [ended(fabric, RecoveredBy.CONDITION_GONE)])
    assert again[0].fault_class is FaultClass.NEEDS_RESET  # a service is restarted again, not replaced


def test_36_a_fault_of_a_mig_instance_names_the_instance_and_its_gpu() -> None:
    one = xid(95, FaultClass.NEEDS_RESET, component=gpu(1, gpu_instance=3))
    assert "GPU 1, MIG instance 3 (GPU-1)" in verdict(one).message
    whole = xid(95, FaultClass.NEEDS_RESET, component=gpu(1))
    assert "MIG" not in verdict(whole).message
    assert bad_gpus(assess_gpus(seen(one), NOW, RULES)) == bad_gpus(assess_gpus(seen(whole), NOW, RULES)) == "1"


def test_37_what_happens_in_a_maintenance_is_recorded_and_what_is_left_is_judged_after_it() -> None:
    """A driver upgrade loses two GPUs; one is back before it ends."""
    back, stays = (lost(id=name, component=gpu(n), during_maintenance=True) for n, name in ((1, "back"), (2, "stays")))
    ledger = fold_events(Ledger(), "o", [Event(n, EventKind.OPENED, each, NOW) for n, each in ((1, back), (2, stays))])
    over = msgspec.structs.replace(back, recovered_at=NOW, recovered_by=RecoveredBy.RESET)
    ledger = fold_events(ledger, "o", [Event(3, EventKind.RECOVERED, over, NOW)])
    during = assess(seen(*ledger.open, closed=ledger.closed, maintenance=True), NOW, RULES)
    assert during.verdict is Verdict.MAINTENANCE
    assert blamed(*ledger.open, closed=ledger.closed) == ()

    ledger = maintenance_ended(ledger)
    after = assess(seen(*ledger.open, closed=ledger.closed), NOW, RULES)
    assert (after.verdict, "GPU 2" in after.message) == (Verdict.FAULTY, True)
    assert [told.id for told in blamed(*ledger.open, closed=ledger.closed)] == ["stays"]
    assert assess(seen(closed=ledger.closed), NOW, RULES).verdict is Verdict.HEALTHY  # nothing of it is watched


def test_38_a_monitor_that_lost_access_is_blind_and_no_gpu_is_faulty() -> None:
    blind = Monitor(name="nvml", state=MonitorState.BLIND, reason="NoPermission", message="restart the agent's Pod")
    found = seen(monitors=(blind,))
    assert assess(found, NOW, RULES).verdict is Verdict.BLIND
    assert {each.verdict for each in assess_gpus(found, NOW, RULES)} == {Verdict.BLIND}


@pytest.mark.parametrize("gpus", [GPUS, (*GPUS[:5], Gpu(index=5, uuid="GPU-new"), *GPUS[6:])], ids=["told", "noticed"])
def test_39_a_replaced_gpu_starts_with_a_clean_slate(gpus: tuple[Gpu, ...]) -> None:
    by = RecoveredBy.REPLACED if gpus is GPUS else RecoveredBy.RESET
    old = ended(lost(), by, timedelta(0))
    assert verdict(closed=(old,), gpus=gpus).verdict is Verdict.HEALTHY
    new = lost(NOW + timedelta(hours=1), component=gpu(5, uuid="GPU-new"))
    assert judged([new], [old])[0].fault_class is FaultClass.NEEDS_REBOOT


def probe(result: ProbeVerdict, started: timedelta) -> ProbeResult:
    at = NOW + started
    return ProbeResult(
        probe_id="p", kind=ProbeKind.NVLINK_ALL_REDUCE, state=ProbeState.MEASURED, verdict=result,
        started_at=at, finished_at=at + timedelta(seconds=20),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("probes", "after", "expected"),
    [
        ((), timedelta(minutes=1), Verdict.SUSPECT),
        ((), timedelta(minutes=10), Verdict.HEALTHY),
        ((probe(ProbeVerdict.PASS, timedelta(seconds=5)),), timedelta(minutes=1), Verdict.HEALTHY),
        ((probe(ProbeVerdict.PASS, timedelta(seconds=-5)),), timedelta(minutes=1), Verdict.SUSPECT),  # before the end
        ((probe(ProbeVerdict.CANNOT_COMPARE, timedelta(seconds=5)),), timedelta(minutes=1), Verdict.SUSPECT),
        ((probe(ProbeVerdict.SLOW, timedelta(seconds=5)),), timedelta(minutes=10), Verdict.SUSPECT),
    ],
)
def test_40_a_reset_by_hand_is_watched_until_a_probe_passes_or_time_is_up(
    probes: tuple[ProbeResult, ...], after: timedelta, expected: Verdict
) -> None:
    fault = ended(xid(95, FaultClass.NEEDS_RESET), RecoveredBy.RESET, timedelta(0))
    assert verdict(closed=(fault,), probes=probes, at=NOW + after).verdict is expected


def test_41_the_breaker_stays_open_while_as_many_are_bad_and_lets_the_few_that_are_left_go() -> None:
    state = Breaker()
    for number in range(60):
        state = state.turning_bad(f"n{number}", NOW, fleet_size=100, rules=RULES)
    assert set(state.caught) == {f"n{number}" for number in range(60)}
    later = NOW + RULES.breaker_hold
    assert not state.is_open(later)
    assert state.prolonged(60, later, fleet_size=100, rules=RULES).is_open(later)
    assert not state.prolonged(19, later, fleet_size=100, rules=RULES).is_open(later)


def test_41_what_is_local_to_a_gpu_still_counts_in_a_job() -> None:
    """The breaker holds verdicts, not evidence: a Job reads incidents."""
    assert [told.code for told in blamed(lost())] == [79]


def test_43_an_unknown_xid_warns_with_its_text_and_accuses_nobody() -> None:
    unknown = xid(185, FaultClass.UNKNOWN, Blame.NO, raw="NVRM: Xid (PCI:0000:20:00): 185, Memory sparing")
    found = verdict(unknown)
    assert (found.verdict, "1 warning: Xid 185" in found.message) == (Verdict.HEALTHY, True)
    assert blamed(unknown) == ()


def test_47_a_line_that_a_process_wrote_accuses_nobody_also_beside_the_same_fault_of_yesterday() -> None:
    forged = lost(injected=True)
    assert not is_fault(judged([forged], [ended(lost(NOW - timedelta(hours=3)), RecoveredBy.REBOOT)])[0])
    assert blamed(forged) == ()


def test_34_what_a_snapshot_lists_is_open_though_everything_stored_is_gone() -> None:
    faults = (lost(), xid(48, FaultClass.NEEDS_RESET, component=gpu(2)))
    ledger = fold_snapshot(Ledger(), Snapshot("o", 17, NOW, faults))
    assert ledger.open == faults
    assert ledger.cursor("o") == 0  # the events before it may still come, for the history
