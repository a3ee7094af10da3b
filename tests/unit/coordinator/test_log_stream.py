"""How the chunks of a followed log come to their parser."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from nvcre_coordinator.api.measurement import GapReason
from nvcre_coordinator.controllers import log_stream
from nvcre_coordinator.controllers.caches import CachedPod
from nvcre_coordinator.controllers.log_stream import GATHERED_BYTES, FollowedLog, parsed
from nvcre_coordinator.core.pods import PodRecord
from nvcre_kube.client import ApiError
from nvcre_logs.lines import LineFeed


async def stream(chunks: list[bytes], error: Exception | None = None) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
    if error is not None:
        raise error


async def blocks(chunks: AsyncIterator[bytes]) -> list[bytes]:
    return [block async for block in parsed(chunks, LineFeed(), lambda block: block)]


async def test_chunks_that_come_together_are_parsed_together() -> None:
    assert await blocks(stream([b"a\nb", b"c\n", b"d\n"])) == [b"a\nbc\nd\n"]


async def test_no_more_is_gathered_than_fits() -> None:
    chunk = b"x" * 63 + b"\n"
    found = await blocks(stream([chunk] * (3 * GATHERED_BYTES // len(chunk))))
    assert [len(block) for block in found] == [GATHERED_BYTES] * 3


async def test_a_chunk_that_comes_alone_is_parsed_at_once() -> None:
    came: asyncio.Queue[bytes] = asyncio.Queue()

    async def live() -> AsyncIterator[bytes]:
        while chunk := await came.get():
            yield chunk

    found = parsed(live(), LineFeed(), lambda block: block)
    for line in (b"one\n", b"two\n"):
        came.put_nowait(line)
        assert await anext(found) == line
    came.put_nowait(b"")
    assert [block async for block in found] == []


async def test_what_came_before_the_connection_broke_is_parsed_and_then_the_error_is_told() -> None:
    found = parsed(stream([b"one\n", b"two"], ConnectionResetError()), LineFeed(), lambda block: block)
    assert await anext(found) == b"one\n"
    with pytest.raises(ConnectionResetError):
        await anext(found)


async def test_who_stops_listening_leaves_no_task_behind() -> None:
    def reading() -> list[str]:
        return [repr(task) for task in asyncio.all_tasks() if "_gathered" in repr(task)]

    found = parsed(stream([b"x" * GATHERED_BYTES + b"\n"] * 3), LineFeed(), lambda block: block)
    await anext(found)
    assert len(reading()) == 1
    await found.aclose()
    assert reading() == []


class Kubelet:
    """Each time that the log is asked for it answers with the next of `answers`; an error in one is raised there."""

    def __init__(self, *answers: bytes | Exception) -> None:
        self._answers = list(answers)

    async def pod_log(self, *_: Any, **__: Any) -> AsyncIterator[bytes]:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        for at in range(0, len(answer), 7):
            yield answer[at : at + 7]


class Read:
    """What came of following the log of one pod to its end."""

    def __init__(self, parse: Callable[[bytes], bytes] = lambda block: block) -> None:
        self.parse = parse
        self.text = b""

    async def of(self, *answers: bytes | Exception, exists: bool = True) -> FollowedLog[bytes]:
        async def take(found: bytes) -> None:
            self.text += found

        pod = CachedPod("team", "run", PodRecord("pod", "uid"), ("main",), "")
        kubelet: Any = Kubelet(*answers)
        log = FollowedLog(kubelet, pod, "", self.parse, take, exists=lambda: exists)
        await log.end(60)
        return log


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_stream, "RETRY_S", 0.0)
    monkeypatch.setattr(log_stream, "PARSER_BROKE_S", 0.0)


ONE = b"2026-02-05T10:00:01.000000001Z one\n"
HALF = b"2026-02-05T10:00:02.000000001Z two ha"
WHOLE = b"2026-02-05T10:00:02.000000001Z two halves\n"
NEXT = b"2026-02-05T10:00:09.000000001Z of the next container\n"
GONE, RESET = ApiError(404, "NotFound", "gone"), ConnectionResetError("reset")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("case", "answers", "text"),
    [
        ("a kubelet that ended told half a line", [ONE + HALF, ONE + WHOLE], ONE + WHOLE),
        ("and again", [ONE + HALF[:-2], ONE + HALF, ONE + WHOLE], ONE + WHOLE),
        ("and was not there yet", [ONE + HALF, RESET, ONE + WHOLE], ONE + WHOLE),
        ("the last line had no end", [ONE + HALF, ONE + HALF], ONE + HALF + b"\n"),
        ("and the pod is gone", [ONE + HALF, GONE], ONE + HALF + b"\n"),
        ("and the next container logs", [ONE + HALF, NEXT], ONE + HALF + b"\n" + NEXT),
        ("and the next container has not logged yet", [ONE + HALF, b""], ONE + HALF + b"\n"),
        ("the first line was told in part", [HALF[:9], WHOLE], WHOLE),
        ("less was told than before", [ONE + HALF, ONE + HALF[:-2], b"", ONE + WHOLE], ONE + WHOLE),
        ("broken within a line and a character", [ONE + "2026-02-05T10:0ä".encode()[:-1], RESET], ONE),
        ("without stamps", [b"one\ntwo"], b"one\ntwo\n"),
    ],
)
async def test_a_line_that_the_log_ended_in_is_neither_lost_nor_doubled(
    case: str, answers: list[bytes | Exception], text: bytes
) -> None:
    read = Read()
    log = await read.of(*answers, GONE)
    assert (read.text, log.complete or case.startswith("broken"), log.problem == "" or log.gone) == (text, True, True)
    assert log.gaps == () or log.gone


@pytest.mark.usefixtures("impatient")
async def test_another_pod_of_the_name_is_not_read_on_for_it() -> None:
    read = Read()
    log = await read.of(ConnectionResetError(), NEXT, exists=False)
    assert (read.text, log.gone, [gap.reason for gap in log.gaps]) == (b"", True, [GapReason.POD_GONE])


@pytest.mark.usefixtures("impatient")
async def test_a_parser_that_breaks_is_told_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    broken = iter([True, False])

    def parse(block: bytes) -> bytes:
        if next(broken):
            raise OverflowError("date value out of range")
        return block

    read = Read(parse)
    log = await read.of(ONE, ONE + NEXT)
    assert (read.text, log.complete, [gap.reason for gap in log.gaps]) == (NEXT, True, [GapReason.UNREAD])
    assert "date value out of range" in caplog.text


async def test_a_parser_that_was_slow_works_beside_the_loop_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_stream, "IN_THREAD_S", -1.0)
    threads = []

    async def live() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"line\n"
            await asyncio.sleep(0)

    found = parsed(live(), LineFeed(), lambda _: threads.append(threading.current_thread()))
    async for _ in found:
        await asyncio.sleep(0)
    assert [thread is threading.main_thread() for thread in threads][:2] == [True, False]
