"""Which rank failed first?

A collective dies within a second and exit times have one-second resolution, so candidates are the ranks within 2 s of
the earliest exit whose exit class and log are not a follow-up of somebody else's failure: SIGTERM (143), SIGKILL (137)
of a teardown, NCCL remote errors, launchers.  Log times order them where they are known and differ by more than 2 s
plus both clocks' uncertainty (DESIGN 6.5).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from nvcre_coordinator.core.failure_lines import Origin
from nvcre_coordinator.core.limits import clip
from nvcre_coordinator.core.pods import Exit, PodRecord

SIMULTANEOUS = timedelta(seconds=2)
CLOCK_UNCERTAINTY = timedelta(seconds=1)  # each node's clock against the others, NTP's worst in practice

SIGTERM_EXIT = 143
SIGKILL_EXIT = 137
OOM_KILLED = "OOMKilled"


@dataclass(frozen=True, slots=True)
class Crash:
    pod: PodRecord
    code: int | None
    time: datetime
    sentence: str


def first_crashes(pods: tuple[PodRecord, ...]) -> tuple[Crash, ...]:
    """The candidates in order of rank; empty when every exit is somebody else's echo or no exit is known."""
    attempt = max((pod.restart_attempt for pod in pods), default=0)
    failed = [pod for pod in pods if pod.failed and pod.restart_attempt == attempt]
    workers = [pod for pod in failed if not pod.launcher and pod.node and pod.exit is not None]
    timed = [(pod, pod.exit, pod.exit.finished_at) for pod in workers if pod.exit and pod.exit.finished_at]
    if not timed:
        return ()
    earliest = min(time for _, _, time in timed)
    ends = [pod.exit.finished_at for pod in failed if pod.exit is not None and pod.exit.finished_at is not None]
    alone_first = min(ends) if ends.count(min(ends)) == 1 else None
    candidates = [
        (pod, ended, time)
        for pod, ended, time in timed
        if time - earliest <= SIMULTANEOUS and not _follow_up(pod, ended, alone_first=time == alone_first)
    ]
    ordered = sorted(_earliest_by_log(candidates), key=lambda item: (item[0].rank or 0, item[0].name))
    return tuple(Crash(pod, ended.code, time, _sentence(pod, ended)) for pod, ended, time in ordered)


def _follow_up(pod: PodRecord, ended: Exit, *, alone_first: bool) -> bool:
    if ended.reason == OOM_KILLED:
        return False
    if pod.log is not None and pod.log.origin is Origin.FOLLOW_UP:
        return True
    if ended.code == SIGTERM_EXIT:
        return True
    # A teardown kills after somebody else has ended; the very first to end was not killed by one.
    return ended.code == SIGKILL_EXIT and not alone_first


def _earliest_by_log(
    candidates: list[tuple[PodRecord, Exit, datetime]],
) -> list[tuple[PodRecord, Exit, datetime]]:
    times = [pod.log.time if pod.log is not None else None for pod, _, _ in candidates]
    if len(candidates) < 2 or any(time is None for time in times):
        return candidates
    first = min(time for time in times if time is not None)
    margin = SIMULTANEOUS + 2 * CLOCK_UNCERTAINTY
    return [
        candidate
        for candidate, time in zip(candidates, times, strict=True)
        if time is not None and time - first <= margin
    ]


def _sentence(pod: PodRecord, ended: Exit) -> str:
    who = f"rank {pod.rank} (pod {pod.name})" if pod.rank is not None else f"pod {pod.name}"
    how = "was killed for memory (OOMKilled)" if ended.reason == OOM_KILLED else f"exited with code {ended.code}"
    line = f": {pod.log.line}" if pod.log is not None and pod.log.line else ""
    return clip(f"{who} {how}{line}", 256)
