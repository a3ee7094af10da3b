"""/healthz is about the agent: a stuck writer or a dead task is unhealthy, a bad or unseen GPU is not."""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from nvcre_agent.config import parse
from nvcre_agent.exposition import Exposition
from nvcre_agent.host.reading import HostReader
from nvcre_agent.metrics import Metrics
from nvcre_agent.nvml.monitor import NvmlMonitor
from nvcre_agent.outbox import open_outbox
from nvcre_agent.reload import Reloader
from nvcre_agent.self_report import OUTBOX_PATIENCE_S, SelfReport
from nvcre_agent.watch import Watch


class Idle:
    """An agent's parts, none of which runs, on a clock of the test."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dead: list[str] = []
        self.monotonic_s = 1000.0
        clock = SimpleNamespace(time=time.time, monotonic=lambda: self.monotonic_s)
        monkeypatch.setattr("nvcre_agent.self_report.time", clock)
        self.outbox, nvml = open_outbox(root / "outbox.sqlite"), NvmlMonitor()
        watch = Watch(
            boot_id="boot-1",
            kernel_log=root / "kmsg",
            nvml=nvml,
            host=HostReader(root / "sys", root / "proc"),
            outbox=self.outbox,
            metrics=Metrics("n", "0"),
            simulated=False,
        )
        config = parse(["--node-name", "n"], {})
        self.report = SelfReport(
            boot_id="boot-1",
            watch=watch,
            nvml=nvml,
            outbox=self.outbox,
            link=None,
            reloader=Reloader(config, lambda: config, lambda _: None),
            dead_tasks=lambda: self.dead,
        )

    def healthz(self) -> tuple[int, dict[str, object]]:
        answer = Exposition(lambda: b"", self.report.health, self.report.state)._answer(b"GET /healthz HTTP/1.1")
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)


@pytest.fixture
async def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Idle]:
    one = Idle(tmp_path, monkeypatch)
    yield one
    await one.outbox.close()


async def test_an_agent_that_sees_nothing_is_healthy(agent: Idle) -> None:
    for _ in range(100):
        status, facts = agent.healthz()
        assert (status, facts["ok"], facts["deadTasks"], facts["stuckForSeconds"]) == (200, True, [], {})
        agent.monotonic_s += 60
    monitors = facts["monitors"]
    assert isinstance(monitors, dict)
    assert {name: one["state"] for name, one in monitors.items()} == {
        "nvml": "Blind",
        "kernel-log": "Blind",
        "outbox": "Watching",
    }


async def test_a_writer_that_does_not_write_is_unhealthy_once_its_patience_is_over(agent: Idle) -> None:
    agent.outbox.append([], boot_id="boot-1", state={"key": "value"})
    assert agent.healthz()[0] == 200
    agent.monotonic_s += OUTBOX_PATIENCE_S
    assert agent.healthz()[0] == 200
    agent.monotonic_s += 30
    status, facts = agent.healthz()
    assert (status, facts["stuckForSeconds"]) == (503, {"outbox": OUTBOX_PATIENCE_S + 30})
    assert agent.report.state()["alive"] is False


async def test_a_dead_task_is_unhealthy_and_named(agent: Idle) -> None:
    agent.dead.append("link")
    status, facts = agent.healthz()
    assert (status, facts["deadTasks"]) == (503, ["link"])
