"""Which rank failed first?

A collective dies within a second and exit times have one-second resolution, so candidates are the ranks within 2 s of
the earliest exit (more where the nodes' clocks are known less well) whose exit class and log are not a follow-up of
somebody else's failure: SIGTERM (143), SIGKILL (137) of a teardown, any exit of a pod that was told to end before, NCCL
remote errors, launchers (unless they were killed for their own memory).  Log times order them where they are known and
differ by more than 2 s plus both clocks' error (DESIGN 6.5).  Where all of those are echoes, a fault beyond doubt
counts though it took longer to end: writing a core, or hanging in a teardown, takes longer than the others need to
notice.  All times are put on the coordinator's clock first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from nvcre_coordinator.core.clock_offset import ASSUMED, ClockOffset
from nvcre_coordinator.core.failure_lines import Origin
from nvcre_coordinator.core.limits import clip
from nvcre_coordinator.core.pods import Exit, PodRecord, last_attempt

SIMULTANEOUS = timedelta(seconds=2)

OOM_KILLED = "OOMKilled"
TEARDOWN_EXITS = frozenset({130, 143})  # SIGINT, SIGTERM
SIGKILL_EXIT = 137
FAULT_EXITS = frozenset({132, 135, 136, 139})  # SIGILL, SIGBUS, SIGFPE, SIGSEGV
SIGNALS = {
    129: "SIGHUP", 130: "SIGINT", 132: "SIGILL", 133: "SIGTRAP", 134: "SIGABRT", 135: "SIGBUS", 136: "SIGFPE",
    137: "SIGKILL", 139: "SIGSEGV", 141: "SIGPIPE", 143: "SIGTERM", 159: "SIGSYS",
}  # fmt: skip
"""128 + signal(7) of Linux."""


@dataclass(frozen=True, slots=True)
class Crash:
    pod: PodRecord
    code: int | None
    time: datetime
    sentence: str


@dataclass(frozen=True, slots=True)
class _Ending:
    pod: PodRecord
    exit: Exit
    time: datetime  # our clock
    clock: ClockOffset

    @property
    def logged(self) -> datetime | None:
        """When the telling line of its log was written."""
        log = self.pod.log
        return self.clock.on_our_clock(log.time) if log is not None and log.time is not None else None


def first_crashes(pods: tuple[PodRecord, ...], clocks: Mapping[str, ClockOffset]) -> tuple[Crash, ...]:
    """The candidates in order of rank; empty when every exit is somebody else's echo or no exit is known.

    `clocks` by node; the last attempt of a JobSet decides, whatever happened in those before it.
    """
    endings = [
        _Ending(pod, pod.exit, clock.on_our_clock(pod.exit.finished_at), clock)
        for pod in last_attempt(pods)
        if pod.failed and pod.exit is not None and pod.exit.finished_at is not None
        for clock in (clocks.get(pod.node, ASSUMED).ahead_at_least(pod.clock_ahead),)
    ]
    ranks = [
        ending
        for ending in endings
        if ending.pod.node and (not ending.pod.launcher or ending.exit.reason == OOM_KILLED)
    ]
    times = [ending.time for ending in endings]
    alone_first = min(times) if times and times.count(min(times)) == 1 else None
    causes = [ending for ending in ranks if not _follow_up(ending, alone_first=ending.time == alone_first)]
    candidates = _at_first(causes, ranks)
    if not candidates:
        faults = [ending for ending in causes if _fault(ending)]
        candidates = _at_first(faults, faults)
    ordered = sorted(_earliest_by_log(candidates), key=lambda ending: (ending.pod.rank or 0, ending.pod.name))
    return tuple(Crash(ending.pod, ending.exit.code, ending.time, _sentence(ending)) for ending in ordered)


def _at_first(causes: list[_Ending], ranks: list[_Ending]) -> list[_Ending]:
    """Those that ended together with the first of `ranks`."""
    if not ranks:
        return []
    first = min(ranks, key=lambda ending: ending.time)
    return [
        cause for cause in causes if cause.time - first.time <= max(SIMULTANEOUS, cause.clock.error + first.clock.error)
    ]


def _fault(ending: _Ending) -> bool:
    """A fault of its own beyond doubt."""
    told_own = ending.pod.log is not None and ending.pod.log.origin is Origin.OWN
    return told_own or ending.exit.reason == OOM_KILLED or ending.exit.code in FAULT_EXITS


def _follow_up(ending: _Ending, *, alone_first: bool) -> bool:
    told = ending.pod.log.origin if ending.pod.log is not None else Origin.NONE
    if ending.exit.reason != OOM_KILLED and _obeyed(ending):
        return True
    if ending.exit.reason == OOM_KILLED or told is Origin.OWN:  # also one that hung after its fault and was killed
        return False
    if told is Origin.FOLLOW_UP or ending.exit.code in TEARDOWN_EXITS:
        return True
    # A teardown kills after somebody else has ended; the very first to end was not killed by one.
    return ending.exit.code == SIGKILL_EXIT and not alone_first


def _obeyed(ending: _Ending) -> bool:
    """Told to end before it ended, and its log tells nothing from before that: however it exited."""
    told_at = ending.pod.told_to_end
    return told_at is not None and (ending.logged is None or ending.logged >= told_at)


def _earliest_by_log(candidates: list[_Ending]) -> list[_Ending]:
    timed = [(candidate, candidate.logged) for candidate in candidates]
    known = [(candidate, time) for candidate, time in timed if time is not None]
    if len(known) < 2 or len(known) < len(candidates):
        return candidates
    first, start = min(known, key=lambda item: item[1])
    return [
        candidate
        for candidate, time in known
        if time - start <= SIMULTANEOUS + candidate.clock.error + first.clock.error
    ]


def _sentence(ending: _Ending) -> str:
    pod, code = ending.pod, ending.exit.code
    if ending.exit.reason == OOM_KILLED:
        how = "was killed for memory (OOMKilled)"
    else:
        how = f"exited with code {code}" + (f" ({SIGNALS[code]})" if code in SIGNALS else "")
    line = f": {pod.log.line}" if pod.log is not None and pod.log.line else ""
    return clip(f"{pod.title} {how}{line}", 256)
