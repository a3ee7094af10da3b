"""A control plane with a real coordinator process and a fleet around it, for benchmarks and fault scenarios.

API server and coordinator are processes as in production; nodes are made through the API; most agents are streams only
(support/agent_streams.py), those under measurement are real agent processes over the simulated driver with a
kernel-log file. Trainer and kubelet are played by hand: TrainJob and Pods are written through the API.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from nvcre_kube.client import ApiError, KubeClient
from nvcre_kube.resources import (
    CONFIG_MAPS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    SERVICE_ACCOUNTS,
    TRAIN_JOBS,
    JsonObject,
)

from support.api_server import ApiServer, api_server
from support.eventually import eventually
from support.owners import batch_job
from support.processes import clean_environment, end, wait_for_file

NAMESPACE = "default"
SYSTEM_NAMESPACE = "nvcre-system"
PATIENCE_S = 60.0
AT_ONCE = 16


def gpu_pci(index: int) -> str:
    return f"0000:{0x1B + index:02x}:00"


def driver_json(gpus: int = 8) -> str:
    return json.dumps(
        {
            "product": "NVIDIA H100 80GB HBM3",
            "driver_version": "570.133.20",
            "cuda_driver_version": 12080,
            "nvlinks": 18,
            "memory_mib": 81559,
            "infiniband": True,
            "gpus": [
                {"uuid": f"GPU-{index:08d}", "pci": gpu_pci(index), "serial": f"16{index}", "minor": index}
                for index in range(gpus)
            ],
        }
    )


@dataclass
class RealAgent:
    """An agent process and its node's files."""

    node: str
    directory: Path
    process: subprocess.Popen[bytes]

    @property
    def kernel_log(self) -> Path:
        return self.directory / "kmsg"

    def kernel(self, sequence: int, text: str) -> None:
        microseconds = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
        with self.kernel_log.open("a") as log:
            log.write(f"3,{sequence},{microseconds},-;{text}\n")


