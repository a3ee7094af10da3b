"""What the cluster tests start as processes: a control plane, kubelets, coordinators; and agents as Pods.

Each as it runs in a cluster and with the rights it has there: the kubelets' of the built-in role system:node, the
coordinator's of daemonset/rbac.yaml by a real token of its ServiceAccount, the agents' none. No test runs one as admin.
Everything dies with the test run, however that ends.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from nvcre_kube.client import ApiError, KubeClient
from nvcre_kube.resources import NODE_HEALTHS, PODS
from nvcre_local import cluster_objects as objects
from nvcre_local.control_plane.cache import Cache
from nvcre_local.control_plane.projects import KUBERNETES, read, select
from nvcre_local.simulation import SimulationDirectory
from support.processes import die_with_parent, wait_for_file

REPOSITORY = Path(__file__).parents[2]
UP_WITHIN_S = 300.0
PATIENCE_S = 90.0
NODES = ("node-0", "node-1")
AGENT_HEARTBEAT_S = 5
NEED_IMAGES = ("Deployment", "DaemonSet", "PodDisruptionBudget", "Service")
"""Of daemonset/: what runs containers, or speaks of those that do. Here these are processes."""


def start(command: Sequence[str], log: Path, **environment: str) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
            preexec_fn=die_with_parent,  # noqa: PLW1509  (no threads)
        )


def stop(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(30)


# -- control plane -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plane:
    """A control plane that runs, `directory` its temporary one."""

    process: subprocess.Popen[bytes]
    directory: Path
    kubernetes: str
    ready_file: Path
    url: str
    kubeconfig: Path
    kubelets: Path
    authority: Path

    def kubectl(self, *words: str, stdin: str = "") -> str:
        program = Cache.of().program(select(read(), self.kubernetes)[KUBERNETES], "kubectl")
        command = [str(program), f"--kubeconfig={self.kubeconfig}", *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
        return done.stdout

    def manifests(self) -> list[dict[str, Any]]:
        """Every object of daemonset/."""
        rendered = self.kubectl("kustomize", str(REPOSITORY / "daemonset"))
        return [document for document in yaml.safe_load_all(rendered) if document]

    def install(self) -> None:
        """Our CRDs, rights and LogProfiles, for real. Once more does no harm."""
        wanted = [one for one in self.manifests() if one["kind"] not in NEED_IMAGES]
        definitions = [one for one in wanted if one["kind"] == "CustomResourceDefinition"]
        self.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(definitions))
        names = [one["metadata"]["name"] for one in definitions]
        self.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", *names)
        others = [one for one in wanted if one not in definitions]
        self.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(others))

    def pids_of(self, program: str) -> list[int]:
        """Of the control plane's processes, those that run `program`."""
        children = [int(word) for file in _tasks(self.process.pid) for word in (file / "children").read_text().split()]
        return [pid for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == program[:15]]

    def token_of(self, service_account: str) -> str:
        """Another one each time."""
        words = ("create", "token", service_account, f"--namespace={objects.SYSTEM_NAMESPACE}", "--duration=12h")
        return self.kubectl(*words).strip()

    def kubeconfig_with(self, token: str, file: Path) -> Path:
        identity = objects.Identity("token", (), token)
        return objects.write_secret(file, objects.kubeconfig(self.url, identity, ca=self.authority))


def _tasks(pid: int) -> Iterator[Path]:
    return Path(f"/proc/{pid}/task").iterdir()


