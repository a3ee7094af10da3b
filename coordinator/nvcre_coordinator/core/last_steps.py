"""Which rank stopped first in a run that hangs?

Two sources, the stronger first: what PyTorch's watchdog says about the collectives of each rank (nccl_watchdog.py), and
the last training step in each rank's log.  Steps narrow only where at least half of the ranks log them and at most half
of those are behind: many trainers log from one rank only.  When a log fell silent is told as a hint and never narrows.
Pure: who reads the logs is controllers/stall_logs.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import re2
from nvcre_logs.lines import split_prefix
from nvcre_logs.patterns import LogProfileError, compile_pattern

from nvcre_coordinator.api.log_profile import LogProfile
from nvcre_coordinator.core import nccl_watchdog
from nvcre_coordinator.core.clock_offset import ASSUMED, ClockOffset
from nvcre_coordinator.core.first_exit import SIMULTANEOUS
from nvcre_coordinator.core.limits import clip
from nvcre_coordinator.core.nccl_watchdog import CollectiveMark
from nvcre_coordinator.core.pods import PodRecord, last_attempt

STEP_GROUPS = ("globalStep", "iteration")
"""The captures that count steps; the first one that matched (spec/reference-behaviour.md 4)."""
_LINE_BYTES = 16 * 1024
_DIGITS = 18


@dataclass(frozen=True, slots=True)
class StepPattern:
    line: re2.Pattern
    groups: tuple[int, ...]


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


def compile_steps(profile: LogProfile) -> StepPattern:
    """Raises LogProfileError for a profile that knows no steps."""
    pattern = profile.spec.patterns.training_step
    if pattern is None:
        raise LogProfileError(f"LogProfile {profile.metadata.name} has no spec.patterns.trainingStep")
    line = compile_pattern(pattern, "spec.patterns.trainingStep", ()).line
    numbers = {name.decode(): number for name, number in line.groupindex.items()}
    groups = tuple(numbers[name] for name in STEP_GROUPS if name in numbers)
    if not groups:
        raise LogProfileError(f"spec.patterns.trainingStep.regex lacks a named group: {' or '.join(STEP_GROUPS)}")
    return StepPattern(line, groups)


def read_end(lines: Sequence[str], steps: StepPattern | None) -> LogEnd:
    """The lines with the kubelet's times, oldest first; searched from the end."""
    last_line = next((time for time, _ in map(split_prefix, reversed(lines)) if time is not None), None)
    collectives = nccl_watchdog.read(split_prefix(line)[1] for line in lines)
    if steps is not None:
        for line in reversed(lines):
            time, text = split_prefix(line)
            step = _step(steps, text)
            if step is not None:
                return LogEnd(step, time, last_line, collectives)
    return LogEnd(last_line=last_line, collectives=collectives)


def _step(steps: StepPattern, text: str) -> int | None:
    match = steps.line.search(text.encode(errors="replace")[:_LINE_BYTES])
    if match is None:
        return None
    found = next((match[number] for number in steps.groups if match[number] is not None), b"")
    return int(found) if found.isdigit() and len(found) <= _DIGITS else None


def stopped_first(
    pods: tuple[PodRecord, ...], ends: Mapping[str, LogEnd], clocks: Mapping[str, ClockOffset]
) -> Standing:
    """`ends` by pod uid, `clocks` by node."""
    workers = tuple(pod for pod in last_attempt(pods) if not pod.launcher and pod.node)
    by_watchdog = nccl_watchdog.behind({pod.uid: _collectives(pod, ends) for pod in workers})
    if by_watchdog:
        return Standing(
            tuple(Laggard(pod, clip(f"{pod.title} stopped first: {by_watchdog[pod.uid]}", 256))
                  for pod in _by_rank(workers) if pod.uid in by_watchdog)
        )  # fmt: skip
    logging = tuple(pod for pod in workers if pod.uid in ends and ends[pod.uid].step is not None)
    if len(logging) < 2 or 2 * len(logging) < len(workers):
        told = f"{len(logging)} of {len(workers)} ranks log steps" if workers else ""
        return Standing(note="; ".join(filter(None, (told, _silence(workers, ends, clocks)))))
    late = _late(logging, ends, clocks)
    if not late or 2 * len(late) > len(logging):
        where = f"{len(late)} of them are behind" if late else "none of them is behind"
        return Standing(note=f"{len(logging)} of {len(workers)} ranks log steps and {where}")
    return Standing(late)


