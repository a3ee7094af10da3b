"""Fault scenarios of the reference note (section 8) from a kernel line to NodeHealth and a Job, each under its number.

One API server and one coordinator process for all of them, and a real agent process over the simulated driver for each
node. Trainer and kubelet are played by hand (support/fleet.py).
"""

import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from nvcre_kube.client import ApiError
from nvcre_kube.resources import EVENTS, JOBS, LEASES, NODE_HEALTHS, NODES, PODS, TRAIN_JOBS
from support.eventually import eventually
from support.fleet import NAMESPACE, Fleet, RealAgent, fleet, gpu_pci

pytestmark = pytest.mark.asyncio(loop_scope="module")

LOST = "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
WITHIN_S = 60.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    async with fleet(tmp_path_factory.mktemp("scenarios")) as site:
        yield site


def xid(gpu: int, text: str) -> str:
    return f"NVRM: Xid (PCI:{gpu_pci(gpu)}): {text}"


async def health(site: Fleet, node: str, holds: Callable[[dict[str, Any]], Any], what: str) -> dict[str, Any]:
    status: dict[str, Any] = {}

    async def there() -> bool:
        nonlocal status
        try:
            status = (await site.client.get(NODE_HEALTHS, node)).get("status") or {}
        except ApiError as error:
            if not error.not_found:
                raise
        return bool(holds(status))

    try:
        await eventually(there, what=what, within_s=WITHIN_S)
    except AssertionError:
        raise AssertionError(f"NodeHealth {node} is not {what}: {status}") from None
    return status


async def verdict(site: Fleet, node: str, wanted: str) -> dict[str, Any]:
    return await health(site, node, lambda status: status.get("verdict") == wanted, wanted)


async def failed_nodes(site: Fleet, job: str) -> list[dict[str, Any]]:
    return list(((await site.client.get(JOBS, job, NAMESPACE)).get("status") or {}).get("failedNodes") or [])


async def start(site: Fleet, node: str) -> RealAgent:
    agent = await site.start_agent(node)
    await verdict(site, node, "Healthy")
    return agent


async def test_01_a_gpu_that_is_lost_again_after_the_reboot_is_broken_hardware(site: Fleet) -> None:
    """The reboot makes the disk anew, so that only the coordinator knows that it happened before."""
    agent = await start(site, "lossy")
    await site.run_job("first", ["lossy"])
    agent.kernel(1, xid(5, LOST))
    status = await verdict(site, "lossy", "Faulty")
    assert (status["faultClass"], status["badGPUs"]) == ("NeedsReboot", "5")
    assert [gpu["verdict"] for gpu in status["gpus"]] == ["Faulty" if n == 5 else "Healthy" for n in range(8)]

    async def named() -> list[dict[str, Any]]:
        return await failed_nodes(site, "first")

    (entry,) = await eventually(named, what="the Job names the node", within_s=WITHIN_S)
    assert (entry["name"], entry["component"]["kind"], entry["component"]["index"]) == ("lossy", "GPU", 5)

    agent = await site.reboot(agent, "boot-2")
    status = await verdict(site, "lossy", "Suspect")
    assert "recovered and is watched" in status["message"]
    assert status["closedIncidents"][0]["recoveredBy"] == "Reboot"

    agent.kernel(2, xid(5, LOST))
    status = await verdict(site, "lossy", "Faulty")
    assert status["faultClass"] == "FatalHardware"
    assert "came back after a reboot" in status["message"]


async def end_pods(site: Fleet, job: str, *, ago: timedelta, nodes: tuple[str, ...] = (), exit_code: int = 0) -> None:
    for pod in await site.client.list(PODS, NAMESPACE, label_selector=f"jobset.sigs.k8s.io/jobset-name={job}-workload"):
        if nodes and pod["spec"]["nodeName"] not in nodes:
            continue
        (container,) = pod["status"]["containerStatuses"]
        at = (datetime.now(UTC) - ago).strftime("%Y-%m-%dT%H:%M:%SZ")
        container["state"] = {
            "terminated": {"exitCode": exit_code, "reason": "Ended", "startedAt": at, "finishedAt": at}
        }
        pod["status"]["phase"] = "Failed" if exit_code else "Succeeded"
        await site.client.update_status(PODS, pod)


def xids(status: dict[str, Any], code: int) -> list[dict[str, Any]]:
    return [told for told in status.get("incidents", []) if told.get("code") == code]


