"""Many agents' streams from one process: `python -m support.agent_streams`. Only the wire: TLS, token, heartbeats.

Each stream is a connection of its own and behaves as an agent with nothing to tell: Hello, one Snapshot after the
Welcome, a Heartbeat each interval and for each Sync. It stands in for nodes that a benchmark needs but does not look
at; the node it looks at has a real agent.
"""

import argparse
import asyncio
import contextlib
import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from nvcre_protos import nvcre_agent_v1_pb2 as pb
from nvcre_protos.nvcre_agent_v1_pb2_grpc import FleetStub

SERVER_NAME = "nvcre-coordinator.nvcre-system.svc"
CONNECTING_AT_ONCE = 32
BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
MONITORS = [
    pb.Monitor(name=name, state=pb.MONITOR_STATE_WATCHING) for name in ("nvml", "kernel-log", "outbox")
]  # fmt: skip


class Streams:
    def __init__(self, coordinator: str, ca: bytes, heartbeat_s: float) -> None:
        self._coordinator = coordinator
        self._credentials = grpc.ssl_channel_credentials(ca)
        self._heartbeat_s = heartbeat_s
        self._connecting = asyncio.Semaphore(CONNECTING_AT_ONCE)
        self.connected = 0
        self.lost: list[str] = []

    async def hold(self, node: str, token: str) -> None:
        """One agent, until its stream ends."""
        options = [
            ("grpc.default_authority", SERVER_NAME),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
        ]
        async with grpc.aio.secure_channel(self._coordinator, self._credentials, options=options) as channel:
            try:
                async with self._connecting:
                    stream = await self._introduce(FleetStub(channel), node, token)  # type: ignore[no-untyped-call]
                    self.connected += 1
                beating = asyncio.create_task(self._beat(stream))
                try:
                    while isinstance(message := await stream.read(), pb.CoordinatorMessage):
                        if message.WhichOneof("body") == "sync":
                            await stream.write(heartbeat(message.sync.id))
                finally:
                    beating.cancel()
            except grpc.aio.AioRpcError as error:
                self.lost.append(f"{node}: {error.code()} {error.details()}")

    async def _introduce(self, stub: Any, node: str, token: str) -> Any:
        stream = stub.Connect(metadata=(("authorization", f"Bearer {token}"),))
        hello = pb.Hello(min_protocol=1, max_protocol=1, agent_version="bench", outbox_id=node, boot_id=BOOT_ID)
        hello.simulated = True
        await stream.write(pb.AgentMessage(hello=hello))
        await stream.read()
        await stream.write(pb.AgentMessage(snapshot=snapshot(node)))
        return stream

    async def _beat(self, stream: Any) -> None:
        await asyncio.sleep(random.uniform(0, self._heartbeat_s))
        while True:
            await stream.write(heartbeat())
            await asyncio.sleep(self._heartbeat_s)


def heartbeat(sync_id: str = "") -> pb.AgentMessage:
    beat = pb.Heartbeat(monotonic_ns=time.monotonic_ns(), sync_id=sync_id, monitors=MONITORS)
    beat.sent_at.GetCurrentTime()
    beat.observed_through.CopyFrom(beat.sent_at)
    return pb.AgentMessage(heartbeat=beat)


def snapshot(node: str) -> pb.Snapshot:
    gpus = [
        pb.Gpu(
            index=index,
            uuid=f"GPU-{node}-{index}",
            pci_bus_id=f"00000000:{0x1B + index:02X}:00.0",
            product="NVIDIA H100 80GB HBM3",
            serial=f"16{index}",
        )
        for index in range(8)
    ]
    inventory = pb.Inventory(gpus=gpus, driver_version="570.133.20", cuda_version="12.8")
    told = pb.Snapshot(outbox_id=node, boot_id=BOOT_ID, inventory=inventory, monitors=MONITORS)
    told.time.GetCurrentTime()
    return told


async def run(arguments: argparse.Namespace) -> None:
    tokens: dict[str, str] = json.loads(arguments.tokens.read_text())
    streams = Streams(arguments.coordinator, arguments.ca.read_bytes(), arguments.heartbeat)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    holding = [asyncio.create_task(streams.hold(node, token)) for node, token in tokens.items()]
    while not stop.is_set():
        said = {"connected": streams.connected, "lost": len(streams.lost), "first_lost": streams.lost[:1]}
        partial = arguments.state.with_suffix(".partial")
        partial.write_text(json.dumps(said))
        partial.rename(arguments.state)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5 if streams.connected < len(tokens) else 5.0):
                await stop.wait()
    for task in holding:
        task.cancel()
    await asyncio.gather(*holding, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--ca", type=Path, required=True)
    parser.add_argument("--tokens", type=Path, required=True, help="JSON object: node to token")
    parser.add_argument("--heartbeat", type=float, default=30.0)
    parser.add_argument("--state", type=Path, required=True, help="written as JSON again and again")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