@dataclass
class Fleet:
    client: KubeClient
    server: ApiServer
    directory: Path
    coordinator: subprocess.Popen[bytes]
    addresses: dict[str, str]
    agents: list[RealAgent] = field(default_factory=list)
    streams: subprocess.Popen[bytes] | None = None

    async def add_node(self, name: str) -> str:
        """A GPU Node with an agent Pod; the token bound to that Pod, as a kubelet would project it."""
        labels = {"nvidia.com/gpu.present": "true"}
        await self.client.create(
            NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        )
        container = {"name": "agent", "image": "nvcre-agent"}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"nvcre-agent-{name}",
                "namespace": SYSTEM_NAMESPACE,
                "labels": {"app.kubernetes.io/name": "nvcre-agent"},
            },
            "spec": {"nodeName": name, "serviceAccountName": "nvcre-agent", "containers": [container]},
        }
        created = await self.client.create(PODS, pod, SYSTEM_NAMESPACE)
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": created["metadata"]["uid"]}  # type: ignore[index]
        spec = {"audiences": ["nvcre-coordinator"], "expirationSeconds": 7200, "boundObjectRef": bound}
        return str((await self.client.create_token("nvcre-agent", SYSTEM_NAMESPACE, spec))["status"]["token"])

    async def remove_node(self, name: str) -> None:
        await self.client.delete(PODS, f"nvcre-agent-{name}", SYSTEM_NAMESPACE, grace_period_s=0)
        await self.client.delete(NODES, name)

    async def open_streams(self, count: int, *, heartbeat_s: float = 30.0, within_s: float = 600.0) -> list[str]:
        """Nodes with stream-only agents; returns their names once all are connected."""
        names = [f"node-{index:05d}" for index in range(count)]
        at_once = asyncio.Semaphore(AT_ONCE)

        async def add(name: str) -> str:
            async with at_once:
                return await self.add_node(name)

        tokens = dict(zip(names, await asyncio.gather(*map(add, names)), strict=True))
        file, state = self.directory / "stream-tokens.json", self.directory / "streams.json"
        file.write_text(json.dumps(tokens))
        file.chmod(0o600)
        state.unlink(missing_ok=True)
        command = [sys.executable, "-m", "support.agent_streams", "--coordinator", self.addresses["grpc"]]
        command += ["--ca", str(self.directory / "ca.crt"), "--tokens", str(file), "--state", str(state)]
        command += ["--heartbeat", str(heartbeat_s)]
        environment = clean_environment() | {"PYTHONPATH": str(Path(__file__).parents[1])}
        self.streams = started(command, self.directory / "streams.log", environment)

        async def all_connected() -> bool:
            said = json.loads(state.read_text()) if state.exists() else {"connected": 0, "lost": 0}
            assert self.streams is not None
            assert self.streams.poll() is None, (self.directory / "streams.log").read_text()
            assert not said["lost"], said
            return bool(said["connected"] == count)

        await eventually(all_connected, what=f"{count} streams connected", within_s=within_s)
        return names

    def streams_lost(self) -> int:
        return int(json.loads((self.directory / "streams.json").read_text())["lost"])

    async def start_agent(self, node: str, *, fifo: bool = False) -> RealAgent:
        """On a new node; returns as soon as the process serves."""
        directory = self.directory / node
        directory.mkdir()
        token = await self.add_node(node)
        (directory / "token").write_text(token)
        (directory / "driver.json").write_text(driver_json())
        (directory / "boot_id").write_text("boot-1\n")
        kernel_log = directory / "kmsg"
        os.mkfifo(kernel_log) if fifo else kernel_log.touch()
        agent = await self._run_agent(node, directory)
        self.agents.append(agent)
        return agent

    async def reboot(self, agent: RealAgent, boot_id: str) -> RealAgent:
        """The node comes back with an empty kernel log, and with a disk that was made anew: without an outbox."""
        await self.stop_agent(agent)
        (agent.directory / "boot_id").write_text(f"{boot_id}\n")
        agent.kernel_log.write_text("")
        for left in (*agent.directory.glob("outbox.sqlite*"), agent.directory / "ready.json"):
            left.unlink()
        again = await self._run_agent(agent.node, agent.directory)
        self.agents.append(again)
        return again

    async def _run_agent(self, node: str, directory: Path) -> RealAgent:
        kernel_log = directory / "kmsg"
        command = [sys.executable, "-m", "nvcre_agent", "--node-name", node, "--coordinator", self.addresses["grpc"]]
        command += ["--ca-file", str(self.directory / "ca.crt"), "--token-file", str(directory / "token")]
        command += ["--outbox", str(directory / "outbox.sqlite"), "--kernel-log", str(kernel_log)]
        command += ["--listen", "127.0.0.1:0", "--simulate", str(directory / "driver.json")]
        command += ["--ready-file", str(directory / "ready.json"), "--boot-id-file", str(directory / "boot_id")]
        process = started(command, directory / "agent.log")
        agent = RealAgent(node, directory, process)
        await asyncio.to_thread(wait_for_file, directory / "ready.json", process, directory / "agent.log")
        return agent

    async def stop_agent(self, agent: RealAgent) -> None:
        await asyncio.to_thread(end, agent.process)
        self.agents.remove(agent)

    # Jobs

    async def run_job(self, name: str, nodes: Iterable[str], *, image: str = "any") -> None:
        """A Job whose workers run on these nodes, one each, until the coordinator has noted all of them."""
        body = {
            "apiVersion": "nvcre.nvidia.com/v1alpha1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"workload": {"trainJob": {"runtimeRef": {"kind": "TrainingRuntime", "name": "any"}}}},
        }
        await self.client.create(JOBS, body, NAMESPACE)

        async def running() -> bool:
            status = (await self.client.get(JOBS, name, NAMESPACE)).get("status") or {}
            return any(c["type"] == "InProgress" and c["status"] == "True" for c in status.get("conditions", []))

        await eventually(running, what=f"Job {name} in progress")
        pods = [await self._add_pod(name, node, index, image) for index, node in enumerate(nodes)]

        async def noted() -> bool:
            found = await self.client.list(CONFIG_MAPS, NAMESPACE, field_selector=f"metadata.name={name}-pods")
            return bool(found) and all(pod in found[0]["data"]["pods.json"] for pod in pods)

        await eventually(noted, what=f"pods of Job {name} noted")

    async def _add_pod(self, job: str, node: str, index: int, image: str) -> str:
        name = f"{job}-workload-node-0-{index}-abcde"
        labels = {
            "jobset.sigs.k8s.io/jobset-name": f"{job}-workload",
            "jobset.sigs.k8s.io/replicatedjob-name": "node",
            "jobset.sigs.k8s.io/restart-attempt": "0",
            "batch.kubernetes.io/job-completion-index": str(index),
        }
        pod: JsonObject = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "labels": labels,
                "ownerReferences": [batch_job(f"{job}-workload-node-0")],
            },
            "spec": {
                "nodeName": node,
                "containers": [{"name": "node", "image": image, "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
            },
        }
        created = await self.client.create(PODS, pod, NAMESPACE)
        started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        container = {"name": "node", "image": image, "imageID": "", "ready": True, "restartCount": 0}
        container["state"] = {"running": {"startedAt": started}}
        created["status"] = {"phase": "Running", "startTime": started, "containerStatuses": [container]}
        await self.client.update_status(PODS, created)
        return name

    async def forget_job(self, name: str) -> None:
        for pod in await self.client.list(
            PODS, NAMESPACE, label_selector=f"jobset.sigs.k8s.io/jobset-name={name}-workload"
        ):
            await self.client.delete(PODS, pod["metadata"]["name"], NAMESPACE, grace_period_s=0)
        await self.client.delete(JOBS, name, NAMESPACE)

        async def gone() -> bool:
            left = [*await self.client.list(JOBS, NAMESPACE), *await self.client.list(TRAIN_JOBS, NAMESPACE)]
            return not any(item["metadata"]["name"].startswith(name) for item in left)

        await eventually(gone, what=f"Job {name} gone")


def started(command: list[str], log: Path, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, env=environment or clean_environment())


@asynccontextmanager
async def fleet(directory: Path) -> AsyncIterator[Fleet]:
    """API server and leading coordinator; everything is taken down at the end."""
    with api_server(directory) as server:
        async with await KubeClient.from_kubeconfig(server.kubeconfig) as client:
            account = {"name": "nvcre-agent", "namespace": SYSTEM_NAMESPACE}
            for resource, metadata in ((NAMESPACES, {"name": SYSTEM_NAMESPACE}), (SERVICE_ACCOUNTS, account)):
                body = {"apiVersion": "v1", "kind": resource.kind, "metadata": metadata}
                try:
                    await client.create(resource, body)
                except ApiError as error:
                    if not error.already_exists:
                        raise
            ready, log = directory / "coordinator.json", directory / "coordinator.log"
            command = [sys.executable, "-m", "nvcre_coordinator", "--kubeconfig", str(server.kubeconfig)]
            command += ["--grpc-address", "127.0.0.1:0", "--metrics-address", "127.0.0.1:0"]
            command += ["--health-address", "127.0.0.1:0", "--no-leader-elect", "--ready-file", str(ready)]
            coordinator = started(command, log)
            one = None
            try:
                addresses = await asyncio.to_thread(wait_for_file, ready, coordinator, log)
                one = Fleet(client, server, directory, coordinator, addresses)
                ca = await client.get(CONFIG_MAPS, "nvcre-coordinator-ca", SYSTEM_NAMESPACE)
                (directory / "ca.crt").write_text(ca["data"]["ca.crt"])
                yield one
            finally:
                for agent in list(one.agents) if one is not None else ():
                    with contextlib.suppress(ValueError):
                        await one.stop_agent(agent)  # type: ignore[union-attr]
                if one is not None and one.streams is not None:
                    end(one.streams)
                end(coordinator)
