"""Which node of a slow pair is to blame? Pairs first, then every suspect with a partner that is proven good.

`first_round` pairs the nodes; both nodes of a slow pair are suspects and those of a fast one are good. `second_round`
gives each suspect a good partner, a different one as far as there are enough, and none that it was slow with: that may
be the link. `conclude` blames the suspect that was slow with two nodes that are proven good, and clearly slower than
these are with others: one bad link, a part that neighbours share, or a threshold that healthy pairs only just reach
must not make a node look slow. Where both suspects of a pair are fast with others, the link between them is suspected
and neither node. A pair that could not be tested says nothing, neither good nor bad, and its blocker is named
(spec 8.27 and 8.28).

What is run when is core/pair_search.py: a pair is a Job on two nodes, because nccl-tests starts over nodes by MPI, and
its threshold says whether it is slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

Pair = tuple[str, str]
CLEARLY = 0.05  # of a good pair's figure; runs of one pair differ by a few percent in health


class PairState(Enum):
    FAST = "fast"
    SLOW = "slow"
    NOT_TESTED = "not tested"


@dataclass(frozen=True, slots=True)
class PairResult:
    pair: Pair
    state: PairState
    blocker: str = ""  # of NOT_TESTED: the node and what is wrong there
    busbw_gbps: float | None = None


@dataclass(frozen=True, slots=True)
class Conclusion:
    blamed: tuple[str, ...] = ()  # clearly slow with two good partners
    links: tuple[Pair, ...] = ()  # both nodes are fast with others
    half_proven: tuple[str, ...] = ()  # slow with one good partner; the other of the slow pair is not proven good
    apart: tuple[str, ...] = ()  # slow with nodes of other NVLink domains, and no pair that crosses domains is fast
    close: tuple[str, ...] = ()  # slow with two good partners, but hardly slower than these are with others
    unresolved: tuple[str, ...] = ()  # suspects that no good partner was tested with
    not_tested: tuple[str, ...] = ()  # blockers, as sentences
    all_fast: bool = False  # every pair was fast: if the whole was slow, it is the fabric


def first_round(nodes: Sequence[str]) -> tuple[Pair, ...]:
    """Disjoint pairs in the order of the nodes; an odd last one joins the first node, in a pair of its own."""
    pairs = [(nodes[place], nodes[place + 1]) for place in range(0, len(nodes) - 1, 2)]
    if len(nodes) % 2 and len(nodes) > 1:
        pairs.append((nodes[-1], nodes[0]))
    return tuple(pairs)


def second_round(first: Iterable[PairResult]) -> tuple[Pair, ...]:
    """(suspect, good partner); a suspect is left out where nobody is proven good."""
    results = tuple(first)
    good, suspects = _good(results), _suspects(results)
    slow_together = {frozenset(result.pair) for result in results if result.state is PairState.SLOW}
    pairs: list[Pair] = []
    for place, suspect in enumerate(suspects):
        in_turn = (good[(place + further) % len(good)] for further in range(len(good)))
        partner = next((node for node in in_turn if frozenset((suspect, node)) not in slow_together), None)
        if partner is not None:
            pairs.append((suspect, partner))
    return tuple(pairs)


def conclude(
    first: Iterable[PairResult], second: Iterable[PairResult], domains: Mapping[str, str] | None = None
) -> Conclusion:
    """`domains`: the NVLink domain of each node that is in one, which may make pairs inside of one much faster."""
    results, retests = tuple(first), tuple(second)
    crossing = _unproven_crossings((*results, *retests), domains or {})
    suspects = _suspects(results)
    after = {result.pair[0]: result for result in retests}
    states = {suspect: after[suspect].state for suspect in suspects if suspect in after}
    good = {*_good(results), *(suspect for suspect, state in states.items() if state is PairState.FAST)}
    slow_pairs = [result.pair for result in results if result.state is PairState.SLOW]
    still_slow = [suspect for suspect, state in states.items() if state is PairState.SLOW]
    slow_with = {node: [pair for pair in (*slow_pairs, after[node].pair) if node in pair] for node in still_slow}
    apart = tuple(node for node in still_slow if crossing & set(slow_with[node]))
    half_proven = tuple(
        node for node in still_slow if node not in apart and sum(bool(set(pair) & good) for pair in slow_with[node]) < 2
    )
    close = tuple(
        node for node in still_slow if node not in (*apart, *half_proven) and not _clearly_slower(after[node], results)
    )
    return Conclusion(
        blamed=tuple(node for node in still_slow if node not in (*apart, *half_proven, *close)),
        links=tuple(pair for pair in slow_pairs if set(pair) <= good),
        half_proven=half_proven,
        apart=apart,
        close=close,
        unresolved=tuple(suspect for suspect in suspects if suspect not in good and suspect not in still_slow),
        not_tested=tuple(
            f"{' and '.join(result.pair)}: {result.blocker}"
            for result in (*results, *retests)
            if result.state is PairState.NOT_TESTED
        ),
        all_fast=bool(results) and all(result.state is PairState.FAST for result in results),
    )


def _unproven_crossings(results: Sequence[PairResult], domains: Mapping[str, str]) -> set[Pair]:
    """Pairs of nodes of different domains; none where one of them is fast, which shows that they can be."""
    crossing = [result for result in results if len({domains.get(node, "") for node in result.pair}) > 1]
    return set() if any(result.state is PairState.FAST for result in crossing) else {each.pair for each in crossing}


def _clearly_slower(retest: PairResult, results: Sequence[PairResult]) -> bool:
    """Than the good partner with somebody else. Unknown figures leave it to the threshold."""
    partner = retest.pair[1]
    figures = [
        result.busbw_gbps
        for result in results
        if partner in result.pair and result.state is PairState.FAST and result.busbw_gbps is not None
    ]
    return retest.busbw_gbps is None or not figures or retest.busbw_gbps < (1 - CLEARLY) * max(figures)


def _good(results: Sequence[PairResult]) -> tuple[str, ...]:
    """In a fast pair at least once: a node with a slow part is slow with everybody."""
    return tuple(dict.fromkeys(node for result in results if result.state is PairState.FAST for node in result.pair))


def _suspects(results: Sequence[PairResult]) -> tuple[str, ...]:
    good = set(_good(results))
    slow = dict.fromkeys(node for result in results if result.state is PairState.SLOW for node in result.pair)
    return tuple(node for node in slow if node not in good)
