"""The real agent process against a small real coordinator side: a grpc.aio server over TLS that keeps what it gets."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from nvcre_protos import nvcre_agent_v1_pb2 as pb
from nvcre_protos.nvcre_agent_v1_pb2_grpc import FleetServicer, add_FleetServicer_to_server

SERVER_NAME = "nvcre-coordinator.nvcre-system.svc"
PATIENCE_S = 40.0


@dataclass
class Stream:
    """One stream as the coordinator sees it."""

    context: grpc.aio.ServicerContext[Any, Any]
    authorization: str
    hello: pb.Hello
    received: list[pb.AgentMessage] = field(default_factory=list)
    closed: bool = False

    async def send(self, **body: Any) -> None:
        await self.context.write(pb.CoordinatorMessage(**body))

    def of(self, body: str) -> list[Any]:
        return [getattr(message, body) for message in self.received if message.WhichOneof("body") == body]


class Coordinator(FleetServicer):
    """Stores events by (outbox, seq) like NodeHealth's cursor does; `acks` and `reading` may be switched off."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.events: dict[tuple[str, int], pb.Event] = {}
        self.deliveries: list[int] = []
        self.cursor: dict[str, int] = {}
        self.acks = True
        self.reading = asyncio.Event()
        self.reading.set()
        self.heartbeat_s = 0.2
        self.redirect_to: str | None = None
        self.refused = 0
        self._changed = asyncio.Event()

    async def Connect(self, request_iterator: Any, context: Any) -> None:
        metadata = dict(context.invocation_metadata())
        if self.redirect_to is not None:
            self.refused += 1
            context.set_trailing_metadata((("nvcre-leader", self.redirect_to),))
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not the leader")
        first = await context.read()
        stream = Stream(context, metadata.get("authorization", ""), first.hello)
        settings = pb.Settings()
        settings.heartbeat_interval.FromTimedelta(timedelta(seconds=self.heartbeat_s))
        cursor = self.cursor.get(first.hello.outbox_id, 0)
        await stream.send(welcome=pb.Welcome(protocol=1, coordinator_version="test", cursor=cursor, settings=settings))
        self.streams.append(stream)
        self._changed.set()
        try:
            while await self.reading.wait() and isinstance(message := await context.read(), pb.AgentMessage):
                stream.received.append(message)
                await self.received(stream, message)
                self._changed.set()
        finally:
            stream.closed = True
            self._changed.set()

    async def received(self, stream: Stream, message: pb.AgentMessage) -> None:
        if message.WhichOneof("body") == "event_batch":
            await self._store(stream, message.event_batch)

    async def _store(self, stream: Stream, batch: pb.EventBatch) -> None:
        cursor = self.cursor.get(batch.outbox_id, 0)
        for event in batch.events:
            self.deliveries.append(event.seq)
            if event.seq > cursor:
                self.events[batch.outbox_id, event.seq] = event
                cursor = event.seq
        if self.acks:
            self.cursor[batch.outbox_id] = cursor
            await stream.send(ack=pb.Ack(outbox_id=batch.outbox_id, seq=cursor))

    @property
    def stream(self) -> Stream:
        return self.streams[-1]

    def incidents(self) -> dict[str, pb.Incident]:
        """The newest state of every incident, as NodeHealth would show it."""
        return {event.incident.id: event.incident for event in self.events.values()}

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.25):
                        await self._changed.wait()


@dataclass
class Server:
    coordinator: Any
    server: grpc.aio.Server
    address: str


@dataclass
class Pki:
    ca: bytes
    certificate: bytes
    key: bytes

    async def serve(self, coordinator: FleetServicer, options: Sequence[tuple[str, int]] = ()) -> Server:
        server = grpc.aio.server(options=options)
        add_FleetServicer_to_server(coordinator, server)  # type: ignore[no-untyped-call]
        credentials = grpc.ssl_server_credentials([(self.key, self.certificate)])
        port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        return Server(coordinator, server, f"127.0.0.1:{port}")


@pytest.fixture(scope="session")
def pki() -> Pki:
    return make_pki()


