"""A real control plane whose nodes are kwok's, with the coordinator beside it as a process under its own rights.

Nothing runs in the Pods: kwok says that they run, and that they have ended once `end_pods` was called. There are no
agents. For benchmarks of many Jobs at one time.
"""

from __future__ import annotations

import asyncio
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from nvcre_kube.client import KubeClient
from nvcre_kube.resources import CLUSTER_TRAINING_RUNTIMES, NODES, JsonObject
from nvcre_local.api_servers import ApiServer, real
from nvcre_local.control_plane import commands
from nvcre_local.control_plane.cache import Cache
from nvcre_local.control_plane.ports import free_ports
from nvcre_local.control_plane.projects import read, select
from nvcre_local.processes import Children
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

T = TypeVar("T")

NAMESPACE = "default"
RUNTIME = "one-pod"
GPUS = 8
READY_WITHIN_S = 120.0
AT_ONCE = 16
SCRAPE_EVERY_S = 15.0
UNTIL_THE_END = ("node-initialize.yaml", "node-heartbeat-with-lease.yaml", "pod-ready.yaml", "pod-delete.yaml")
THE_END = "pod-complete.yaml"


@dataclass
class KwokCluster:
    client: KubeClient
    server: ApiServer
    coordinator: int
    """Process id."""
    metrics_url: str
    _children: Children

    async def end_pods(self) -> None:
        """From here on every Pod of a Job exits with 0 as soon as it runs."""
        await self._children.stop("kwok")
        await start_kwok(self._children, self.server, (*UNTIL_THE_END, THE_END))

    async def scrape(self) -> str:
        """What the coordinator's /metrics says."""

        def get() -> str:
            with urllib.request.urlopen(self.metrics_url, timeout=SCRAPE_EVERY_S) as answer:
                return str(answer.read().decode())

        return await asyncio.to_thread(get)

    async def scrape_for_ever(self) -> None:
        """As Prometheus would."""
        while True:
            await asyncio.sleep(SCRAPE_EVERY_S)
            await self.scrape()

    async def api_server_metrics(self) -> list[Metric]:
        kubectl = Cache.of().program(select(read(), None)["kubernetes"], "kubectl")
        words = (str(kubectl), f"--kubeconfig={self.server.kubeconfig}", "get", "--raw", "/metrics")
        process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        text, _ = await process.communicate()
        assert process.returncode == 0
        return list(text_string_to_metric_families(text.decode()))


async def start_kwok(children: Children, server: ApiServer, stages: Iterable[str]) -> None:
    project = select(read(), None)["kwok"]
    cache = Cache.of()
    (port,) = free_ports(1)
    files = tuple(cache.file(project, stage) for stage in stages)
    command = commands.kwok(cache.program(project, "kwok"), server.kubeconfig, files, port=port)
    await children.start(command.name, command.words, command.environment)


async def at_once(create: Callable[[T], Awaitable[object]], items: Iterable[T]) -> None:
    """A few requests at one time, until all are done."""
    allowed = asyncio.Semaphore(AT_ONCE)

    async def one(item: T) -> None:
        async with allowed:
            await create(item)

    await asyncio.gather(*(one(item) for item in items))


@asynccontextmanager
async def kwok_cluster(directory: Path, nodes: int) -> AsyncIterator[KwokCluster]:
    """With `nodes` GPU nodes and the runtime `RUNTIME`; all of it is taken down at the end."""
    children = Children(directory)
    server = await real(children, directory, listen="127.0.0.1:0", say=print)
    try:
        async with await KubeClient.from_kubeconfig(server.kubeconfig) as client:
            await start_kwok(children, server, UNTIL_THE_END)
            await at_once(
                lambda node: client.create(NODES, node), [gpu_node(f"node-{one:04d}") for one in range(nodes)]
            )
            await client.create(CLUSTER_TRAINING_RUNTIMES, runtime())
            ready = directory / "coordinator.json"
            command = [sys.executable, "-m", "nvcre_coordinator", "--kubeconfig", str(server.coordinator)]
            command += ["--grpc-address", "127.0.0.1:0", "--metrics-address", "127.0.0.1:0"]
            command += ["--health-address", "127.0.0.1:0", "--ready-file", str(ready)]
            coordinator = await children.start("coordinator", command)
            served = await children.ready(coordinator, ready, within_s=READY_WITHIN_S)
            metrics_url = f"http://{served['metrics']}/metrics"
            yield KwokCluster(client, server, coordinator.process.pid, metrics_url, children)
    finally:
        await children.stop("coordinator", "kwok")
        await server.stop()


def gpu_node(name: str) -> JsonObject:
    resources = {"cpu": "128", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": str(GPUS)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"nvidia.com/gpu.present": "true"},
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "status": {"allocatable": resources, "capacity": resources},
    }


def runtime() -> JsonObject:
    """One replicated Job of one Pod with one GPU."""
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    pod = {"restartPolicy": "Never", "containers": [{"name": "node", "image": "none", "resources": limits}]}
    template = {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": {"backoffLimit": 0, "template": {"spec": pod}},
    }
    return {
        "apiVersion": CLUSTER_TRAINING_RUNTIMES.api_version,
        "kind": CLUSTER_TRAINING_RUNTIMES.kind,
        "metadata": {"name": RUNTIME, "labels": {"trainer.kubeflow.org/framework": "torch"}},
        "spec": {
            "mlPolicy": {"numNodes": 1, "torch": {}},
            "template": {"spec": {"replicatedJobs": [{"name": "node", "template": template}]}},
        },
    }
