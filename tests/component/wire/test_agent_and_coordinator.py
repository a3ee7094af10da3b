"""The real agent process against the real coordinator process: TLS, a pod-bound token, a kernel log, NodeHealth."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from nvcre_kube.client import ApiError, KubeClient
from nvcre_kube.resources import CONFIG_MAPS, NAMESPACES, NODE_HEALTHS, NODES, PODS, SERVICE_ACCOUNTS
from support.api_server import REPOSITORY, ApiServer, api_server
from support.eventually import eventually
from support.processes import clean_environment, end, wait_for_file

SYSTEM = "nvcre-system"
NODE = "node-0"
XID_79 = "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
FIRST_GPU = {"uuid": "GPU-00000000-0000-0000-0000-000000000000", "pci": "0000:1b:00", "serial": "1", "minor": 0}


async def metrics(address: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}/metrics") as response:
        return await response.text()


def sample(text: str, name: str) -> float:
    """The first value of a metric."""
    (value,) = re.findall(rf"^{name}{{.*}} (\S+)$", text, re.MULTILINE)[:1]
    return float(value)


@dataclass
class Site:
    """One node's agent and one coordinator; either may be killed and started again."""

    directory: Path
    server: ApiServer
    client: KubeClient
    children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _sequence: int = 0

    async def prepare(self) -> None:
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "nvcre-agent"}}
        try:
            await self.client.create(
                NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
            )
        except ApiError as error:
            if not error.already_exists:
                raise
        await self.client.create(SERVICE_ACCOUNTS, account, SYSTEM)
        labels = {"nvidia.com/gpu.present": "true"}
        await self.client.create(
            NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": labels}}
        )
        spec = {"nodeName": NODE, "serviceAccountName": "nvcre-agent", "containers": [{"name": "agent", "image": "a"}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "nvcre-agent-x"}, "spec": spec}
        uid = (await self.client.create(PODS, pod, SYSTEM))["metadata"]["uid"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": "nvcre-agent-x", "uid": uid}
        request = {"audiences": ["nvcre-coordinator"], "expirationSeconds": 3600, "boundObjectRef": bound}
        token = (await self.client.create_token("nvcre-agent", SYSTEM, request))["status"]["token"]
        (self.directory / "token").write_text(token)
        gpus = [{**FIRST_GPU, "uuid": f"GPU-{i:08d}", "pci": f"0000:{0x1B + i:02x}:00", "minor": i} for i in range(8)]
        driver = {"product": "NVIDIA H100 80GB HBM3", "driver_version": "570.133.20", "cuda_driver_version": 12080}
        driver |= {"nvlinks": 18, "memory_mib": 81559, "infiniband": True, "gpus": gpus}
        (self.directory / "driver.json").write_text(json.dumps(driver))
        (self.directory / "driver-events.jsonl").touch()
        (self.directory / "kmsg").touch()

    def start(self, name: str, module: str, *flags: str) -> dict[str, str]:
        ready, log = self.directory / f"{name}.json", self.directory / f"{name}.log"
        ready.unlink(missing_ok=True)
        with log.open("ab") as output:
            child = subprocess.Popen(
                [sys.executable, "-m", module, *flags, "--ready-file", str(ready)],
                stderr=output,
                env=clean_environment(),
            )
        self.children[name] = child
        return wait_for_file(ready, child, log)

    def start_coordinator(self, grpc: str = "127.0.0.1:0") -> dict[str, str]:
        flags = ["--kubeconfig", str(self.server.kubeconfig), "--grpc-address", grpc, "--agent-heartbeat", "1"]
        flags += ["--metrics-address", "127.0.0.1:0", "--health-address", "127.0.0.1:0", "--no-leader-elect"]
        return self.start("coordinator", "nvcre_coordinator", *flags)

    async def start_agent(self, coordinator: str, *, claims_to_be: str = NODE) -> dict[str, str]:
        async def authority() -> str | None:
            try:
                found = await self.client.get(CONFIG_MAPS, "nvcre-coordinator-ca", SYSTEM)
            except ApiError:
                return None
            return str(found["data"]["ca.crt"])

        (self.directory / "ca.crt").write_text(await eventually(authority))
        flags = ["--node-name", claims_to_be, "--coordinator", coordinator, "--ca-file", str(self.directory / "ca.crt")]
        flags += ["--token-file", str(self.directory / "token"), "--outbox", str(self.directory / "outbox.sqlite")]
        flags += ["--kernel-log", str(self.directory / "kmsg"), "--simulate", str(self.directory / "driver.json")]
        return self.start("agent", "nvcre_agent", *flags, "--listen", "127.0.0.1:0")

    def kill(self, name: str) -> None:
        self.children[name].send_signal(signal.SIGKILL)
        self.children[name].wait()

    def kernel_says(self, text: str, *, facility: int = 0) -> None:
        self._sequence += 1
        with (self.directory / "kmsg").open("a") as log:
            log.write(f"{facility * 8 + 4},{self._sequence},{self._sequence * 1_000_000},-;{text}\n")

    async def health(self) -> dict[str, Any]:
        try:
            return dict((await self.client.get(NODE_HEALTHS, NODE)).get("status") or {})
        except ApiError as error:
            if not error.not_found:
                raise
            return {}

    async def incidents(self) -> list[dict[str, Any]]:
        return list((await self.health()).get("incidents", []))


@contextmanager
def ended(site: Site) -> Iterator[None]:
    try:
        yield
    finally:
        for child in site.children.values():
            end(child)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    with api_server(tmp_path) as server:
        async with await KubeClient.from_kubeconfig(server.kubeconfig) as client:
            one = Site(tmp_path, server, client)
            with ended(one):
                await one.prepare()
                yield one


async def test_a_kernel_line_becomes_an_incident_of_the_node_in_the_token(site: Site):
    coordinator = site.start_coordinator()
    await site.start_agent(coordinator["grpc"], claims_to_be="somebody-else")
    site.kernel_says(XID_79)

    async def identified() -> bool:
        return any("index" in incident["component"] for incident in await site.incidents())

    await eventually(identified)  # the line may be older than the first word of NVML, which knows indices
    (incident,) = await site.incidents()
    assert (incident["code"], incident["component"]["index"], incident["blame"]) == (79, 0, "Yes")
    health = await site.health()
    assert (health["verdict"], health["simulated"]) == ("Faulty", True)
    names = [item["metadata"]["name"] for item in await site.client.list(NODE_HEALTHS)]
    assert names == [NODE], "the name given by flag is for logs only"


async def test_nothing_is_lost_or_doubled_when_both_are_killed(site: Site):
    coordinator = site.start_coordinator()
    agent = await site.start_agent(coordinator["grpc"])
    site.kernel_says(XID_79)
    await eventually(site.incidents)
    site.kill("coordinator")
    site.kernel_says("NVRM: Xid (PCI:0000:1c:00): 95, pid=7, name=python, Uncontained ECC error")

    async def kept_in_the_outbox() -> bool:
        return sample(await metrics(agent["metrics"]), "nvcre_agent_events_queued") > 0

    await eventually(kept_in_the_outbox)
    site.kill("agent")
    coordinator = site.start_coordinator()
    await site.start_agent(coordinator["grpc"])

    async def both() -> bool:
        return len(await site.incidents()) >= 2

    await eventually(both)
    site.kernel_says(
        "NVRM: Xid (PCI:0000:1d:00): 119, pid=7, name=python, Timeout after 6s of waiting for RPC response"
    )

    async def all_three() -> bool:
        return len(await site.incidents()) >= 3

    await eventually(all_three)
    found = sorted((incident["code"], incident["count"]) for incident in await site.incidents())
    assert found == [(79, 1), (95, 1), (119, 1)]


async def test_a_line_written_by_a_process_is_shown_and_blames_nobody(site: Site):
    coordinator = site.start_coordinator()
    await site.start_agent(coordinator["grpc"])
    site.kernel_says(XID_79, facility=1)
    (incident,) = await eventually(site.incidents)
    assert incident["injected"] is True

    async def healthy() -> bool:
        return (await site.health())["verdict"] == "Healthy"

    await eventually(healthy)


async def test_the_dashboard_asks_for_what_the_processes_export(site: Site):
    coordinator = site.start_coordinator()
    agent = await site.start_agent(coordinator["grpc"])
    exported: set[str] = set()
    for address in (coordinator["metrics"], agent["metrics"]):
        for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", await metrics(address), re.MULTILINE):
            suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
            exported |= {name + suffix for suffix in suffixes}
    dashboard = json.loads((REPOSITORY / "daemonset/dashboards/nvcre.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    queries += [variable["definition"] for variable in dashboard["templating"]["list"] if "definition" in variable]
    asked = {name for query in queries for name in re.findall(r"\bnvcre_\w+", query)}
    assert len(asked) > 20
    assert asked <= exported, f"nobody exports {sorted(asked - exported)}"
