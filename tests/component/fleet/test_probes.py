"""A round of probes: reservation Pods on the API server, orders to agents over TLS, results in NodeHealth."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import Any

import pytest
from nvcre_coordinator.core.probe_rounds import Patience
from nvcre_coordinator.fleet.interface import ProbeKind, ProbeRequest, ProbeRound
from nvcre_coordinator.fleet.probe_progress import ProbeSettings
from nvcre_kube.client import ApiError, KubeClient
from nvcre_kube.resources import PODS
from nvcre_protos import nvcre_agent_v1_pb2 as pb

from .conftest import NAMESPACE, FakeAgent, Fleet, add_node, agent_token, eventually, stamp

NODES = ("node-0", "node-1", "node-2", "node-3")
NVLINK = (ProbeKind.NVLINK_ALL_REDUCE,)


@pytest.fixture
async def fleet(client: KubeClient) -> AsyncIterator[Fleet]:
    patience = Patience(
        placed=timedelta(seconds=2), agent=timedelta(seconds=2), heartbeat=timedelta(seconds=1),
        foreign=timedelta(seconds=2), probe=timedelta(seconds=5), margin=timedelta(seconds=1),
    )  # fmt: skip
    fleet = Fleet(client, probes=ProbeSettings(patience=patience))
    yield fleet
    for agent in fleet.agents:
        await agent.close()
    await fleet.stop()


def request(nodes: Iterable[str], kinds: tuple[ProbeKind, ...] = NVLINK) -> ProbeRequest:
    return ProbeRequest("default", "burn-in", "uid-1", tuple(nodes), kinds)


async def done(fleet: Fleet, asked: ProbeRequest) -> ProbeRound:
    async def is_done() -> ProbeRound | None:
        state = fleet.service.probes.ensure(asked)
        return state if state.done else None

    return await eventually(is_done)  # type: ignore[no-any-return]


async def reservations(client: KubeClient) -> list[dict[str, Any]]:
    return await client.list(PODS, NAMESPACE, label_selector="nvcre.nvidia.com/probe")


async def run_reservations(client: KubeClient, seen: list[dict[str, Any]]) -> None:
    """The scheduler and the kubelet: places every reservation Pod and runs it."""
    while True:
        for pod in await reservations(client):
            if (pod.get("status") or {}).get("phase") != "Running" and not pod["metadata"].get("deletionTimestamp"):
                pod["status"] = {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]}
                try:
                    await client.update_status(PODS, pod)
                except ApiError as error:  # the coordinator was there first: as it is now
                    if not (error.conflict or error.not_found):
                        raise
                else:
                    seen.append(pod)
        await asyncio.sleep(0.05)


async def connected(client: KubeClient, fleet: Fleet, node: str, *, infiniband: bool = False) -> FakeAgent:
    agent = await fleet.agent(await agent_token(client, node))
    await agent.connect()
    await agent.snapshot(infiniband=infiniband)
    return agent


async def answer_syncs(agent: FakeAgent, *, foreign: int = 0) -> None:
    while True:
        sync = await agent.next("sync")
        await agent.heartbeat(sync_id=sync.sync.id, foreign=foreign)


def measured(order: pb.ProbeOrder, busbw: float) -> pb.AgentMessage:
    sizes = [
        pb.SizeBandwidth(size_bytes=size, algbw_gbps=busbw / 1.75, busbw_gbps=busbw) for size in (1 << 20, 4 << 30)
    ]
    update = pb.ProbeUpdate(
        probe_id=order.probe_id, kind=order.kind, state=pb.PROBE_STATE_MEASURED, runs=[pb.ProbeRun(sizes=sizes)],
        gpu_product="NVIDIA H100 80GB HBM3", driver_version="570.133.20", nccl_version="2.26.2", arguments="-b 8M",
        started_at=stamp(), finished_at=stamp(),
    )  # fmt: skip
    return pb.AgentMessage(probe_update=update)


async def probe_node(agent: FakeAgent, busbw: float) -> None:
    async with asyncio.TaskGroup() as group:
        syncs = group.create_task(answer_syncs(agent))
        order = (await agent.next("probe_order")).probe_order
        await agent.call.write(measured(order, busbw))
        syncs.cancel()


@pytest.fixture
async def kubelet(client: KubeClient) -> AsyncIterator[list[dict[str, Any]]]:
    seen: list[dict[str, Any]] = []
    task = asyncio.create_task(run_reservations(client, seen))
    yield seen
    task.cancel()
    await asyncio.wait({task})


async def test_the_slow_node_is_named_and_the_reservations_are_gone(
    client: KubeClient, fleet: Fleet, kubelet: list[dict[str, Any]]
) -> None:
    for node in NODES:
        await add_node(client, node)
    await fleet.start()
    agents = [await connected(client, fleet, node) for node in NODES]
    fleet.service.probes.ensure(request(NODES))
    await asyncio.gather(
        *(probe_node(agent, figure) for agent, figure in zip(agents, (480.1, 481.7, 291.3, 479.9), strict=True))
    )
    state = await done(fleet, request(NODES))
    verdicts = {node: results[0].verdict for node, results in state.results.items()}
    assert verdicts == {"node-0": "Pass", "node-1": "Pass", "node-2": "Slow", "node-3": "Pass"}
    status = await fleet.until("node-2", lambda status: status.get("verdict") == "Suspect")
    (probe,) = status["probes"]
    assert probe["busBandwidthGBps"] == "291.30"
    assert "291.30 GB/s at 4 GiB" in probe["comparison"]
    assert probe["jobUID"] == "uid-1"

    async def released() -> bool:
        return not await reservations(client)

    await eventually(released)
    pod = kubelet[0]
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert pod["spec"]["nodeSelector"].keys() == {"kubernetes.io/hostname"}
    assert pod["metadata"]["labels"]["nvcre.nvidia.com/job"] == "burn-in"
    assert pod["metadata"]["annotations"]["nvcre.nvidia.com/job-uid"] == "uid-1"
    assert "nodeName" not in pod["spec"]


async def test_a_node_whose_gpus_are_taken_is_not_tested(client: KubeClient, fleet: Fleet) -> None:
    await add_node(client, "node-0")
    await fleet.start()
    await connected(client, fleet, "node-0")
    state = await done(fleet, request(["node-0"]))  # nobody places the Pod
    (result,) = state.results["node-0"]
    assert (result.state, result.reason) == ("NotTested", "NotPlaced")
    assert result.verdict == ""


async def test_28_a_node_with_seven_gpus_among_eights_is_not_tested_and_reserves_nothing(
    client: KubeClient, fleet: Fleet, kubelet: list[dict[str, Any]]
) -> None:
    for node, gpus in (("node-0", 8), ("node-1", 7)):
        await add_node(client, node, gpus=gpus)
    await fleet.start()
    agents = [await connected(client, fleet, node) for node in ("node-0", "node-1")]
    for node in ("node-0", "node-1"):
        await fleet.until(node, lambda status: status.get("verdict") == "Healthy")
    probing = asyncio.create_task(probe_node(agents[0], 480.0))
    ended = await done(fleet, request(("node-0", "node-1")))
    await probing
    (missing,) = ended.results["node-1"]
    assert (missing.state, missing.reason, missing.message) == (
        "NotTested", "GPUsMissing", "the node has 7 GPUs, others of the run have 8",
    )  # fmt: skip
    assert [pod["spec"]["nodeSelector"]["kubernetes.io/hostname"] for pod in kubelet] == ["node-0"]


async def test_foreign_processes_end_in_not_tested(
    client: KubeClient, fleet: Fleet, kubelet: list[dict[str, Any]]
) -> None:
    await add_node(client, "node-0")
    await fleet.start()
    agent = await connected(client, fleet, "node-0")
    syncs = asyncio.create_task(answer_syncs(agent, foreign=2))
    state = await done(fleet, request(["node-0"]))
    syncs.cancel()
    (result,) = state.results["node-0"]
    assert (result.state, result.reason) == ("NotTested", "ForeignProcesses")
    assert kubelet


async def test_without_agent_and_without_infiniband_nothing_is_reserved_for_nothing(
    client: KubeClient, fleet: Fleet
) -> None:
    await add_node(client, "node-0")
    await add_node(client, "node-1")
    await fleet.start()
    await connected(client, fleet, "node-0", infiniband=False)
    state = await done(fleet, request(["node-0", "node-1"], (ProbeKind.NIC_LOOPBACK,)))
    reasons = {node: results[0].reason for node, results in state.results.items()}
    assert reasons == {"node-0": "NoInfiniBand", "node-1": "AgentNotConnected"}
    assert await reservations(client) == []


async def test_a_new_leader_goes_on_with_the_reservation_it_finds(
    client: KubeClient, fleet: Fleet, kubelet: list[dict[str, Any]]
) -> None:
    await add_node(client, "node-0")
    await fleet.start()
    agent = await connected(client, fleet, "node-0")
    syncs = asyncio.create_task(answer_syncs(agent))
    fleet.service.probes.ensure(request(["node-0"]))
    first = (await agent.next("probe_order")).probe_order
    syncs.cancel()
    await fleet.stop()
    await fleet.start()
    agent = await connected(client, fleet, "node-0")
    fleet.service.probes.ensure(request(["node-0"]))
    syncs = asyncio.create_task(answer_syncs(agent))
    again = (await agent.next("probe_order")).probe_order
    assert again.probe_id == first.probe_id
    await agent.call.write(measured(again, 480.0))
    state = await done(fleet, request(["node-0"]))
    syncs.cancel()
    (result,) = state.results["node-0"]
    assert (result.state, result.verdict) == ("Measured", "CannotCompare")
    assert len(kubelet) == 1


async def test_42_an_agent_cannot_answer_for_another_node(
    client: KubeClient, fleet: Fleet, kubelet: list[dict[str, Any]]
) -> None:
    await add_node(client, "node-0")
    await add_node(client, "node-1")
    await fleet.start()
    honest = await connected(client, fleet, "node-0")
    liar = await connected(client, fleet, "node-1")
    fleet.service.probes.ensure(request(["node-0"]))
    syncs = asyncio.create_task(answer_syncs(honest))
    order = (await honest.next("probe_order")).probe_order
    await liar.call.write(measured(order, 1.0))
    await liar.heartbeat()
    await honest.call.write(measured(order, 480.0))
    state = await done(fleet, request(["node-0"]))
    syncs.cancel()
    assert state.results["node-0"][0].bus_bandwidth_gbps == "480.00"
