"""A whole cluster on one machine: starts every process of it in order, watches them, and takes all of it down again.

API server, then objects, then coordinator and kubelets, then one agent Pod a node; `up` returns when every agent is
connected. What runs is what runs in a cluster: the parts know each other only through the API server. The scenario, if
there is one, is played from here (scenario_engine).
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from nvcre_kube.client import CONNECTION_ERRORS, ApiError, KubeClient
from nvcre_kube.resources import (
    LOG_PROFILES,
    NAMESPACES,
    NODE_HEALTHS,
    PODS,
    SERVICE_ACCOUNTS,
    TRAINING_RUNTIMES,
    JsonObject,
    Resource,
)

from nvcre_local import api_servers
from nvcre_local import cluster_objects as objects
from nvcre_local.api_servers import ApiServer, ServerKind
from nvcre_local.cluster_hardware import Hardware
from nvcre_local.processes import Child, Children
from nvcre_local.scenario import Scenario, node_name
from nvcre_local.scenario_engine import ScenarioEngine
from nvcre_local.simulation import SimulationDirectory

log = logging.getLogger(__name__)

READY_WITHIN_S = 30.0
AGENTS_WITHIN_S = 60.0
SIGHT_WITHIN_S = 10.0
LOOK_EVERY_S = 0.1
LOOK_FOR_NEW_TASKS_S = 0.5
LOCAL_HEARTBEAT_S = 5

T = TypeVar("T")


class ClusterBroken(Exception):
    """The cluster cannot be set up; the message names what and the remedy."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """Either a scenario, or the GPUs of this machine with nccl-tests. `listen` is the API server's address, `server`
    its kind; `attach` instead is the ready file of a real control plane that runs already."""

    scenario: Scenario | None
    hardware: Hardware | None = None
    nccl_tests: Path | None = None
    namespaces: tuple[str, ...] = ("default",)
    listen: str = "127.0.0.1:0"
    keep: bool = False
    server: ServerKind = ServerKind.EMBEDDED
    attach: Path | None = None

    @property
    def nodes(self) -> dict[str, int]:
        """Names and GPU counts."""
        if self.scenario is not None:
            return {node_name(index): self.scenario.gpus_per_node for index in range(self.scenario.nodes)}
        if self.hardware is not None:
            return {socket.gethostname().partition(".")[0].lower(): self.hardware.gpus}
        raise ClusterBroken("neither a scenario nor a GPU")


class LocalCluster:
    """`async with LocalCluster(plan, say): ...`; `say` gets one line a step.

    `first` is called once the API server has its objects, before anything else starts: the moment to find out that a
    manifest is refused.
    """

    def __init__(
        self,
        plan: ClusterPlan,
        say: Callable[[str], None],
        first: Callable[[KubeClient], Awaitable[None]] | None = None,
    ) -> None:
        self._plan = plan
        self._say = say
        self._first = first
        self._began = time.monotonic()
        self._grpc_address = "127.0.0.1:0"
        self._tasks: set[asyncio.Task[None]] = set()
        self.directory = Path(tempfile.mkdtemp(prefix="nvcre-"))
        self.kubeconfig = self.directory / "kubeconfig"
        self.client: KubeClient
        self._children: Children
        self._coordinator: Child
        self._server: ApiServer | None = None
        self._simulation: SimulationDirectory | None = None

    async def __aenter__(self) -> Self:
        self._children = Children(self.log_directory)
        try:
            await self.supervise(self._up())
        except BaseException:
            await to_the_end(self._down())
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await to_the_end(self._down())

    @property
    def log_directory(self) -> Path:
        logs = self.directory / "logs"
        logs.mkdir(exist_ok=True)
        return logs

    async def supervise(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work`; raises as soon as a process of the cluster (ChildDied) or one of our own tasks has died."""
        task = asyncio.ensure_future(work)
        try:
            while True:
                watched: list[asyncio.Future[Any]] = [task, self._children.died, *self._tasks]
                await asyncio.wait(watched, timeout=LOOK_FOR_NEW_TASKS_S, return_when=asyncio.FIRST_COMPLETED)
                if self._children.died.done():  # asked first: a death also makes `work` fail, and is the better answer
                    raise self._children.died.result()
                if task.done():
                    return task.result()
                for done in [background for background in self._tasks if background.done()]:
                    self._tasks.discard(done)
                    done.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])  # never raises what the task raised: our own end is the one that counts

    def abandon(self) -> None:
        """The second Ctrl-C: everything dies now, without goodbye."""
        self._children.kill_all()
        if not self._plan.keep:
            _remove(self.directory)

    # -- up ---------------------------------------------------------------------------------------------------------

    async def _up(self) -> None:
        server = self._server = await self._start_api_server()
        self.client = await KubeClient.from_kubeconfig(self.kubeconfig)
        if server.watch is not None:
            self._tasks.add(asyncio.create_task(server.watch(self.client)))
        await self._create_objects()
        await asyncio.gather(*(server.usable(self.client, name) for name in self._plan.namespaces))
        self._step(f"API server at {server.url}")
        if self._first is not None:
            await self._first(self.client)
        if self._plan.scenario is not None:
            self._simulation = SimulationDirectory(self.directory / "simulation", self._plan.scenario)
            self._simulation.write()
        await asyncio.gather(self._start_coordinator(server), self._start_kubelets(server))
        self._step("coordinator and kubelets run")
        await self._create_agents()
        await self._agents_connected()
        self._step(f"{len(self._plan.nodes)} agents connected")
        if self._plan.scenario is not None and self._simulation is not None:
            engine = ScenarioEngine(self._plan.scenario, self._simulation, self.client, self._kill_coordinator)
            self._tasks.add(asyncio.create_task(engine.run()))

    def _step(self, text: str) -> None:
        self._say(f"{text} ({time.monotonic() - self._began:.1f} s)")

    async def _start_api_server(self) -> ApiServer:
        if self._plan.attach is not None:
            return await api_servers.attached(self._plan.attach, self.directory, say=self._say)
        check_free(self._plan.listen)
        if self._plan.server is ServerKind.REAL:
            return await api_servers.real(self._children, self.directory, listen=self._plan.listen, say=self._say)
        return await api_servers.embedded(self._children, self.directory, listen=self._plan.listen)

    async def _create_objects(self) -> None:
        for name in dict.fromkeys((objects.SYSTEM_NAMESPACE, *self._plan.namespaces)):
            await self._ensure(NAMESPACES, objects.namespace(name))
        for account in (objects.AGENT_ACCOUNT, objects.COORDINATOR_ACCOUNT):
            await self._ensure(SERVICE_ACCOUNTS, objects.service_account(account))
        for profile in objects.log_profiles():
            await self._ensure(LOG_PROFILES, profile)
        for name in self._plan.namespaces:
            if (runtime := self._runtime(name)) is not None:
                await self._create_runtime(runtime)

    def _runtime(self, in_namespace: str) -> JsonObject | None:
        if self._plan.scenario is not None:
            return objects.simulated_runtime(self._plan.scenario, in_namespace)
        if self._plan.hardware is not None and self._plan.nccl_tests is not None:
            return objects.real_runtime(self._plan.hardware, self._plan.nccl_tests, in_namespace)
        return None

    async def _ensure(self, resource: Resource, obj: JsonObject) -> None:
        try:
            await self.client.create(resource, obj)
        except ApiError as error:
            if not error.already_exists:
                raise ClusterBroken(f"cannot create {resource.kind} {obj['metadata']['name']}: {error}") from error

    async def _create_runtime(self, runtime: JsonObject) -> None:
        """Ours or none: one of this name that somebody else made would run something else."""
        name, namespace = runtime["metadata"]["name"], runtime["metadata"]["namespace"]
        try:
            await self.client.create(TRAINING_RUNTIMES, runtime)
        except ApiError as error:
            remedy = "; delete it, or take another namespace" if error.already_exists else ""
            raise ClusterBroken(f"cannot create TrainingRuntime {namespace}/{name}: {error}{remedy}") from error

    async def _start_coordinator(self, server: ApiServer) -> None:
        """Also the second time: then at the address that the agents know."""
        ready = self.directory / "coordinator.json"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "nvcre_coordinator", f"--kubeconfig={server.coordinator}"]
        command += [f"--namespace={objects.SYSTEM_NAMESPACE}", f"--grpc-address={self._grpc_address}"]
        command += ["--metrics-address=127.0.0.1:0", "--health-address=127.0.0.1:0", "--no-leader-elect"]
        command += [f"--agent-heartbeat={LOCAL_HEARTBEAT_S}", f"--ready-file={ready}"]
        self._coordinator = await self._children.start("coordinator", command)
        addresses = await self._children.ready(self._coordinator, ready, within_s=READY_WITHIN_S)
        self._grpc_address = str(addresses["grpc"])

    async def _start_kubelets(self, server: ApiServer) -> None:
        ready = self.directory / "node.json"
        command = [sys.executable, "-m", "nvcre_local.node", "--kubeconfig", str(server.kubelets)]
        for node, gpus in self._plan.nodes.items():
            command += ["--node", f"{node}={gpus}"]
        command += ["--root", str(self.directory / "pods"), *server.kubelet_flags]
        if self._simulation is not None:
            command += ["--simulation", str(self._simulation.root)]
        elif self._plan.hardware is not None:
            command += ["--gpu-product", self._plan.hardware.product]
        child = await self._children.start("node", [*command, "--ready-file", str(ready)])
        await self._children.ready(child, ready, within_s=READY_WITHIN_S)

    async def _create_agents(self) -> None:
        for node in self._plan.nodes:
            plan = objects.AgentPlan(node, self._grpc_address, nccl_tests=self._real_probe_programs())
            if self._simulation is not None:
                plan = objects.AgentPlan(
                    node,
                    self._grpc_address,
                    simulate=self._simulation.driver_file(node),
                    kernel_log=self._simulation.kernel_log(node),
                    nccl_tests=self._simulation.probe_programs(node),
                )
            await self.client.create(PODS, objects.agent_pod(plan))

    def _real_probe_programs(self) -> Path | None:
        return self._plan.nccl_tests.parent if self._plan.nccl_tests is not None else None

    async def _agents_connected(self) -> None:
        """Until every agent told what its node has, and, if it can, what its GPUs say: a run should not begin Blind."""
        began = time.monotonic()
        while True:
            statuses = {h["metadata"]["name"]: h.get("status") or {} for h in await self.client.list(NODE_HEALTHS)}
            missing = sorted(node for node in self._plan.nodes if not statuses.get(node, {}).get("inventory"))
            blind = [node for node, status in statuses.items() if status.get("verdict") == "Blind"]
            waited_s = time.monotonic() - began
            if not missing and (not blind or waited_s > SIGHT_WITHIN_S):
                return
            if waited_s > AGENTS_WITHIN_S:
                raise ClusterBroken(
                    f"no agent connected from {', '.join(missing)} within {AGENTS_WITHIN_S:.0f} s; "
                    f"{await self._last_words_of_agent(missing[0])}"
                )
            await asyncio.sleep(LOOK_EVERY_S)

    async def _last_words_of_agent(self, node: str) -> str:
        name = f"nvcre-agent-{node}"
        try:
            pod = await self.client.get(PODS, name, objects.SYSTEM_NAMESPACE)
            phase = (pod.get("status") or {}).get("phase", "Pending")
            log_text = b"".join([c async for c in self.client.pod_log(name, objects.SYSTEM_NAMESPACE, tail_lines=12)])
        except (ApiError, *CONNECTION_ERRORS) as error:
            return f"its Pod's log cannot be read: {error}"
        return f"its Pod is {phase}, the log ends:\n{log_text.decode(errors='replace')}"

    # -- while it runs ----------------------------------------------------------------------------------------------

    async def _kill_coordinator(self, restart_after_s: float) -> None:
        await self._children.kill(self._coordinator)
        log.info("coordinator_killed restart_after_s=%.1f", restart_after_s)

        async def restart() -> None:
            await asyncio.sleep(restart_after_s)
            assert self._server is not None
            await self._start_coordinator(self._server)

        self._tasks.add(asyncio.create_task(restart()))

    # -- down -------------------------------------------------------------------------------------------------------

    async def _down(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._children.stop("coordinator", "node")
        if self._server is not None:
            await self._server.stop()
        if hasattr(self, "client"):
            await self.client.close()
        if self._plan.keep:
            self._say(f"kept: {self.directory} (logs in {self.log_directory})")
        else:
            _remove(self.directory)


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """A Ctrl-C while the cluster is taken down must not stop that half way; it counts afterwards."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError


def _remove(directory: Path) -> None:
    """A process that is just dying may still write one more file: try again."""
    for _ in range(20):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(0.05)


def check_free(address: str) -> None:
    """Raises ClusterBroken when somebody else listens on an address that was asked for."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ClusterBroken(f"--listen {address!r} is not HOST:PORT, such as 127.0.0.1:0")
    if port == "0":
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError as error:
            raise ClusterBroken(
                f"cannot listen on {address}: {error.strerror}; take another port, or 0 for any"
            ) from None
