"""Runs ordered probes on this node, one at a time: nccl-tests as a subprocess, N times, under one timeout.

The caller hands in what it knows about the node (GPUs, tool, foreign processes) and sends the results; which command an
order means is command.py's business, what the tool said nccl_output.py's.  A busy node is "not tested", never slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from nvcre_logs.nccl_log import NcclLog, NcclTest
from nvcre_logs.nccl_output import NcclOutputParser

from nvcre_agent.probes.command import TOOL, Command, command, invalid
from nvcre_agent.probes.model import (
    Order,
    ProbeKind,
    ProbeReason,
    ProbeResult,
    ProbeRun,
    ProbeState,
    SizeBandwidth,
)

log = logging.getLogger(__name__)

_CHUNK = 64 * 1024
_KILL_AFTER_S = 2.0
_REMEMBERED = 32  # finished probes, answered again when the same id is ordered again
_WAITING_LIMIT = 8


@dataclass(frozen=True, slots=True)
class Node:
    """What a probe needs to know about the node.

    `tool` finds all_reduce_perf (None: there is none).  `foreign_processes` counts processes on the GPUs other than
    the given ones; it is asked before, every `watch_interval_s` during, and after a run.
    """

    gpus: Callable[[], int]
    tool: Callable[[], Path | None]
    infiniband: Callable[[], bool]
    foreign_processes: Callable[[Collection[int]], Awaitable[int]]
    also_inherit: tuple[str, ...] = ()
    watch_interval_s: float = 5.0


class _NotMeasured(Exception):
    """An outcome, raised from wherever it shows."""

    def __init__(self, state: ProbeState, reason: ProbeReason, message: str) -> None:
        super().__init__(message)
        self.state = state
        self.reason = reason
        self.message = message


def find_tool(directory: Path | None) -> Path | None:
    """all_reduce_perf in `directory` (--nccl-tests-dir), or on PATH when that is None."""
    places = [directory] if directory is not None else [Path(p) for p in os.get_exec_path() if p]
    return next((place / TOOL for place in places if os.access(place / TOOL, os.X_OK)), None)


def has_infiniband(sysfs: Path = Path("/sys/class/infiniband")) -> bool:
    return sysfs.is_dir() and any(sysfs.iterdir())


class ProbeRunner:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._one_at_a_time = asyncio.Lock()
        self._tasks: dict[str, asyncio.Task[ProbeResult]] = {}
        self._results: OrderedDict[str, ProbeResult] = OrderedDict()
        self._cancel_reasons: dict[str, str] = {}
        self._process: Process | None = None
        self._own_pids: set[int] = set()  # of the running probe; NVML may list one a moment after its end

    @property
    def pids(self) -> frozenset[int]:
        """Processes of the running probe: ours, not foreign."""
        if self._process is not None:
            self._own_pids |= _group(self._process.pid)
        return frozenset(self._own_pids)

    def state_of(self, probe_id: str) -> ProbeResult | None:
        """What is known of an order: running or finished; None when it was never seen or is long gone."""
        return self._results.get(probe_id)

    async def run(self, order: Order) -> ProbeResult:
        """Carry out an order, or join it when it is already known.  Never raises for what a node or tool does."""
        known = self._results.get(order.probe_id)
        if known is not None and known.state is not ProbeState.RUNNING:
            return known
        task = self._tasks.get(order.probe_id)
        if task is None:
            if (refused := self._refuse(order)) is not None:
                return refused
            self._remember(ProbeResult(order.probe_id, order.kind, ProbeState.RUNNING))
            task = self._tasks[order.probe_id] = asyncio.create_task(self._run(order), name=f"probe-{order.probe_id}")
            task.add_done_callback(lambda done: self._finished(order, done))
        # Not `await task`: whoever waits may be cancelled without the probe, and the other way round.
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()
        return self._results[order.probe_id]

    def cancel(self, probe_id: str, reason: str) -> bool:
        """False when no such probe runs or waits."""
        task = self._tasks.get(probe_id)
        if task is None:
            return False
        self._cancel_reasons[probe_id] = reason
        task.cancel()
        return True

    async def stop(self) -> None:
        """Cancel everything and wait until no process is left."""
        for probe_id in list(self._tasks):
            self.cancel(probe_id, "the agent stops")
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    def _refuse(self, order: Order) -> ProbeResult | None:
        wrong = invalid(order)
        if wrong is not None:
            return _result(order, ProbeState.ERROR, ProbeReason.BAD_ORDER, wrong)
        if len(self._tasks) >= _WAITING_LIMIT:
            message = f"{len(self._tasks)} probes wait on this node already; order again later"
            return _result(order, ProbeState.NOT_TESTED, ProbeReason.BUSY, message)
        return None

    def _remember(self, result: ProbeResult) -> None:
        self._results[result.probe_id] = result
        self._results.move_to_end(result.probe_id)
        while len(self._results) > _REMEMBERED:
            oldest = next((key for key, old in self._results.items() if old.state is not ProbeState.RUNNING), None)
            if oldest is None:
                return
            del self._results[oldest]

    async def _run(self, order: Order) -> ProbeResult:
        async with self._one_at_a_time:
            self._own_pids.clear()
            return await self._measure(order)

    def _finished(self, order: Order, task: asyncio.Task[ProbeResult]) -> None:
        """Here and not in the task, because a task cancelled before its first step never runs a line."""
        del self._tasks[order.probe_id]
        why = self._cancel_reasons.pop(order.probe_id, "no reason given")
        if task.cancelled():
            result = _result(order, ProbeState.NOT_TESTED, ProbeReason.CANCELLED, f"cancelled: {why}")
        elif (error := task.exception()) is not None:
            result = _result(order, ProbeState.ERROR, ProbeReason.TOOL_FAILED, f"the probe itself failed: {error!r}")
        else:
            result = task.result()
        self._remember(result)
        log.info("event=probe_finished probe=%s kind=%s state=%s reason=%s message=%r",
                 order.probe_id, order.kind.value, result.state.value, result.reason.value, result.message)  # fmt: skip

    async def _measure(self, order: Order) -> ProbeResult:
        started = time.time()
        running = ProbeResult(order.probe_id, order.kind, ProbeState.RUNNING, started_at_s=started)
        self._remember(running)
        runs: list[ProbeRun] = []
        version = ""
        arguments = ""
        try:
            ready = await self._prepare(order)
            arguments = ready.arguments
            async with asyncio.timeout(order.timeout_s):
                for _ in range(order.runs):
                    parsed, exit_code = await self._run_tool_watched(ready)
                    version = next((test.version for test in parsed.tests if test.version), version)
                    runs.append(_probe_run(parsed, exit_code))
                    _judge(parsed, exit_code)
            outcome = replace(running, state=ProbeState.MEASURED)
        except TimeoutError:
            message = f"{len(runs)} of {order.runs} runs were finished after {order.timeout_s:.0f} s"
            outcome = replace(running, state=ProbeState.NOT_TESTED, reason=ProbeReason.TIMEOUT, message=message)
        except _NotMeasured as why:
            outcome = replace(running, state=why.state, reason=why.reason, message=why.message)
        return replace(outcome, runs=tuple(runs), nccl_version=version, arguments=arguments, finished_at_s=time.time())

    async def _prepare(self, order: Order) -> Command:
        tool = self._node.tool()
        if tool is None:
            raise _not_tested(ProbeReason.TOOL_NOT_FOUND, f"{TOOL} not found; set --nccl-tests-dir or put it on PATH")
        gpus = self._node.gpus()
        if not gpus:
            raise _not_tested(ProbeReason.NO_GPUS, "NVML lists no GPU on this node")
        if order.kind is ProbeKind.NIC_LOOPBACK and not self._node.infiniband():
            raise _not_tested(ProbeReason.NO_INFINIBAND, "no InfiniBand device in /sys/class/infiniband")
        await self._refuse_foreign()
        return command(order, tool=tool, gpus=gpus, inherited=os.environ, also_inherit=self._node.also_inherit)

    async def _refuse_foreign(self) -> None:
        foreign = await self._node.foreign_processes(self.pids)
        if foreign:
            raise _not_tested(ProbeReason.FOREIGN_PROCESSES, f"{foreign} foreign processes on the GPUs")

    async def _run_tool_watched(self, ready: Command) -> tuple[NcclLog, int]:
        tool = asyncio.create_task(self._run_tool(ready))
        try:
            while True:
                done, _ = await asyncio.wait({tool}, timeout=self._node.watch_interval_s)
                await self._refuse_foreign()
                if done:
                    return tool.result()
        finally:
            if not tool.done():
                tool.cancel()
                await asyncio.wait({tool})

    async def _run_tool(self, ready: Command) -> tuple[NcclLog, int]:
        parser = NcclOutputParser()
        # By its file and isolated: the probe's environment has nothing that Python would need to find a package.
        leash = (sys.executable, "-I", "-S", str(Path(__file__).with_name("leash.py")), str(os.getpid()))
        # Its own session, so that everything it starts can be ended together.
        process = await asyncio.create_subprocess_exec(
            *leash, *ready.argv, stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, stderr=STDOUT,
            env=dict(ready.environment), start_new_session=True,
        )  # fmt: skip
        self._process = process
        assert process.stdout is not None
        try:
            while chunk := await process.stdout.read(_CHUNK):
                parser.feed(chunk)
            return parser.finish(), await process.wait()
        finally:
            await _end_group(process)
            self._process = None


async def _end_group(process: Process) -> None:
    """SIGTERM to the whole process group, SIGKILL to what is left after a moment."""
    if process.returncode is None:
        _signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILL_AFTER_S):
                await process.wait()
    _signal_group(process.pid, signal.SIGKILL)
    await process.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _group(group: int) -> frozenset[int]:
    """Members of a process group, from /proc."""
    members = {group}
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                stat = Path("/proc", entry.name, "stat").read_bytes()
                # pid (name) state ppid pgrp: the name may hold blanks and brackets
                if int(stat.rpartition(b")")[2].split()[2]) == group:
                    members.add(int(entry.name))
    return frozenset(members)


def _probe_run(parsed: NcclLog, exit_code: int) -> ProbeRun:
    table = _table(parsed)
    return ProbeRun(
        sizes=tuple(
            SizeBandwidth(
                row.size_bytes, row.out_of_place.algbw_gbps, row.out_of_place.busbw_gbps, row.out_of_place.time_us
            )
            for row in (table.rows if table else ())
        ),
        wrong_elements=table.wrong_elements if table else 0,
        exit_code=exit_code,
    )


def _table(parsed: NcclLog) -> NcclTest | None:
    return parsed.tests[-1] if parsed.tests else None


def _judge(parsed: NcclLog, exit_code: int) -> None:
    """Raise unless the run is a complete and correct measurement.  The text counts as well as the exit code."""
    table = _table(parsed)
    reasons = table.reasons if table else ()
    detail = table.failures[0] if table and table.failures else parsed.last_words
    if "gpu_missing" in reasons:
        raise _not_tested(ProbeReason.NO_GPUS, detail)
    if table is not None and "wrong_results" in reasons:
        message = f"{table.wrong_elements} wrong elements; this node computes or moves data wrongly"
        raise _NotMeasured(ProbeState.ERROR, ProbeReason.WRONG_RESULTS, message)
    failed = [reason for reason in reasons if reason not in ("truncated", "no_footer", "single_rank")]
    if failed or exit_code:
        message = f"{TOOL} ended with exit code {exit_code}" + (f": {detail}" if detail else "")
        raise _NotMeasured(ProbeState.ERROR, ProbeReason.TOOL_FAILED, message)
    if table is None or not table.rows:
        raise _NotMeasured(ProbeState.ERROR, ProbeReason.NO_OUTPUT, f"{TOOL} printed no table although it ended well")
    if not table.complete:
        message = f"the table of {TOOL} is cut after {len(table.rows)} rows"
        raise _NotMeasured(ProbeState.ERROR, ProbeReason.TOOL_FAILED, message)


def _not_tested(reason: ProbeReason, message: str) -> _NotMeasured:
    return _NotMeasured(ProbeState.NOT_TESTED, reason, message)


def _result(order: Order, state: ProbeState, reason: ProbeReason, message: str) -> ProbeResult:
    return ProbeResult(order.probe_id, order.kind, state, reason, message, finished_at_s=time.time())
