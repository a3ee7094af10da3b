"""The outbox: nothing sequenced is lost, repeated or reordered, whatever the disk does."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nvcre_agent.checks.model import Component
from nvcre_agent.incidents.model import Change, ChangeKind, Incident, Kept
from nvcre_agent.kernel.kmsg import Position
from nvcre_agent.outbox import Outbox, open_outbox
from nvcre_agent.outbox_file import Job, OutboxInUseError, Writer
from nvcre_agent.outbox_queue import DropReason, Limits
from nvcre_agent.xid.model import Clears
from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, IncidentKind, Source

EVERYTHING = 100_000
PATIENCE_S = 60.0


def incident(key: str = "i1", count: int = 1) -> Incident:
    return Incident(
        id=key,
        kind=IncidentKind.XID,
        code=79,
        fault_class=FaultClass.NEEDS_REBOOT,
        blame=Blame.YES,
        component=Component(ComponentKind.GPU, 5, "GPU-5", "00000000:3B:00.0"),
        message="GPU has fallen off the bus.",
        first_seen_s=1_800_000_000.25,
        last_seen_s=1_800_000_001.5,
        sources=(Source.NVML, Source.KERNEL_LOG),
        count=count,
        effects={45: 3},
    )


def change(kind: ChangeKind = ChangeKind.OPENED, key: str = "i1", count: int = 1) -> Change:
    return Change(kind, incident(key, count), 1_800_000_000.25, 100.0)


@asynccontextmanager
async def running(path: Path, **options: Any) -> AsyncIterator[Outbox]:
    outbox = open_outbox(path, **options)
    outbox.start()
    try:
        yield outbox
    finally:
        await outbox.close()


async def settled(outbox: Outbox) -> list[int]:
    """Sequence numbers that may be sent, once the writer has had its turn."""
    await until(lambda: len(outbox.pending(after=0, limit=EVERYTHING)) == outbox.depth)
    return [one.seq for one in outbox.pending(after=0, limit=EVERYTHING)]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - another thread's doing, looked at from outside
            await asyncio.sleep(0.001)


async def test_events_incidents_and_position_come_back_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "outbox.sqlite"
    kept = Kept(incident(), "00000000:3B:00.0", Clears.REBOOT, "boot-1", 100.0, remedied=True, finding_key="k")
    async with running(path) as outbox:
        outbox.append(
            [change()], boot_id="boot-1", keep=[kept], position=Position("boot-1", 42), state={"baseline": "[]"}
        )
        [seq], outbox_id = await settled(outbox), outbox.outbox_id
    async with running(path) as again:
        assert again.outbox_id == outbox_id
        assert again.kept == (kept,)
        assert again.position == Position("boot-1", 42)
        assert again.state("baseline") == "[]"
        [event] = again.pending(after=0, limit=10)
        assert (event.seq, event.event.incident.code, event.event.boot_id) == (seq, 79, "boot-1")


async def test_sequence_numbers_never_come_twice_even_if_the_last_ones_were_never_written(tmp_path: Path) -> None:
    path = tmp_path / "outbox.sqlite"
    lost = open_outbox(path)  # its writer never runs: what it hands out is lost with the process
    lost.append([change()], boot_id="b")
    await lost.close()
    async with running(path) as outbox:
        outbox.append([change()], boot_id="b")
        assert outbox.last_seq > lost.last_seq


async def test_acknowledged_events_are_deleted_for_good(tmp_path: Path) -> None:
    path = tmp_path / "outbox.sqlite"
    async with running(path) as outbox:
        outbox.append([change(key="a"), change(key="b"), change(key="c")], boot_id="b")
        first, second, third = await settled(outbox)
        outbox.acknowledge(second)
        outbox.acknowledge(first)
        assert [one.seq for one in outbox.pending(after=0, limit=10)] == [third]
    async with running(path) as again:
        assert [one.seq for one in again.pending(after=0, limit=10)] == [third]


async def test_a_cursor_above_ours_moves_the_numbers_on(tmp_path: Path) -> None:
    async with running(tmp_path / "outbox.sqlite") as outbox:
        outbox.acknowledge(10_000_000)
        outbox.append([change()], boot_id="b")
        assert outbox.last_seq == 10_000_001


async def test_a_writer_that_dies_is_not_silent(tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path / "outbox.sqlite")
    outbox.start()
    outbox.acknowledge(2**63)  # more than SQLite can hold
    outbox.append([change()], boot_id="b")
    with pytest.raises(OverflowError):
        await asyncio.wait_for(outbox.run(), 10)


async def test_a_newer_update_replaces_the_older_one_and_keeps_the_opening(tmp_path: Path) -> None:
    path = tmp_path / "outbox.sqlite"
    async with running(path) as outbox:
        outbox.append([change()], boot_id="b")
        for count in range(2, 200):
            outbox.append([change(ChangeKind.UPDATED, count=count)], boot_id="b")
        outbox.append([change(ChangeKind.UPDATED, key="other")], boot_id="b")
        await settled(outbox)
        assert [(one.kind, one.event.incident.count) for one in outbox.pending(after=0, limit=10)] == [
            (ChangeKind.OPENED, 1),
            (ChangeKind.UPDATED, 199),
            (ChangeKind.UPDATED, 1),
        ]
    with sqlite3.connect(path) as file:
        assert file.execute("SELECT count(*) FROM events").fetchone() == (3,)


async def test_events_wait_for_their_commit_but_not_longer_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "outbox.sqlite"
    answers = threading.Event()
    write = Writer._write

    def slow(writer: Writer, jobs: list[Job]) -> None:
        assert answers.wait(PATIENCE_S)
        write(writer, jobs)

    monkeypatch.setattr(Writer, "_write", slow)
    async with running(path) as outbox:
        outbox.append([change()], boot_id="b")
        assert outbox.pending(after=0, limit=10) == []
        assert len(await settled(outbox)) == 1
        assert (outbox.trouble.reason, outbox.slow_commits, outbox.stored_seq) == ("OutboxSlow", 1, 0)
        assert outbox.progress == (True, 0), "/healthz sees that the writer is stuck"
        answers.set()
        await until(lambda: outbox.progress == (False, 1))
    async with running(path) as again:
        assert again.depth == 1, "the late commit was made all the same"


@pytest.mark.parametrize("garbage", [b"this is not a database" * 100, b"SQLite format 3\x00" + b"\xff" * 5000])
async def test_a_corrupt_file_is_set_aside_and_reported(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "outbox.sqlite"
    path.write_bytes(garbage)
    async with running(path) as outbox:
        assert outbox.trouble.reason == "OutboxCorrupt"
        outbox.append([change()], boot_id="b")
        assert len(await settled(outbox)) == 1
    [aside] = await asyncio.to_thread(lambda: list(tmp_path.glob("*.corrupt-*")))
    assert (await asyncio.to_thread(aside.read_bytes)) == garbage
    async with running(path) as again:
        assert (again.trouble.reason, again.depth) == ("", 1)


async def test_after_a_restart_the_newest_event_is_what_the_coordinator_has_not_a_reserved_number(
    tmp_path: Path,
) -> None:
    """A heartbeat that names a number nobody ever sent is never confirmed."""
    path = tmp_path / "outbox.sqlite"
    async with running(path) as outbox:
        assert outbox.newest_seq == 0
        outbox.append([change()], boot_id="b")
        assert outbox.newest_seq == outbox.last_seq
        [seq] = await settled(outbox)
        outbox.acknowledge(seq)
        assert outbox.newest_seq == seq
    async with running(path) as again:
        again.acknowledge(seq)  # the Welcome's cursor
        assert (again.newest_seq, again.last_seq > seq) == (seq, True)


async def test_what_is_unsent_up_to_a_question_ends_even_if_more_keeps_coming(tmp_path: Path) -> None:
    async with running(tmp_path / "outbox.sqlite") as outbox:
        outbox.append([change(key="a")], boot_id="b")
        asked_at = outbox.newest_seq
        outbox.append([change(key="b")], boot_id="b")
        assert outbox.unsent(0, asked_at)
        assert not outbox.unsent(asked_at, asked_at)
        assert outbox.unsent(asked_at, outbox.newest_seq)


async def test_a_file_that_was_put_back_gives_no_number_to_two_events(tmp_path: Path) -> None:
    """A restored disk: the coordinator's cursor is beyond what this file ever gave."""
    path = tmp_path / "outbox.sqlite"
    async with running(path) as outbox:
        outbox.append([change(key="told by the lost future too")], boot_id="b")
        [loaded] = await settled(outbox)
    async with running(path) as outbox:
        outbox.append([change(key="sent"), change(key="new"), change(key="newer")], boot_id="b")
        _, sent, *never_sent = await settled(outbox)
        cursor = never_sent[-1] + 50
        outbox.resume(cursor, sent=sent)
        left = outbox.pending(after=0, limit=EVERYTHING)
        assert [one.event.incident.id for one in left] == ["new", "newer"]
        assert left[0].seq > cursor > sent > loaded
    async with running(path) as again:
        assert [one.seq for one in again.pending(after=0, limit=EVERYTHING)] == [one.seq for one in left]