def claims(token: str) -> dict[str, Any]:
    """What a JWT says; nobody checks its signature here."""
    payload = token.split(".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return found


def start_plane(directory: Path, kubernetes: str, *flags: str) -> Plane:
    """Of its own process, as a person starts it. Fails the test when it does not come up."""
    temporary = directory / "tmp"
    temporary.mkdir()
    ready, log = directory / "ready.json", directory / "control-plane.log"
    command = [sys.executable, "-m", "nvcre_local.control_plane", "up", "--kubernetes", kubernetes]
    process = start([*command, "--ready-file", str(ready), *flags], log, TMPDIR=str(temporary))
    served = wait_for_file(ready, process, log, UP_WITHIN_S)
    paths = {key: Path(served[key]) for key in ("kubeconfig", "kubelets", "authority")}
    return Plane(process, temporary, kubernetes, ready, served["url"], **paths)


# -- what runs on it ---------------------------------------------------------------------------------------------------


@contextmanager
def kubelets_of(
    plane: Plane,
    directory: Path,
    *flags: str,
    nodes: Iterable[str] = NODES,
    simulation: SimulationDirectory | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """With `simulation`, Pods find its nccl-tests and agents its driver (`agents` below). The Nodes go with them."""
    nodes = tuple(nodes)
    ready, log = directory / "kubelets.json", directory / "kubelets.log"
    command = [sys.executable, "-m", "nvcre_local.node", "--kubeconfig", str(plane.kubelets)]
    command += ["--root", str(directory / "pods"), "--kubelet-client-ca", str(plane.authority)]
    command += [word for node in nodes for word in ("--node", node)]
    command += ["--simulation", str(simulation.root)] if simulation is not None else []
    process = start([*command, *flags, "--ready-file", str(ready)], log)
    wait_for_file(ready, process, log, PATIENCE_S)
    yield process
    assert stop(process) == 0
    plane.kubectl("delete", "nodes", *nodes, "--ignore-not-found")


@dataclass(frozen=True)
class Coordinator:
    """`identity` stands in the Lease, `credential` in audit logs: its token. The addresses are host:port."""

    process: subprocess.Popen[bytes]
    identity: str
    credential: str
    log: Path
    grpc: str
    metrics: str
    health: str


def start_coordinator(
    plane: Plane, directory: Path, *flags: str, identity: str = "coordinator", grpc: str = "127.0.0.1:0"
) -> Coordinator:
    """As its Deployment does: it competes for the Lease, with the rights of daemonset/rbac.yaml (`plane.install`).

    Two at a time need two identities; one that starts again as an earlier one takes its `grpc` address.
    """
    ready, log = directory / f"{identity}.json", directory / f"{identity}.log"
    ready.unlink(missing_ok=True)
    token = plane.token_of(objects.COORDINATOR_ACCOUNT)
    access = plane.kubeconfig_with(token, directory / f"{identity}.kubeconfig")
    command = [sys.executable, "-m", "nvcre_coordinator", f"--kubeconfig={access}", "--leader-elect"]
    command += [f"--grpc-address={grpc}", "--metrics-address=127.0.0.1:0", "--health-address=127.0.0.1:0"]
    command += [f"--agent-heartbeat={AGENT_HEARTBEAT_S}", f"--ready-file={ready}", *flags]
    process = start(command, log, POD_NAME=identity)
    served = wait_for_file(ready, process, log, PATIENCE_S)
    credential = f"JTI={claims(token)['jti']}"
    return Coordinator(process, identity, credential, log, served["grpc"], served["metrics"], served["health"])


@contextmanager
def coordinator_of(plane: Plane, directory: Path, *flags: str, **more: str) -> Iterator[Coordinator]:
    """One that runs for a while, and is seen to end as it should."""
    running = start_coordinator(plane, directory, *flags, **more)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            assert stop(running.process) == 0, running.log.read_text(errors="replace")[-4000:]


@asynccontextmanager
async def agents(
    client: KubeClient, coordinator: str, simulation: SimulationDirectory, nodes: Iterable[str] = NODES
) -> AsyncIterator[None]:
    """An agent Pod on each node (kubelets_of with the same `simulation`), connected while this runs.

    `coordinator` is the gRPC address of any replica: a follower names the leader.
    """
    nodes = tuple(nodes)
    for node in nodes:
        plan = objects.AgentPlan(
            node,
            coordinator,
            simulate=simulation.driver_file(node),
            kernel_log=simulation.kernel_log(node),
            nccl_tests=simulation.probe_programs(node),
        )
        await client.create(PODS, objects.agent_pod(plan))
    try:
        await _until_connected(client, set(nodes))
        yield
    finally:
        for node in nodes:
            await client.delete(PODS, f"nvcre-agent-{node}", objects.SYSTEM_NAMESPACE)
        await _until_gone(client, nodes)
        for node in nodes:  # what it told is not to be taken for the word of the next agent
            await client.delete(NODE_HEALTHS, node)


async def _until_connected(client: KubeClient, nodes: set[str]) -> None:
    until = time.monotonic() + PATIENCE_S
    while True:
        healths = {one["metadata"]["name"]: one.get("status") or {} for one in await client.list(NODE_HEALTHS)}
        if all(healths.get(node, {}).get("verdict") not in (None, "Blind", "Unknown") for node in nodes):
            return
        assert time.monotonic() < until, f"not every agent is connected: {healths}"
        await asyncio.sleep(0.1)


async def _until_gone(client: KubeClient, nodes: Iterable[str]) -> None:
    until = time.monotonic() + PATIENCE_S
    for node in nodes:
        while True:
            try:
                await client.get(PODS, f"nvcre-agent-{node}", objects.SYSTEM_NAMESPACE)
            except ApiError as error:
                if not error.not_found:
                    raise
                break
            assert time.monotonic() < until, f"the agent of {node} does not end"
            await asyncio.sleep(0.1)


def processes_with(text: str) -> list[str]:
    """Command lines of this machine's processes whose arguments or environment have `text`."""
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit() and int(directory.name) != os.getpid():
            try:
                arguments = (directory / "cmdline").read_bytes()
                if text.encode() in arguments + (directory / "environ").read_bytes():
                    found.append(arguments.replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue  # it ended while we looked
    return found
