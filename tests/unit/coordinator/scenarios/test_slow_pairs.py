"""A run is slow and every node is fast alone (27): which pairs are run, in which order, and what comes of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from nvcre_coordinator.api.conditions import Reason
from nvcre_coordinator.api.job import FailedNodeReason
from nvcre_coordinator.core.attribution import Attribution
from nvcre_coordinator.core.pair_rounds import Conclusion, Pair, PairState
from nvcre_coordinator.core.pair_search import PairRun, PairSearch, PlannedPair, Round, Step, next_step, wants_outsiders
from nvcre_coordinator.core.slow_pairs import attribute_pairs

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
VIOLATION = 'Threshold "busBandwidthGBps" violated: measured 48.0000, expression: value >= 300.0'
NODES = ("a", "b", "c", "d", "e", "f")


@dataclass
class World:
    """What is slow, and the pairs that were started: all that outlives a coordinator."""

    nodes: tuple[str, ...]
    slow: set[str] = field(default_factory=set)
    links: set[frozenset[str]] = field(default_factory=set)
    blocked: set[str] = field(default_factory=set)
    outsiders: tuple[str, ...] = ()
    runs: list[PairRun] = field(default_factory=list)

    @property
    def search(self) -> PairSearch:
        whole = self.judged(PairRun(Round.FIRST, (self.nodes[0], self.nodes[1]))) if len(self.nodes) == 2 else None
        runs = {PlannedPair(run.round, run.pair): run for run in reversed(self.runs)}  # a cache has no order
        search = PairSearch(self.nodes, whole, runs)
        return replace(search, outsiders=self.outsiders) if wants_outsiders(search) else search

    def judged(self, run: PairRun) -> PairRun:
        if blocked := self.blocked & set(run.pair):
            return replace(run, state=PairState.NOT_TESTED, blocker=f"no room on {min(blocked)}")
        if self.slow & set(run.pair) or frozenset(run.pair) in self.links:
            return replace(run, state=PairState.SLOW, busbw_gbps=48.0, ended_at=NOW)
        return replace(run, state=PairState.FAST, busbw_gbps=380.0, ended_at=NOW)

    def start(self, step: Step) -> None:
        self.runs += [PairRun(planned.round, planned.pair) for planned in step.start]

    def end(self, index: int) -> None:
        running = [place for place, run in enumerate(self.runs) if run.state is None]
        if running:
            place = running[index % len(running)]
            self.runs[place] = self.judged(self.runs[place])

    def conclusion(self) -> Conclusion:
        while (found := (step := next_step(self.search, expired=False)).conclusion) is None:
            self.start(step)
            assert any(run.state is None for run in self.runs), "it waits for nothing"
            self.end(0)
        return found

    def attribution(self) -> Attribution:
        found = self.conclusion()
        return attribute_pairs(self.search, found, VIOLATION, NOW)

    @property
    def pairs(self) -> list[tuple[str, Pair]]:
        return [(run.round.value, run.pair) for run in self.runs]


def test_27_a_slow_node_is_named_with_the_figures_of_both_pairs_and_of_what_proves_its_partner_good() -> None:
    world = World(NODES, slow={"b"})
    found = world.attribution()
    (entry,) = found.entries
    assert (entry.name, entry.reason) == ("b", FailedNodeReason.THRESHOLD_VIOLATION)
    assert entry.message.startswith("slow in pairs: with a 48.00 GB/s and with d 48.00 GB/s; d with c 380.00 GB/s. ")
    assert VIOLATION in entry.message
    assert [(fact.source, fact.message) for fact in entry.evidence] == [
        ("probe", "pair a and b: 48.00 GB/s"),
        ("probe", "pair b and d: 48.00 GB/s"),
        ("probe", "pair c and d: 380.00 GB/s"),
    ]
    assert (found.attributed, found.reason) == (True, Reason.NODES_NAMED)
    assert world.pairs == [
        ("1", ("a", "b")), ("1", ("c", "d")), ("1", ("e", "f")), ("2", ("a", "c")), ("2", ("b", "d"))
    ]  # fmt: skip


def test_27_a_slow_link_accuses_neither_of_its_ends() -> None:
    found = World(NODES, links={frozenset("ab")}).attribution()
    assert (found.entries, found.attributed) == ((), False)
    assert found.message.startswith(
        "The link between a and b is suspected: 48.00 GB/s together, both are fast with others "
        "(a and c 380.00 GB/s, b and d 380.00 GB/s)"
    )


def test_27_where_every_pair_is_fast_the_fabric_is_suspected() -> None:
    found = World(NODES).attribution()
    assert (found.entries, found.reason) == ((), Reason.NOT_NARROWED)
    assert found.message.startswith("Every pair of its nodes is fast: the fabric between them is suspected")


@pytest.mark.parametrize("nodes", [("a", "b"), ("a", "b", "c")])
def test_27_where_nobody_of_the_run_is_good_a_pair_outside_of_it_has_to_be(nodes: tuple[str, ...]) -> None:
    world = World(nodes, slow={"a"}, outsiders=("x", "y", "z"))
    (entry,) = world.attribution().entries
    assert entry.name == "a"
    assert ("proof", ("x", "y")) in world.pairs
    assert ("2", ("a", "x")) in world.pairs


def test_27_a_slow_pair_outside_the_run_proves_nothing_and_accuses_nobody() -> None:
    world = World(("a", "b"), slow={"a", "x"}, outsiders=("w", "x", "y", "z"))
    assert [entry.name for entry in world.attribution().entries] == ["a"]
    assert world.pairs[:2] == [("proof", ("w", "x")), ("proof", ("y", "z"))]


def test_27_both_of_a_pair_that_stay_slow_are_candidates_with_what_they_share() -> None:
    found = World(NODES, slow={"a", "b"}).attribution()
    assert (found.entries, found.attributed) == ((), False)
    assert found.message.startswith(
        "Candidates are a, b: slow with one good partner too, but the other of the pair is "
    )


def test_27_hardly_slower_than_healthy_pairs_is_told_and_accuses_nobody() -> None:
    found = attribute_pairs(PairSearch(NODES), Conclusion(close=("b",)), VIOLATION, NOW)
    assert (found.entries, found.attributed) == ((), False)
    assert found.message.startswith("Hardly slower than healthy pairs are b: ")
    assert "by less than 5% of what" in found.message


@pytest.mark.parametrize("outsiders", [(), ("x",)])
def test_27_without_a_good_partner_both_are_candidates_and_none_is_named(outsiders: tuple[str, ...]) -> None:
    found = World(("a", "b"), slow={"a"}, outsiders=outsiders).attribution()
    assert (found.entries, found.attributed) == ((), False)
    assert found.message == f"Candidates are a, b: no partner is proven good. {VIOLATION}"


def test_27_a_suspect_is_not_paired_again_with_the_one_it_was_slow_with() -> None:
    """Of five nodes, a is in two pairs: fast with b, slow with e."""
    world = World(NODES[:5], links={frozenset("ae")})
    found = world.conclusion()
    assert ("2", ("e", "b")) in world.pairs
    assert (found.blamed, found.links) == ((), (("e", "a"),))


def test_28_a_pair_that_was_not_tested_is_told_with_its_blocker_and_clears_nobody() -> None:
    found = World(NODES, slow={"c"}, blocked={"a"}).attribution()
    assert [entry.name for entry in found.entries] == ["c"]
    assert "Not tested: a and b: no room on a" in found.message


def test_28_what_has_not_ended_in_time_is_not_tested() -> None:
    world = World(NODES, slow={"b"})
    world.start(next_step(world.search, expired=False))
    found = next_step(world.search, expired=True).conclusion
    assert found is not None
    assert (found.blamed, found.unresolved, found.all_fast) == ((), (), False)
    assert len(found.not_tested) == 3


def test_27_pairs_of_many_nodes_are_not_started_all_at_once() -> None:
    world = World(tuple(f"n{number:03d}" for number in range(200)))
    assert len(next_step(world.search, expired=False).start) == 64


STATES = st.sampled_from([PairState.FAST, PairState.SLOW, PairState.NOT_TESTED])


@settings(deadline=None)
@given(
    st.integers(2, 9),
    st.lists(STATES, min_size=40, max_size=40),
    st.lists(st.sampled_from("AB"), min_size=11),
    st.booleans(),
)
def test_27_whatever_the_pairs_did_something_is_said_and_a_named_node_was_slow_with_two_that_were_fast(
    count: int, outcomes: list[PairState], racks: list[str], expired: bool
) -> None:
    names = "abcdefghixy"
    nodes, outsiders = tuple(names[:count]), ("x", "y")
    whole = PairRun(Round.FIRST, ("a", "b"), PairState.SLOW) if count == 2 else None
    search = PairSearch(nodes, whole, outsiders=outsiders, domains=dict(zip(names, racks, strict=False)))
    while (step := next_step(search, expired=expired and len(search.runs) > 2)).conclusion is None:
        made = {
            each: PairRun(each.round, each.pair, state, None, "no room")
            for each, state in zip(step.start, outcomes[len(search.runs) :], strict=False)
        }
        search = replace(search, runs={**search.runs, **made})
    found = attribute_pairs(search, step.conclusion, VIOLATION, NOW)
    assert not found.message.startswith(".")
    for entry in found.entries:
        slow = [run for run in search.known if entry.name in run.pair and run.state is PairState.SLOW]
        fast = [run.pair for run in search.known if run.state is PairState.FAST]
        partners = {node for run in slow for node in run.pair} - {entry.name}
        assert sum(any(node in pair for pair in fast) for node in partners) >= 2
        assert not any(entry.name in pair for pair in fast)


@settings(deadline=None)
@given(
    count=st.integers(2, 12),
    bad=st.sets(st.integers(0, 11), max_size=3),
    link=st.none() | st.tuples(st.integers(0, 11), st.integers(0, 11)),
    outsiders=st.integers(0, 5),
    happens=st.lists(st.tuples(st.sampled_from(["step", "lost", "end"]), st.integers(0, 11)), max_size=40),
)
def test_27_whoever_goes_on_after_a_crash_at_any_point_comes_to_the_same_conclusion(
    count: int, bad: set[int], link: tuple[int, int] | None, outsiders: int, happens: list[tuple[str, int]]
) -> None:
    """Each step is decided anew from the pairs that exist; a leader may die before any of them was started."""

    def world() -> World:
        nodes = tuple(f"n{number:02d}" for number in range(count))
        links = {frozenset(f"n{number:02d}" for number in link)} if link is not None else set()
        return World(nodes, {f"n{number:02d}" for number in bad}, links, set(), tuple("uvwxy"[:outsiders]))

    disturbed, straight = world(), world()
    whole = disturbed.search.whole
    assume(whole is None or whole.state is PairState.SLOW)  # else nobody searches
    for what, index in happens:
        if what == "end":
            disturbed.end(index)
            continue
        step = next_step(disturbed.search, expired=False)
        kept = step.start if what == "step" else step.start[: index % (len(step.start) + 1)]
        disturbed.start(Step(kept))
        running = [node for run in disturbed.runs if run.state is None for node in run.pair]
        assert len(running) == len(set(running)), "two pairs at once on one node"
    assert disturbed.conclusion() == straight.conclusion()
    assert set(straight.conclusion().blamed) <= straight.slow
