"""Fault scenarios of slowness: heat (25), a pair that is slow (27), and a probe that crashed (30)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvcre_coordinator.core.health_verdicts import blamed_incidents
from nvcre_coordinator.core.incidents import Component, Incident
from nvcre_coordinator.core.localisation import ProbeKind, ProbeResult, ProbeState, ProbeVerdict
from nvcre_coordinator.core.node_health import NodeHealth
from nvcre_coordinator.core.node_verdict import Gpu, Observed, Rules, Verdict, assess
from nvcre_coordinator.core.pair_rounds import Pair, PairResult, PairState, conclude, first_round, second_round
from nvcre_coordinator.core.run_window import RunWindow
from nvcre_coordinator.fleet.crowd import Crowd
from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, IncidentKind

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
RULES = Rules()
GPUS = (Gpu(index=3, uuid="GPU-3"),)


def heat(at: datetime = NOW, check: str = "hw_slowdown") -> Incident:
    return Incident(
        id="heat", kind=IncidentKind.HEALTH_CHECK, check=check, fault_class=FaultClass.INFORMATIONAL,
        blame=Blame.CONDITIONAL, message="GPU 3 is slowed down by heat", first_seen=at, last_seen=at,
        component=Component(kind=ComponentKind.GPU, index=3, uuid="GPU-3"),
    )  # fmt: skip


def probe(verdict: ProbeVerdict, state: ProbeState = ProbeState.MEASURED) -> ProbeResult:
    return ProbeResult(
        probe_id="p", kind=ProbeKind.NVLINK_ALL_REDUCE, state=state, verdict=verdict, comparison="31 % below its peers"
    )


@pytest.mark.parametrize(
    ("probes", "verdict"),
    [
        ((), Verdict.HEALTHY),
        ((probe(ProbeVerdict.PASS),), Verdict.HEALTHY),
        ((probe(ProbeVerdict.SLOW),), Verdict.SUSPECT),
    ],
)
def test_25_heat_makes_a_node_suspect_only_where_a_probe_shows_harm(
    probes: tuple[ProbeResult, ...], verdict: Verdict
) -> None:
    found = assess(Observed(reported=True, open=(heat(),), gpus=GPUS, probes=probes), NOW, RULES)
    assert found.verdict is verdict
    assert "slowed down by heat" in found.message
    assert blamed_incidents(NodeHealth("n", open=(heat(),)), RunWindow(NOW)) == ()


def alarms_of_heat(nodes: int, *, fleet_size: int, every: timedelta = timedelta(seconds=1)) -> list[str]:
    told: list[str] = []
    crowd = Crowd(
        rules=RULES, fleet_size=lambda: fleet_size,
        on_alarm=lambda reason, text: told.append(f"{reason}: {text}"),
        on_held=lambda: None, look_again=lambda node: None,
    )  # fmt: skip
    for number in range(nodes):
        at = NOW + number * every
        crowd.heat(f"node-{number}", (heat(at),), at)
        crowd.heat(f"node-{number}", (heat(at),), at + timedelta(seconds=1))  # it is told again and again
    return told


def test_25_a_whole_row_at_once_is_one_alarm_about_the_room() -> None:
    (alarm,) = alarms_of_heat(16, fleet_size=40)
    assert alarm.startswith("FacilityHeat: 8 of 40 nodes began to slow their GPUs down within 5 min")
    assert alarms_of_heat(4, fleet_size=4) == []
    assert alarms_of_heat(16, fleet_size=40, every=timedelta(minutes=2)) == []  # one after the other


def played(nodes: list[str], slow_nodes: set[str], slow_links: set[Pair] = frozenset()):  # type: ignore[assignment]
    def run(pairs: tuple[Pair, ...]) -> list[PairResult]:
        def is_slow(pair: Pair) -> bool:
            return bool(slow_nodes & set(pair)) or pair in slow_links or pair[::-1] in slow_links

        return [PairResult(pair, PairState.SLOW if is_slow(pair) else PairState.FAST) for pair in pairs]

    first = run(first_round(nodes))
    return conclude(first, run(second_round(first)))


NODES = ["a", "b", "c", "d", "e", "f"]


def test_27_the_node_that_is_slow_with_two_proven_good_partners_is_blamed() -> None:
    found = played(NODES, {"b"})
    assert (found.blamed, found.links, found.unresolved) == (("b",), (), ())


def test_27_where_both_recover_the_link_between_them_is_suspected() -> None:
    found = played(NODES, set(), {("a", "b")})
    assert (found.blamed, found.links, found.unresolved) == ((), (("a", "b"),), ())


@pytest.mark.parametrize(
    ("nodes", "slow", "blamed", "unresolved"),
    [
        (NODES, {"a", "d"}, ("a", "d"), ()),
        (NODES[:5], {"e"}, ("e",), ()),  # an odd one
        (NODES[:2], {"a"}, (), ("a", "b")),  # nobody is proven good
        (NODES, set(), (), ()),
    ],
)
def test_27_every_slow_node_is_found_where_somebody_is_good(
    nodes: list[str], slow: set[str], blamed: tuple[str, ...], unresolved: tuple[str, ...]
) -> None:
    found = played(nodes, slow)
    assert (found.blamed, found.unresolved) == (blamed, unresolved)
    assert found.all_fast is not bool(slow)


@pytest.mark.parametrize("slow", [{"a", "b"}, {"a"}])
def test_27_where_both_of_a_slow_pair_stay_slow_it_may_be_a_link_or_what_they_share_and_none_is_blamed(
    slow: set[str],
) -> None:
    found = played(NODES, slow, {("b", "d")})
    assert (found.blamed, found.half_proven, found.unresolved) == ((), ("a", "b"), ())


@pytest.mark.parametrize(("figure", "blamed"), [(284.9, ("b",)), (285.1, ())])
def test_27_a_threshold_that_healthy_pairs_just_about_reach_blames_nobody(
    figure: float, blamed: tuple[str, ...]
) -> None:
    first = [PairResult(("a", "b"), PairState.SLOW, "", 285.0), PairResult(("c", "d"), PairState.FAST, "", 300.0)]
    second = [PairResult(("a", "c"), PairState.FAST, "", 299.0), PairResult(("b", "d"), PairState.SLOW, "", figure)]
    found = conclude(first, second)
    assert (found.blamed, found.close) == (blamed, () if blamed else ("b",))


@pytest.mark.parametrize(
    ("domains", "blamed", "apart"),
    [
        ({}, ("d",), ()),  # no rack shares NVLink
        ({"a": "A", "b": "A", "c": "A", "d": "A"}, ("d",), ()),
        (
            {"a": "A", "b": "A", "c": "A", "d": "B"},
            (),
            ("d",),
        ),  # the threshold may be for NVLink, between racks it is not
        ({"a": "A", "b": "B", "c": "A", "d": "B"}, ("d",), ()),  # a and b are fast together: racks make no difference
    ],
)
def test_27_a_node_of_another_nvlink_domain_is_not_blamed_for_what_lies_between_domains(
    domains: dict[str, str], blamed: tuple[str, ...], apart: tuple[str, ...]
) -> None:
    first = [PairResult(("a", "b"), PairState.FAST), PairResult(("c", "d"), PairState.SLOW)]
    second = [PairResult(("c", "a"), PairState.FAST), PairResult(("d", "b"), PairState.SLOW)]
    found = conclude(first, second, domains)
    assert (found.blamed, found.apart) == (blamed, apart)


def test_27_a_slow_pair_of_two_racks_whose_nodes_are_good_is_told_as_a_link() -> None:
    first = [PairResult(("a", "b"), PairState.FAST), PairResult(("c", "d"), PairState.SLOW)]
    second = [PairResult(("c", "a"), PairState.FAST), PairResult(("d", "e"), PairState.FAST)]
    assert conclude(first, second, {"a": "A", "b": "A", "c": "A", "d": "B", "e": "B"}).links == (("c", "d"),)


def test_27_28_a_pair_that_was_not_tested_says_nothing_and_names_its_blocker() -> None:
    blocked = PairResult(("a", "b"), PairState.NOT_TESTED, "b has 7 GPUs")
    fast = PairResult(("c", "d"), PairState.FAST)
    assert second_round([blocked, fast]) == ()
    found = conclude([blocked, fast], [])
    assert (found.blamed, found.unresolved, found.not_tested) == ((), (), ("a and b: b has 7 GPUs",))
    assert not found.all_fast


@given(st.integers(2, 40), st.sets(st.integers(0, 39), max_size=10), st.tuples(st.integers(0, 39), st.integers(0, 39)))
def test_27_no_good_node_is_ever_blamed_and_every_bad_one_is_a_candidate_at_least(
    count: int, bad: set[int], link: tuple[int, int]
) -> None:
    nodes = [f"n{number}" for number in range(count)]
    slow = {f"n{number}" for number in bad if number < count}
    found = played(nodes, slow, {(f"n{link[0]}", f"n{link[1]}")})
    assert set(found.blamed) <= slow
    assert slow <= {*found.blamed, *found.half_proven, *found.unresolved}


@given(st.integers(2, 40), st.sets(st.integers(0, 39), max_size=10))
def test_27_every_bad_node_that_was_in_a_pair_with_a_good_one_is_found_while_one_pair_is_fast(
    count: int, bad: set[int]
) -> None:
    nodes = [f"n{number}" for number in range(count)]
    slow = {f"n{number}" for number in bad if number < count}
    pairs = [set(pair) for pair in first_round(nodes)]
    if any(not slow & pair for pair in pairs):
        assert set(played(nodes, slow).blamed) == {n for n in slow if any(n in pair and pair - slow for pair in pairs)}


@pytest.mark.parametrize("state", [ProbeState.ERROR, ProbeState.NOT_TESTED])
def test_30_a_probe_that_crashed_neither_accuses_nor_clears(state: ProbeState) -> None:
    crashed = probe(ProbeVerdict.NONE, state)
    assert assess(Observed(reported=True, probes=(crashed,)), NOW, RULES).verdict is Verdict.HEALTHY
    slow_before = (crashed, probe(ProbeVerdict.SLOW))
    assert assess(Observed(reported=True, probes=slow_before), NOW, RULES).verdict is Verdict.SUSPECT
