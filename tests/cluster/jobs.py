"""Jobs of the cluster tests: on a TrainingRuntime whose program is a line of shell, and which a test lets go on.

Everything lies in the namespace of the test (conftest.Api); what waits, waits for a file in the test's directory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvcre_kube.client import ApiError
from nvcre_kube.resources import (
    EVENTS,
    GOODPUT_MEASUREMENTS,
    JOBS,
    PODS,
    TRAIN_JOBS,
    TRAINING_RUNTIMES,
    JsonObject,
    Resource,
)

if TYPE_CHECKING:
    from .conftest import Api

JOB_SETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
BATCH_JOBS = Resource("batch", "v1", "jobs", "Job")
RUNTIME = "shell"
RUNTIME_REF = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": RUNTIME}
EXECUTION = ("InProgress", "Succeeded", "Failed")


class Jobs:
    def __init__(self, api: Api, directory: Path) -> None:
        self.api = api
        self._client = api.client
        self._namespace = api.namespace
        self._directory = directory

    # -- what the program does --------------------------------------------------------------------------------------

    def wait_for(self, word: str) -> str:
        """Shell that goes on once the test says `word`."""
        return f"until [ -e {self._directory / word} ]; do sleep 0.1; done"

    def unless(self, word: str) -> str:
        """Shell: what follows is done as long as the test has not said `word`."""
        return f"[ -e {self._directory / word} ] ||"

    def say(self, word: str) -> None:
        (self._directory / word).touch()

    async def create_runtime(self, program: str, *, name: str = RUNTIME, nodes: int = 2, grace_s: int = 10) -> None:
        container = {
            "name": "node",
            "image": "none",
            "command": ["sh", "-c", program],
            "resources": {"limits": {"nvidia.com/gpu": 8}},
        }
        pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": grace_s, "containers": [container]}
        workers = {
            "name": "node",
            "template": {
                "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
                "spec": {"backoffLimit": 0, "template": {"spec": pod}},
            },
        }
        runtime = {
            "apiVersion": TRAINING_RUNTIMES.api_version,
            "kind": "TrainingRuntime",
            "metadata": {
                "name": name,
                "namespace": self._namespace,
                "labels": {"trainer.kubeflow.org/framework": "torch"},
            },
            "spec": {
                "mlPolicy": {"numNodes": nodes, "torch": {}},
                "template": {"spec": {"replicatedJobs": [workers]}},
            },
        }
        await self._client.create(TRAINING_RUNTIMES, runtime)

    async def has_checkpoint(self, job: str, *, step: int) -> None:
        """Told by hand in the Job's GoodputMeasurement: these programs write none."""

        async def told() -> bool:
            name, status = f"{job}-goodput", {"status": {"lastCheckpointStep": step}}
            try:
                await self._client.merge_patch(
                    GOODPUT_MEASUREMENTS, name, status, self._namespace, subresource="status"
                )
            except ApiError as error:
                if not error.not_found:
                    raise
                return False
            return True

        await self.api.until(told)

    # -- the Jobs ---------------------------------------------------------------------------------------------------

    async def create(
        self, name: str, *, labels: Mapping[str, str] | None = None, spec: JsonObject | None = None, **train_job: Any
    ) -> None:
        """`labels`: workloadMetadata's. `spec`: further fields of the Job's, `train_job` of the TrainJob's spec."""
        whole: JsonObject = {"workload": {"trainJob": {"runtimeRef": RUNTIME_REF, **train_job}}, **(spec or {})}
        if labels:
            whole["workloadMetadata"] = {"labels": dict(labels)}
        metadata = {"name": name, "namespace": self._namespace}
        await self._client.create(
            JOBS, {"apiVersion": JOBS.api_version, "kind": "Job", "metadata": metadata, "spec": whole}
        )

    async def get(self, name: str) -> JsonObject:
        return await self._client.get(JOBS, name, self._namespace)

    async def status(self, name: str) -> JsonObject:
        return (await self.get(name)).get("status") or {}

    async def train_job(self, job: str) -> JsonObject:
        return await self._client.get(TRAIN_JOBS, f"{job}-workload", self._namespace)

    async def until(self, name: str, kind: str, reason: str) -> JsonObject:
        """The status once its execution condition is `kind` for `reason`. Fails at once when another one is final."""

        async def reached() -> JsonObject | None:
            status = await self.status(name)
            seen = execution(status)
            assert kind == "Failed" or seen[0] != "Failed", status
            assert kind == "Succeeded" or seen[0] != "Succeeded", status
            return status if seen[:2] == (kind, reason) else None

        status: JsonObject = await self.api.until(reached)
        return status

    async def until_attributed(self, name: str) -> JsonObject:
        async def attributed() -> JsonObject | None:
            status = await self.status(name)
            return status if condition(status, "Attributed").get("status") in ("True", "False") else None

        status: JsonObject = await self.api.until(attributed)
        return status

    async def until_gone(self, get: Callable[[], Awaitable[Any]]) -> None:
        async def gone() -> bool:
            try:
                await get()
            except ApiError as error:
                if not error.not_found:
                    raise
                return True
            return False

        await self.api.until(gone)

    async def until_running(self, name: str, pods: int = 2) -> JsonObject:
        """The status once WorkloadRunning is said and its Pods run."""
        status = await self.until(name, "InProgress", "WorkloadRunning")

        async def running() -> bool:
            return [pod["status"].get("phase") for pod in await self.pods(name)] == ["Running"] * pods

        await self.api.until(running)
        return status

    async def until_without_pods(self, name: str) -> None:
        async def without() -> bool:
            return not await self.pods(name)

        await self.api.until(without)

    async def pods(self, job: str) -> list[JsonObject]:
        """Launchers included, by name."""
        selector = f"jobset.sigs.k8s.io/jobset-name={job}-workload"
        pods = await self._client.list(PODS, self._namespace, label_selector=selector)
        return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))

    async def events(self, job: str) -> list[tuple[str, str]]:
        """(reason, note) of each event about the Job."""
        events = await self._client.list(EVENTS, self._namespace)
        about = [one for one in events if one["involvedObject"].get("kind") == "Job"]
        ours = [one for one in about if one["involvedObject"].get("apiVersion") == JOBS.api_version]
        return [(one["reason"], one["message"]) for one in ours if one["involvedObject"]["name"] == job]


def condition(status: JsonObject, kind: str) -> JsonObject:
    return next((one for one in status.get("conditions") or () if one["type"] == kind), {})


def execution(status: JsonObject) -> tuple[str, str, str]:
    """Type, reason and message of the one execution condition that is True; three times "" before there is one."""
    true = [one for one in status.get("conditions") or () if one["type"] in EXECUTION and one["status"] == "True"]
    assert len(true) <= 1, true
    return (true[0]["type"], true[0]["reason"], true[0]["message"]) if true else ("", "", "")
