"""Plays the faults of a scenario: waits for the workers of a JobSet to run, then acts at each fault's moment.

Acts on the simulation directory and on nothing else, but for the coordinator, which it may ask to be killed. It runs
once for the first JobSet that starts; a later one (nvcre local up) plays the scenario again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from nvcre_kube.client import CONNECTION_ERRORS, ApiError, KubeClient
from nvcre_kube.resources import PODS

from nvcre_local.scenario import (
    CoordinatorKill,
    CrashFault,
    DriverFault,
    Fault,
    Scenario,
    Source,
    XidFault,
    node_name,
)
from nvcre_local.simulation import SimulationDirectory

log = logging.getLogger(__name__)

JOBSET = "jobset.sigs.k8s.io/jobset-name"
PART = "jobset.sigs.k8s.io/replicatedjob-name"
LOOK_EVERY_S = 0.2


def all_running(pods: Iterable[dict[str, Any]], seen: Iterable[str]) -> str | None:
    """The name of a JobSet not yet `seen` all of whose Pods run, the launcher among them; None while there is none."""
    phases: dict[str, list[tuple[str, str]]] = {}
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        phase = (pod.get("status") or {}).get("phase", "Pending")
        phases.setdefault(labels.get(JOBSET, ""), []).append((labels.get(PART, ""), phase))
    for jobset, found in sorted(phases.items()):
        if jobset and jobset not in seen and all(phase == "Running" for _, phase in found):
            return jobset
    return None


def fill(line: str, fields: dict[str, object]) -> str:
    """Only our own names in braces are filled in; a kernel line may hold braces of its own."""
    for name, value in fields.items():
        line = line.replace(f"{{{name}}}", str(value))
    return line


class ScenarioEngine:
    """`kill_coordinator(restart_after_s)` is the supervisor's."""

    def __init__(
        self,
        scenario: Scenario,
        directory: SimulationDirectory,
        client: KubeClient,
        kill_coordinator: Callable[[float], Awaitable[None]],
    ) -> None:
        self._scenario = scenario
        self._directory = directory
        self._client = client
        self._kill_coordinator = kill_coordinator

    async def run(self) -> None:
        """For ever: one JobSet after the other."""
        played: set[str] = set()
        while True:
            jobset = await self._next(played)
            played.add(jobset)
            log.info(
                "scenario_started scenario=%s jobset=%s faults=%d",
                self._scenario.name,
                jobset,
                len(self._scenario.faults),
            )
            await self._play(jobset)

    async def _next(self, played: set[str]) -> str:
        """The next JobSet whose Pods all run, twice in a row: the Pods of a JobSet do not appear in one moment."""
        before: tuple[str, int] | None = None
        while True:
            pods = await self._pods()
            if pods is not None:
                for gone in played - {pod["metadata"]["labels"][JOBSET] for pod in pods}:
                    # A Job deleted and applied again is a new run: nothing of the old one may end it.
                    played.discard(gone)
                    self._directory.forget_workload(gone)
                jobset = all_running(pods, played)
                if jobset is not None and (jobset, len(pods)) == before:
                    return jobset
                before = (jobset, len(pods)) if jobset is not None else None
            await asyncio.sleep(LOOK_EVERY_S)

    async def _pods(self) -> list[dict[str, Any]] | None:
        try:
            return await self._client.list(PODS, label_selector=JOBSET)
        except (ApiError, *CONNECTION_ERRORS) as error:
            log.warning("scenario_cannot_list_pods error=%s", error)
            return None

    async def _play(self, jobset: str) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        for fault in self._scenario.faults:
            await asyncio.sleep(max(0.0, started + fault.after_s - loop.time()))
            log.info("scenario_fault scenario=%s fault=%s after_s=%.1f", self._scenario.name, fault, fault.after_s)
            await self._inflict(fault, jobset)

    async def _inflict(self, fault: Fault, jobset: str) -> None:
        match fault:
            case XidFault():
                self._xid(fault, jobset)
            case DriverFault(node=node, gpu=gpu, values=values):
                event: dict[str, Any] = {"set": values}
                self._directory.driver_event(node_name(node), event if gpu is None else {"gpu": gpu, **event})
            case CrashFault(node=node, exit_code=code, lines=lines):
                self._directory.crash(node_name(node), exit_code=code, lines=lines)
            case CoordinatorKill(restart_after_s=seconds):
                await self._kill_coordinator(seconds)

    def _xid(self, fault: XidFault, jobset: str) -> None:
        node = node_name(fault.node)
        if Source.KERNEL_LOG in fault.sources:
            pid = self._directory.worker_pid(jobset, node) or "'<unknown>'"
            fields = {"pci": self._directory.pci(fault.gpu), "gpu": fault.gpu, "pid": pid, "name": fault.process}
            self._directory.kernel(node, [fill(line, fields) for line in fault.lines])
        if Source.NVML in fault.sources:
            self._directory.driver_event(node, {"gpu": fault.gpu, "event": "xid", "code": fault.code})
