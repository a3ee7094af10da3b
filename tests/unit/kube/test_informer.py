"""What an informer asks an API server for, whatever that answers: a list of answers in the order of the requests."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from nvcre_kube.client import ApiError, Page, WatchEvent
from nvcre_kube.informer import MAX_BACKOFF_S, Informer, keep_object
from nvcre_kube.resources import CONFIG_MAPS

GONE = ApiError(410, "Expired", "too old resource version")
BUSY = ApiError(429, "TooManyRequests", "later")
BROKEN = ApiError(500, "InternalError", "etcd is away")


def item(name: str, version: int, value: str = "") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ns", "resourceVersion": str(version), "managedFields": [{"manager": "x"}]}
    return {"metadata": metadata, "data": {"v": value}}


def page(*items: dict[str, Any], version: str = "", then: str = "") -> Page:
    return Page(list(items), version, then)


def event(kind: str, obj: dict[str, Any]) -> WatchEvent:
    return WatchEvent(kind, obj)


def bookmark(version: int) -> WatchEvent:
    return WatchEvent("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


class Server:
    """A watch answers with a list of events and, as its last element, how it ends; without one it stays open."""

    def __init__(self, *answers: Page | list[Any] | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []
        self.times: list[float] = []

    async def list_page(self, *_: Any, continue_token: str = "", **__: Any) -> Page:
        answer = self._next(f"list {continue_token}".strip())
        assert isinstance(answer, Page), answer
        return answer

    async def watch(self, *_: Any, resource_version: str, **__: Any) -> AsyncIterator[WatchEvent]:
        answer = self._next(f"watch {resource_version}")
        assert isinstance(answer, list), answer
        for one in answer:
            if isinstance(one, Exception):
                raise one
            if one == "end":
                await asyncio.sleep(300)
                return
            yield one
        await asyncio.Event().wait()

    def _next(self, request: str) -> Any:
        self.asked.append(request)
        self.times.append(asyncio.get_running_loop().time())
        answer = self._answers.pop(0) if self._answers else []
        if isinstance(answer, Exception):
            raise answer
        return answer


class Followed:
    def __init__(self, server: Server) -> None:
        self.informer = Informer(server, CONFIG_MAPS, convert=keep_object)  # type: ignore[arg-type]
        self.heard: list[tuple[str, str | None, str | None]] = []
        self.informer.add_handler(self._hear)

    def _hear(self, old: Any, new: Any) -> None:
        values = [None if one is None else one["data"]["v"] for one in (old, new)]
        self.heard.append(((new or old)["metadata"]["name"], *values))

    async def run(self, for_s: float = 1000.0) -> None:
        task = asyncio.create_task(self.informer.run())
        await asyncio.sleep(for_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_all_pages_of_a_list_are_read_before_anything_is_removed(run_virtually):
    server = Server(page(item("a", 1), version="9", then="more"), page(item("b", 2), version="9"))
    followed = Followed(server)
    run_virtually(followed.run())
    assert server.asked == ["list", "list more", "watch 9"]
    assert sorted(one["metadata"]["name"] for one in followed.informer.all()) == ["a", "b"]


def test_a_watch_that_ends_is_resumed_where_it_was_and_bookmarks_count(run_virtually):
    server = Server(page(version="5"), [event("ADDED", item("a", 7)), "end"], [bookmark(40), "end"], [bookmark(41)])
    run_virtually(Followed(server).run())
    assert server.asked == ["list", "watch 5", "watch 7", "watch 40"]


def test_a_watch_that_breaks_is_resumed_behind_what_it_told(run_virtually):
    server = Server(
        page(item("a", 1, "one"), version="5"),
        [event("MODIFIED", item("a", 6, "two")), event("DELETED", item("a", 7, "two")), ConnectionResetError()],
    )
    followed = Followed(server)
    run_virtually(followed.run())
    assert server.asked == ["list", "watch 5", "watch 7"]
    assert followed.heard == [("a", None, "one"), ("a", "one", "two"), ("a", "two", None)]


@pytest.mark.parametrize("answer", [GONE, BROKEN, [bookmark(8), GONE]], ids=["at once", "error", "in the watch"])
def test_a_server_that_forgot_the_version_is_listed_anew_and_what_is_missing_was_removed(run_virtually, answer):
    server = Server(
        page(item("a", 1, "one"), item("b", 2, "one"), version="5"), answer, page(item("b", 90, "two"), version="99")
    )
    followed = Followed(server)
    run_virtually(followed.run())
    assert server.asked == ["list", "watch 5", "list", "watch 99"]
    assert followed.heard[2:] == [("b", "one", "two"), ("a", "one", None)]


def test_a_list_whose_next_page_is_forgotten_begins_anew_and_is_no_reason_to_hurry(run_virtually):
    server = Server(page(item("a", 1), then="more"), GONE, page(item("a", 1), version="9"))
    followed = Followed(server)
    run_virtually(followed.run())
    assert server.asked == ["list", "list more", "list", "watch 9"]
    assert server.times[2] > server.times[1]


def test_a_server_that_is_busy_is_not_listed_anew(run_virtually):
    server = Server(page(version="5"), BUSY, BUSY)
    run_virtually(Followed(server).run())
    assert server.asked == ["list", "watch 5", "watch 5", "watch 5"]


def test_an_outage_is_waited_for_ever_more_patiently_never_in_step_and_logged_once(run_virtually, caplog):
    caplog.set_level(logging.WARNING)
    gaps = []
    for _ in range(2):
        server = Server(page(version="5"), *[ConnectionRefusedError()] * 12)
        run_virtually(Followed(server).run())
        gaps.append([later - earlier for earlier, later in zip(server.times[1:], server.times[2:], strict=False)])
        assert set(server.asked) == {"list", "watch 5"}
    assert all(first != second for first, second in zip(*gaps, strict=True))
    assert all(MAX_BACKOFF_S / 2 <= gap <= MAX_BACKOFF_S for gap in gaps[0][8:])
    assert max(gaps[0][:2]) < 1
    assert len([record for record in caplog.records if "interrupted" in record.message]) == 2


def test_managed_fields_are_not_kept(run_virtually):
    followed = Followed(Server(page(item("a", 1), version="5"), [event("ADDED", item("b", 6))]))
    run_virtually(followed.run())
    assert len(followed.informer) == 2
    assert [one for one in followed.informer.all() if "managedFields" in one["metadata"]] == []


def test_an_object_that_nobody_understands_does_not_take_the_others_news_away(run_virtually, caplog):
    def convert(obj):
        if obj["data"]["v"] == "odd":
            raise OverflowError("year 10000 is out of range")
        return keep_object(obj)

    server = Server(
        page(item("a", 1, "one"), item("b", 2, "odd"), version="5"),
        [event("MODIFIED", item("a", 6, "odd")), event("ADDED", item("c", 7, "one"))],
    )
    followed = Followed(server)
    followed.informer = Informer(server, CONFIG_MAPS, convert=convert)
    run_virtually(followed.run())
    assert sorted(one["metadata"]["name"] for one in followed.informer.all()) == ["a", "c"]
    assert server.asked == ["list", "watch 5"]
    assert "object not understood resource=configmaps namespace=ns name=b" in caplog.text


def test_a_handler_that_fails_does_not_take_the_news_from_the_next(run_virtually, caplog):
    def fail(*_):
        raise TypeError("can't compare offset-naive and offset-aware datetimes")

    server = Server(page(item("a", 1, "one"), version="5"), [event("DELETED", item("a", 6, "one"))])
    followed = Followed(server)
    followed.informer._handlers.insert(0, fail)
    run_virtually(followed.run())
    assert followed.heard == [("a", None, "one"), ("a", "one", None)]
    assert "change not handled resource=configmaps" in caplog.text
