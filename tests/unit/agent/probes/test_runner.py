"""The runner with a small tool script in the place of nccl-tests: what becomes of good, bad and stuck tools."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from nvcre_agent.probes.model import Order, ProbeKind, ProbeReason, ProbeResult, ProbeState
from nvcre_agent.probes.runner import Node, ProbeRunner, find_tool, has_infiniband

CORPUS = Path(__file__).parents[3] / "corpus"
SOON_S = 20.0
ORDER = Order("p1", ProbeKind.NVLINK_ALL_REDUCE, 8, 1024, 2, 20, 2, SOON_S)


@dataclass
class Bench:
    """A node with a scripted tool; `foreign` answers, one a question, and the last one for ever."""

    directory: Path
    gpus: int = 8
    infiniband: bool = True
    foreign: list[int] = field(default_factory=lambda: [0])
    own: list[frozenset[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.runner = ProbeRunner(
            Node(
                gpus=lambda: self.gpus,
                tool=lambda: find_tool(self.directory),
                infiniband=lambda: self.infiniband,
                foreign_processes=self._foreign,
                watch_interval_s=0.05,
            )
        )

    async def _foreign(self, own_pids: Collection[int]) -> int:
        self.own.append(frozenset(own_pids))
        return self.foreign.pop(0) if len(self.foreign) > 1 else self.foreign[0]

    def tool(self, body: str) -> None:
        """`body` is Python with `here`, the directory, and sys, os, time."""
        script = self.directory / "all_reduce_perf"
        script.write_text(
            f"#!{sys.executable} -S\nimport os, sys, time\nfrom pathlib import Path\n"
            f"here = Path({str(self.directory)!r})\n"
            f"with open(here / 'calls', 'a') as calls: print(*sys.argv[1:], file=calls)\n{body}\n"
        )
        script.chmod(0o755)

    def prints(self, case: str, *, exit_code: int = 0) -> None:
        self.tool(f"sys.stdout.write(Path({str(CORPUS / case)!r} + '.log').read_text())\nsys.exit({exit_code})")

    def hangs(self) -> None:
        """With a child of its own, which must not survive either."""
        self.tool(
            "import subprocess\nchild = subprocess.Popen(['sleep', '600'])\n"
            "(here / 'pids.part').write_text(f'{os.getpid()} {child.pid}')\n"
            "(here / 'pids.part').rename(here / 'pids')\ntime.sleep(600)"
        )

    @property
    def calls(self) -> list[str]:
        path = self.directory / "calls"
        return path.read_text().splitlines() if path.exists() else []

    async def hanging_pids(self) -> list[int]:
        async with asyncio.timeout(SOON_S):
            while not (self.directory / "pids").exists():  # noqa: ASYNC110  written by another process
                await asyncio.sleep(0.02)
        return [int(pid) for pid in (self.directory / "pids").read_text().split()]

    async def run(self, order: Order = ORDER) -> ProbeResult:
        return await asyncio.wait_for(self.runner.run(order), SOON_S)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    yield made
    await made.runner.stop()


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def all_gone(pids: list[int]) -> None:
    async with asyncio.timeout(SOON_S):
        while not all(map(gone, pids)):  # noqa: ASYNC110  about other processes
            await asyncio.sleep(0.02)


async def test_every_run_is_measured_and_its_sizes_are_the_out_of_place_columns(bench: Bench) -> None:
    bench.prints("ns03-allgather-b200-two-nodes-2.19")
    result = await bench.run()
    assert (result.state, result.reason, len(result.runs)) == (ProbeState.MEASURED, ProbeReason.NONE, 2)
    largest = result.runs[0].sizes[-1]
    assert (largest.size_bytes, largest.algbw_gbps, largest.busbw_gbps) == (17179869184, 390.53, 366.12)
    assert (result.runs[0].exit_code, result.runs[0].wrong_elements) == (0, 0)
    assert result.nccl_version == "2.19.6"
    assert result.arguments == "NCCL_NVLS_ENABLE=0 all_reduce_perf -b 8 -e 1024 -f 2 -n 20 -g 8 -c 1"
    assert bench.calls == ["-b 8 -e 1024 -f 2 -n 20 -g 8 -c 1"] * 2
    assert result.started_at_s is not None
    assert result.finished_at_s is not None


@pytest.mark.parametrize(
    ("case", "exit_code", "state", "reason", "words"),
    [
        ("ns07-wrong-elements", 7, ProbeState.ERROR, ProbeReason.WRONG_RESULTS, "49 wrong elements"),
        ("ns08-nccl-failure-no-rows", 3, ProbeState.ERROR, ProbeReason.TOOL_FAILED, "Test NCCL failure"),
        ("ns09-truncated-after-four-rows", 0, ProbeState.ERROR, ProbeReason.TOOL_FAILED, "cut after 4 rows"),
        ("ns01-allreduce-h100-clean", 1, ProbeState.ERROR, ProbeReason.TOOL_FAILED, "exit code 1"),
    ],
)
async def test_a_tool_that_fails_is_an_error_that_quotes_it(
    bench: Bench, case: str, exit_code: int, state: ProbeState, reason: ProbeReason, words: str
) -> None:
    bench.prints(case, exit_code=exit_code)
    result = await bench.run()
    assert (result.state, result.reason, len(result.runs)) == (state, reason, 1)
    assert words in result.message


async def test_a_failed_launcher_code_of_0_does_not_hide_wrong_results(bench: Bench) -> None:
    bench.prints("ns07-wrong-elements", exit_code=0)
    assert (await bench.run()).reason is ProbeReason.WRONG_RESULTS


@pytest.mark.parametrize(
    ("body", "reason", "words"),
    [
        ("", ProbeReason.NO_OUTPUT, "no table"),
        ("sys.exit('error while loading shared libraries: libnccl.so.2')", ProbeReason.TOOL_FAILED, "libnccl.so.2"),
        ("os.kill(os.getpid(), 11)", ProbeReason.TOOL_FAILED, "exit code -11"),
    ],
)
async def test_a_tool_without_a_table_is_an_error(bench: Bench, body: str, reason: ProbeReason, words: str) -> None:
    bench.tool(body)
    result = await bench.run()
    assert (result.state, result.reason) == (ProbeState.ERROR, reason)
    assert words in result.message


def tool_missing(bench: Bench) -> None:
    (bench.directory / "all_reduce_perf").unlink()


def no_gpus(bench: Bench) -> None:
    bench.gpus = 0


def seven_gpus(bench: Bench) -> None:
    bench.tool("sys.exit('Invalid number of GPUs: 8 requested but only 7 were found.')")


def foreign_before(bench: Bench) -> None:
    bench.foreign = [2]


def foreign_after(bench: Bench) -> None:
    bench.foreign = [0, 0, 1]


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (tool_missing, ProbeReason.TOOL_NOT_FOUND),
        (no_gpus, ProbeReason.NO_GPUS),
        (seven_gpus, ProbeReason.NO_GPUS),
        (foreign_before, ProbeReason.FOREIGN_PROCESSES),
        (foreign_after, ProbeReason.FOREIGN_PROCESSES),
    ],
)
async def test_a_node_that_cannot_be_measured_is_not_tested(
    bench: Bench, trouble: Callable[[Bench], None], reason: ProbeReason
) -> None:
    bench.prints("ns01-allreduce-h100-clean")
    trouble(bench)
    result = await bench.run()
    assert (result.state, result.reason) == (ProbeState.NOT_TESTED, reason)
    assert result.message


async def test_a_nic_probe_needs_infiniband_and_an_nvlink_probe_does_not(bench: Bench) -> None:
    bench.prints("ns01-allreduce-h100-clean")
    bench.infiniband = False
    nic = await bench.run(replace(ORDER, probe_id="nic", kind=ProbeKind.NIC_LOOPBACK))
    assert (nic.state, nic.reason, bench.calls) == (ProbeState.NOT_TESTED, ProbeReason.NO_INFINIBAND, [])
    assert (await bench.run()).state is ProbeState.MEASURED


async def test_a_foreign_process_ends_a_running_probe_and_everything_it_started(bench: Bench) -> None:
    bench.hangs()
    running = asyncio.create_task(bench.run())
    pids = await bench.hanging_pids()
    bench.foreign = [1]
    result = await running
    assert (result.state, result.reason) == (ProbeState.NOT_TESTED, ProbeReason.FOREIGN_PROCESSES)
    await all_gone(pids)


async def test_the_tool_and_its_children_are_our_own_processes(bench: Bench) -> None:
    bench.hangs()
    running = asyncio.create_task(bench.run())
    pids = await bench.hanging_pids()
    async with asyncio.timeout(SOON_S):
        while not set(pids) <= bench.runner.pids:  # noqa: ASYNC110  the tool may be faster than its start in this loop
            await asyncio.sleep(0.02)
    bench.runner.cancel(ORDER.probe_id, "enough")
    await running


async def test_a_timeout_is_not_tested_and_leaves_no_process(bench: Bench) -> None:
    bench.hangs()
    running = asyncio.create_task(bench.run(replace(ORDER, timeout_s=1.0)))
    pids = await bench.hanging_pids()
    result = await running
    assert (result.state, result.reason) == (ProbeState.NOT_TESTED, ProbeReason.TIMEOUT)
    assert "0 of 2 runs" in result.message
    await all_gone(pids)


async def test_a_cancel_says_why_and_leaves_no_process(bench: Bench) -> None:
    bench.hangs()
    running = asyncio.create_task(bench.run())
    pids = await bench.hanging_pids()
    known = bench.runner.state_of(ORDER.probe_id)
    assert known is not None
    assert known.state is ProbeState.RUNNING
    assert bench.runner.cancel(ORDER.probe_id, "the Job was deleted")
    result = await running
    assert (result.state, result.reason) == (ProbeState.NOT_TESTED, ProbeReason.CANCELLED)
    assert result.message == "cancelled: the Job was deleted"
    await all_gone(pids)


async def test_a_probe_cancelled_before_it_began_is_cancelled(bench: Bench) -> None:
    bench.prints("ns01-allreduce-h100-clean")
    running = asyncio.create_task(bench.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert bench.runner.cancel(ORDER.probe_id, "at once")
    assert (await running).reason is ProbeReason.CANCELLED


async def test_cancelling_what_does_not_run_changes_nothing(bench: Bench) -> None:
    assert not bench.runner.cancel("nobody", "why not")


async def test_the_same_order_again_is_the_same_probe(bench: Bench) -> None:
    bench.prints("ns01-allreduce-h100-clean")
    first, second = await asyncio.gather(bench.run(), bench.run())
    third = await bench.run()
    assert first is second is third
    assert len(bench.calls) == ORDER.runs


async def test_only_one_probe_runs_at_a_time(bench: Bench) -> None:
    text = str(CORPUS / "ns01-allreduce-h100-clean.log")
    bench.tool(
        f"lock = os.open(here / 'lock', os.O_CREAT | os.O_EXCL)\ntime.sleep(0.1)\nprint(Path({text!r}).read_text())\n"
        "os.unlink(here / 'lock')"
    )
    orders = [replace(ORDER, probe_id=f"p{number}", runs=1) for number in range(3)]
    results = await asyncio.gather(*(bench.run(order) for order in orders))
    assert {result.state for result in results} == {ProbeState.MEASURED}


async def test_too_many_waiting_probes_are_refused(bench: Bench) -> None:
    bench.hangs()
    waiting = [asyncio.create_task(bench.run(replace(ORDER, probe_id=f"w{number}"))) for number in range(8)]
    await bench.hanging_pids()
    refused = await bench.run(replace(ORDER, probe_id="one-too-many"))
    assert (refused.state, refused.reason) == (ProbeState.NOT_TESTED, ProbeReason.BUSY)
    await bench.runner.stop()
    assert {(await task).reason for task in waiting} == {ProbeReason.CANCELLED}


async def test_an_order_that_makes_no_sense_starts_nothing(bench: Bench) -> None:
    bench.prints("ns01-allreduce-h100-clean")
    result = await bench.run(replace(ORDER, step_factor=1))
    assert (result.state, result.reason, bench.calls) == (ProbeState.ERROR, ProbeReason.BAD_ORDER, [])


async def test_a_caller_who_gives_up_does_not_end_the_probe(bench: Bench) -> None:
    bench.prints("ns01-allreduce-h100-clean")
    caller = asyncio.create_task(bench.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    assert (await bench.run()).state is ProbeState.MEASURED


async def test_the_tool_sees_a_clean_environment(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVCRE_TOKEN_FILE", "/secret")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    bench.tool("(here / 'env').write_text(' '.join(sorted(os.environ)))")
    await bench.run()
    seen = set((bench.directory / "env").read_text().split())
    assert seen <= {"PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "NCCL_NVLS_ENABLE", "LC_CTYPE"} | {
        name for name in os.environ if name.endswith("VISIBLE_DEVICES")
    }


async def test_a_flood_of_garbage_is_read_in_bounded_memory_and_is_an_error(bench: Bench) -> None:
    bench.tool("for _ in range(80): sys.stdout.buffer.write(bytes(range(256)).replace(b'\\n', b'') * 256)")
    result = await bench.run(replace(ORDER, runs=1))
    assert result.reason is ProbeReason.NO_OUTPUT


async def test_the_tool_dies_with_an_agent_that_is_killed(bench: Bench) -> None:
    bench.hangs()
    leash = Path(sys.modules[ProbeRunner.__module__].__file__ or "").with_name("leash.py")
    agent = await asyncio.create_subprocess_exec(sys.executable, "-c", _AGENT, str(leash), str(bench.directory))
    pids = await bench.hanging_pids()
    agent.kill()
    await agent.wait()
    await all_gone(pids[:1])
    os.kill(pids[1], 9)  # the tool's own child is the tool's; nccl-tests has none


_AGENT = """
import os, subprocess, sys
subprocess.run([sys.executable, sys.argv[1], str(os.getpid()), sys.argv[2] + "/all_reduce_perf"])
"""


def test_the_tool_is_found_in_its_directory_or_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_tool(None) is None
    tool = tmp_path / "all_reduce_perf"
    tool.write_text("")
    assert find_tool(None) is None  # not executable
    tool.chmod(0o755)
    assert find_tool(None) == find_tool(tmp_path) == tool
    assert find_tool(tmp_path / "elsewhere") is None


def test_infiniband_is_a_device_in_sysfs(tmp_path: Path) -> None:
    assert not has_infiniband(tmp_path / "infiniband")
    (tmp_path / "infiniband").mkdir()
    assert not has_infiniband(tmp_path / "infiniband")
    (tmp_path / "infiniband" / "mlx5_0").mkdir()
    assert has_infiniband(tmp_path / "infiniband")
