"""Reads the end of a failed process's log: is this the first cause, or the echo of somebody else's failure?

Patterns are data (failure_lines.yaml) with their sources.  Times are the kubelet's line prefixes (the node's clock).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from importlib.resources import files
from typing import Annotated

import msgspec
import re2
import yaml
from nvcre_logs.lines import split_prefix

from nvcre_coordinator.core.limits import clip


class Origin(StrEnum):
    OWN = "own"
    FOLLOW_UP = "follow-up"
    GENERIC = "generic"
    NONE = "none"  # nothing recognisable


@dataclass(frozen=True, slots=True)
class LogFinding:
    """The telling line of a log's end, when it was written, and the host it names (launchers name others)."""

    origin: Origin = Origin.NONE
    line: str = ""
    time: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    named_host: str = ""


@dataclass(frozen=True, slots=True)
class _Patterns:
    own: re2.Pattern
    follow_up: re2.Pattern
    generic: re2.Pattern
    host: tuple[re2.Pattern, ...]


# nccl-tests prints `HOST: Test NCCL failure FILE:LINE '...'` and ` .. HOST pid N: Test failure`; PRRTE and Open MPI
# print `process rank R with PID P on node HOST exited on signal S`.
_HOSTS = (
    r"^\s*(?P<host>[A-Za-z0-9][-A-Za-z0-9.]*): Test (?:NCCL|CUDA) failure",
    r"^\s*\.\. (?P<host>[A-Za-z0-9][-A-Za-z0-9.]*) pid \d+: Test failure",
    r"process rank \d+ with PID \d+ on node (?P<host>[A-Za-z0-9][-A-Za-z0-9.]*) exited on signal",
)


@lru_cache(maxsize=1)
def _patterns() -> _Patterns:
    text = files("nvcre_coordinator.core").joinpath("failure_lines.yaml").read_text()
    groups: dict[str, list[str]] = yaml.safe_load(text)

    def any_of(name: str) -> re2.Pattern:
        return re2.compile("|".join(f"(?:{pattern})" for pattern in groups[name]))

    return _Patterns(
        any_of("own"), any_of("follow_up"), any_of("generic"), tuple(re2.compile(pattern) for pattern in _HOSTS)
    )


def read(lines: Iterable[str]) -> LogFinding:
    """The first line of the strongest kind: own faults and follow-ups by which comes first, else a generic error."""
    patterns = _patterns()
    generic: LogFinding | None = None
    host = ""
    for line in lines:
        time, text = split_prefix(line)
        text = text[:2048]
        for pattern in patterns.host:
            if not host and (match := pattern.search(text)) is not None:
                host = match.group("host")
        if patterns.follow_up.search(text) is not None:
            return LogFinding(Origin.FOLLOW_UP, clip(text.strip(), 200), time, host)
        if patterns.own.search(text) is not None:
            return LogFinding(Origin.OWN, clip(text.strip(), 200), time, host)
        if generic is None and patterns.generic.search(text) is not None:
            generic = LogFinding(Origin.GENERIC, clip(text.strip(), 200), time)
    if generic is not None:
        return LogFinding(generic.origin, generic.line, generic.time, host)
    return LogFinding(named_host=host)