def make_pki() -> Pki:
    """A CA and a serving certificate that carries the Service name only, not the address that is dialled."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nvcre test CA")])
    now = datetime.now(UTC)

    def builder(subject: x509.Name, public: Any) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
        )

    ca = builder(name, ca_key.public_key()).add_extension(x509.BasicConstraints(True, None), True)
    leaf = builder(x509.Name([]), key.public_key()).add_extension(
        x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), True
    )
    pem = serialization.Encoding.PEM
    return Pki(
        ca=ca.sign(ca_key, hashes.SHA256()).public_bytes(pem),
        certificate=leaf.sign(ca_key, hashes.SHA256()).public_bytes(pem),
        key=key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


@pytest.fixture
async def server(pki: Pki) -> AsyncIterator[Server]:
    one = await pki.serve(Coordinator())
    yield one
    await one.server.stop(None)


@dataclass
class Node:
    """A node's files (the simulation directory and the agent's own) and its agent process."""

    root: Path
    ca: bytes
    launcher: tuple[str, ...] = ("-m", "nvcre_agent")
    process: asyncio.subprocess.Process | None = None

    @property
    def kernel_log(self) -> Path:
        return self.root / "kmsg"

    async def start(self, address: str | None, *extra: str, simulate: bool = True) -> None:
        (self.root / "ready.json").unlink(missing_ok=True)
        flags = ["--node-name", "node-0", "--outbox", str(self.root / "outbox.sqlite"), "--listen", "127.0.0.1:0"]
        flags += ["--kernel-log", str(self.kernel_log), "--ready-file", str(self.root / "ready.json")]
        flags += ["--boot-id-file", str(self.root / "boot_id")]
        if address is not None:
            flags += ["--coordinator", address, "--ca-file", str(self.root / "ca.crt")]
            flags += ["--token-file", str(self.root / "token")]
        if simulate:
            flags += ["--simulate", str(self.root / "driver.json")]
        with (self.root / "agent.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, *self.launcher, *flags, *extra, stderr=log, env=self._environment()
            )
        async with asyncio.timeout(PATIENCE_S):
            while not (self.root / "ready.json").exists():
                assert self.process.returncode is None, self.log()
                await asyncio.sleep(0.02)

    def _environment(self) -> dict[str, str]:
        path = f"{self.root / 'bin'}:{os.environ['PATH']}"
        return {"PATH": path, "HOME": str(self.root), "PYTHONPATH": str(Path(__file__).parents[2])}

    def log(self) -> str:
        return (self.root / "agent.log").read_text()

    def kernel(self, sequence: int, text: str, *, priority: int = 3) -> None:
        with self.kernel_log.open("a") as log:
            log.write(f"{priority},{sequence},{sequence * 1000},-;{text}\n")

    def driver(self, **event: Any) -> None:
        with (self.root / "driver-events.jsonl").open("a") as events:
            events.write(json.dumps(event) + "\n")

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        async with asyncio.timeout(15):
            return await self.process.wait()

    async def get(self, path: str) -> tuple[int, str]:
        host, port = json.loads((self.root / "ready.json").read_text())["metrics"].rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answer = (await reader.read()).decode()
        writer.close()
        head, _, body = answer.partition("\r\n\r\n")
        return int(head.split()[1]), body


def gpu_pci(index: int) -> str:
    return f"0000:{0x1B + index:02x}:00"


def gpu_uuid(index: int) -> str:
    return f"GPU-0000000{index}-0000-0000-0000-000000000000"


@pytest.fixture
def node(tmp_path: Path, pki: Pki) -> Iterator[Node]:
    with make_node(tmp_path, pki) as one:
        yield one


@contextmanager
def make_node(root: Path, pki: Pki) -> Iterator[Node]:
    description = {
        "product": "NVIDIA H100 80GB HBM3",
        "driver_version": "570.133.20",
        "cuda_driver_version": 12080,
        "nvlinks": 18,
        "memory_mib": 81559,
        "infiniband": True,
        "gpus": [
            {"uuid": gpu_uuid(index), "pci": gpu_pci(index), "serial": f"16{index}", "minor": index}
            for index in range(8)
        ],
    }
    (root / "driver.json").write_text(json.dumps(description))
    (root / "bin").mkdir()
    (root / "kmsg").touch()
    (root / "token").write_text("token-1\n")
    (root / "ca.crt").write_bytes(pki.ca)
    (root / "boot_id").write_text("boot-1\n")
    one = Node(root, pki.ca)
    try:
        yield one
    finally:
        if one.process is not None and one.process.returncode is None:
            one.process.kill()
