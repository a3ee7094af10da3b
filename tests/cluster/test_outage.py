"""The API server goes away while Jobs run, for a moment and for a minute, by a crash and by not answering any more.

Nothing that is lost then is anybody's fault, and everything catches up. On a control plane of its own: the other tests
need theirs.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from nvcre_kube.client import CONNECTION_ERRORS, ApiError, KubeClient
from nvcre_kube.resources import NAMESPACES, NODE_HEALTHS
from nvcre_local.control_plane.projects import KUBERNETES, read
from nvcre_local.simulation import SimulationDirectory

from .conftest import Api
from .jobs import Jobs, condition, execution
from .processes import NODES, Coordinator, Plane, agents, coordinator_of, kubelets_of, start_plane, stop

pytestmark = pytest.mark.timeout(600)

LONGER_THAN_A_LEASE_S = 60
A_MOMENT_S = 3
XID_OF_A_PROGRAM = 31


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    found = start_plane(tmp_path_factory.mktemp("plane"), read()[KUBERNETES][0].version)
    found.install()
    yield found
    assert stop(found.process) == 0


@pytest.fixture(scope="module")
def kubelets(plane: Plane, simulation: SimulationDirectory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with kubelets_of(plane, tmp_path_factory.mktemp("kubelets"), simulation=simulation):
        yield


@pytest.fixture(scope="module")
def coordinator(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with coordinator_of(plane, tmp_path_factory.mktemp("coordinator")) as running:
        yield running


@asynccontextmanager
async def crashed(plane: Plane, api: Api) -> AsyncIterator[None]:
    """Connections are refused."""
    plane.process.send_signal(signal.SIGUSR1)
    await api.until(lambda: is_away(api.client))
    yield
    plane.process.send_signal(signal.SIGUSR2)


@asynccontextmanager
async def frozen(plane: Plane, _: Api) -> AsyncIterator[None]:
    """Connections are there, and nobody answers."""
    (pid,) = plane.pids_of("kube-apiserver")
    os.kill(pid, signal.SIGSTOP)
    yield
    os.kill(pid, signal.SIGCONT)


async def is_away(client: KubeClient) -> bool:
    try:
        await client.list_page(NAMESPACES, limit=1)
    except (*CONNECTION_ERRORS, ApiError):
        return True
    return False


async def is_back(client: KubeClient) -> bool:
    return not await is_away(client)


@pytest.mark.parametrize(
    ("away", "seconds"),
    [(crashed, A_MOMENT_S), (crashed, LONGER_THAN_A_LEASE_S), (frozen, LONGER_THAN_A_LEASE_S)],
    ids=lambda value: value.__name__ if callable(value) else f"{value}s",
)
async def test_a_job_that_ends_meanwhile_and_one_that_goes_on_are_told_rightly(
    plane: Plane,
    coordinator: Coordinator,
    jobs: Jobs,
    simulation: SimulationDirectory,
    api: Api,
    away: Callable[[Plane, Api], AbstractAsyncContextManager[None]],
    seconds: float,
) -> None:
    for name in ("ends", "goes-on"):
        await jobs.create_runtime(jobs.wait_for(name), name=name, nodes=1)
        await jobs.create(name, runtimeRef={"kind": "TrainingRuntime", "name": name})
    async with agents(api.client, coordinator.grpc, simulation):
        for name in ("ends", "goes-on"):
            await jobs.until_running(name, pods=1)
        known = await incidents(api, NODES[0])
        async with away(plane, api):
            jobs.say("ends")
            text = f"{XID_OF_A_PROGRAM}, pid=1, name=python, while nobody could be told"
            simulation.kernel(NODES[0], [f"NVRM: Xid (PCI:{simulation.pci(len(known))}): {text}"])
            await asyncio.sleep(seconds)
        await api.until(lambda: is_back(api.client))

        assert_nobody_is_blamed(await jobs.until("ends", "Succeeded", "WorkloadCompleted"))

        async def told() -> bool:
            return len(await incidents(api, NODES[0])) == len(known) + 1

        await api.until(told)
        status = await jobs.status("goes-on")
        assert execution(status)[:2] == ("InProgress", "WorkloadRunning")
        assert_nobody_is_blamed(status)
        jobs.say("goes-on")
        assert_nobody_is_blamed(await jobs.until("goes-on", "Succeeded", "WorkloadCompleted"))
        assert coordinator.process.poll() is None


async def incidents(api: Api, node: str) -> list[str]:
    status = (await api.client.get(NODE_HEALTHS, node)).get("status") or {}
    found = [*status.get("incidents", ()), *status.get("closedIncidents", ())]
    return [one["id"] for one in found if one.get("code") == XID_OF_A_PROGRAM]


def assert_nobody_is_blamed(status: dict[str, object]) -> None:
    assert "failedNodes" not in status
    assert "failureLog" not in status
    assert condition(status, "HardwareFailed").get("status") != "True"
