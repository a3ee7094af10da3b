"""The kernel log: as the agent reads it while it runs, and as a saved file."""

import asyncio
import io
import itertools
import json
import os
from functools import cache
from pathlib import Path

from nvcre_agent import wire
from nvcre_agent.incidents import folding as rules
from nvcre_agent.incidents.folding import Folding
from nvcre_agent.incidents.model import MAX_MESSAGE_BYTES, Change
from nvcre_agent.incidents.signals import NO_GPUS, Moment, from_kernel
from nvcre_agent.kernel.kmsg import KernelLog
from nvcre_agent.kernel.parsers import LineParser
from nvcre_agent.kernel.record import Record
from nvcre_agent.kernel.saved import SavedLog
from nvcre_agent.kernel_log_reading import MAX_ADDRESSES, MAX_ROWS, Reading

from fuzz.loop import in_loop
from fuzz.scratch import scratch

WALL_S = 1_800_000_000.0
PIPE_BYTES = 32 * 1024
PATIENCE_S = 60.0


class Node:
    """What the agent makes of records, without its disk and its loop."""

    def __init__(self) -> None:
        numbers = itertools.count()
        self._parser = LineParser()
        self._folding = Folding(boot_id="boot", simulated=False, new_id=lambda: f"id-{next(numbers)}")
        self._clock_s = 1000.0

    def record(self, record: Record, backlog: bool) -> None:
        self._clock_s += 0.5
        at = Moment(WALL_S + self._clock_s, self._clock_s, uncertain=backlog)
        origin = f"boot/{record.sequence}/{record.microseconds}"
        for event in self._parser.feed(record.text):
            signal = from_kernel(event, NO_GPUS, at, injected=not record.from_kernel, origin=origin)
            self._tell(self._folding.fold(signal))

    def later(self) -> None:
        self._tell(self._folding.tick(WALL_S + self._clock_s + 1e4, self._clock_s + 1e4))
        self._tell(self._folding.flush(WALL_S, self._clock_s))

    def _tell(self, changes: tuple[Change, ...]) -> None:
        assert len(self._folding.open_incidents) <= rules.MAX_OPEN
        for change in changes:
            message = wire.event(change, "boot")
            wire.incident_from(type(message).FromString(message.SerializeToString()).incident)
            texts = (message.incident.message, message.incident.remedy, message.incident.raw, message.incident.process)
            assert all(len(text.encode()) <= MAX_MESSAGE_BYTES for text in texts)
        self._folding.take_dirty()


def kernel_log(data: bytes) -> None:
    """A stream in the format of /dev/kmsg, one record a line, up to the message that goes to the coordinator."""
    node = Node()
    in_loop(_read(data, node))
    node.later()


async def _read(data: bytes, node: Node) -> None:
    path = _fifo()
    reader = KernelLog(path, after=None, boot_id="boot", on_record=node.record, on_blind=lambda _reason, _message: None)
    task = asyncio.create_task(reader.run())
    await asyncio.sleep(0)
    writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(writer, rest[:PIPE_BYTES]) :]
            assert await reader.drain(PATIENCE_S)
    finally:
        os.close(writer)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


def saved_log(data: bytes) -> None:
    """A file that a person gives to `nvcre-agent kernel-log`."""
    log, reading = SavedLog(io.BytesIO(data)), Reading()
    for told in reading.read(log):
        assert 1 <= told.event.line <= log.counts.lines
        json.dumps(told.to_json())
    assert len(reading.rows) <= MAX_ROWS
    assert len(reading.identities) <= MAX_ADDRESSES
    worst = reading.worst()
    assert (worst is None) == (not reading.events)
    assert not reading.node_suspect or reading.events


@cache
def _fifo() -> Path:
    path = scratch("kmsg")
    os.mkfifo(path)
    return path
