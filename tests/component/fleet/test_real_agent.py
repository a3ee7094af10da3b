"""The real agent process over TLS: a kernel line becomes a verdict, also over a killed coordinator."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from nvcre_kube.client import KubeClient
from nvcre_kube.resources import CONFIG_MAPS

from .conftest import NAMESPACE, Fleet, add_node, agent_token

XID_79 = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def driver() -> dict[str, object]:
    gpus = [
        {"uuid": f"GPU-{index}", "pci": f"0000:{0x1B + 32 * index:02x}:00", "serial": str(index), "minor": index}
        for index in range(4)
    ]
    return {
        "product": "NVIDIA H100 80GB HBM3", "driver_version": "570.133.20", "cuda_driver_version": 12080,
        "nvlinks": 18, "memory_mib": 81559, "infiniband": True, "gpus": gpus,
    }  # fmt: skip


class Kernel:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._sequence = 100
        path.touch()

    def says(self, line: str) -> None:
        self._sequence += 1
        with self._path.open("a") as log:
            log.write(f"4,{self._sequence},{self._sequence * 1_000_000},-;{line}\n")


@asynccontextmanager
async def agent_process(
    client: KubeClient, fleet: Fleet, folder: Path, port: int, kernel_log: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    ca = (await client.get(CONFIG_MAPS, "nvcre-coordinator-ca", NAMESPACE))["data"]["ca.crt"]
    files = {"ca.crt": ca, "token": await agent_token(client, "node-1"), "driver.json": json.dumps(driver())}
    for name, text in files.items():
        (folder / name).write_text(text)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "nvcre_agent", "--node-name", "node-1", "--coordinator", f"127.0.0.1:{port}",
        "--ca-file", str(folder / "ca.crt"), "--token-file", str(folder / "token"),
        "--outbox", str(folder / "outbox.sqlite"), "--kernel-log", str(kernel_log), "--listen", "127.0.0.1:0",
        "--simulate", str(folder / "driver.json"),
        stderr=(folder / "agent.log").open("w"),
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        await process.wait()


async def test_a_kernel_line_becomes_a_verdict_also_over_a_killed_coordinator(
    client: KubeClient, tmp_path: Path
) -> None:
    await add_node(client, "node-1", gpus=4)
    kernel = Kernel(tmp_path / "kmsg")
    fleet = Fleet(client)
    service = await fleet.start()
    port = int(service.grpc_address.rpartition(":")[2])
    async with agent_process(client, fleet, tmp_path, port, tmp_path / "kmsg"):
        try:
            status = await fleet.until("node-1", lambda status: status.get("verdict") == "Healthy")
            assert (status["gpuCount"], status["simulated"]) == (4, True)
            await fleet.stop()
            kernel.says(XID_79)
            await fleet.start(port=port)
            status = await fleet.until("node-1", lambda status: status.get("verdict") == "Faulty")
            told = [each for each in status["incidents"] if each["kind"] == "Xid"]
            assert [(each["code"], each["component"]["index"], each["blame"]) for each in told] == [(79, 1, "Yes")]
            fleet.service.confirmations.request(["node-1"])
            await fleet.until("node-1", lambda status: status.get("cursors"))
        finally:
            await fleet.stop()
