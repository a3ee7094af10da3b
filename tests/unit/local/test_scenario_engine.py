"""The engine waits for the Pods, then writes into the simulated world what the scenario says."""

import asyncio
import json
import re

import pytest
from nvcre_local import scenario_engine
from nvcre_local.scenario_engine import ScenarioEngine
from nvcre_local.scenario_file import parse_scenario
from nvcre_local.simulated_nccl.directory import Directory, Handshake, Worker
from nvcre_local.simulation import SimulationDirectory


class Pods:
    """Answers one list after the other, the last one for ever; `asked` is set when that one was read twice."""

    def __init__(self, *answers):
        self._answers = list(answers)
        self._repeats = 0
        self.settled = asyncio.Event()

    async def list(self, _resource, *, label_selector):
        assert label_selector == "jobset.sigs.k8s.io/jobset-name"
        if len(self._answers) > 1:
            return self._answers.pop(0)
        self._repeats += 1
        if self._repeats > 3:
            self.settled.set()
        return self._answers[0]


def pods(*phases: str, jobset: str = "j"):
    labels = {"jobset.sigs.k8s.io/jobset-name": jobset}
    return [{"metadata": {"labels": labels}, "status": {"phase": phase}} for phase in phases]


@pytest.fixture
def play(tmp_path, monkeypatch):
    monkeypatch.setattr(scenario_engine, "LOOK_EVERY_S", 0.0)

    async def run(text: str, *answers):
        scenario = parse_scenario(text, name="s", where="s")
        directory = SimulationDirectory(tmp_path, scenario)
        directory.write()
        Handshake(Directory(tmp_path), "j").start(Worker(0, "node-1", 4711))
        killed: list[float] = []

        async def kill(restart_after_s: float) -> None:
            killed.append(restart_after_s)

        client = Pods(*answers)
        engine = asyncio.create_task(ScenarioEngine(scenario, directory, client, kill).run())  # type: ignore[arg-type]
        await asyncio.wait_for(client.settled.wait(), 30)
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
        return directory, killed

    return run


def kernel(directory: SimulationDirectory, node: str) -> list[str]:
    return [line.partition(";")[2] for line in directory.kernel_log(node).read_text().splitlines()[1:]]


def events(directory: SimulationDirectory, node: str) -> list[dict]:
    text = (directory.root / "nodes" / node / "driver-events.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


FAULTS = """
faults:
  - {after: 0s, node: 1, gpu: 5, xid: 43, set: {lost: true}, crash: {exitCode: 3, lines: [bye]}}
  - {after: 0s, killCoordinator: true, restartAfter: 2s}
"""


async def test_a_fault_reaches_kernel_log_driver_and_worker_of_its_node_only(play):
    directory, killed = await play(FAULTS, pods("Running", "Pending"), pods("Running", "Running"))
    assert kernel(directory, "node-1") == [
        "NVRM: Xid (PCI:0000:ab:00): 43, pid=4711, name=all_reduce_perf, Ch 00000007",
    ]
    assert events(directory, "node-1") == [
        {"gpu": 5, "event": "xid", "code": 43},
        {"gpu": 5, "set": {"lost": True}},
    ]
    assert json.loads((directory.root / "nodes/node-1/crash.json").read_text()) == {"exit_code": 3, "lines": ["bye"]}
    assert killed == [2.0]
    assert kernel(directory, "node-0") == events(directory, "node-0") == []


async def test_nothing_happens_before_all_pods_run(play):
    directory, killed = await play(FAULTS, pods("Running", "Pending"))
    assert (kernel(directory, "node-1"), killed) == ([], [])


async def test_a_process_the_driver_does_not_know_is_unknown(play):
    directory, _ = await play("faults: [{after: 0s, node: 2, gpu: 0, xid: 43, sources: [kernel-log]}]", pods("Running"))
    assert re.search(r"43, pid='<unknown>', name=all_reduce_perf", kernel(directory, "node-2")[0])
    assert events(directory, "node-2") == []


async def test_a_job_applied_again_is_a_new_run(play):
    directory, killed = await play(
        "faults: [{after: 0s, killCoordinator: true}]", pods("Running"), pods("Running"), [], pods("Running")
    )
    assert killed == [1.0, 1.0]
    assert Handshake(Directory(directory.root), "j").workers() == []