def _collectives(pod: PodRecord, ends: Mapping[str, LogEnd]) -> tuple[CollectiveMark, ...]:
    """From the end of a running pod's log, or from what was read when it ended."""
    if pod.uid in ends:
        return ends[pod.uid].collectives
    return pod.log.collectives if pod.log is not None else ()


def _late(
    logging: tuple[PodRecord, ...], ends: Mapping[str, LogEnd], clocks: Mapping[str, ClockOffset]
) -> tuple[Laggard, ...]:
    """Behind in number; where all came to the same step, those that came to it clearly before the last one did."""
    steps = {pod.uid: ends[pod.uid].step or 0 for pod in logging}
    top = max(steps.values())
    ahead = sum(step == top for step in steps.values())
    behind = tuple(
        Laggard(
            pod,
            clip(f"{pod.title} stopped first: its last step is {steps[pod.uid]}, {ahead} others logged {top}", 256),
            _on_our_clock(ends[pod.uid].step_time, pod, clocks),
        )
        for pod in _by_rank(logging)
        if steps[pod.uid] < top
    )
    if behind:
        return behind
    times = {pod.uid: _on_our_clock(ends[pod.uid].step_time, pod, clocks) for pod in logging}
    earlier = _clearly_earlier(logging, times, clocks)
    return tuple(
        Laggard(pod, clip(f"{pod.title} stopped first: it logged step {top} at {_clock_time(times[pod.uid])}, "
                          f"the last one at {_clock_time(max(filter(None, times.values())))}", 256), times[pod.uid])
        for pod in earlier
    )  # fmt: skip


def _clearly_earlier(
    pods: tuple[PodRecord, ...], times: Mapping[str, datetime | None], clocks: Mapping[str, ClockOffset]
) -> tuple[PodRecord, ...]:
    """Than the latest of them: by more than 2 s and what both nodes' clocks may be wrong by."""
    known = [(pod, time) for pod in _by_rank(pods) if (time := times[pod.uid]) is not None]
    if len(known) < len(pods):
        return ()
    last, latest = max(known, key=lambda item: item[1])
    return tuple(
        pod
        for pod, time in known
        if latest - time > SIMULTANEOUS + _clock(pod, clocks).error + _clock(last, clocks).error
    )


def _silence(workers: tuple[PodRecord, ...], ends: Mapping[str, LogEnd], clocks: Mapping[str, ClockOffset]) -> str:
    """A hint: the one log that fell silent clearly before all others."""
    times = {pod.uid: _on_our_clock(ends[pod.uid].last_line, pod, clocks) for pod in workers if pod.uid in ends}
    spoke = sorted(
        ((time, pod) for pod in workers if (time := times.get(pod.uid)) is not None), key=lambda item: item[0]
    )
    if len(spoke) < 2:
        return ""
    (first, pod), (second, other) = spoke[:2]
    if second - first <= _margin(pod, other, clocks):
        return ""
    return f"a hint only: the log of {pod.title} on {pod.node} fell silent first, at {_clock_time(first)}"


def _margin(one: PodRecord, other: PodRecord, clocks: Mapping[str, ClockOffset]) -> timedelta:
    return SIMULTANEOUS + _clock(one, clocks).error + _clock(other, clocks).error


def _clock(pod: PodRecord, clocks: Mapping[str, ClockOffset]) -> ClockOffset:
    return clocks.get(pod.node, ASSUMED)


def _on_our_clock(time: datetime | None, pod: PodRecord, clocks: Mapping[str, ClockOffset]) -> datetime | None:
    return None if time is None else _clock(pod, clocks).on_our_clock(time)


def _clock_time(time: datetime | None) -> str:
    return "an unknown time" if time is None else time.strftime("%H:%M:%SZ")


def _by_rank(pods: tuple[PodRecord, ...]) -> list[PodRecord]:
    return sorted(pods, key=lambda pod: (pod.rank or 0, pod.name))
