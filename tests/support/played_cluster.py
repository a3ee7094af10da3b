"""A coordinator process against the embedded API server in a process of its own, and what surrounds them.

Trainer and kubelet are played by hand: TrainJob conditions and Pods are written through the API, and pod logs come from
a small HTTPS server that answers as a kubelet does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from nvcre_kube.client import ApiError, KubeClient
from nvcre_kube.resources import (
    BANDWIDTH_MEASUREMENTS,
    EVENTS,
    GOODPUT_MEASUREMENTS,
    JOBS,
    LOG_PROFILES,
    NAMESPACES,
    NODE_HEALTHS,
    NODES,
    PODS,
    TRAIN_JOBS,
)

from support.api_server import api_server
from support.eventually import eventually
from support.owners import batch_job

ROOT = Path(__file__).parents[2]
WITHIN_S = 30.0
NAMESPACE = "default"


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Kubelet:
    """Serves container logs by pod name; a followed log ends when the pod is in `ended`, and breaks when it is `down`.

    Where the lines of a log carry the stamps of a kubelet, `sinceTime` is heeded.
    """

    logs: dict[str, bytes] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    down: bool = False
    port: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        pod = request.match_info["pod"]
        if self.down:
            return web.Response(status=503, text="down")
        if pod not in self.logs:
            return web.Response(status=404, text="no such pod")
        text = self.logs[pod]
        if request.query.get("timestamps") == "true":
            stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000000000Z").encode()
            text = b"".join(stamp + b" " + line for line in text.splitlines(keepends=True))
        if request.query.get("follow") != "true":
            return web.Response(body=text)
        response = web.StreamResponse()
        await response.prepare(request)
        since = request.query.get("sinceTime", "")[:19].encode()
        lines = self.logs[pod].splitlines(keepends=True)
        sent = sum(len(line) for line in lines if re.match(rb"\d{4}-\d\d-\d\dT", line) and line[:19] < since)
        while True:
            if self.down and request.transport is not None:
                request.transport.abort()
                return response
            ended = pod in self.ended
            if request.transport is None or request.transport.is_closing():
                return response
            if len(self.logs[pod]) > sent:
                await response.write(self.logs[pod][sent:])
                sent = len(self.logs[pod])
            if ended:
                return response
            await asyncio.sleep(0.05)


def self_signed(directory: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kubelet")])
    start = datetime.now(UTC) - timedelta(minutes=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(hours=1))
        .sign(key, hashes.SHA256())
    )
    pem = directory / "kubelet.pem"
    pem.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context


@dataclass
class Cluster:
    client: KubeClient
    kubelet: Kubelet
    kubeconfig: Path
    directory: Path
    coordinator: asyncio.subprocess.Process | None = None

    async def start(self, *flags: str) -> dict[str, str]:
        ready = self.directory / "coordinator.json"
        ready.unlink(missing_ok=True)
        log = (self.directory / "coordinator.log").open("ab")
        self.coordinator = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "nvcre_coordinator", "--kubeconfig", str(self.kubeconfig),
            "--grpc-address", "127.0.0.1:0", "--metrics-address", "127.0.0.1:0", "--health-address", "127.0.0.1:0",
            "--no-leader-elect", "--ready-file", str(ready), *flags,
            stderr=log,
        )  # fmt: skip
        log.close()

        async def is_ready() -> bool:
            assert self.coordinator is not None
            assert self.coordinator.returncode is None, self.log()
            return ready.exists()

        await eventually(is_ready)
        self.addresses: dict[str, str] = json.loads(ready.read_text())
        return self.addresses

    async def kill(self) -> None:
        assert self.coordinator is not None
        self.coordinator.kill()
        await self.coordinator.wait()

    async def stop(self) -> int:
        assert self.coordinator is not None
        with contextlib.suppress(ProcessLookupError):
            self.coordinator.terminate()
        return await self.coordinator.wait()

    def log(self) -> str:
        return (self.directory / "coordinator.log").read_text()

    async def add_node(self, name: str) -> None:
        labels = {"nvidia.com/gpu.present": "true"}
        node = await self.client.create(
            NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        )
        node["status"] = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.kubelet.port}},
        }
        await self.client.update_status(NODES, node)

    async def create_job(self, name: str, spec: dict[str, Any] | None = None) -> dict[str, Any]:
        train_job = {"trainJob": {"runtimeRef": {"kind": "TrainingRuntime", "name": "any"}}}
        body = {
            "apiVersion": "nvcre.nvidia.com/v1alpha1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"workload": train_job, **(spec or {})},
        }
        return await self.client.create(JOBS, body, NAMESPACE)

    async def job(self, name: str) -> dict[str, Any]:
        return await self.client.get(JOBS, name, NAMESPACE)

    async def condition(self, name: str, kind: str) -> dict[str, Any]:
        conditions = (await self.job(name)).get("status", {}).get("conditions", [])
        return next((item for item in conditions if item["type"] == kind), {})

    async def until(self, name: str, kind: str, status: str, reason: str | None = None) -> dict[str, Any]:
        async def holds() -> dict[str, Any] | None:
            condition = await self.condition(name, kind)
            fits = condition.get("status") == status and reason in (None, condition.get("reason"))
            return condition if fits else None

        try:
            found: dict[str, Any] = await eventually(holds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{json.dumps(await self.job(name), indent=1)}\n{self.log()}") from error
        return found

    async def measured(self, goodput_measurement: str, **status: Any) -> None:
        """Told by hand, as soon as there is such a measurement."""

        async def written() -> bool:
            try:
                await self.client.merge_patch(
                    GOODPUT_MEASUREMENTS, goodput_measurement, {"status": status}, NAMESPACE, subresource="status"
                )
            except ApiError as error:
                if not error.not_found:
                    raise
                return False
            return True

        await eventually(written)

    async def workload(self, job: str) -> dict[str, Any]:
        async def exists() -> dict[str, Any] | None:
            try:
                return await self.client.get(TRAIN_JOBS, f"{job}-workload", NAMESPACE)
            except ApiError as error:
                if error.not_found:
                    return None
                raise

        found: dict[str, Any] = await eventually(exists)
        return found

    async def finish_workload(self, job: str, kind: str, message: str) -> None:
        obj = await self.workload(job)
        obj["status"] = {
            "conditions": [
                {
                    "type": kind,
                    "status": "True",
                    "reason": "JobsCompleted" if kind == "Complete" else "JobsFailed",
                    "message": message,
                    "lastTransitionTime": now(),
                }
            ]
        }
        await self.client.update_status(TRAIN_JOBS, obj)

    async def add_pod(self, job: str, replicated_job: str, node: str, *, index: int = 0, attempt: int = 0) -> str:
        name = f"{job}-workload-{replicated_job}-0-{index}-abcd{attempt}"
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "ownerReferences": [batch_job(f"{job}-workload-{replicated_job}-0")],
                "labels": {
                    "jobset.sigs.k8s.io/jobset-name": f"{job}-workload",
                    "jobset.sigs.k8s.io/replicatedjob-name": replicated_job,
                    "jobset.sigs.k8s.io/restart-attempt": str(attempt),
                    "batch.kubernetes.io/job-completion-index": str(index),
                },
            },
            "spec": {"nodeName": node, "containers": [{"name": "node", "image": "any"}]},
        }
        await self.client.create(PODS, pod, NAMESPACE)
        await self.set_pod(name, "Running", {"running": {"startedAt": now()}})
        self.kubelet.logs.setdefault(name, b"")
        return name

    async def set_pod(self, name: str, phase: str, state: dict[str, Any]) -> None:
        pod = await self.client.get(PODS, name, NAMESPACE)
        container = {"name": "node", "image": "any", "imageID": "", "ready": False, "restartCount": 0, "state": state}
        pod["status"] = {"phase": phase, "startTime": now(), "containerStatuses": [container]}
        await self.client.update_status(PODS, pod)

    async def end_pod(self, name: str, code: int, *, at: str | None = None, reason: str | None = None) -> None:
        self.kubelet.ended.add(name)
        terminated = {"exitCode": code, "reason": reason or ("Completed" if code == 0 else "Error")}
        terminated |= {"startedAt": now(), "finishedAt": at or now()}
        await self.set_pod(name, "Failed" if code else "Succeeded", {"terminated": terminated})

    async def report_incident(self, node: str, **incident: Any) -> None:
        """A NodeHealth as the fleet side would write it."""
        full = {
            "id": f"incident-{node}", "kind": "Xid", "code": 79, "mnemonic": "GPU_HAS_FALLEN_OFF_THE_BUS",
            "faultClass": "FatalHardware", "blame": "Yes", "sources": ["kernel-log"], "count": 1,
            "component": {"kind": "GPU", "index": 5, "uuid": "GPU-5", "pciBusId": "00000000:C8:00.0"},
            "message": "GPU has fallen off the bus", "firstSeen": now(), "lastSeen": now(),
        } | incident  # fmt: skip
        body = {"apiVersion": "nvcre.nvidia.com/v1alpha1", "kind": "NodeHealth", "metadata": {"name": node}}
        created = await self.client.create(NODE_HEALTHS, body)
        created["status"] = {"verdict": "Faulty", "incidents": [full]}
        await self.client.update_status(NODE_HEALTHS, created)

    async def event(self, name: str, kind: str, reason: str) -> None:
        """Waits for it: Events are written after the status that they belong to. There must be one only."""

        async def written() -> int:
            return (await self.events(name)).count((kind, reason))

        assert await eventually(written, what=f"the Event {reason} of {name}") == 1

    async def events(self, name: str) -> list[tuple[str, str]]:
        found = await self.client.list(EVENTS, NAMESPACE)
        return [(item["type"], item["reason"]) for item in found if item["involvedObject"]["name"] == name]

    async def measurement(self, job: str) -> dict[str, Any]:
        return await self.client.get(BANDWIDTH_MEASUREMENTS, f"{job}-bandwidth", NAMESPACE)


@contextlib.asynccontextmanager
async def played_cluster(directory: Path) -> AsyncIterator[Cluster]:
    """Nothing of a coordinator runs until `start`."""
    kubelet = Kubelet()
    app = web.Application()
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", kubelet.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self_signed(directory)).start()
    kubelet.port = runner.addresses[0][1]
    with api_server(directory) as server:
        async with await KubeClient.from_kubeconfig(server.kubeconfig) as client:
            await _seed(client)
            cluster = Cluster(client, kubelet, server.kubeconfig, directory)
            try:
                yield cluster
            finally:
                if cluster.coordinator is not None:
                    await cluster.stop()
                    assert "traceback=" not in cluster.log(), cluster.log()
    await runner.cleanup()


async def _seed(client: KubeClient) -> None:
    for name in ("nvcre-system", NAMESPACE):
        with contextlib.suppress(ApiError):
            await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    for path in sorted((ROOT / "daemonset/log-profiles").glob("nccl-*.yaml")):
        await client.create(LOG_PROFILES, yaml.safe_load(path.read_text()))
