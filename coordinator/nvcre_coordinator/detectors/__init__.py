"""Node failure detectors: each looks at one node of a run and says whether, and why, it has failed.

A new detector is a module here with the `NodeFailureDetector` protocol and a typed field under `nodeHealthMonitor`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from nvcre_coordinator.api.job import FailedNode, Job
from nvcre_coordinator.api.workload import Node
from nvcre_coordinator.core.node_health import NodeHealth
from nvcre_coordinator.core.run_window import RunWindow


class DetectorSpecError(ValueError):
    """The monitor of a Job cannot work; found before the workload is created.  The message is one line."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """What a detector sees of a node; either part may be missing."""

    name: str
    node: Node | None
    health: NodeHealth | None
    uses_gpus: bool = True  # False: the run has only a pod without GPUs there, such as a launcher


@dataclass(frozen=True, slots=True)
class Blindness:
    """A node that a detector could not judge: said once, never a blame."""

    node: str
    message: str


class NodeFailureDetector(Protocol):
    name: str

    def validate(self, job: Job) -> None:
        """Raises DetectorSpecError."""
        ...

    def detect(
        self, job: Job, nodes: Iterable[NodeView], window: RunWindow, now: datetime
    ) -> tuple[list[FailedNode], list[Blindness]]:
        """Failed nodes with evidence, and those that could not be judged.  A terminal Job gets its window's end."""
        ...
