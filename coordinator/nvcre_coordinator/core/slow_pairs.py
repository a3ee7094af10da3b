"""What a Job says after its nodes were tested in pairs: the nodes that stayed slow, or the link, or the fabric.

A node is named with the figures of its pairs and of what proves its partner good. A link, a fabric, candidates that no
good partner was found for and pairs that were not tested are told in the message, and accuse nobody (spec 8.27, 8.28).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from nvcre_protos.vocabulary import ComponentKind

from nvcre_coordinator.api.conditions import Reason
from nvcre_coordinator.api.job import Component, Evidence, FailedNode, FailedNodeReason
from nvcre_coordinator.core.attribution import Attribution
from nvcre_coordinator.core.limits import clip_entry
from nvcre_coordinator.core.pair_rounds import CLEARLY, Conclusion, Pair, PairState
from nvcre_coordinator.core.pair_search import PairRun, PairSearch

MOST_NAMED = 3
_DO = "Cordon the node; look at ibstat, port error counters, its cables and switch ports"


def attribute_pairs(search: PairSearch, found: Conclusion, violation: str, now: datetime) -> Attribution:
    known = search.known
    entries = tuple(_entry(known, node, violation, now) for node in sorted(found.blamed))
    parts = (
        [f"Pairs of nodes found {_few(found.blamed)} slow, each with two partners that are proven good"]
        if entries
        else []
    )
    parts += [_link(known, pair) for pair in found.links[:MOST_NAMED]]
    if len(found.links) > MOST_NAMED:
        parts.append(f"so are {len(found.links) - MOST_NAMED} more links")
    if found.half_proven:
        parts.append(
            f"candidates are {_few(found.half_proven)}: slow with one good partner too, but the other of the pair is "
            "not proven good, so it may be what both share, such as a switch"
        )
    if found.apart:
        parts.append(
            f"candidates are {_few(found.apart)}: slow with nodes of other NVLink domains, but no pair "
            "across domains is fast, so the threshold may be for one domain only"
        )
    if found.close:
        parts.append(
            f"hardly slower than healthy pairs are {_few(found.close)}: with good partners too below the threshold, "
            f"but by less than {CLEARLY:.0%} of what these reach with others; the threshold may be too high"
        )
    if found.unresolved:
        why = "no partner is proven good" if not _any_fast(known) else "they were not tested with a good partner"
        parts.append(f"candidates are {_few(found.unresolved)}: {why}")
    if found.all_fast:
        parts.append(
            "every pair of its nodes is fast: the fabric between them is suspected, or what shows only in all of them"
        )
    if found.not_tested:
        parts.append(f"not tested: {'; '.join(found.not_tested[:MOST_NAMED])}{_more(len(found.not_tested))}")
    told = ". ".join(part[0].upper() + part[1:] for part in parts)
    if entries:
        return Attribution(entries, True, Reason.NODES_NAMED, told)
    return Attribution((), False, Reason.NOT_NARROWED, f"{told}. {violation}")


def _any_fast(known: Sequence[PairRun]) -> bool:
    return any(run.state is PairState.FAST for run in known)


def _entry(known: Sequence[PairRun], node: str, violation: str, now: datetime) -> FailedNode:
    slow = [run for run in known if node in run.pair and run.state is PairState.SLOW]
    partner = _other(slow[-1], node)
    proof = next((run for run in known if partner in run.pair and run.state is PairState.FAST), None)
    pairs = " and ".join(f"with {_other(run, node)} {_figure(run)}" for run in slow)
    proven = f"; {partner} with {_other(proof, partner)} {_figure(proof)}" if proof is not None else ""
    return clip_entry(
        FailedNode(
            name=node,
            reason=FailedNodeReason.THRESHOLD_VIOLATION,
            message=f"slow in pairs: {pairs}{proven}. {_DO}. {violation}",
            component=Component(ComponentKind.NODE),
            evidence=tuple(
                Evidence(source="probe", message=f"pair {_title(run)}: {_figure(run)}", time=run.ended_at or now)
                for run in (*slow, *([proof] if proof is not None else []))
            ),
        )
    )


def _link(known: Sequence[PairRun], pair: Pair) -> str:
    slow = next(run for run in known if run.pair == pair and run.state is PairState.SLOW)
    fast = [next(run for run in known if node in run.pair and run.state is PairState.FAST) for node in pair]
    others = ", ".join(f"{_title(run)} {_figure(run)}" for run in dict.fromkeys(fast))
    return (
        f"the link between {_title(slow)} is suspected: {_figure(slow)} together, both are fast with others ({others})"
    )


def _other(run: PairRun, node: str) -> str:
    return run.pair[1] if run.pair[0] == node else run.pair[0]


def _title(run: PairRun) -> str:
    return " and ".join(run.pair)


def _figure(run: PairRun) -> str:
    word = run.state.value if run.state is not None else ""
    return f"{run.busbw_gbps:.2f} GB/s" if run.busbw_gbps is not None else word


def _few(nodes: tuple[str, ...]) -> str:
    return ", ".join(sorted(nodes)[:MOST_NAMED]) + _more(len(nodes))


def _more(count: int) -> str:
    return f" and {count - MOST_NAMED} more" if count > MOST_NAMED else ""
