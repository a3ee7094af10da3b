"""Probe orders of the coordinator carried out by the probe runner, and its results as ProbeUpdates.

One task an order: Running is told at once, the final state when it is there. Final states of the last half hour are
told again after a reconnect, because the stream may have broken under them. It neither chooses the command nor
judges.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

from nvcre_protos import nvcre_agent_v1_pb2 as pb

from nvcre_agent import wire
from nvcre_agent.metrics import Metrics
from nvcre_agent.nvml.monitor import NvmlMonitor
from nvcre_agent.probes.model import Order, ProbeKind, ProbeResult, ProbeState
from nvcre_agent.probes.runner import Node, ProbeRunner, find_tool

log = logging.getLogger(__name__)

TELL_AGAIN_S = 1800.0
FRESH_SNAPSHOT_S = 5.0
# What the simulated nccl-tests need to find their scenario.
SIMULATION_VARIABLES = ("NVCRE_SIMULATION", "NVCRE_NODE_NAME", "NVCRE_POD_DIR")


class Probing:
    """`publish` sends an update if there is a stream; `updates` is what a new stream begins with."""

    def __init__(
        self,
        *,
        nvml: NvmlMonitor,
        nccl_tests_dir: Path | None,
        simulated: bool,
        node_name: str,
        infiniband: Callable[[], bool],
        metrics: Metrics,
        publish: Callable[[pb.ProbeUpdate], None],
    ) -> None:
        self._nvml = nvml
        self._nccl_tests_dir = nccl_tests_dir
        self._simulated = simulated
        self._metrics = metrics
        self._publish = publish
        if simulated:
            os.environ.setdefault("NVCRE_NODE_NAME", node_name)
        self._runner = ProbeRunner(
            Node(
                gpus=lambda: len(nvml.inventory.gpus) if nvml.inventory else 0,
                tool=self.tool,
                infiniband=infiniband,
                foreign_processes=self._foreign_processes,
                also_inherit=SIMULATION_VARIABLES if simulated else (),
            )
        )
        self._told: dict[str, tuple[float, pb.ProbeUpdate]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def own_pids(self) -> frozenset[int]:
        return self._runner.pids

    def tool(self) -> Path | None:
        return find_tool(self._nccl_tests_dir)

    def use_nccl_tests_dir(self, directory: Path | None) -> None:
        self._nccl_tests_dir = directory

    def order(self, ordered: pb.ProbeOrder) -> None:
        """Start it, or answer with the state it has when it is known already."""
        task = asyncio.create_task(self._carry_out(ordered), name=f"probe-order-{ordered.probe_id[:64]}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self, cancelled: pb.ProbeCancel) -> None:
        if not self._runner.cancel(cancelled.probe_id, cancelled.reason or "cancelled by the coordinator"):
            log.info("probe cancel ignored probe=%s reason=not-running", cancelled.probe_id)

    def updates(self) -> list[pb.ProbeUpdate]:
        now_s = time.monotonic()
        self._told = {key: one for key, one in self._told.items() if now_s - one[0] < TELL_AGAIN_S}
        return [update for _, update in self._told.values()]

    async def stop(self) -> None:
        await self._runner.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry_out(self, ordered: pb.ProbeOrder) -> None:
        order = _order(ordered)
        if order is None:
            log.warning("probe order ignored probe=%s kind=%d", ordered.probe_id, ordered.kind)
            self._tell(
                pb.ProbeUpdate(
                    probe_id=ordered.probe_id,
                    kind=ordered.kind,
                    state=pb.PROBE_STATE_ERROR,
                    reason="BadOrder",
                    message=f"kind {ordered.kind} is not known to this agent",
                )
            )
            return
        known = self._runner.state_of(order.probe_id)
        if known is None:
            running = ProbeResult(order.probe_id, order.kind, ProbeState.RUNNING, started_at_s=time.time())
            self._tell(self._update(running))
        result = await self._runner.run(order)
        if known is None and result.started_at_s is not None and result.finished_at_s is not None:
            largest = {size.size_bytes: size.busbw_gbps for run in result.runs for size in run.sizes[-1:]}
            seconds = max(0.0, result.finished_at_s - result.started_at_s)
            self._metrics.probe_finished(
                order.kind.value, result.state.value, seconds, largest, self._peer_group(result.nccl_version)
            )
        self._tell(self._update(result))

    def _peer_group(self, nccl_version: str) -> str:
        """What the coordinator compares a node's figures within."""
        inventory = self._nvml.inventory
        products = ", ".join(sorted({gpu.product for gpu in inventory.gpus})) if inventory else ""
        driver = inventory.driver_version if inventory else ""
        return f"{products}; driver {driver}; NCCL {nccl_version}"

    def _tell(self, update: pb.ProbeUpdate) -> None:
        self._told[update.probe_id] = (time.monotonic(), update)
        while len(self._told) > 32:
            del self._told[next(iter(self._told))]
        self._publish(update)

    async def _foreign_processes(self, own_pids: Collection[int]) -> int:
        await self._nvml.snapshot(FRESH_SNAPSHOT_S)
        return self._nvml.foreign_processes(own_pids)

    def _update(self, result: ProbeResult) -> pb.ProbeUpdate:
        inventory = self._nvml.inventory
        update = pb.ProbeUpdate(
            probe_id=result.probe_id,
            kind=pb.ProbeKind.Value(f"PROBE_KIND_{result.kind.name}"),
            state=pb.ProbeState.Value(f"PROBE_STATE_{result.state.name}"),
            reason=result.reason.value,
            message=result.message[:512],
            nccl_version=result.nccl_version,
            arguments=result.arguments[:2048],
            simulated=self._simulated,
            driver_version=inventory.driver_version if inventory else "",
            gpu_product=", ".join(sorted({gpu.product for gpu in inventory.gpus})) if inventory else "",
            runs=[
                pb.ProbeRun(
                    sizes=[
                        pb.SizeBandwidth(
                            size_bytes=size.size_bytes,
                            algbw_gbps=size.algbw_gbps,
                            busbw_gbps=size.busbw_gbps,
                            time_us=size.time_us,
                        )
                        for size in run.sizes
                    ],
                    wrong_elements=run.wrong_elements,
                    exit_code=run.exit_code,
                )
                for run in result.runs
            ],
        )
        if result.started_at_s is not None:
            update.started_at.CopyFrom(wire.timestamp(result.started_at_s))
        if result.finished_at_s is not None:
            update.finished_at.CopyFrom(wire.timestamp(result.finished_at_s))
        return update


def _order(ordered: pb.ProbeOrder) -> Order | None:
    """None when the kind is of a newer version. What else is wrong with it the runner refuses."""
    kinds = {pb.ProbeKind.Value(f"PROBE_KIND_{kind.name}"): kind for kind in ProbeKind}
    if (kind := kinds.get(ordered.kind)) is None:
        return None
    return Order(
        probe_id=ordered.probe_id,
        kind=kind,
        min_bytes=ordered.min_bytes,
        max_bytes=ordered.max_bytes,
        step_factor=ordered.step_factor,
        iterations=ordered.iterations,
        runs=ordered.runs,
        timeout_s=wire.duration_s(ordered.timeout),
    )
