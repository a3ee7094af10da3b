"""Which rank stopped first in a run that hangs?

Two sources, the stronger first: what PyTorch's watchdog says about the collectives of each rank (nccl_watchdog.py), and
the last training step in each rank's log.  Steps narrow only where at least half of the ranks log them and at most half
of those are behind: many trainers log from one rank only.  When a log fell silent is told as a hint and never narrows.
Pure: who reads the logs is controllers/stall_logs.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from nvcre_logs.lines import split_prefix
from nvcre_logs.training import Kind, TrainingProfile, TrainingReader

from nvcre_coordinator.core import nccl_watchdog
from nvcre_coordinator.core.clock_offset import ASSUMED, ClockOffset
from nvcre_coordinator.core.first_exit import SIMULTANEOUS
from nvcre_coordinator.core.limits import clip
from nvcre_coordinator.core.nccl_watchdog import CollectiveMark
from nvcre_coordinator.core.pods import PodRecord, last_attempt


@dataclass(frozen=True, slots=True)
class LogEnd:
    """What the end of a rank's log says; times are the kubelet's, on its node's clock."""

    step: int | None = None
    step_time: datetime | None = None
    last_line: datetime | None = None
    collectives: tuple[CollectiveMark, ...] = ()


@dataclass(frozen=True, slots=True)
class Laggard:
    pod: PodRecord
    sentence: str
    time: datetime | None = None  # of its last step, on our clock


@dataclass(frozen=True, slots=True)
class Standing:
    """The ranks that stopped first; where there are none, why not and what may be worth a look."""

    behind: tuple[Laggard, ...] = ()
    note: str = ""


def read_end(lines: Sequence[str], steps: TrainingProfile | None) -> LogEnd:
    """The lines with the kubelet's times, oldest first; steps are those that a GoodputMeasurement would count."""
    stamped = [split_prefix(line) for line in lines]
    end = LogEnd(
        last_line=next((time for time, _ in reversed(stamped) if time is not None), None),
        collectives=nccl_watchdog.read(text for _, text in stamped),
    )
    if steps is None:
        return end
    events = TrainingReader(steps).feed("".join(f"{line}\n" for line in lines).encode(errors="replace"))
    last = next((event for event in reversed(events) if event.kind is Kind.STEP), None)
    return end if last is None else replace(end, step=last.step, step_time=stamped[last.line - 1][0])


@dataclass(frozen=True, slots=True)
class _Rank:
    pod: PodRecord
    end: LogEnd
    clock: ClockOffset

    @property
    def step(self) -> int:
        return -1 if self.end.step is None else self.end.step

    @property
    def step_time(self) -> datetime | None:
        return None if self.end.step_time is None else self.clock.on_our_clock(self.end.step_time)

    @property
    def silent_since(self) -> datetime | None:
        return None if self.end.last_line is None else self.clock.on_our_clock(self.end.last_line)

    def apart(self, other: _Rank) -> timedelta:
        """By how much their times must differ to tell which was first."""
        return SIMULTANEOUS + self.clock.error + other.clock.error

    def stopped_first(self, why: str) -> Laggard:
        return Laggard(self.pod, clip(f"{self.pod.title} stopped first: {why}", 256), self.step_time)


def stopped_first(
    pods: tuple[PodRecord, ...], ends: Mapping[str, LogEnd], clocks: Mapping[str, ClockOffset]
) -> Standing:
    """`ends` by pod uid, `clocks` by node."""
    workers = [pod for pod in last_attempt(pods) if not pod.launcher and pod.node]
    ranks = [
        _Rank(pod, ends.get(pod.uid, LogEnd()), clocks.get(pod.node, ASSUMED).ahead_at_least(pod.clock_ahead))
        for pod in sorted(workers, key=lambda pod: (pod.rank or 0, pod.name))
    ]
    by_watchdog = nccl_watchdog.behind({rank.pod.uid: _collectives(rank) for rank in ranks})
    if by_watchdog:
        late_ones = [rank for rank in ranks if rank.pod.uid in by_watchdog]
        return Standing(tuple(rank.stopped_first(by_watchdog[rank.pod.uid]) for rank in late_ones))
    logging = [rank for rank in ranks if rank.end.step is not None]
    note = f"{len(logging)} of {len(ranks)} ranks log steps"
    if len(logging) < 2 or 2 * len(logging) < len(ranks):
        return Standing(note="; ".join(filter(None, (note, _fell_silent_first(ranks)))))
    late = _behind(logging) or _earlier(logging)
    if late and 2 * len(late) <= len(logging):
        return Standing(late)
    return Standing(note=f"{note} and {len(late) or 'none'} of them are behind")


def _collectives(rank: _Rank) -> tuple[CollectiveMark, ...]:
    """From the end of a running pod's log, or from what was read when it ended."""
    ended = rank.pod.log
    return rank.end.collectives or (ended.collectives if ended is not None else ())


def _behind(logging: list[_Rank]) -> tuple[Laggard, ...]:
    top = max(rank.step for rank in logging)
    return tuple(
        rank.stopped_first(f"its last step is {rank.step}, others logged {top}") for rank in logging if rank.step < top
    )


def _earlier(logging: list[_Rank]) -> tuple[Laggard, ...]:
    """All came to the same step: those that came to it clearly before the last one did, where all times are known."""
    times = [(time, rank) for rank in logging if (time := rank.step_time) is not None]
    if len(times) < len(logging):
        return ()
    latest, last = max(times, key=lambda item: item[0])
    return tuple(
        rank.stopped_first(f"it logged step {rank.step} at {_told(time)}, the last one at {_told(latest)}")
        for time, rank in times
        if latest - time > rank.apart(last)
    )


def _fell_silent_first(ranks: list[_Rank]) -> str:
    """A hint: the one log that fell silent clearly before all others."""
    times = sorted(
        ((time, rank) for rank in ranks if (time := rank.silent_since) is not None), key=lambda item: item[0]
    )
    if len(times) < 2:
        return ""
    (first, rank), (second, other) = times[:2]
    if second - first <= rank.apart(other):
        return ""
    return f"a hint only: the log of {rank.pod.title} on {rank.pod.node} fell silent first, at {_told(first)}"


def _told(time: datetime) -> str:
    return time.strftime("%H:%M:%SZ")
