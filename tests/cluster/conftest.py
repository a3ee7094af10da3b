"""One real control plane a test run, two of our kubelets on it, and a namespace a test.

Run by `make test-cluster`. Nothing here skips: a control plane that is missing or does not come up is a failure.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from nvcre_kube.client import ApiError, KubeClient
from nvcre_kube.resources import NAMESPACES, PODS
from nvcre_local.control_plane.cache import Cache
from nvcre_local.control_plane.plane import wait_for_service_account
from nvcre_local.control_plane.projects import KUBERNETES, read, select

JsonObject = dict[str, Any]
HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
UP_WITHIN_S = 300.0
PATIENCE_S = 90.0
NODES = ("node-0", "node-1")
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)


def die_with_parent() -> None:
    """However the test run ends: its control plane must not outlive it."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@dataclass(frozen=True)
class Plane:
    """A control plane that runs, `directory` its temporary one."""

    process: subprocess.Popen[bytes]
    directory: Path
    kubernetes: str
    kubeconfig: Path
    kubelets: Path
    authority: Path

    def kubectl(self, *words: str, stdin: str = "") -> str:
        program = Cache.of().program(select(read(), self.kubernetes)[KUBERNETES], "kubectl")
        command = [str(program), f"--kubeconfig={self.kubeconfig}", *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
        return done.stdout


def start_plane(directory: Path, kubernetes: str, *flags: str) -> Plane:
    """Of its own process, as a person starts it. Fails the test when it does not come up."""
    temporary = directory / "tmp"
    temporary.mkdir()
    ready = directory / "ready.json"
    with (directory / "control-plane.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "nvcre_local.control_plane", "up", "--kubernetes", kubernetes),
                *("--ready-file", str(ready)),
                *flags,
            ],
            stdout=log,
            stderr=log,
            env={**os.environ, "TMPDIR": str(temporary)},
            preexec_fn=die_with_parent,  # noqa: PLW1509  (no threads)
        )
    served = json.loads(wait_for_file(ready, process, directory / "control-plane.log", UP_WITHIN_S))
    paths = {key: Path(served[key]) for key in ("kubeconfig", "kubelets", "authority")}
    return Plane(process, temporary, kubernetes, **paths)


def wait_for_file(file: Path, process: subprocess.Popen[bytes], log: Path, within_s: float) -> str:
    until = time.monotonic() + within_s
    while not file.exists():
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            pytest.fail(f"{file.name} was not written, {log.name} says:\n{log.read_text(errors='replace')[-4000:]}")
        time.sleep(0.05)
    return file.read_text()


def stop(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(30)


@pytest.fixture(scope="session", params=[project.version for project in read()[KUBERNETES]])
def plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    found = start_plane(tmp_path_factory.mktemp("plane"), request.param)
    yield found
    assert stop(found.process) == 0
    assert list(found.directory.iterdir()) == []


@pytest.fixture(scope="session")
def kubelets(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    directory = tmp_path_factory.mktemp("kubelets")
    ready, log = directory / "ready.json", directory / "node.log"
    command = [sys.executable, "-m", "nvcre_local.node", "--kubeconfig", str(plane.kubelets), "--root", str(directory)]
    command += ["--kubelet-client-ca", str(plane.authority), "--ready-file", str(ready)]
    command += [word for node in NODES for word in ("--node", node)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, preexec_fn=die_with_parent)  # noqa: PLW1509
    wait_for_file(ready, process, log, PATIENCE_S)
    yield
    assert stop(process) == 0


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

    async def pods(self) -> dict[str, str]:
        """Name -> phase."""
        pods = await self.client.list(PODS, self.namespace)
        return {pod["metadata"]["name"]: pod.get("status", {}).get("phase", "") for pod in pods}

    async def log(self, pod: str, **options: Any) -> str:
        chunks = [chunk async for chunk in self.client.pod_log(pod, self.namespace, **options)]
        return b"".join(chunks).decode()


@pytest.fixture
async def api(plane: Plane, request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    name = request.node.originalname.replace("_", "-")[:55].rstrip("-")
    async with await KubeClient.from_kubeconfig(plane.kubeconfig) as client:
        await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        await wait_for_service_account(client, name)
        yield Api(client, name)
        try:
            await client.delete(NAMESPACES, name)
        except ApiError as error:
            if not error.not_found:
                raise


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
