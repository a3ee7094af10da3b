"""Reads the end of every worker's log once when a run has stalled: its pods still run, and one may have stopped first.

At most 50 logs at once, 256 KiB of each, 30 s for all: a log that has not come by then is one that says nothing.
What the lines mean is core/last_steps.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nvcre_kube.client import KubeClient
from nvcre_logs.patterns import LogProfileError
from nvcre_logs.training import TrainingProfile, compile_training

from nvcre_coordinator.api.log_profile import LogProfile
from nvcre_coordinator.controllers.caches import CachedPod, Key
from nvcre_coordinator.controllers.pod_logs import LogUnavailableError, read_tail
from nvcre_coordinator.core.last_steps import LogEnd, read_end

logger = logging.getLogger(__name__)

CONCURRENT_READS = 50
DEADLINE_S = 30.0


@dataclass(slots=True)
class _Reading:
    ends: dict[str, LogEnd]
    task: asyncio.Task[None]


class StallLogs:
    """Keyed by the workload's (namespace, name); `changed` hears the key when all logs of a run were read."""

    def __init__(self, client: KubeClient, changed: Callable[[Key], None]) -> None:
        self._client = client
        self._changed = changed
        self._readings: dict[Key, _Reading] = {}
        self._reads = asyncio.Semaphore(CONCURRENT_READS)

    def ends(self, run: Key, pods: Sequence[CachedPod], profile: LogProfile | None) -> Mapping[str, LogEnd] | None:
        """The ends of the logs by pod uid; None while they are being read, which the first call begins."""
        reading = self._readings.get(run)
        if reading is None:
            ends: dict[str, LogEnd] = {}
            task = asyncio.create_task(self._read_all(run, tuple(pods), profile, ends))
            task.add_done_callback(lambda done: None if done.cancelled() else self._changed(run))
            reading = self._readings[run] = _Reading(ends, task)
        return dict(reading.ends) if reading.task.done() else None

    def forget(self, run: Key) -> None:
        reading = self._readings.pop(run, None)
        if reading is not None:
            reading.task.cancel()

    async def stop(self) -> None:
        tasks = [reading.task for reading in self._readings.values()]
        self._readings.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _read_all(
        self, run: Key, pods: tuple[CachedPod, ...], profile: LogProfile | None, ends: dict[str, LogEnd]
    ) -> None:
        steps, container = _steps_of(run, profile)
        try:
            async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
                for pod in pods:
                    group.create_task(self._read_one(pod, container, steps, ends))
        except TimeoutError:
            logger.warning("logs of a stalled run not read in time namespace=%s run=%s", *run)
        logger.info("logs of a stalled run read namespace=%s run=%s pods=%d read=%d", *run, len(pods), len(ends))

    async def _read_one(
        self, pod: CachedPod, container: str, steps: TrainingProfile | None, ends: dict[str, LogEnd]
    ) -> None:
        named = container if container in pod.containers else next(iter(pod.containers), "")
        async with self._reads:
            try:
                text = await read_tail(self._client, pod.namespace, pod.record.name, named)
            except LogUnavailableError as error:
                logger.warning("log not read namespace=%s pod=%s error=%r", pod.namespace, pod.record.name, str(error))
                return
            ends[pod.record.uid] = await asyncio.to_thread(read_end, text.splitlines(), steps)


def _steps_of(run: Key, profile: LogProfile | None) -> tuple[TrainingProfile | None, str]:
    """How steps are recognised, and the container that logs them."""
    if profile is None:
        return None, ""
    try:
        return compile_training(profile.metadata.name, profile.spec), profile.spec.container_name
    except LogProfileError as error:
        logger.warning("steps of a stalled run cannot be read namespace=%s run=%s error=%r", *run, str(error))
        return None, profile.spec.container_name
