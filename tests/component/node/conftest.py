"""The real node runtime against the real embedded API server, both as processes."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from nvcre_kube.client import ApiError, KubeClient
from nvcre_kube.resources import EVENTS, NAMESPACES, PODS, SERVICE_ACCOUNTS, JsonObject
from support.api_server import REPOSITORY, api_server
from support.eventually import eventually
from support.processes import wait_for_file


class Control:
    """One API server and the node runtimes that a test starts against it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._stack = ExitStack()
        server = self._stack.enter_context(api_server(directory, crd_dirs=[REPOSITORY / "local/nvcre_local/crds"]))
        self.kubeconfig, self.kubelet_token = server.kubeconfig, server.kubelet_token_file
        self._children: list[subprocess.Popen[bytes]] = []

    def node(
        self, *flags: str, nodes: tuple[str, ...] = ("node-0", "node-1"), root: str = "root"
    ) -> subprocess.Popen[bytes]:
        """Started and ready; the last one wins `self.ports`."""
        number = len(self._children)
        ready, log = self.directory / f"node-{number}.json", self.directory / f"nvcre_local.node-{number}.log"
        command = [sys.executable, "-m", "nvcre_local.node", "--kubeconfig", str(self.kubeconfig)]
        command += ["--root", str(self.directory / root), "--kubelet-token-file", str(self.kubelet_token)]
        command += ["--ready-file", str(ready), *(word for node in nodes for word in ("--node", node)), *flags]
        with log.open("wb") as output:
            child = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | {"NOT_FOR_PODS": "1"})
        self._children.append(child)
        self.ports: dict[str, int] = wait_for_file(ready, child, log)["nodes"]
        return child

    def stop(self) -> None:
        for child in reversed(self._children):
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
                child.wait(15)
        self._stack.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Control]:
    """For tests that only run Pods; has trainer and scheduler and two nodes with 8 GPUs."""
    control = Control(tmp_path_factory.mktemp("cluster"))
    try:
        control.node("--trainer", "--scheduler")
        yield control
    finally:
        control.stop()


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    """For tests that start, end and kill node runtimes."""
    own = Control(tmp_path)
    try:
        yield own
    finally:
        own.stop()


class Api:
    """What the tests say often, in a namespace of the test's own."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self.client = client
        self.namespace = namespace

    async def run(self, name: str, *command: str, **spec: Any) -> JsonObject:
        container: JsonObject = {"name": "main", "image": "none", "command": list(command)}
        container |= spec.pop("container", {})
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"containers": [container], "restartPolicy": "Never", **spec},
        }
        return await self.client.create(PODS, pod)

    async def until(self, look: Callable[[], Awaitable[Any]]) -> Any:
        """What `look` returns once that is neither None nor empty."""
        return await eventually(look)

    async def pod(self, name: str) -> JsonObject | None:
        try:
            return await self.client.get(PODS, name, self.namespace)
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def phase(self, name: str, *phases: str) -> JsonObject:
        async def look() -> JsonObject | None:
            pod = await self.pod(name)
            return pod if pod and pod.get("status", {}).get("phase") in phases else None

        return dict(await self.until(look))

    async def gone(self, name: str) -> None:
        async def look() -> bool:
            return await self.pod(name) is None

        await self.until(look)

    async def log(self, name: str, **options: Any) -> bytes:
        return b"".join([chunk async for chunk in self.client.pod_log(name, self.namespace, **options)])

    async def logged(self, name: str, text: bytes) -> bytes:
        async def look() -> bytes | None:
            try:
                log = await self.log(name)
            except ApiError:
                return None  # not started yet
            return log if text in log else None

        return bytes(await self.until(look))

    async def event(self, name: str, reason: str) -> str:
        async def look() -> str:
            events = await self.client.list(EVENTS, self.namespace)
            of_it = [e for e in events if e["involvedObject"]["name"] == name and e["reason"] == reason]
            return str(of_it[0]["message"]) if of_it else ""

        return str(await self.until(look))


async def connect(control: Control, namespace: str) -> Api:
    client = await KubeClient.from_kubeconfig(control.kubeconfig)
    await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "worker", "namespace": namespace}}
    await client.create(SERVICE_ACCOUNTS, account)
    return Api(client, namespace)


def _namespace(request: pytest.FixtureRequest) -> str:
    return str(request.node.originalname).replace("_", "-")[:55].rstrip("-") + f"-{abs(hash(request.node.name)) % 9999}"


@pytest.fixture
async def api(shared: Control, request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    api = await connect(shared, _namespace(request))
    yield api
    for pod in await api.client.list(PODS, api.namespace):
        try:
            await api.client.delete(PODS, pod["metadata"]["name"], api.namespace, grace_period_s=0)
        except ApiError as error:
            if not error.not_found:
                raise
    await api.client.close()


@pytest.fixture
async def own_api(control: Control, request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    api = await connect(control, _namespace(request))
    yield api
    await api.client.close()


def processes_with(text: str) -> list[int]:
    """Processes of this machine whose command line has `text`."""
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                if text.encode() in (directory / "cmdline").read_bytes() and int(directory.name) != os.getpid():
                    found.append(int(directory.name))
            except OSError:
                continue
    return found