async def test_05_the_same_error_of_two_jobs_makes_the_gpu_suspect_and_blames_it_in_neither(site: Fleet) -> None:
    agent = await start(site, "shared")

    async def told(sequence: int) -> dict[str, Any]:
        fault = "Ch 00000007, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_6 faulted @ 0x7f5a_e7504000."
        agent.kernel(sequence, xid(2, f"31, pid={10**6 + sequence}, name=python, {fault}"))
        return await health(site, "shared", lambda status: len(xids(status, 31)) == sequence, f"told of {sequence} 31")

    for sequence, job in ((1, "train"), (2, "train-again")):  # a resubmission is the same job
        await site.run_job(job, ["shared"], image="team/train:1")
        status = await told(sequence)
        assert status["verdict"] == "Healthy"
        await end_pods(site, job, ago=timedelta(minutes=1))
    await site.run_job("bench", ["shared"], image="team/bench:7")
    await told(3)
    status = await verdict(site, "shared", "Suspect")
    assert "suspect GPU 2: Xid 31 from 2 different jobs within 24 h" in status["message"]
    assert f"{NAMESPACE}/bench" in status["message"]
    assert status["badGPUs"] == "2"
    assert await failed_nodes(site, "bench") == []


async def test_07_a_contained_memory_error_is_told_to_the_job_and_the_node_stays_schedulable(site: Fleet) -> None:
    agent = await start(site, "contained")
    await site.run_job("contained", ["contained"])
    agent.kernel(1, xid(2, "94, pid=1000007, name=python, Contained: SM (0x1). RST: No, D-RST: No"))

    async def told() -> list[str]:
        events = await site.client.list(EVENTS, NAMESPACE)
        notes = [event["message"] for event in events if event["reason"] == "ApplicationError"]
        return [note for note in notes if "node contained: Xid 94" in note]

    (note,) = await eventually(told, what="an Event for the Job", within_s=WITHIN_S)
    assert note.endswith("(process 1000007, python); not its fault")
    status = await verdict(site, "contained", "Healthy")
    assert xids(status, 94)[0]["workload"].startswith(f"{NAMESPACE}/contained#")
    assert await failed_nodes(site, "contained") == []


async def test_37_a_fault_in_a_maintenance_is_told_to_the_job_that_it_hit_and_blames_nobody(site: Fleet) -> None:
    agent = await start(site, "serviced")
    await site.run_job("serviced", ["serviced"])
    await site.client.merge_patch(NODES, "serviced", {"metadata": {"labels": {"nvcre.nvidia.com/maintenance": "rma"}}})
    await verdict(site, "serviced", "Maintenance")
    agent.kernel(1, xid(5, LOST))
    await health(site, "serviced", lambda status: xids(status, 79), "told of Xid 79")
    await site.reboot(agent, "boot-2")
    await health(site, "serviced", lambda status: status.get("closedIncidents"), "told of its end")

    async def told() -> list[str]:
        events = await site.client.list(EVENTS, NAMESPACE)
        notes = [event["message"] for event in events if event["reason"] == "HardwareEvidenceInMaintenance"]
        return [note for note in notes if "node serviced was in maintenance and is not blamed: Xid 79" in note]

    await eventually(told, what="an Event for the Job", within_s=WITHIN_S)
    assert await failed_nodes(site, "serviced") == []


async def test_20_43_47_what_a_process_wrote_into_the_kernel_log_is_shown_and_blames_nobody(site: Fleet) -> None:
    agent = await start(site, "tested")
    await site.run_job("tested", ["tested"])
    microseconds = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
    with agent.kernel_log.open("a") as log:
        log.write(f"11,1,{microseconds},-;{xid(5, LOST)}\n")  # facility 1
    status = await health(site, "tested", lambda status: xids(status, 79), "told of the 79")
    assert xids(status, 79)[0]["injected"]
    agent.kernel(2, xid(6, "185, Memory sparing"))  # 43: a code that nobody knows
    status = await health(site, "tested", lambda status: xids(status, 185), "told of the 185")
    assert (status["verdict"], status.get("badGPUs", "")) == ("Healthy", "")
    assert "Xid 185" in status["message"]
    assert await failed_nodes(site, "tested") == []


async def test_46_a_node_that_loses_power_in_a_run_is_the_cause_and_the_survivors_are_not(site: Fleet) -> None:
    """Its agent and its Lease fall silent; the other rank dies of it a moment later and says so by its exit code."""
    dead, _ = await start(site, "dead"), await start(site, "survivor")
    await site.run_job("together", ["dead", "survivor"])
    renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    lease = {"metadata": {"name": "dead"}, "spec": {"holderIdentity": "dead", "renewTime": renewed}}
    await site.client.create(
        LEASES, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **lease}, "kube-node-lease"
    )
    dead.process.kill()
    await site.stop_agent(dead)
    await end_pods(site, "together", ago=timedelta(0), nodes=("survivor",), exit_code=1)
    train_job = await site.client.get(TRAIN_JOBS, "together-workload", NAMESPACE)
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    failed = {"type": "Failed", "status": "True", "reason": "JobsFailed", "message": "", "lastTransitionTime": at}
    await site.client.update_status(TRAIN_JOBS, {**train_job, "status": {"conditions": [failed]}})

    async def named() -> list[dict[str, Any]]:
        return await failed_nodes(site, "together")

    (entry,) = await eventually(named, what="the Job names a node", within_s=90.0)
    assert (entry["name"], entry["component"]["kind"]) == ("dead", "Node")
    assert "died without a word" in entry["message"]
