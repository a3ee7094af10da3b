"""What our own agents saw: incidents in NodeHealth that count and were open in the run's window.

Counts by default, also without a monitor; `agent.mode: Observe` records nothing (DESIGN 4).  A launcher without GPUs
shares its node with the GPUs of others: a fault of those is not the run's.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from nvcre_coordinator.api.job import AgentMode, FailedNode, Job
from nvcre_coordinator.core.health_verdicts import blamed_incidents, concerns_all, failed_node
from nvcre_coordinator.core.run_window import RunWindow
from nvcre_coordinator.detectors import Blindness, NodeView


class AgentDetector:
    name = "agent"

    def validate(self, job: Job) -> None:
        """There is nothing to get wrong: the mode is an enum of the schema."""

    def detect(
        self, job: Job, nodes: Iterable[NodeView], window: RunWindow, now: datetime
    ) -> tuple[list[FailedNode], list[Blindness]]:
        if job.spec.agent_mode is AgentMode.OBSERVE:
            return [], []
        found = []
        for view in nodes:
            incidents = blamed_incidents(view.health, window) if view.health is not None else ()
            if not view.uses_gpus:
                incidents = tuple(incident for incident in incidents if concerns_all(incident))
            if incidents:
                found.append(failed_node(view.name, incidents))
        return found, []
