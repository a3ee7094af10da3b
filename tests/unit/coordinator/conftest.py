"""Builders for what a Job reconcile observes; every default is an ordinary healthy two-node run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from nvcre_coordinator.api.job import Job
from nvcre_coordinator.api.measurement import GoodputMeasurement
from nvcre_coordinator.api.meta import from_json
from nvcre_coordinator.core.failure_lines import LogFinding, Origin
from nvcre_coordinator.core.job_lifecycle import created, decide
from nvcre_coordinator.core.observed import Decision, Observed, Workload, WorkloadPhase
from nvcre_coordinator.core.pods import Exit, PodRecord
from nvcre_coordinator.workloads.trainjob import TrainJobAdapter

START = datetime(2026, 12, 1, 12, 0, 0, tzinfo=UTC)
TITLE = "TrainJob/run-workload"


class Builders:
    start = START
    title = TITLE

    @staticmethod
    def at(seconds: float) -> datetime:
        return START + timedelta(seconds=seconds)

    @staticmethod
    def job(status: dict[str, Any] | None = None, **spec: Any) -> Job:
        return from_json(
            {
                "metadata": {
                    "name": "run", "namespace": "team", "uid": "job-uid", "generation": 3,
                    "finalizers": ["nvcre.nvidia.com/finalizer"],
                    "creationTimestamp": "2026-12-01T11:59:59Z",
                },
                "spec": {"workload": {"trainJob": {"runtimeRef": {"name": "any"}}}} | spec,
                "status": status or {},
            },
            Job,
        )  # fmt: skip

    def started(self, **spec: Any) -> Job:
        """A Job whose workload was created and has been running for a minute."""
        job = self.job(**spec)
        status = created(job, TrainJobAdapter().reference(job), START, adopted=False)
        job = msgspec.structs.replace(job, status=status)
        decision = decide(Observed(job, workload=self.workload()), START)
        return msgspec.structs.replace(job, status=decision.status)

    @staticmethod
    def workload(phase: WorkloadPhase = WorkloadPhase.RUNNING, message: str = "", restart: int = 0) -> Workload:
        return Workload(TITLE, phase, message, uid=f"workload-uid-{restart}", restart=restart)

    @staticmethod
    def goodput(interval: str = "10s", **status: Any) -> GoodputMeasurement:
        """Times in the status are seconds after START, or text as the API server has it."""
        times = {
            name: (START + timedelta(seconds=value)).isoformat() if isinstance(value, int | float) else value
            for name, value in status.items()
            if name in ("startTime", "applicationStartTime", "lastStepTimestamp")
        }
        return from_json(
            {
                "metadata": {"name": "run-goodput", "namespace": "team"},
                "spec": {"logProfileRef": "p", "sampleInterval": interval, "jobRef": {"kind": "Job", "name": "run"}},
                "status": {**status, **times},
            },
            GoodputMeasurement,
        )

    @staticmethod
    def then(job: Job, decision: Decision) -> Job:
        return msgspec.structs.replace(job, status=decision.status)

    @staticmethod
    def pod(
        name: str,
        *,
        node: str = "",
        rank: int | None = 0,
        code: int | None = None,
        ended: float = 60,
        reason: str = "Error",
        log: Origin | None = Origin.NONE,
        line: str = "",
        logged: float | None = None,
        role: str = "node",
        attempt: int = 0,
        phase: str | None = None,
        told: float | None = None,
    ) -> PodRecord:
        finished = START + timedelta(seconds=ended)
        return PodRecord(
            name=name,
            uid=f"uid-{name}",
            node=node or f"node-of-{name}",
            replicated_job=role,
            rank=rank,
            restart_attempt=attempt,
            phase=phase or ("Running" if code is None else "Failed" if code else "Succeeded"),
            created_at=START,
            exit=None if code is None else Exit(code, reason if code else "Completed", "node", finished),
            log=None
            if log is None or not code
            else LogFinding(log, line, None if logged is None else START + timedelta(seconds=logged)),
            told_to_end=None if told is None else START + timedelta(seconds=told),
        )


@pytest.fixture
def build() -> Builders:
    return Builders()


@pytest.fixture
def conditions() -> Any:
    """`conditions(status)` as {type: (status, reason)}."""
    return lambda status: {item.type: (item.status.value, item.reason) for item in status.conditions}
