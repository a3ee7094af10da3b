"""How far each rank had come with its collectives, as PyTorch's NCCL watchdog says when one of them times out.

When one rank's watchdog fires, every rank of the process group prints the number of the last collective it enqueued, so
who never came to the one that the others wait for can be read from the logs.  Numbers count within one process group:
those of different groups say nothing about each other.

Lines: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (logPrefix, getNCCLWatchdogTimeoutErrorMsg, the watchdog's "PG
status"), https://github.com/pytorch/pytorch, versions 2.3 to 2.8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MAX_MARKS = 16  # eight ranks of a pod in two groups; they are kept in a ConfigMap
DEFAULT_GROUP = "0"
_LINE_LIMIT = 1024
_HINT = "ast enqueued "
# `[PG ID 0 PG GUID 0(default_pg) Rank 3]`, before 2.5 `[PG 0 (default_pg) Rank 3]` and `[PG 0 Rank 3]`: there the
# number is each rank's own, and only that of the default group means the same everywhere.
_LINE = re.compile(
    r"\[PG (?:ID \d+ PG GUID (?P<group>[\w.-]{1,64})|0) ?(?:\([^)]{0,64}\))? ?Rank (?P<rank>\d{1,7})\].*?"
    r"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,18}),"
)


@dataclass(frozen=True, slots=True)
class CollectiveMark:
    """The last collective of a process group that a rank put on its queue; -1: none."""

    group: str
    rank: int  # within the group
    enqueued: int


def read(lines: Iterable[str]) -> tuple[CollectiveMark, ...]:
    """The first word of each rank in each group: later ones come after the abort of the communicators."""
    marks: dict[tuple[str, int], CollectiveMark] = {}
    for line in lines:
        text = line[:_LINE_LIMIT]
        if len(marks) == MAX_MARKS or _HINT not in text or (match := _LINE.search(text)) is None:
            continue
        mark = CollectiveMark(match["group"] or DEFAULT_GROUP, int(match["rank"]), int(match["enqueued"]))
        marks.setdefault((mark.group, mark.rank), mark)
    return tuple(marks[key] for key in sorted(marks))


def behind(marks_of: Mapping[str, tuple[CollectiveMark, ...]]) -> dict[str, str]:
    """Who (any key) never came to the collective that the others of its group wait for, each with a sentence.

    A group says nothing where fewer than half of its ranks spoke, where more than half of those are behind (then
    somebody is ahead), and where two speak for one rank (then it is not one group).
    """
    found: dict[str, str] = {}
    groups: dict[str, list[tuple[str, CollectiveMark]]] = {}
    for who, marks in marks_of.items():
        for mark in marks:
            groups.setdefault(mark.group, []).append((who, mark))
    for group, said in sorted(groups.items()):
        size = max(mark.rank for _, mark in said) + 1  # at least
        if group == DEFAULT_GROUP:
            size = max(size, len(marks_of))
        top = max(mark.enqueued for _, mark in said)
        late = [(who, mark) for who, mark in said if mark.enqueued < top]
        if 2 * len(said) < size or 2 * len(late) > len(said) or len({mark.rank for _, mark in said}) < len(said):
            continue
        for who, mark in late:
            found.setdefault(
                who,
                f"rank {mark.rank} of process group {group} had enqueued {mark.enqueued} collectives, others {top}",
            )
    return found
