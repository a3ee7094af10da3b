"""Writes to an outbox as fast as it can and is killed at a random instant, again and again: `... FILE ROUNDS SEED`.

Each round prints one JSON object: what the killed process had said (`given` as [seq, number], `stored`,
`acknowledged`) and what an outbox that is opened after it finds. It judges nothing; that is the business of
tests/unit/agent/test_outbox_killed.py. Each append is one transaction of an event, its incident in place of the one
before, and a position, all of one number; the newest events are never acknowledged.
"""

import asyncio
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from nvcre_agent.checks.model import Component
from nvcre_agent.incidents.model import Change, ChangeKind, Incident, Kept
from nvcre_agent.kernel.kmsg import Position
from nvcre_agent.outbox import open_outbox
from nvcre_agent.xid.model import Clears
from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, IncidentKind

BEHIND = 8  # acknowledged is what so many newer events follow


def kept(number: int) -> Kept:
    incident = Incident(
        id=str(number),
        kind=IncidentKind.XID,
        code=79,
        fault_class=FaultClass.NEEDS_REBOOT,
        blame=Blame.YES,
        component=Component(ComponentKind.GPU, 5, "GPU-5", "00000000:3B:00.0"),
        message="m" * 200,
        first_seen_s=0.0,
        last_seen_s=0.0,
    )
    return Kept(incident, "00000000:3B:00.0", Clears.REBOOT, "b", 0.0)


async def write(path: Path, first: int, say: int) -> None:
    outbox = open_outbox(path)
    outbox.start()
    given: list[int] = []
    stored, number, before = 0, first, [one.incident.id for one in outbox.kept]
    while True:
        one = kept(number)
        change = Change(ChangeKind.OPENED, one.incident, 0.0, time.monotonic())
        outbox.append([change], boot_id="b", keep=[one], forget=before, position=Position("b", number))
        os.write(say, f"given {outbox.last_seq} {number}\n".encode())
        given.append(outbox.last_seq)
        before = [str(number)]
        number += 1
        await asyncio.sleep(0)
        while outbox.last_seq - outbox.stored_seq >= BEHIND:  # noqa: ASYNC110 (a slow disk must catch up)
            await asyncio.sleep(0.001)
        if outbox.stored_seq != stored:
            stored = outbox.stored_seq
            os.write(say, f"stored {stored}\n".encode())
        if len(given) > 4 * BEHIND and given[-BEHIND] <= stored:
            os.write(say, f"acknowledged {given[-BEHIND]}\n".encode())
            outbox.acknowledge(given[-BEHIND])
            given = given[-BEHIND:]


def round_of(path: Path, first: int, patience_s: float, *, after: bytes) -> dict[str, object]:
    """Killed so long after it said the word `after`."""
    hear, say = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(hear)
        asyncio.run(write(path, first, say))
        os._exit(1)
    os.close(say)
    said = b""
    while after not in said:
        said += os.read(hear, 65536)
    time.sleep(patience_s)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    while chunk := os.read(hear, 65536):
        said += chunk
    os.close(hear)
    heard: dict[str, list[list[int]]] = {"given": [], "stored": [], "acknowledged": []}
    for line in said.decode().splitlines():
        word, *numbers = line.split()
        heard[word].append([int(number) for number in numbers])
    outbox = open_outbox(path)
    found = [[one.seq, int(one.event.incident.id)] for one in outbox.pending(after=0, limit=1 << 20)]
    seen = {
        **heard,
        "killed": os.WIFSIGNALED(status),
        "found": found,
        "position": outbox.position.sequence if outbox.position else None,
        "incidents": [int(one.incident.id) for one in outbox.kept],
        "outbox_id": outbox.outbox_id,
        "last_seq": outbox.last_seq,
        "trouble": outbox.trouble.reason,
    }
    asyncio.run(outbox.close())
    return seen


def main() -> None:
    path, rounds, chance = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    for index in range(rounds):
        after = b"acknowledged" if index == rounds - 1 else chance.choice((b"given", b"stored"))
        print(json.dumps(round_of(path, 1_000_000 * index, chance.uniform(0.0, 0.05), after=after)), flush=True)


if __name__ == "__main__":
    main()
