"""The outbox: nothing sequenced is lost, repeated or reordered, whatever the disk does."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nvcre_agent.checks.model import Component
from nvcre_agent.incidents.model import Change, ChangeKind, Incident, Kept
from nvcre_agent.kernel.kmsg import Position
from nvcre_agent.outbox import MAX_PENDING, Outbox, open_outbox
from nvcre_agent.xid.model import Clears
from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, IncidentKind, Source


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
async def running(path: Path) -> AsyncIterator[Outbox]:
    outbox = open_outbox(path)
    outbox.start()
    try:
        yield outbox
    finally:
        await outbox.close()


async def settled(outbox: Outbox) -> list[int]:
    """Sequence numbers that may be sent, once the writer has had its turn."""
    async with asyncio.timeout(10):
        while len(outbox.pending(after=0, limit=MAX_PENDING)) < outbox.depth:  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(0.001)
    return [one.seq for one in outbox.pending(after=0, limit=MAX_PENDING)]


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


async def test_the_queue_is_bounded_and_says_what_it_gave_up(tmp_path: Path) -> None:
    async with running(tmp_path / "outbox.sqlite") as outbox:
        outbox.append([change(key=f"i{number}") for number in range(MAX_PENDING + 5)], boot_id="b")
        assert (outbox.depth, outbox.dropped) == (MAX_PENDING, 5)


async def test_events_wait_for_their_commit_but_not_longer_than_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "outbox.sqlite"
    async with running(path) as outbox:
        blocker = sqlite3.connect(path)
        blocker.execute("BEGIN IMMEDIATE")  # the commit cannot go on until this is over
        try:
            outbox.append([change()], boot_id="b")
            assert outbox.pending(after=0, limit=10) == []
            assert len(await settled(outbox)) == 1
            assert outbox.trouble.reason == "OutboxSlow"
            assert outbox.slow_commits == 1
        finally:
            blocker.rollback()
            blocker.close()
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


async def test_a_place_that_cannot_be_written_means_memory_only_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with running(tmp_path / "file" / "outbox.sqlite") as outbox:
        assert outbox.trouble.reason == "OutboxInMemory"
        outbox.append([change()], boot_id="b")
        assert len(await settled(outbox)) == 1


async def test_a_disk_that_fails_later_is_reported_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nvcre_agent.outbox.RETRY_S", 0.1)
    path = tmp_path / "outbox.sqlite"
    async with running(path) as outbox:
        outbox._connection.execute("PRAGMA max_page_count=1")
        body = [change(key=f"{number}" * 200) for number in range(200)]
        outbox.append(body, boot_id="b")
        await settled(outbox)
        async with asyncio.timeout(10):
            while outbox.trouble.reason != "OutboxUnwritable":  # noqa: ASYNC110 - looked at from outside
                await asyncio.sleep(0.001)
        outbox._connection.execute("PRAGMA max_page_count=1000000")
        outbox.append([change(key="last")], boot_id="b")
        async with asyncio.timeout(10):
            while outbox.trouble.reason == "OutboxUnwritable":  # noqa: ASYNC110 - looked at from outside
                await asyncio.sleep(0.001)
    async with running(path) as again:
        assert again.depth == 201


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


async def test_a_full_disk_is_not_asked_again_for_every_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is unwritten is repeated with each try: one try an event would eat a core during a storm."""
    tries: list[int] = []

    def refused(self: Outbox, jobs: list[object]) -> list[object]:
        tries.append(len(jobs))
        return jobs

    outbox = open_outbox(tmp_path / "outbox.sqlite")
    monkeypatch.setattr(Outbox, "_write", refused)
    outbox.start()
    outbox.append([change(key="first")], boot_id="b")
    async with asyncio.timeout(10):
        while not tries:  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(0.001)
    for number in range(50):
        outbox.append([change(key=f"k{number}")], boot_id="b")
        await settled(outbox) if number % 25 == 0 else None
    assert tries == [1]
    await outbox.close()
    assert tries == [1, 51], "the end tries once more, with everything"
