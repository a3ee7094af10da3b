"""How fast the agent is: from the kernel's line to the outbox on disk and to the coordinator, and from its start."""

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.figures import percentile, report, setting

from tests.component.agent.conftest import Coordinator, Node, Stream, make_node, make_pki

LINES = setting("NVCRE_BENCH_LATENCY_LINES", 300)
STARTS = setting("NVCRE_BENCH_STARTS", 5)
PAUSE_S = 0.05  # between two lines: each finds the agent asleep, as a fault does
PATIENCE_S = 60.0


class Clocked(Coordinator):
    """Notes when each event and the first inventory arrived; acknowledges nothing, so that all stay in the outbox."""

    def __init__(self) -> None:
        super().__init__()
        self.heartbeat_s = 30.0
        self.acks = False
        self.arrived: dict[str, float] = {}  # address of the GPU -> when

    async def received(self, stream: Stream, message: Any) -> None:
        now = time.perf_counter()
        match message.WhichOneof("body"):
            case "event_batch":
                for event in message.event_batch.events:
                    self.arrived.setdefault(event.incident.component.pci_bus_id, now)
            case "snapshot" if message.snapshot.inventory.gpus:
                self.arrived.setdefault("inventory", now)
        await super().received(stream, message)


@pytest.mark.bench
@pytest.mark.timeout(600)
async def test_kernel_line_to_outbox_and_to_sent(tmp_path: Path) -> None:
    async with serving(tmp_path) as (coordinator, node, address):
        node.kernel_log.unlink()
        os.mkfifo(node.kernel_log)
        await node.start(address)
        await until(lambda: "inventory" in coordinator.arrived)
        await asyncio.sleep(2.0)
        log = os.open(node.kernel_log, os.O_WRONLY)
        stored: list[float] = []
        sent: list[float] = []
        for number in range(LINES):
            gpu = f"{number:08X}:3B:00.0"
            line = f"NVRM: Xid (PCI:{number:04x}:3b:00): 79, GPU has fallen off the bus."
            start = time.perf_counter()
            os.write(log, f"3,{number + 1},{time.monotonic_ns() // 1000},-;{line}\n".encode())
            written = asyncio.create_task(
                asyncio.to_thread(when_written, node.root / "outbox.sqlite-wal", gpu.encode())
            )
            await until(lambda gpu=gpu: gpu in coordinator.arrived)  # type: ignore[misc]
            sent.append(coordinator.arrived[gpu] - start)
            stored.append(await written - start)
            await asyncio.sleep(PAUSE_S)
        os.close(log)
    report(
        "agent, kernel line -> in the outbox's file, -> sent message received",
        f"outbox {spread(stored)}; sent {spread(sent)}",
        target="<= 5 ms p50 and <= 20 ms p99 from line to sent",
        on=f"{LINES} lines, each a new incident, through a FIFO (the loop's reader, as for /dev/kmsg), TLS on loopback",
    )


@pytest.mark.bench
@pytest.mark.timeout(600)
async def test_agent_start_up(tmp_path: Path) -> None:
    healthy, told = [], []
    for run in range(STARTS):
        directory = tmp_path / str(run)
        directory.mkdir()
        async with serving(directory) as (coordinator, node, address):
            start = time.perf_counter()
            await node.start(address)
            assert (await node.get("/healthz"))[0] == 200
            healthy.append(time.perf_counter() - start)
            await until(lambda coordinator=coordinator: "inventory" in coordinator.arrived)  # type: ignore[misc]
            told.append(coordinator.arrived["inventory"] - start)
    report(
        "agent, start of the process -> /healthz answers, -> first snapshot with the GPUs received",
        f"/healthz {in_seconds(healthy)}; snapshot {in_seconds(told)}",
        target="none in DESIGN",
        on=f"{STARTS} starts, 8 simulated GPUs, TLS on loopback",
    )


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[tuple[Clocked, Node, str]]:
    pki, coordinator = make_pki(), Clocked()
    server = await pki.serve(coordinator)
    with make_node(directory, pki) as node:
        try:
            yield coordinator, node, server.address
            await node.stop()
        finally:
            await server.server.stop(None)


def when_written(log: Path, text: bytes) -> float:
    """When the outbox's write-ahead log has it. The file itself is locked, so that it has not one reader too many."""
    until_s = time.perf_counter() + PATIENCE_S
    while text not in log.read_bytes():
        assert time.perf_counter() < until_s, text
    return time.perf_counter()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - what another process does
            await asyncio.sleep(0.001)


def spread(seconds: list[float]) -> str:
    return f"p50 {percentile(seconds, 50) * 1000:.1f} ms, p99 {percentile(seconds, 99) * 1000:.1f} ms"


def in_seconds(seconds: list[float]) -> str:
    return f"median {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"
