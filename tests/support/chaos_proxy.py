"""What may go wrong between an agent and its coordinator, put between the two: bytes (TcpProxy), words (AckChaos).

TcpProxy breaks, refuses and freezes connections. AckChaos terminates the agent's stream, opens the same one to the
coordinator and hands on every message, except that acknowledgements are lost, repeated, late and overtake each other.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from nvcre_agent.stream_status import FirstStatus
from nvcre_protos import nvcre_agent_v1_pb2 as pb
from nvcre_protos.nvcre_agent_v1_pb2_grpc import FleetServicer, FleetStub


class TcpProxy:
    """TCP between agent and coordinator; frozen, it still acknowledges and says nothing, as a stopped process does."""

    def __init__(self) -> None:
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.refusing = False

    def freeze(self) -> None:
        self._thawed.clear()

    def break_connections(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    @contextlib.asynccontextmanager
    async def to(self, address: str) -> AsyncIterator[str]:
        host, port = address.rsplit(":", 1)

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self.refusing:
                writer.transport.abort()
                return
            self.connections += 1
            there, back = await asyncio.open_connection(host, int(port))
            for source, sink in ((reader, back), (there, writer)):
                self._writers.add(sink)
                self._tasks.add(asyncio.create_task(self._pass(source, sink)))

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        try:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self.break_connections()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(65536):
                await self._thawed.wait()
                writer.write(chunk)
        writer.close()
        self._writers.discard(writer)


@dataclass(frozen=True, slots=True)
class Odds:
    """Of each acknowledgement; a delay of up to `delay_s` lets others overtake it. `forgotten`: no Welcome has any."""

    lost: float = 0.0
    repeated: float = 0.0
    delay_s: float = 0.0
    forgotten: bool = False


class AckChaos(FleetServicer):
    def __init__(self, address: str, ca: bytes, server_name: str, *, seed: int) -> None:
        self.address = address  # may change between two streams
        self._credentials = grpc.ssl_channel_credentials(ca)
        self._options = [("grpc.ssl_target_name_override", server_name), ("grpc.default_authority", server_name)]
        self._options += [("grpc.use_local_subchannel_pool", 1)]  # type: ignore[list-item]
        self._chance = random.Random(seed)
        self.odds = Odds()
        self.lost = self.repeated = self.overtaken = 0

    async def Connect(self, request_iterator: Any, context: Any) -> None:
        metadata = [pair for pair in context.invocation_metadata() if pair[0] == "authorization"]
        async with grpc.aio.secure_channel(self.address, self._credentials, options=self._options) as channel:
            call = FleetStub(channel).Connect(metadata=metadata)  # type: ignore[no-untyped-call]
            status = FirstStatus(call)
            tasks = {asyncio.create_task(_hand_on(context, call))}
            writing, last = asyncio.Lock(), 0

            async def later(delay_s: float, message: pb.CoordinatorMessage) -> None:
                nonlocal last
                await asyncio.sleep(delay_s)
                async with writing:
                    self.overtaken += message.ack.seq < last
                    last = max(last, message.ack.seq)
                    await context.write(message)

            try:
                while isinstance(message := await call.read(), pb.CoordinatorMessage):
                    for delay_s in self._fate() if message.WhichOneof("body") == "ack" else ():
                        tasks.add(asyncio.create_task(later(delay_s, message)))
                    if message.WhichOneof("body") != "ack":
                        if self.odds.forgotten and message.HasField("welcome"):
                            message.welcome.cursor = 0
                        async with writing:
                            await context.write(message)
            except grpc.aio.AioRpcError as error:
                told = status.told(error)
                context.set_trailing_metadata(tuple(told.trailing_metadata()))
                await context.abort(told.code(), told.details())
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _fate(self) -> list[float]:
        """When the acknowledgement is handed on, as often as it is."""
        odds, chance = self.odds, self._chance
        if chance.random() < odds.lost:
            self.lost += 1
            return []
        again = chance.random() < odds.repeated
        self.repeated += again
        return [chance.uniform(0.0, odds.delay_s) for _ in range(1 + again)]


async def _hand_on(context: Any, call: Any) -> None:
    while isinstance(message := await context.read(), pb.AgentMessage):
        await call.write(message)
    await call.done_writing()
