"""One real control plane a test run, two of our kubelets on it, and a namespace a test.

Run by `make test-cluster`. Nothing here skips: a control plane that is missing or does not come up is a failure.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from nvcre_kube.client import ApiError, KubeClient
from nvcre_kube.resources import NAMESPACES, PODS, TRAIN_JOBS, JsonObject
from nvcre_local.control_plane.plane import AUDIT_DIRECTORY, wait_for_service_account
from nvcre_local.control_plane.projects import KUBERNETES, read
from nvcre_local.scenario_file import read_scenario
from nvcre_local.simulation import SimulationDirectory

from .jobs import Jobs
from .processes import (
    NODES,
    PATIENCE_S,
    REPOSITORY,
    Coordinator,
    Plane,
    coordinator_of,
    kubelets_of,
    start_plane,
    stop,
)

HERE = Path(__file__).parent


CLOSING = HERE / "test_audit.py"
"""Judges what the whole session did: last, or, in a session of a part of the tests, not at all."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.cluster)
    yield
    is_whole = (
        {item.path for item in ours} == set(HERE.glob("test_*.py"))
        and set(ours) <= set(items)
        and not any("::" in argument for argument in config.args)
    )
    closing = [item for item in items if item.path == CLOSING]
    items[:] = [item for item in items if item.path != CLOSING]
    if is_whole:
        items += closing
    elif closing:
        config.hook.pytest_deselected(items=closing)


@pytest.fixture(scope="session", autouse=True)
def audit_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of every control plane that a test starts, by whatever means."""
    directory = tmp_path_factory.mktemp("audit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(AUDIT_DIRECTORY, str(directory))
        yield directory


@pytest.fixture(scope="session", params=[project.version for project in read()[KUBERNETES]])
def plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    found = start_plane(tmp_path_factory.mktemp("plane"), request.param, "--kueue")
    yield found
    assert stop(found.process) == 0
    assert list(found.directory.iterdir()) == []


@pytest.fixture(scope="session")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> SimulationDirectory:
    """Healthy GPUs on every node, for agents."""
    scenario = read_scenario(REPOSITORY / "examples/scenarios/healthy.yaml").with_nodes(len(NODES))
    directory = SimulationDirectory(tmp_path_factory.mktemp("simulation"), scenario)
    directory.write()
    return directory


@pytest.fixture(scope="module")
def kubelets(plane: Plane, simulation: SimulationDirectory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with kubelets_of(plane, tmp_path_factory.mktemp("kubelets"), simulation=simulation):
        yield


@pytest.fixture(scope="session")
def system(plane: Plane) -> None:
    """Our CRDs, rights and LogProfiles are there."""
    plane.install()


@pytest.fixture(scope="module")
def coordinator(plane: Plane, system: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with coordinator_of(plane, tmp_path_factory.mktemp("coordinator")) as running:
        yield running


class Api:
    """What the tests say often, in a namespace of the test's own."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self.client = client
        self.namespace = namespace

    async def until(self, look: Callable[[], Awaitable[Any]]) -> Any:
        """What `look` returns once that is neither None nor empty."""
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE_S
        while not (seen := await look()):
            assert loop.time() < until, f"it did not happen in time; pods: {await self.pods()}"
            await asyncio.sleep(0.1)
        return seen

    async def create_train_job(self, train_job: JsonObject) -> JsonObject:
        """Once it is admitted: Trainer's webhook reads runtimes from a cache, which may not have a new one yet."""

        async def admitted() -> JsonObject | None:
            try:
                return await self.client.create(TRAIN_JOBS, train_job)
            except ApiError as error:
                if "must be created before the TrainJob" in error.message:
                    return None
                raise

        return cast(JsonObject, await self.until(admitted))

    async def pods(self) -> dict[str, str]:
        """Name -> phase."""
        pods = await self.client.list(PODS, self.namespace)
        return {pod["metadata"]["name"]: pod.get("status", {}).get("phase", "") for pod in pods}

    async def log(self, pod: str, **options: Any) -> str:
        chunks = [chunk async for chunk in self.client.pod_log(pod, self.namespace, **options)]
        return b"".join(chunks).decode()


@pytest.fixture
async def client(plane: Plane) -> AsyncIterator[KubeClient]:
    """The admin's."""
    async with await KubeClient.from_kubeconfig(plane.kubeconfig) as connected:
        yield connected


@pytest.fixture
async def api(client: KubeClient, request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    test = hashlib.sha256(request.node.name.encode()).hexdigest()[:6]
    name = f"{request.node.originalname.replace('_', '-')[:50].rstrip('-')}-{test}"
    await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    await wait_for_service_account(client, name)
    yield Api(client, name)
    try:
        await client.delete(NAMESPACES, name)
    except ApiError as error:
        if not error.not_found:
            raise


@pytest.fixture
def jobs(api: Api, tmp_path: Path, kubelets: None, coordinator: Coordinator) -> Jobs:
    """Jobs that a coordinator looks after and our kubelets run."""
    return Jobs(api, tmp_path)