def test_a_second_agent_on_the_same_file_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nvcre_agent.outbox_file.LOCK_PATIENCE_S", 0.0)
    path = tmp_path / "outbox.sqlite"
    first = open_outbox(path)
    with pytest.raises(OutboxInUseError, match=r"outbox\.sqlite is in use.*stop the other one"):
        open_outbox(path)
    asyncio.run(first.close())
    asyncio.run(open_outbox(path).close())


async def test_a_file_that_does_not_know_which_numbers_it_gave_is_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "outbox.sqlite"
    async with running(path) as outbox:
        outbox_id = outbox.outbox_id
    with sqlite3.connect(path) as file:
        file.execute("UPDATE state SET value = 'many' WHERE key = 'seq_reserved'")
    file.close()
    async with running(path) as again:
        assert (again.trouble.reason, again.outbox_id == outbox_id) == ("OutboxCorrupt", False)


async def test_rows_of_another_version_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "outbox.sqlite"
    kept = Kept(incident(), "00000000:3B:00.0", Clears.REBOOT, "boot-1", 100.0)
    async with running(path) as outbox:
        outbox.append([change(key="a"), change(key="b"), change(key="c")], boot_id="b", keep=[kept])
        first, second, third = await settled(outbox)
    with sqlite3.connect(path) as file:
        file.execute("UPDATE events SET kind = 'invented' WHERE seq = ?", (first,))
        file.execute("UPDATE events SET body = x'ffff' WHERE seq = ?", (second,))
        file.execute("UPDATE incidents SET clears = 'invented'")
    file.close()
    async with running(path) as again:
        assert [one.seq for one in again.pending(after=0, limit=10)] == [third]
        assert again.events_dropped[DropReason.CORRUPT] == 3
        assert again.kept == ()


@pytest.mark.parametrize(
    ("limits", "reason", "left"),
    [
        (Limits(max_events=3), DropReason.FULL, 3),
        (Limits(max_bytes=300), DropReason.FULL, 2),
        (Limits(max_age_s=0.0), DropReason.AGE, 0),
    ],
)
async def test_what_is_given_up_is_gone_from_the_file_too(
    tmp_path: Path, limits: Limits, reason: DropReason, left: int
) -> None:
    path = tmp_path / "outbox.sqlite"
    async with running(path, limits=limits) as outbox:
        outbox.append([change(key=f"i{number}") for number in range(10)], boot_id="b")
        await settled(outbox)
        assert (outbox.depth, outbox.events_dropped[reason], outbox.gaps) == (left, 10 - left, 10 - left)
    async with running(path) as again:
        assert [one.event.incident.id for one in again.pending(after=0, limit=10)] == [
            f"i{number}" for number in range(10 - left, 10)
        ]
