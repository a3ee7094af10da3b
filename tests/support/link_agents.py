"""Agents in this process that are outbox and link only: real streams, without NVML or a kernel log behind them."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from nvcre_agent import wire
from nvcre_agent.checks.model import Component
from nvcre_agent.incidents.model import Change, ChangeKind, Incident
from nvcre_agent.link import PROTOCOL, Link, LinkSettings
from nvcre_agent.outbox import open_outbox
from nvcre_protos import nvcre_agent_v1_pb2 as pb
from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, IncidentKind, Source

SERVER_NAME = "nvcre-coordinator.nvcre-system.svc"


class LinkAgent:
    """`files` holds ca.crt, token and the outbox."""

    def __init__(self, files: Path, address: str, *, heartbeat_s: float = 30.0, **outbox: Any) -> None:
        self.outbox = open_outbox(files / "outbox.sqlite", boot_id="boot-1", **outbox)
        settings = LinkSettings(address, files / "ca.crt", files / "token", SERVER_NAME, heartbeat_s)
        self.link = Link(settings, self.outbox, self)
        self.open: dict[str, Incident] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["LinkAgent"]:
        self.outbox.start()
        tasks = [asyncio.create_task(self.link.run()), asyncio.create_task(self.outbox.run())]
        try:
            yield self
            assert not any(task.done() for task in tasks), [task for task in tasks if task.done()]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.outbox.close()

    def tell(self, key: str, kind: ChangeKind = ChangeKind.OPENED, *, blame: Blame = Blame.YES) -> None:
        now_s = time.time()
        incident = self.open.get(key) or Incident(
            id=key,
            kind=IncidentKind.XID,
            code=79,
            fault_class=FaultClass.NEEDS_REBOOT,
            blame=blame,
            component=Component(ComponentKind.GPU, 5, "GPU-5", "00000000:3B:00.0"),
            message="GPU has fallen off the bus.",
            first_seen_s=now_s,
            last_seen_s=now_s,
            sources=(Source.KERNEL_LOG,),
        )
        self.open[key] = incident
        if kind is ChangeKind.RECOVERED:
            incident = replace(self.open.pop(key), recovered_at_s=now_s)
        self.outbox.append([Change(kind, incident, now_s, time.monotonic())], boot_id="boot-1")

    # --- what the link asks (AgentState)

    def hello(self) -> pb.Hello:
        return pb.Hello(min_protocol=PROTOCOL, max_protocol=PROTOCOL, outbox_id=self.outbox.outbox_id, boot_id="boot-1")

    def snapshot(self) -> pb.Snapshot:
        return pb.Snapshot(
            outbox_id=self.outbox.outbox_id,
            seq=self.outbox.last_seq,
            boot_id="boot-1",
            open_incidents=wire.incidents(self.open.values()),
            monitors=[pb.Monitor(name="nvml", state=pb.MONITOR_STATE_WATCHING)],
            time=wire.timestamp(time.time()),
        )

    def probe_updates(self) -> list[pb.ProbeUpdate]:
        return []

    async def heartbeat(self, deadline_s: float) -> pb.Heartbeat:
        now = wire.timestamp(time.time())
        return pb.Heartbeat(
            sent_at=now, observed_through=now, monotonic_ns=time.monotonic_ns(), last_seq=self.outbox.newest_seq
        )

    async def settle(self, deadline_s: float) -> pb.Heartbeat:
        return await self.heartbeat(deadline_s)

    def probe_ordered(self, order: pb.ProbeOrder) -> None:
        raise AssertionError("nobody orders probes here")

    def probe_cancelled(self, cancel: pb.ProbeCancel) -> None:
        raise AssertionError("nobody cancels probes here")
