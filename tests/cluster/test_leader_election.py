"""Two coordinators and one Lease while Jobs run: one is killed, one is frozen for longer than its Lease, one ends.

When the Lease changed hands and who wrote what is read from the API server's audit log: each has a token of its own.
"""

from __future__ import annotations

import base64
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from nvcre_kube.client import KubeClient
from nvcre_kube.resources import LEASES, NODE_HEALTHS, SECRETS
from nvcre_local.cluster_objects import SYSTEM_NAMESPACE
from nvcre_local.simulation import SimulationDirectory

from .audit import WRITES, Request, requests
from .conftest import Api
from .jobs import Jobs
from .processes import PATIENCE_S, Coordinator, Plane, agents, start_coordinator, stop

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("kubelets", "system")]

LEASE_DURATION_S = 15
RETRY_PERIOD_S = 2
"""The elector's defaults, which are those of Kubernetes' own controllers."""
BUSY_MACHINE_S = 10
BREAKS = 7
RANK_LABEL = "batch.kubernetes.io/job-completion-index"


class Pair:
    """`first` leads, `second` stands by. Agents know the address of the second only."""

    def __init__(self, first: Coordinator, second: Coordinator, api: Api, audit: Path) -> None:
        self.first = first
        self.second = second
        self._api = api
        self._audit = audit

    async def until_led_by(self, coordinator: Coordinator) -> None:
        async def led() -> bool:
            lease = await self._api.client.get(LEASES, "nvcre-coordinator", SYSTEM_NAMESPACE)
            return lease["spec"].get("holderIdentity") == coordinator.identity

        await self._api.until(led)

    def writes(self, coordinator: Coordinator) -> list[Request]:
        """What it asked the API server to change; reviewing a token changes nothing."""
        return [
            one
            for one in requests(self._audit)
            if one.credential == coordinator.credential and one.verb in WRITES and one.resource != "tokenreviews"
        ]

    def renewals(self, coordinator: Coordinator) -> list[Request]:
        return [one for one in self.writes(coordinator) if one.resource == "leases" and one.code == 200]


@contextmanager
def ended(*coordinators: Coordinator) -> Iterator[None]:
    try:
        yield
    finally:
        for one in coordinators:
            one.process.send_signal(signal.SIGCONT)
            if one.process.poll() is None:
                assert stop(one.process) == 0, one.log.read_text(errors="replace")[-4000:]


@pytest.fixture
async def pair(
    plane: Plane, api: Api, simulation: SimulationDirectory, tmp_path: Path, audit_directory: Path
) -> AsyncIterator[Pair]:
    first = start_coordinator(plane, tmp_path, identity="first")
    with ended(first):
        second = start_coordinator(plane, tmp_path, identity="second")
        pair = Pair(first, second, api, audit_directory)
        with ended(second):
            await pair.until_led_by(first)
            async with agents(api.client, second.grpc, simulation):
                yield pair


@pytest.fixture
async def jobs(api: Api, pair: Pair, tmp_path: Path) -> Jobs:
    """On a runtime whose rank 1 breaks if the test says so before it lets all go on."""
    found = Jobs(api, tmp_path)
    broken = f"[ $JOB_COMPLETION_INDEX = 1 ] && [ -e {tmp_path / 'break'} ] && echo something broke && exit {BREAKS}"
    await found.create_runtime(f"{found.wait_for('end')}; {broken}; exit 0")
    return found


async def until_told(api: Api, simulation: SimulationDirectory, node: str, xid: int) -> None:
    """The node's kernel logs an Xid; returns when its NodeHealth has it: the agent has found the leader."""
    simulation.kernel(node, [f"NVRM: Xid (PCI:{simulation.pci(0)}): {xid}, pid=1, name=python, told to a new leader"])

    async def told() -> bool:
        status = (await api.client.get(NODE_HEALTHS, node)).get("status") or {}
        incidents = [*status.get("incidents", ()), *status.get("closedIncidents", ())]
        return xid in [one.get("code") for one in incidents]

    await api.until(told)


async def test_the_second_takes_over_from_one_that_was_killed_and_concludes_what_ended_meanwhile(
    pair: Pair, jobs: Jobs, simulation: SimulationDirectory
) -> None:
    await jobs.create("killed")
    await jobs.until_running("killed")
    pair.first.process.kill()
    pair.first.process.wait(PATIENCE_S)
    jobs.say("end")
    await pair.until_led_by(pair.second)
    status = await jobs.until("killed", "Succeeded", "WorkloadCompleted")
    assert "failedNodes" not in status
    await until_told(jobs.api, simulation, "node-0", 31)

    without = pair.renewals(pair.second)[0].at - pair.renewals(pair.first)[-1].at
    within_s = LEASE_DURATION_S + 2 * RETRY_PERIOD_S
    assert LEASE_DURATION_S <= without.total_seconds() <= within_s + BUSY_MACHINE_S


async def test_one_that_was_frozen_writes_nothing_after_the_other_leads_and_follows_it(
    pair: Pair, jobs: Jobs, simulation: SimulationDirectory
) -> None:
    await jobs.create("frozen")
    await jobs.until_running("frozen")
    rank_1 = next(pod for pod in await jobs.pods("frozen") if pod["metadata"]["labels"][RANK_LABEL] == "1")
    node = rank_1["spec"]["nodeName"]
    pair.first.process.send_signal(signal.SIGSTOP)
    jobs.say("break")
    jobs.say("end")
    await pair.until_led_by(pair.second)
    await jobs.until("frozen", "Failed", "WorkloadFailed")
    pair.first.process.send_signal(signal.SIGCONT)

    await until_told(jobs.api, simulation, "node-1", 43)
    assert await leader_named_by(pair.first, jobs.api.client) == pair.second.grpc
    status = await jobs.until_attributed("frozen")
    assert [(one["name"], one["reason"]) for one in status["failedNodes"]] == [(node, "WorkloadFailed")]
    taken_over = pair.renewals(pair.second)[0].at
    assert [str(one) for one in pair.writes(pair.first) if one.at >= taken_over] == []
    assert pair.writes(pair.first), "it wrote while it led"


async def test_one_that_ends_gives_the_lease_to_the_other_at_once(pair: Pair, jobs: Jobs) -> None:
    await jobs.create("handed-over")
    await jobs.until_running("handed-over")
    assert stop(pair.first.process) == 0
    jobs.say("end")
    await jobs.until("handed-over", "Succeeded", "WorkloadCompleted")
    released = pair.renewals(pair.first)[-1].at
    assert (pair.renewals(pair.second)[0].at - released).total_seconds() < LEASE_DURATION_S


async def leader_named_by(follower: Coordinator, client: KubeClient) -> str:
    """What an agent is told that asks the wrong one."""
    from nvcre_protos.nvcre_agent_v1_pb2_grpc import FleetStub

    secret = await client.get(SECRETS, "nvcre-coordinator-tls", SYSTEM_NAMESPACE)
    ca = base64.b64decode(secret["data"]["ca.crt"])
    async with grpc.aio.secure_channel(follower.grpc, grpc.ssl_channel_credentials(ca)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await FleetStub(channel).Connect().read()
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    return str(dict(refused.value.trailing_metadata()).get("nvcre-leader"))
