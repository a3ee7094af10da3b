"""What is the next step in the search for the slow node by pairs, and when has it ended?

Decides from the pairs that were run so far (each a Job of its own, core/pair_job.py) and remembers nothing: whoever
sees the same pairs, such as a new leader, takes the same step. First the nodes of the run in pairs; of two nodes the
run itself is the slow pair. Where nobody is proven good by that, a pair of nodes outside the run has to be. Then every
suspect with a good partner. A pair takes all GPUs of its nodes, so pairs that share a node run one after the other.
Who is to blame then is core/pair_rounds.py; what is written is core/slow_pairs.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from nvcre_coordinator.core.pair_rounds import (
    Conclusion,
    Pair,
    PairResult,
    PairState,
    conclude,
    first_round,
    second_round,
)

MOST_AT_ONCE = 64
MOST_PROOFS = 3  # pairs outside the run that are tried to find a good one
OUT_OF_TIME = "the search ran out of time"


class Round(StrEnum):
    """Part of the names of the Jobs."""

    FIRST = "1"
    PROOF = "proof"  # of nodes outside the run
    SECOND = "2"


@dataclass(frozen=True, slots=True)
class PlannedPair:
    round: Round
    pair: Pair


@dataclass(frozen=True, slots=True)
class PairRun:
    """A pair that was started; `state` is None until it has ended."""

    round: Round
    pair: Pair
    state: PairState | None = None
    busbw_gbps: float | None = None
    blocker: str = ""
    ended_at: datetime | None = None

    @property
    def result(self) -> PairResult:
        if self.state is None:
            return PairResult(self.pair, PairState.NOT_TESTED, OUT_OF_TIME)
        return PairResult(self.pair, self.state, self.blocker, self.busbw_gbps)


@dataclass(frozen=True, slots=True)
class PairSearch:
    """All that is known. `obstacle` is why the nodes of this run cannot be paired at all."""

    nodes: tuple[str, ...]
    whole: PairRun | None = None  # the slow run itself, where it ran on two nodes
    runs: Mapping[PlannedPair, PairRun] = field(default_factory=dict)
    outsiders: tuple[str, ...] = ()  # idle and healthy nodes like those of the run
    domains: Mapping[str, str] = field(default_factory=dict)  # of nodes: the NVLink domain
    gpu_jobs: tuple[str, ...] = ()  # the replicated jobs whose pods have the GPUs
    obstacle: str = ""

    @property
    def known(self) -> tuple[PairRun, ...]:
        """With the run itself, where that is a pair; in the order of the rounds, whatever order they were seen in."""
        whole = [self.whole] if self.whole is not None else []
        return (*whole, *sorted(self.runs.values(), key=lambda run: (list(Round).index(run.round), run.pair)))


@dataclass(frozen=True, slots=True)
class Step:
    """Pairs to start now; without a conclusion the search goes on when one has ended."""

    start: tuple[PlannedPair, ...] = ()
    conclusion: Conclusion | None = None


def next_step(search: PairSearch, *, expired: bool) -> Step:
    """`expired`: what has not ended by now is not tested, and nothing is started any more."""
    first = _first(search)
    if (step := _go_on(search, Round.FIRST, first, expired=expired)) is not None:
        return step
    results = _results(search, first)
    if not expired and _lacks_good(results):
        proof = _proof(search)
        if proof is not None and (step := _go_on(search, Round.PROOF, (proof,), expired=expired)) is not None:
            return step
    results = (*results, *_proofs(search))
    second = second_round(results)
    if (step := _go_on(search, Round.SECOND, second, expired=expired)) is not None:
        return step
    retests = [_result(search, PlannedPair(Round.SECOND, pair)) for pair in second]
    return Step(conclusion=conclude(results, retests, search.domains))


def wants_outsiders(search: PairSearch) -> bool:
    """Is the next step one that needs to know the nodes outside the run?"""
    first = _first(search)
    return _go_on(search, Round.FIRST, first, expired=False) is None and _lacks_good(_results(search, first))


def _first(search: PairSearch) -> tuple[Pair, ...]:
    """The pairs to run; of two nodes there is none to run."""
    return () if search.whole is not None else first_round(search.nodes)


def _results(search: PairSearch, first: Iterable[Pair]) -> tuple[PairResult, ...]:
    whole = [search.whole.result] if search.whole is not None else []
    return (*whole, *(_result(search, PlannedPair(Round.FIRST, pair)) for pair in first))


def _lacks_good(results: Sequence[PairResult]) -> bool:
    states = {result.state for result in results}
    return PairState.SLOW in states and PairState.FAST not in states


def _proofs(search: PairSearch) -> tuple[PairResult, ...]:
    """A slow pair outside the run proves nothing, and accuses nobody in this Job."""
    return tuple(run.result for run in search.known if run.round is Round.PROOF and run.state is not PairState.SLOW)


def _proof(search: PairSearch) -> Pair | None:
    """The pair outside the run that is being tried or is tried next; None when one is fast or no more can be tried."""
    proofs = [run for run in search.known if run.round is Round.PROOF]
    if (open_one := next((run for run in proofs if run.state is None), None)) is not None:
        return open_one.pair
    tried = {node for run in proofs for node in run.pair}
    left = [node for node in search.outsiders if node not in tried]
    fast = any(run.state is PairState.FAST for run in proofs)
    return None if fast or len(proofs) >= MOST_PROOFS or len(left) < 2 else (left[0], left[1])


def _go_on(search: PairSearch, name: Round, pairs: Sequence[Pair], *, expired: bool) -> Step | None:
    """None when all pairs of the round have ended."""
    if expired:
        return None
    planned = [PlannedPair(name, pair) for pair in pairs]
    if all((run := search.runs.get(each)) is not None and run.state is not None for each in planned):
        return None
    open_runs = [run for run in search.runs.values() if run.state is None]
    busy = {node for run in open_runs for node in run.pair}
    start: list[PlannedPair] = []
    for each in planned:
        if each not in search.runs and not busy & set(each.pair) and len(open_runs) + len(start) < MOST_AT_ONCE:
            busy |= set(each.pair)
            start.append(each)
    return Step(tuple(start))


def _result(search: PairSearch, planned: PlannedPair) -> PairResult:
    run = search.runs.get(planned)
    return run.result if run is not None else PairResult(planned.pair, PairState.NOT_TESTED, OUT_OF_TIME)
