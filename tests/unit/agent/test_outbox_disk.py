"""The outbox over a disk that is full, gone, damaged or silent: real SQLite errors, nothing lost that memory has."""

import asyncio
import contextlib
import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from nvcre_agent import outbox_file
from nvcre_agent.incidents.folding import Folding
from nvcre_agent.incidents.model import ChangeKind, Kept
from nvcre_agent.kernel.kmsg import Position
from nvcre_agent.outbox import Outbox, open_outbox
from nvcre_agent.outbox_file import Job, Writer
from nvcre_agent.outbox_queue import DropReason
from nvcre_agent.xid.model import Clears

from .test_outbox import EVERYTHING, PATIENCE_S, change, incident, running, settled, until

FULL = "max_page_count=1"  # SQLITE_FULL as soon as the file must grow
READ_ONLY = "query_only=1"  # SQLITE_READONLY for every write


class Disk:
    """What SQLite may do with it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fault = ""
        self.tries = 0
        self._connections: list[sqlite3.Connection] = []
        connect = outbox_file._connect

        def connected(path: Path) -> sqlite3.Connection:
            self.tries += 1
            connection = connect(path)
            self._connections.append(connection)
            if self.fault:
                connection.execute(f"PRAGMA {self.fault}")
            return connection

        monkeypatch.setattr(outbox_file, "_connect", connected)

    def fails(self, fault: str) -> None:
        self.fault = fault
        self._connections[-1].execute(f"PRAGMA {fault}")

    def mended(self) -> None:
        self.fault = ""


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    monkeypatch.setattr("nvcre_agent.outbox.RETRY_S", 0.05)
    monkeypatch.setattr("nvcre_agent.outbox.LONGEST_RETRY_S", 0.1)
    return Disk(monkeypatch)


def large(first: int, count: int) -> list[str]:
    return [f"{number}-" + "x" * 500 for number in range(first, first + count)]


def told(outbox: Outbox) -> list[str]:
    return [one.event.incident.id for one in outbox.pending(after=0, limit=EVERYTHING)]


def troubled(outbox: Outbox, reason: str) -> Callable[[], bool]:
    return lambda: outbox.trouble.reason == reason


@pytest.mark.parametrize("fault", [FULL, READ_ONLY])
async def test_a_disk_that_fails_means_memory_says_so_and_is_written_again_by_itself(
    tmp_path: Path, disk: Disk, fault: str
) -> None:
    path = tmp_path / "outbox.sqlite"
    before, during = large(0, 20), large(100, 200)
    kept = Kept(incident("open"), "00000000:3B:00.0", Clears.REBOOT, "b", 100.0)
    async with running(path) as outbox:
        outbox.append([change(key=key) for key in before], boot_id="b")
        first, *_ = await settled(outbox)
        disk.fails(fault)
        outbox.append([change(key=key) for key in during], boot_id="b", position=Position("b", 7))
        await until(troubled(outbox, "OutboxUnwritable"))
        assert outbox.in_memory
        assert told(outbox) == before + during, "nothing waits for a disk that is known to fail"
        outbox.append([change(key="later")], boot_id="b", keep=[kept], state={"baseline": "[1]"})
        outbox.acknowledge(first)
        assert told(outbox) == [*before[1:], *during, "later"]
        disk.mended()
        await until(troubled(outbox, ""))
        outbox.append([change(key="after")], boot_id="b")
        newest, outbox_id = (await settled(outbox))[-1], outbox.outbox_id
    async with running(path) as again:
        assert told(again) == [*before[1:], *during, "later", "after"]
        assert (again.outbox_id, again.position, again.kept) == (outbox_id, Position("b", 7), (kept,))
        assert again.state("baseline") == "[1]"
        assert again.last_seq > newest


async def test_what_came_while_the_disk_was_full_is_written_at_the_end_if_it_can(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "outbox.sqlite"
    async with running(path) as outbox:
        disk.fails(FULL)
        outbox.append([change(key=key) for key in large(0, 50)], boot_id="b")
        await until(troubled(outbox, "OutboxUnwritable"))
        disk.mended()
    async with running(path) as again:
        assert told(again) == large(0, 50)


async def test_a_full_disk_is_not_asked_again_for_every_event(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nvcre_agent.outbox.RETRY_S", 3600.0)
    async with running(tmp_path / "outbox.sqlite") as outbox:
        disk.fails(FULL)
        outbox.append([change(key=key) for key in large(0, 50)], boot_id="b")
        await until(troubled(outbox, "OutboxUnwritable"))
        tries = disk.tries
        for number in range(100):
            outbox.append([change(key=f"{number}")], boot_id="b")
            await asyncio.sleep(0)
        await asyncio.to_thread(lambda: None)
        assert disk.tries == tries
        disk.mended()


async def test_a_start_without_writing_tells_the_old_events_and_never_uses_a_number_twice(
    tmp_path: Path, disk: Disk
) -> None:
    path = tmp_path / "outbox.sqlite"
    async with running(path) as outbox:
        outbox.append([change(key="old"), change(key="older")], boot_id="b", position=Position("b", 3))
        await settled(outbox)
        ids = {outbox.outbox_id}
    disk.fault = READ_ONLY
    for _ in range(2):
        async with running(path) as outbox:
            assert outbox.trouble.reason == "OutboxUnwritable"
            assert (told(outbox), outbox.position) == (["old", "older"], Position("b", 3))
            assert outbox.outbox_id not in ids, "the number of an event that is sent now was never reserved"
            ids.add(outbox.outbox_id)
    async with running(path) as outbox:
        outbox.append([change(key="new")], boot_id="b")
        disk.mended()
        await until(troubled(outbox, ""))
        last_id = outbox.outbox_id
    async with running(path) as again:
        assert (told(again), again.outbox_id) == (["old", "older", "new"], last_id)


async def test_a_place_that_does_not_exist_yet_is_used_once_it_does_and_what_lies_there_is_told(
    tmp_path: Path, disk: Disk
) -> None:
    place = tmp_path / "place"
    async with running(place / "outbox.sqlite") as earlier:
        earlier.append([change(key="known to both"), change(key="never told")], boot_id="b")
        await settled(earlier)
    await asyncio.to_thread(place.rename, tmp_path / "unmounted")
    await asyncio.to_thread(place.touch)
    async with running(place / "outbox.sqlite") as outbox:
        assert outbox.trouble.reason == "OutboxUnwritable"
        outbox.append([change(key="known to both", count=2)], boot_id="b")
        assert len(await settled(outbox)) == 1
        await asyncio.to_thread(place.unlink)
        await asyncio.to_thread((tmp_path / "unmounted").rename, place)
        await until(troubled(outbox, ""))
        assert told(outbox) == ["known to both", "never told"]
        assert outbox.gaps == 1, "a snapshot has to say what of it is over"
    async with running(place / "outbox.sqlite") as again:
        assert told(again) == ["known to both", "never told"]


@pytest.mark.parametrize("gone", ["directory", "file", "replaced"])
async def test_a_file_that_is_taken_away_while_it_is_used_is_made_anew_from_memory(
    gone: str, tmp_path: Path, disk: Disk
) -> None:
    """SQLite goes on writing to a file that nobody can open again, and nothing would say so."""
    path = tmp_path / "place" / "outbox.sqlite"
    async with running(path) as outbox:
        outbox.append([change(key="before")], boot_id="b")
        await settled(outbox)
        if gone == "directory":
            await asyncio.to_thread(shutil.rmtree, path.parent)
        else:
            await asyncio.to_thread(path.unlink)
        if gone == "replaced":
            await asyncio.to_thread(path.write_bytes, b"")
        outbox.append([change(key="after")], boot_id="b")
        await until(lambda: disk.tries >= 2 and not outbox.trouble.reason)
    async with running(path) as again:
        assert told(again) == ["before", "after"]


async def test_a_file_that_is_damaged_while_it_is_used_is_set_aside_and_made_anew_from_memory(
    tmp_path: Path, disk: Disk
) -> None:
    path = tmp_path / "outbox.sqlite"
    async with running(path) as outbox:
        outbox.append([change(key=key) for key in large(0, 20)], boot_id="b")
        await settled(outbox)
        disk.fails(FULL)
        outbox.append([change(key=key) for key in large(20, 80)], boot_id="b")
        await until(troubled(outbox, "OutboxUnwritable"))
        await asyncio.to_thread(path.write_bytes, b"not a database" * 1000)
        disk.mended()
        await until(troubled(outbox, "OutboxCorrupt"))
        assert outbox.events_dropped[DropReason.CORRUPT] == 1
        outbox_id = outbox.outbox_id
    assert len(await asyncio.to_thread(lambda: list(tmp_path.glob("*.corrupt-*")))) == 1
    async with running(path) as again:
        assert (told(again), again.outbox_id) == (large(0, 100), outbox_id)


@pytest.mark.parametrize(
    ("damage", "kept"),
    [
        ("UPDATE state SET value = CAST(x'fffe' AS TEXT) WHERE key = 'baseline'", True),
        ("UPDATE events SET kind = CAST(x'fffe' AS TEXT) WHERE seq = (SELECT max(seq) FROM events)", True),
        ("UPDATE events SET seq = 9223372036854775807 WHERE seq = (SELECT max(seq) FROM events)", True),
        ("UPDATE incidents SET last_monotonic_s = 9e999", True),
        ("UPDATE state SET value = '99999999999999999999 b' WHERE key = 'position'", True),  # a log's own number
        ("UPDATE state SET value = x'01' WHERE key = 'position'", False),
        ("UPDATE state SET value = '99999999999999999999' WHERE key = 'seq_reserved'", False),
        ("ALTER TABLE events RENAME COLUMN kind TO sort", False),
    ],
)
async def test_a_damaged_value_costs_its_row_or_the_file_but_never_the_agent(
    damage: str, kept: bool, tmp_path: Path
) -> None:
    """Values that SQLite's own check does not mind: one flipped bit ended the agent at each start, or held it in memory
    for ever."""
    path = tmp_path / "outbox.sqlite"
    async with running(path) as outbox:
        state = {"baseline": "{}"}
        first, last = change(key="first"), change(key="last")
        keep = [Kept(incident(), "00000000:3B:00.0", Clears.REBOOT, "b", 1.0)]
        outbox.append([first, last], boot_id="b", keep=keep, position=Position("b", 3), state=state)
        await settled(outbox)
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute(damage)
        file.commit()
    async with running(path) as outbox:
        assert ("first" in told(outbox), outbox.trouble.reason) == (kept, "" if kept else "OutboxCorrupt")
        folding = Folding(boot_id="b", simulated=False, new_id=lambda: "id")
        folding.restore(outbox.kept, now_s=0.0, monotonic_s=0.0)
        folding.tick(1e9, 1e9)
        outbox.append([change(key="new")], boot_id="b")
        await settled(outbox)
    async with running(path) as again:
        assert told(again)[-1] == "new"


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE incidents SET body = x'ff'",
        "UPDATE incidents SET clears = 'whatever a newer agent says'",
        "UPDATE incidents SET subject = x'00'",
        "UPDATE incidents SET id = CAST(x'fffe' AS TEXT), last_monotonic_s = 'abc'",
    ],
)
async def test_for_an_incident_that_cannot_be_read_the_kernel_log_is_read_again_once(
    damage: str, tmp_path: Path
) -> None:
    """Else the next snapshot has it not, and the coordinator takes its GPU for a sound one."""
    path = tmp_path / "outbox.sqlite"
    async with running(path) as outbox:
        keep = [Kept(incident(), "00000000:3B:00.0", Clears.REBOOT, "b", 1.0)]
        outbox.append([change()], boot_id="b", keep=keep, position=Position("b", 3))
        await settled(outbox)
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute(damage)
        file.commit()
    async with running(path) as outbox:
        assert (outbox.kept, outbox.position, outbox.events_dropped[DropReason.CORRUPT]) == ((), None, 1)
        outbox.append([change(key="new")], boot_id="b", position=Position("b", 4))
        await settled(outbox)
    async with running(path) as again:
        assert (again.position, again.events_dropped[DropReason.CORRUPT]) == (Position("b", 4), 0)


async def test_an_id_that_no_coordinator_takes_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "outbox.sqlite"
    async with running(path) as outbox:
        outbox.append([change(key="first")], boot_id="b")
        await settled(outbox)
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute("UPDATE state SET value = 'a' || char(0) WHERE key = 'outbox_id'")
        file.commit()
    async with running(path) as outbox:
        assert outbox.outbox_id.isalnum()
        assert told(outbox) == ["first"]


def test_a_damaged_name_in_the_schema_is_damage_too(tmp_path: Path) -> None:
    """SQLite's message about it is no text, on which Python raises something else."""
    path = tmp_path / "outbox.sqlite"
    asyncio.run(open_outbox(path).close())
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE incidents", b"CREATE TABLE incid\xdfnts"))
    outbox = open_outbox(path)
    assert outbox.trouble.reason == "OutboxCorrupt"
    asyncio.run(outbox.close())


