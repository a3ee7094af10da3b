"""Whose program ran on a node's GPUs at a moment? Tells apart jobs for core/application_repeats.py.

A pod is asked for by its uid where the agent could read it from the process; else by place and time, and then only a
node that one job alone occupied has an answer. Pods vanish before an incident about them is told, so the last few of
each node are remembered. Pure; process.py feeds it with the pods of Jobs.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from dataclasses import dataclass
from datetime import datetime, timedelta

from nvcre_coordinator.api.workload import Pod

MOST_NAME = 100
REMEMBERED = 16  # pods of a node
SLACK = timedelta(seconds=5)  # of clocks, and of times that are whole seconds


def program_of(pod: Pod) -> str:
    """What runs in it: equal for a restart and for a resubmission of the same images with the same commands."""
    runs = [[each.image, each.command or (), each.args or ()] for each in pod.spec.containers]
    return hashlib.sha256(json.dumps(runs).encode()).hexdigest()[:12]


def workload_of(namespace: str, job: str, program: str) -> str:
    """ "namespace/name#fingerprint"; the fingerprint is never cut off."""
    return f"{short_workload(namespace, job)}#{program}"


def short_workload(namespace: str, job: str) -> str:
    """What stands before the "#"."""
    return f"{namespace}/{job[:MOST_NAME]}"


@dataclass(frozen=True, slots=True)
class Occupant:
    """A pod with GPUs on a node. `ended` is None while it runs."""

    uid: str
    workload: str
    began: datetime
    ended: datetime | None = None

    def there(self, at: datetime) -> bool:
        return self.began - SLACK <= at and (self.ended is None or at <= self.ended + SLACK)


class Occupants:
    def __init__(self) -> None:
        self._on: dict[str, deque[Occupant]] = {}

    def note(self, node: str, occupant: Occupant) -> None:
        """A pod as it is now, or as it was last when it was deleted."""
        here = self._on.setdefault(node, deque(maxlen=REMEMBERED))
        for place, known in enumerate(here):
            if known.uid == occupant.uid:
                here[place] = occupant
                return
        here.append(occupant)

    def forget_node(self, node: str) -> None:
        self._on.pop(node, None)

    def workload(self, node: str, *, pod_uid: str, at: datetime | None) -> str:
        """Empty where it is not known, or where more than one job shared the node at that time."""
        here = self._on.get(node, ())
        if pod_uid:
            return next((each.workload for each in here if each.uid == pod_uid), "")
        if at is None:
            return ""
        found = {each.workload for each in here if each.there(at)}
        return found.pop() if len(found) == 1 else ""
