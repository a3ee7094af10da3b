"""From reports to the verdict of a node, and when the fleet as a whole is the better suspect."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from nvcre_coordinator.core.breaker import Breaker, silent_nodes
from nvcre_coordinator.core.escalation import judged
from nvcre_coordinator.core.incidents import Component, Incident
from nvcre_coordinator.core.localisation import ProbeKind, ProbeResult, ProbeState, ProbeVerdict
from nvcre_coordinator.core.node_verdict import Monitor, MonitorState, Observed, Rules, Verdict, assess
from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, IncidentKind

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
RULES = Rules()


def incident(blame: Blame = Blame.YES, fault_class: FaultClass = FaultClass.NEEDS_RESET, **fields: object) -> Incident:
    made = Incident(
        id="a", kind=IncidentKind.XID, code=79, fault_class=fault_class, blame=blame, message="it broke",
        component=Component(kind=ComponentKind.GPU, index=5, uuid="GPU-5"), first_seen=NOW, last_seen=NOW,
    )  # fmt: skip
    return msgspec.structs.replace(made, **fields)


def seen(**fields: object) -> Observed:
    watching = (Monitor(name="nvml", state=MonitorState.WATCHING),)
    return Observed(**{"reported": True, "monitors": watching, **fields})  # type: ignore[arg-type]


def slow(verdict: ProbeVerdict = ProbeVerdict.SLOW, kind: ProbeKind = ProbeKind.NVLINK_ALL_REDUCE) -> ProbeResult:
    return ProbeResult(
        probe_id="p", kind=kind, state=ProbeState.MEASURED, bus_bandwidth_gbps="1.00", verdict=verdict, comparison="low"
    )


STARTING = Monitor(name="nvml", state=MonitorState.BLIND, reason="Starting", message="NVML has not answered yet")
BLIND = Monitor(name="nvml", state=MonitorState.BLIND, reason="LibraryNotFound", message="libnvidia-ml.so.1 not found")
CONDITIONAL = incident(Blame.CONDITIONAL)


@pytest.mark.parametrize(
    ("observed", "verdict"),
    [
        (Observed(), Verdict.UNKNOWN),
        (seen(), Verdict.HEALTHY),
        (seen(open=(incident(),)), Verdict.FAULTY),
        (seen(open=(incident(fault_class=FaultClass.FATAL_HARDWARE),)), Verdict.FAULTY),
        (seen(open=(incident(fault_class=FaultClass.NEEDS_REBOOT),)), Verdict.FAULTY),
        # only hardware counts, whatever it claims
        (seen(open=(incident(fault_class=FaultClass.APPLICATION),)), Verdict.HEALTHY),
        (seen(open=(incident(fault_class=FaultClass.INFORMATIONAL),)), Verdict.HEALTHY),
        (seen(open=(incident(fault_class=FaultClass.UNKNOWN),)), Verdict.HEALTHY),
        (seen(open=(incident(Blame.NO),)), Verdict.HEALTHY),
        # a test is not a fault
        (seen(open=(incident(injected=True),)), Verdict.HEALTHY),
        (seen(open=(incident(Blame.CONDITIONAL, injected=True),)), Verdict.HEALTHY),
        # a simulated run is an ordinary run
        (seen(open=(incident(simulated=True),)), Verdict.FAULTY),
        (seen(open=(CONDITIONAL,)), Verdict.SUSPECT),
        (seen(probes=(slow(),)), Verdict.SUSPECT),
        (seen(probes=(slow(ProbeVerdict.PASS), slow())), Verdict.HEALTHY),
        (seen(probes=(slow(ProbeVerdict.NONE), slow())), Verdict.SUSPECT),
        (seen(probes=(slow(ProbeVerdict.CANNOT_COMPARE), slow())), Verdict.SUSPECT),
        (seen(probes=(slow(ProbeVerdict.PASS, ProbeKind.NIC_LOOPBACK), slow())), Verdict.SUSPECT),
        # blind is about the monitors
        (seen(monitors=(BLIND,)), Verdict.BLIND),
        (seen(monitors=(STARTING,)), Verdict.UNKNOWN),
        (seen(monitors=(STARTING, BLIND)), Verdict.BLIND),
        (seen(lost_since=NOW), Verdict.BLIND),
        (seen(monitors=(BLIND,), open=(incident(),)), Verdict.FAULTY),
        (seen(lost_since=NOW, open=(CONDITIONAL,)), Verdict.SUSPECT),
        (Observed(lost_since=NOW), Verdict.UNKNOWN),
        (seen(maintenance=True, open=(incident(),)), Verdict.MAINTENANCE),
    ],
)
def test_verdicts(observed: Observed, verdict: Verdict) -> None:
    assert assess(observed, NOW, RULES).verdict is verdict


def test_a_fault_that_has_just_gone_is_watched_for_a_while() -> None:
    observed = seen(closed=(incident(recovered_at=NOW),))
    soon = assess(observed, NOW + timedelta(minutes=4), RULES)
    assert (soon.verdict, soon.look_again) == (Verdict.SUSPECT, timedelta(minutes=6))
    assert assess(observed, NOW + timedelta(minutes=10), RULES).verdict is Verdict.HEALTHY


def test_a_conditional_incident_that_keeps_coming_back_is_a_fault() -> None:
    def verdict(*closed: Incident) -> Verdict:
        return assess(seen(open=judged((CONDITIONAL,), closed), closed=closed), NOW, RULES).verdict

    earlier = tuple(incident(Blame.CONDITIONAL, id=name, recovered_at=NOW) for name in "bc")
    assert verdict(*earlier) is Verdict.FAULTY
    assert verdict(*earlier[:1]) is Verdict.SUSPECT
    elsewhere = Component(kind=ComponentKind.GPU, index=1)
    assert verdict(*(msgspec.structs.replace(each, component=elsewhere) for each in earlier)) is Verdict.SUSPECT
    long_ago = NOW - timedelta(hours=25)
    assert verdict(*(msgspec.structs.replace(each, last_seen=long_ago) for each in earlier)) is Verdict.SUSPECT


def test_the_message_names_the_worst_incident_the_component_and_how_many_more() -> None:
    worst = incident()
    message = assess(seen(open=(incident(id="b", first_seen=NOW + timedelta(hours=1)), worst)), NOW, RULES).message
    assert message == "Xid 79 on GPU 5 (GPU-5): it broke (and 1 more)"


@pytest.mark.parametrize("blame", [Blame.YES, Blame.CONDITIONAL])
def test_the_message_says_what_to_do_about_the_worst_incident(blame: Blame) -> None:
    told = assess(seen(open=(incident(blame, remedy="drain and power cycle the node"),)), NOW, RULES).message
    assert told == "Xid 79 on GPU 5 (GPU-5): it broke. Drain and power cycle the node"


def test_blindness_says_why() -> None:
    assert assess(seen(monitors=(BLIND,)), NOW, RULES).message == "nvml: libnvidia-ml.so.1 not found"


def breaker(nodes: int, *, every: timedelta, fleet_size: int) -> tuple[Breaker, datetime]:
    state, now = Breaker(), NOW
    for number in range(nodes):
        now = NOW + number * every
        state = state.turning_bad(f"n{number}", now, fleet_size=fleet_size, rules=RULES)
    return state, now


@pytest.mark.parametrize(
    ("nodes", "every_s", "fleet_size", "opens"),
    [
        (5, 10, 25, True),
        (4, 10, 4, False),  # fewer than five nodes
        (5, 10, 26, False),  # fewer than 20 %
        (200, 1, 1000, True),
        (5, 76, 10, False),  # not within five minutes
    ],
)
def test_many_nodes_at_once_open_the_breaker(nodes: int, every_s: int, fleet_size: int, opens: bool) -> None:
    state, now = breaker(nodes, every=timedelta(seconds=every_s), fleet_size=fleet_size)
    assert state.is_open(now) is opens


def test_one_node_that_reports_again_and_again_counts_once() -> None:
    state = Breaker()
    for number in range(100):
        state = state.turning_bad("n0", NOW + timedelta(seconds=number), fleet_size=5, rules=RULES)
    assert not state.is_open(NOW)


def test_the_breaker_closes_after_a_while() -> None:
    state, now = breaker(5, every=timedelta(0), fleet_size=10)
    assert not state.is_open(now + RULES.breaker_hold)


@pytest.mark.parametrize(
    ("silent_s", "fleet_size", "written"),
    [
        ([119], 100, 0),  # less than two minutes
        ([120], 100, 1),
        ([600] * 10, 100, 10),
        ([600] * 11, 100, 0),  # more than a tenth: we are the likelier cause
        ([600], 4, 1),  # one node of a small fleet
        ([600] * 2, 4, 0),
        ([3600 * hours for hours in range(1, 31)], 100, 30),  # one after the other
        ([86_400] * 11 + [600], 100, 1),  # those of yesterday hide nobody
    ],
)
def test_silence_worth_writing_down(silent_s: list[int], fleet_size: int, written: int) -> None:
    lost = {f"n{number}": NOW - timedelta(seconds=silent) for number, silent in enumerate(silent_s)}
    assert len(silent_nodes(lost, NOW, fleet_size=fleet_size, rules=RULES)) == written
