"""The logs of a stalled run are read once, those that can be had; nobody waits for the others for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from nvcre_coordinator.api.log_profile import LogProfile
from nvcre_coordinator.api.meta import from_json
from nvcre_coordinator.controllers import stall_logs
from nvcre_coordinator.controllers.caches import CachedPod
from nvcre_coordinator.controllers.stall_logs import StallLogs
from nvcre_kube.client import ApiError

RUN = ("team", "run-workload")
PROFILE = from_json(
    {
        "metadata": {"name": "p"},
        "spec": {
            "timestamp": {"layout": "2006"},
            "containerName": "trainer",
            "patterns": {"trainingStep": {"regex": r"step (?P<iteration>\d+)"}},
        },
    },
    LogProfile,
)


class Server:
    """`logs` by pod; a pod without one is gone, one whose log is None never answers."""

    def __init__(self, **logs: bytes | None) -> None:
        self.logs = logs
        self.asked: list[tuple[str, str | None]] = []

    async def pod_log(self, name: str, namespace: str, *, container: str | None, **_: Any) -> AsyncIterator[bytes]:
        self.asked.append((name, container))
        if name not in self.logs:
            raise ApiError(404, "NotFound", "gone")
        if self.logs[name] is None:
            await asyncio.Event().wait()
        yield self.logs[name] or b""


def pods(build: Any, *names: str) -> list[CachedPod]:
    return [CachedPod("team", "run-workload", build.pod(name), ("sidecar", "trainer"), "") for name in names]


async def read(logs: StallLogs, told: asyncio.Queue[Any], *args: Any) -> dict[str, int | None]:
    assert logs.ends(RUN, *args) is None
    assert await told.get() == RUN
    ends = logs.ends(RUN, *args)
    assert ends is not None
    return {uid: end.step for uid, end in ends.items()}


async def test_every_log_that_can_be_had_is_read_once(build: Any) -> None:
    server = Server(a=b"2026-12-01T12:00:01Z step 8\n", b=b"step 9\nnoise\n")
    told: asyncio.Queue[Any] = asyncio.Queue()
    logs = StallLogs(server, told.put_nowait)  # type: ignore[arg-type]
    run = pods(build, "a", "b", "gone"), PROFILE
    assert await read(logs, told, *run) == {"uid-a": 8, "uid-b": 9}
    assert sorted(server.asked) == [("a", "trainer"), ("b", "trainer"), ("gone", "trainer")]
    logs.forget(RUN)
    assert await read(logs, told, *run) == {"uid-a": 8, "uid-b": 9}


async def test_without_a_profile_the_first_container_is_read_for_what_else_it_tells(build: Any) -> None:
    server = Server(a=b"2026-12-01T12:00:01Z step 8\n")
    told: asyncio.Queue[Any] = asyncio.Queue()
    logs = StallLogs(server, told.put_nowait)  # type: ignore[arg-type]
    assert await read(logs, told, pods(build, "a"), None) == {"uid-a": None}
    assert server.asked == [("a", "sidecar")]


async def test_a_log_that_never_comes_costs_the_deadline_and_no_other_log(
    build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stall_logs, "DEADLINE_S", 0.2)
    told: asyncio.Queue[Any] = asyncio.Queue()
    logs = StallLogs(Server(a=b"step 8\n", b=None), told.put_nowait)  # type: ignore[arg-type]
    assert await read(logs, told, pods(build, "a", "b"), PROFILE) == {"uid-a": 8}


async def test_who_stops_leading_reads_no_further_and_says_nothing(build: Any) -> None:
    told: asyncio.Queue[Any] = asyncio.Queue()
    logs = StallLogs(Server(a=None), told.put_nowait)  # type: ignore[arg-type]
    assert logs.ends(RUN, pods(build, "a"), PROFILE) is None
    await logs.stop()
    await asyncio.sleep(0)
    assert told.empty()
