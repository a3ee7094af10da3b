"""Reads the end of a failed process's log: is this the first cause, or the echo of somebody else's failure?

A Python traceback is judged by its exception, a report of torchrun by its first observed failure; lines that only warn,
and those of launchers about their children, say nothing.  Patterns are data (failure_lines.yaml) with their sources.
Times are the kubelet's line prefixes (the node's clock).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from importlib.resources import files
from typing import Annotated

import msgspec
import re2
import yaml
from nvcre_logs.lines import split_prefix

from nvcre_coordinator.core import nccl_watchdog
from nvcre_coordinator.core.limits import clip
from nvcre_coordinator.core.nccl_watchdog import CollectiveMark

RECENT = timedelta(minutes=2)
"""What ended a process stands near the end of its log: what is older was survived, unless it is a fault of `own`."""
_LINE_CHARS = 2048
_SENTENCE_BYTES = 200
_ENDED_BY_OTHERS = frozenset({-15, -2, 143, 130})  # SIGTERM, SIGINT
_FAULTS = frozenset({-4, -7, -8, -9, -11, 132, 135, 136, 137, 139})  # SIGILL, SIGBUS, SIGFPE, SIGKILL, SIGSEGV

SURE, LIKELY_ECHO, LIKELY_OWN = range(3)
"""How much a line weighs: of several the strongest counts, and of these the first."""


class Origin(StrEnum):
    OWN = "own"
    FOLLOW_UP = "follow-up"
    GENERIC = "generic"
    NONE = "none"  # nothing recognisable


@dataclass(frozen=True, slots=True)
class LogFinding:
    """The telling line of a log's end, when it was written, and what the log says about others.

    `named_host` is the host a launcher names and `named_by` its words, `collectives` how far its ranks had come.
    """

    origin: Origin = Origin.NONE
    line: str = ""
    time: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    named_host: str = ""
    named_by: str = ""
    collectives: tuple[CollectiveMark, ...] = ()


@dataclass(frozen=True, slots=True)
class _Told:
    origin: Origin
    line: str
    time: datetime | None
    weakness: int = SURE


@lru_cache(maxsize=1)
def _patterns() -> dict[str, re2.Pattern]:
    text = files("nvcre_coordinator.core").joinpath("failure_lines.yaml").read_text()
    groups: dict[str, list[str]] = yaml.safe_load(text)
    return {name: re2.compile("|".join(f"(?:{one})" for one in patterns)) for name, patterns in groups.items()}


def read(lines: Sequence[str]) -> LogFinding:
    """By which comes first, a fault of its own or a follow-up; where there is neither, a generic error.

    Where nothing tells, `line` is the last one, without a time: it need not be what happened last.
    """
    stamped = [(time, text[:_LINE_CHARS]) for time, text in map(split_prefix, lines)]
    end = next((time for time, _ in reversed(stamped) if time is not None), None)

    def survived(told: _Told) -> bool:
        if told.origin is Origin.OWN or told.time is None or end is None:
            return False
        return end - told.time > RECENT

    last_words = next((text for _, text in reversed(stamped) if text.strip()), "")
    first = min(
        _telling(stamped),
        key=lambda told: (told.weakness, survived(told)),
        default=_Told(Origin.NONE, last_words, None),
    )
    host, named_by = _named_host(text for _, text in stamped)
    return LogFinding(
        first.origin,
        _words(first.line),
        first.time,
        host,
        named_by,
        nccl_watchdog.read(text for _, text in stamped),
    )


def _named_host(texts: Iterable[str]) -> tuple[str, str]:
    """Whom a launcher calls the first that failed, else the first host whose test failed by itself; and the words."""
    patterns = _patterns()
    own_test = "", ""
    for text in texts:
        if (match := patterns["launcher_names"].search(text)) is not None:
            return next(str(host) for host in match.groups() if host), _words(text)
        if own_test[0] or patterns["follow_up"].search(text) is not None:
            continue
        if (match := patterns["test_failed"].search(text)) is not None:
            own_test = str(match[1]), _words(text)
    return own_test


def _words(line: str) -> str:
    return clip(line.strip(), _SENTENCE_BYTES)


def _telling(stamped: Sequence[tuple[datetime | None, str]]) -> Iterator[_Told]:
    patterns = _patterns()
    in_traceback = in_root_cause = False
    for time, text in stamped:
        if patterns["traceback"].search(text) is not None:
            in_traceback = True
            yield _Told(Origin.GENERIC, text, time, LIKELY_OWN)
            continue
        if in_traceback and patterns["frame"].search(text) is not None:
            continue
        raised = in_traceback and patterns["exception"].search(text) is not None
        in_traceback = False
        in_root_cause |= patterns["root_cause"].search(text) is not None
        if patterns["noise"].search(text) is not None:
            continue
        ended = patterns["first_failure"].search(text) if in_root_cause else patterns["child_failed"].search(text)
        warns = patterns["warning"].search(text) is not None
        if ended is not None:
            origin, weakness = _class_of(int(ended[1][:8]))
            yield _Told(origin, text, time, weakness)
        elif patterns["follow_up"].search(text) is not None:
            yield _Told(Origin.FOLLOW_UP, text, time, LIKELY_ECHO if warns else SURE)
        elif warns:
            continue
        elif patterns["own"].search(text) is not None:
            yield _Told(Origin.OWN, text, time)
        elif raised or patterns["generic"].search(text) is not None:
            yield _Told(Origin.GENERIC, text, time, SURE if raised else LIKELY_OWN)


def _class_of(code: int) -> tuple[Origin, int]:
    """Of a child's exit code as torchrun reports it (negative: by a signal), and how little that says."""
    if code in _ENDED_BY_OTHERS:
        return Origin.FOLLOW_UP, SURE
    if code in _FAULTS:
        return Origin.OWN, SURE
    return Origin.GENERIC, LIKELY_OWN