def test_of_the_files_that_a_dying_disk_damages_again_and_again_the_newest_few_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "outbox.sqlite"
    for number in range(6):
        path.write_bytes(b"damaged " * 1000 + bytes([number]))
        asyncio.run(open_outbox(path).close())
    kept = sorted(tmp_path.glob("outbox.sqlite.corrupt-*"))
    assert [file.read_bytes()[-1] for file in kept] == [3, 4, 5]


async def test_a_write_that_finds_the_file_damaged_does_not_trust_it_again(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's own check may pass what its next write stumbles over."""
    path, write, damaged = tmp_path / "outbox.sqlite", outbox_file.write, [True]

    def stumbles(*arguments: object) -> None:
        if damaged and damaged.pop():
            error = sqlite3.DatabaseError("database disk image is malformed")
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error
        write(*arguments)  # type: ignore[arg-type]

    async with running(path) as outbox:
        monkeypatch.setattr(outbox_file, "write", stumbles)
        outbox.append([change(key="a")], boot_id="b")
        await until(troubled(outbox, "OutboxCorrupt"))
    async with running(path) as again:
        assert told(again) == ["a"]


async def test_a_disk_that_never_answers_costs_no_memory_without_bound(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nvcre_agent.outbox.MAX_BACKLOG", 10)
    path, write, answers = tmp_path / "outbox.sqlite", Writer._write, threading.Event()

    def hangs(writer: Writer, jobs: list[Job]) -> None:
        assert answers.wait(PATIENCE_S)
        write(writer, jobs)

    monkeypatch.setattr(Writer, "_write", hangs)
    async with running(path) as outbox:
        for count in range(100):
            outbox.append([change(ChangeKind.UPDATED, count=count)], boot_id="b", position=Position("b", count))
        assert outbox.trouble.message.startswith("the disk does not answer")
        assert outbox._writer.backlog <= 10
        answers.set()
        await until(troubled(outbox, ""))
    async with running(path) as again:
        assert again.position == Position("b", 99)
        assert [one.event.incident.count for one in again.pending(after=0, limit=10)] == [99]
