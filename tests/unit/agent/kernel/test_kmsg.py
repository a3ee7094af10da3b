"""The reader: every record once, in order, and a hostile or broken log never ends it."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nvcre_agent.kernel.kmsg import BATCH, MAX_LINE, KernelLog, Position
from nvcre_agent.kernel.record import Record


class Reader:
    def __init__(self, path: Path, *, after: Position | None = None) -> None:
        self.seen: list[tuple[str, bool]] = []
        self.blind: list[str] = []
        self.log = KernelLog(
            path,
            after=after,
            boot_id="boot-1",
            on_record=self._record,
            on_blind=lambda reason, _: self.blind.append(reason),
        )

    def _record(self, record: Record, backlog: bool) -> None:
        self.seen.append((record.text, backlog))

    @property
    def texts(self) -> list[str]:
        return [text for text, _ in self.seen]


@asynccontextmanager
async def reading(path: Path, *, after: Position | None = None) -> AsyncIterator[Reader]:
    reader = Reader(path, after=after)
    task = asyncio.create_task(reader.log.run())
    try:
        yield reader
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not task.done() or task.cancelled(), task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(0.002)


def record(sequence: int, text: str) -> str:
    return f"3,{sequence},1000,-;{text}\n"


async def test_a_file_is_read_and_followed(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text(record(1, "old"))
    async with reading(path) as reader:
        await until(lambda: reader.texts == ["old"])
        with path.open("a") as file:
            file.write(record(2, "new") + " SUBSYSTEM=pci\n" + record(3, "half")[:-3])
            file.flush()
            await until(lambda: reader.texts == ["old", "new"])
            file.write(record(3, "half")[-3:])
        await until(lambda: len(reader.seen) == 3)
    assert reader.seen == [("old", True), ("new", False), ("half", False)]


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo], ids=["file", "fifo"])
async def test_it_says_whether_records_wait_for_it_and_whether_it_reads(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "kmsg"
    make(path)
    async with reading(path) as reader:
        await until(lambda: reader.log.blind is None and not reader.log.progress[0])
        _, before = reader.log.progress
        with path.open("w") as writer:
            writer.write(record(1, "waits until the loop turns"))
        assert reader.log.progress == (True, before)
        await until(lambda: reader.texts != [])
        waiting, after = reader.log.progress
        assert (waiting, after > before) == (False, True)


async def test_the_position_of_this_boot_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("".join(record(number, f"line {number}") for number in range(1, 6)))
    async with reading(path, after=Position("boot-1", 3)) as reader:
        await until(lambda: reader.texts == ["line 4", "line 5"])
    async with reading(path, after=Position("boot-0", 3)) as reader:
        await until(lambda: len(reader.texts) == 5)


async def test_a_log_that_ends_before_the_position_is_another_one_and_read_from_its_start(tmp_path: Path) -> None:
    """It was emptied while the agent was down: all that came since would pass for read."""
    path = tmp_path / "kmsg"
    path.write_text(record(1, "after") + record(2, "it was emptied"))
    async with reading(path, after=Position("boot-1", 5000)) as reader:
        await until(lambda: reader.texts == ["after", "it was emptied"])
        with path.open("a") as file:
            file.write(record(3, "live"))
        await until(lambda: reader.seen[-1] == ("live", False))
    assert len(reader.seen) == 3
    path.write_text("")
    async with reading(path, after=Position("boot-1", 5000)) as reader:  # nothing yet: nothing is known
        await until(lambda: reader.log.blind is None)
        path.write_text(record(5001, "the next"))
        await until(lambda: reader.texts == ["the next"])


async def test_a_truncated_and_a_replaced_file_are_read_from_their_start(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text(record(1, "before, and rather long"))
    async with reading(path) as reader:
        await until(lambda: len(reader.seen) == 1)
        path.write_text(record(1, "after"))
        await until(lambda: len(reader.seen) == 2)
        beside = tmp_path / "beside"
        beside.write_text(record(1, "replaced by another file"))
        beside.replace(path)
        await until(lambda: len(reader.seen) == 3)
    assert reader.texts[1:] == ["after", "replaced by another file"]


async def test_a_file_that_is_taken_away_for_good_is_blind_until_there_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nvcre_agent.kernel.kmsg.LOOK_AGAIN_S", 0.01)
    path = tmp_path / "kmsg"
    path.write_text(record(7, "before"))
    async with reading(path) as reader:
        await until(lambda: reader.texts == ["before"])
        path.rename(tmp_path / "kmsg.1")
        await until(lambda: reader.blind == ["", "NotFound"])
        path.write_text(record(1, "the new one"))
        await until(lambda: reader.texts == ["before", "the new one"])
    assert reader.blind[2] == ""


async def test_a_missing_file_is_blind_until_it_appears(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    async with reading(path) as reader:
        await until(lambda: reader.blind == ["NotFound"])
        assert await reader.log.drain(5) is False
        path.write_text(record(1, "here"))
        await until(lambda: reader.texts == ["here"])
    assert reader.blind == ["NotFound", ""]


async def test_a_fifo_is_event_driven_and_outlives_its_writers(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    async with reading(path) as reader:
        await until(lambda: reader.log.blind is None)
        for number in (1, 2):
            with path.open("w") as writer:
                writer.write(record(number, f"line {number}"))
            await until(lambda expected=number: len(reader.seen) == expected)  # type: ignore[misc]
    assert reader.seen == [("line 1", False), ("line 2", False)]


async def test_garbage_and_endless_lines_are_counted_skips(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(
        record(1, "first").encode()
        + bytes(range(256)).replace(b"\n", b"") * 40
        + b"\n"
        + b"3,2,1,-;"
        + b"A" * 5_000_000
        + b"\n"
        + b"3,3,1,-;"
        + b"B" * (MAX_LINE + 10)
        + b"\n"
        + record(4, "last").encode()
    )
    async with reading(path) as reader:
        await until(lambda: len(reader.seen) == 2)
    assert reader.texts == ["first", "last"]
    assert reader.log.counts.skipped == 3


async def test_gaps_in_the_sequence_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text(record(1, "a") + record(2, "b") + record(7, "c"))
    async with reading(path) as reader:
        await until(lambda: len(reader.seen) == 3)
    assert reader.log.counts.gaps == 4


async def test_drain_reads_what_is_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("")
    async with reading(path) as reader:
        await until(lambda: reader.log.blind is None)
        path.write_text("".join(record(number, "x") for number in range(5000)))
        assert await reader.log.drain(5) is True
        assert len(reader.seen) == 5000


class Device:
    """What os.read of /dev/kmsg answers, one after the other."""

    def __init__(self, *answers: bytes | OSError) -> None:
        self.answers = list(answers)

    def read(self, fd: int, size: int) -> bytes:
        answer = self.answers.pop(0) if self.answers else BlockingIOError()
        if isinstance(answer, OSError):
            raise answer
        return answer


async def test_14_an_overrun_device_and_a_malformed_record_are_counted_and_read_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(
        b"3,1,1,-;backlog\n",
        BlockingIOError(),
        BrokenPipeError(32, "EPIPE"),
        b"3,9,1,-;after\\x0athe gap\n SUBSYSTEM=pci\n",
        OSError(22, "EINVAL"),
        b"no header\n",
        b"3,10,1,-;last\n",
    )
    fifo = tmp_path / "kmsg"
    os.mkfifo(fifo)  # gives a descriptor that the loop can watch
    monkeypatch.setattr("nvcre_agent.kernel.kmsg.stat.S_ISCHR", lambda mode: True)
    monkeypatch.setattr("nvcre_agent.kernel.kmsg.os.read", device.read)
    reader = Reader(fifo)
    reader.log._open()
    assert [reader.log.read_available() for _ in range(2)] == [False, False]
    reader.log._close()
    assert reader.seen == [("backlog", True), ("after\nthe gap", False), ("last", False)]
    counts = reader.log.counts
    assert (counts.overruns, counts.gaps, counts.skipped) == (1, 7, 2)


async def test_a_device_that_failed_is_read_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = [b"3,1,1,-;one\n", b"3,2,1,-;two\n"]
    device = Device(*ring, BlockingIOError(), OSError(5, "EIO"), *ring, b"3,3,1,-;three\n")
    fifo = tmp_path / "kmsg"
    os.mkfifo(fifo)
    monkeypatch.setattr("nvcre_agent.kernel.kmsg.stat.S_ISCHR", lambda mode: True)
    monkeypatch.setattr("nvcre_agent.kernel.kmsg.os.read", device.read)
    reader = Reader(fifo)
    reader.log._open()
    reader.log.read_available()
    reader.log.read_available()
    assert reader.blind == ["", "ReadFailed"]
    reader.log._open()
    reader.log.read_available()
    reader.log._close()
    assert reader.texts == ["one", "two", "three"]
    assert reader.log.counts.gaps == 0


@pytest.mark.parametrize(
    "answer",
    [BrokenPipeError(32, "EPIPE"), OSError(5, "EIO"), OSError(22, "EINVAL"), b"", bytes(8192)],
    ids=["overruns", "errors", "refusals", "end", "zeroes"],
)
async def test_a_device_that_never_gives_a_record_is_blind_once_and_rests_between_tries(
    answer: bytes | OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be opened: that alone must not look like reading, or the node would be Blind and not, each second."""
    device = Device()
    fifo = tmp_path / "kmsg"
    os.mkfifo(fifo)
    monkeypatch.setattr("nvcre_agent.kernel.kmsg.stat.S_ISCHR", lambda mode: True)
    monkeypatch.setattr("nvcre_agent.kernel.kmsg.os.read", device.read)
    reader = Reader(fifo)
    for _ in range(3):
        device.answers = [answer] * BATCH
        reader.log._open()
        assert not reader.log.read_available()  # and closed, so that it is tried again after a while
        assert await reader.log.drain(5) is False
    assert reader.blind == ["ReadFailed"]
    device.answers = [record(1, "well again").encode()]
    reader.log._open()
    reader.log.read_available()
    reader.log._close()
    assert (reader.blind, reader.texts) == (["ReadFailed", ""], ["well again"])


async def test_what_was_overwritten_while_the_agent_was_down_is_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text(record(10, "a") + record(11, "b"))
    async with reading(path, after=Position("boot-1", 4)) as reader:
        await until(lambda: len(reader.seen) == 2)
    assert reader.log.counts.gaps == 5
