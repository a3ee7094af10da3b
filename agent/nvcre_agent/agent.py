"""The agent put together: sources, outbox, stream, probes and metrics, and the tasks that keep them going.

A background task that ends or dies takes the process with it, visibly: kubelet restarts an agent that is gone, nobody
restarts one that only looks alive.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from nvcre_protos import nvcre_agent_v1_pb2 as pb
from nvcre_protos.ready_file import write_ready_file

from nvcre_agent import __version__, wire
from nvcre_agent.config import Config
from nvcre_agent.control import ControlSocket, listener
from nvcre_agent.exposition import Exposition
from nvcre_agent.host.reading import host_reader
from nvcre_agent.link import PROTOCOL, Link, LinkSettings
from nvcre_agent.metrics import Metrics
from nvcre_agent.nvml.monitor import NvmlMonitor
from nvcre_agent.operations import Operations
from nvcre_agent.outbox import open_outbox
from nvcre_agent.outbox_file import OutboxInUseError
from nvcre_agent.outbox_queue import Limits
from nvcre_agent.probes.runner import has_infiniband
from nvcre_agent.probing import Probing
from nvcre_agent.reload import Reloader
from nvcre_agent.self_report import SelfReport
from nvcre_agent.watch import Watch

log = logging.getLogger(__name__)

STOP_DEADLINE_S = 6.0


class Agent:
    """`reread` resolves the configuration anew; it raises ConfigError."""

    def __init__(self, config: Config, *, reread: Callable[[], Config]) -> None:
        self._config = config
        self._boot_id = _boot_id(config.boot_id_file)
        self._simulation = _simulation(config.simulate)
        self._metrics = Metrics(config.node_name, __version__)
        try:
            limits = Limits(max_bytes=int(config.outbox_max_mib * (1 << 20)), max_age_s=config.outbox_max_age_s)
            self._outbox = open_outbox(config.outbox, boot_id=self._boot_id, limits=limits)
        except OutboxInUseError as error:
            raise SystemExit(f"nvcre-agent: --outbox {error}") from error
        if (other := listener(config.control_socket)) is not None:
            raise SystemExit(
                f"nvcre-agent: --control-socket {config.control_socket} is in use by {other}: one agent a node; stop"
                " the other one, or give another --control-socket"
            )
        self._nvml = NvmlMonitor(simulate=config.simulate)
        self._watch = Watch(
            boot_id=self._boot_id,
            kernel_log=config.kernel_log,
            nvml=self._nvml,
            host=host_reader(config.sysfs, config.procfs, config.simulate),
            outbox=self._outbox,
            metrics=self._metrics,
            simulated=config.simulate is not None,
        )
        self._link: Link | None = None
        if config.coordinator and config.ca_file and config.token_file:
            settings = LinkSettings(
                address=config.coordinator,
                ca_file=config.ca_file,
                token_file=config.token_file,
                server_name=config.server_name,
                heartbeat_interval_s=config.heartbeat_interval_s,
            )
            self._link = Link(settings, self._outbox, self)
            self._watch.on_state = self._link.notify_state
        self._probing = Probing(
            nvml=self._nvml,
            nccl_tests_dir=config.nccl_tests_dir,
            simulated=config.simulate is not None,
            node_name=config.node_name,
            infiniband=lambda: self._infiniband,
            metrics=self._metrics,
            publish=self._publish_probe,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._reloader = Reloader(config, reread, self._apply)
        self._apply(config)
        self._report = SelfReport(
            boot_id=self._boot_id,
            watch=self._watch,
            nvml=self._nvml,
            outbox=self._outbox,
            link=self._link,
            reloader=self._reloader,
            dead_tasks=lambda: [task.get_name() for task in self._tasks if task.done()],
        )
        self._metrics.read = self._report.readings

    def reload(self) -> None:
        self._reloader.soon()

    def _apply(self, config: Config) -> None:
        """The settings that may change while the agent runs."""
        logging.getLogger().setLevel(config.log_level.upper())
        self._metrics.dcgm_aliases = config.dcgm_aliases
        self._probing.use_nccl_tests_dir(config.nccl_tests_dir)
        if self._link is not None:
            self._link.use_heartbeat_interval(config.heartbeat_interval_s)

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set. Raises when a background task ends before."""
        exposition = Exposition(self._metrics.scrape, self._report.health, self._report.state)
        address = await exposition.start(*self._config.listen)
        log.info("serving address=%s node=%s version=%s", address, self._config.node_name, __version__)
        self._outbox.start()
        await self._nvml.start()
        self._tasks = [
            asyncio.create_task(self._watch.run_kernel_log(), name="kernel-log"),
            asyncio.create_task(self._watch.run_nvml(), name="nvml"),
            asyncio.create_task(self._watch.run_clock(), name="clock"),
            asyncio.create_task(self._outbox.run(), name="outbox"),
        ]
        if self._link is not None:
            self._tasks.append(asyncio.create_task(self._link.run(), name="link"))
        else:
            log.warning("no coordinator given; serving metrics only")
        operations = Operations(watch=self._watch, nvml=self._nvml, reloader=self._reloader, state=self._report.state)
        control = ControlSocket(self._config.control_socket, operations.actions())
        await control.start()
        self._reloader.watch()
        if self._config.ready_file is not None:
            write_ready_file(self._config.ready_file, {"metrics": address})
        stopping = asyncio.create_task(stop.wait(), name="stop")
        try:
            done, _ = await asyncio.wait([*self._tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                error = task.exception() if not task.cancelled() else None
                log.critical("task ended name=%s error=%r; the agent ends with it", task.get_name(), error)
                raise TaskEndedError(task.get_name()) from error
        finally:
            stopping.cancel()
            self._reloader.close()
            await control.stop()
            await self._stop(exposition)

    async def _stop(self, exposition: Exposition) -> None:
        try:
            async with asyncio.timeout(STOP_DEADLINE_S):
                await self._probing.stop()
                await self._nvml.stop()
        except TimeoutError:
            log.warning("probes or NVML did not end within %.0f s; leaving them behind", STOP_DEADLINE_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._watch.close()
        await exposition.stop()
        await self._outbox.close(2.0)

    # --- what the link asks

    def hello(self) -> pb.Hello:
        return pb.Hello(
            min_protocol=PROTOCOL,
            max_protocol=PROTOCOL,
            agent_version=__version__,
            outbox_id=self._outbox.outbox_id,
            boot_id=self._boot_id,
            simulated=self._config.simulate is not None,
            sent_at=wire.timestamp(time.time()),
        )

    def snapshot(self) -> pb.Snapshot:
        return pb.Snapshot(
            outbox_id=self._outbox.outbox_id,
            seq=self._outbox.last_seq,
            boot_id=self._boot_id,
            inventory=wire.inventory(self._watch.inventory, nccl_tests=self._nccl_tests(), infiniband=self._infiniband),
            open_incidents=wire.incidents(self._watch.folding.open_incidents),
            monitors=self._watch.monitors(),
            time=wire.timestamp(time.time()),
        )

    async def heartbeat(self, deadline_s: float) -> pb.Heartbeat:
        return self._heartbeat(await self._watch.observe(deadline_s))

    async def settle(self, deadline_s: float) -> pb.Heartbeat:
        return self._heartbeat(await self._watch.settle(deadline_s))

    def probe_ordered(self, order: pb.ProbeOrder) -> None:
        self._probing.order(order)

    def probe_cancelled(self, cancel: pb.ProbeCancel) -> None:
        self._probing.cancel(cancel)

    def probe_updates(self) -> list[pb.ProbeUpdate]:
        return self._probing.updates()

    def _heartbeat(self, observed_through_s: float) -> pb.Heartbeat:
        heartbeat = pb.Heartbeat(
            sent_at=wire.timestamp(time.time()),
            monotonic_ns=time.monotonic_ns(),
            last_seq=self._outbox.newest_seq,
            monitors=self._watch.monitors(),
            foreign_processes=self._nvml.foreign_processes(self._probing.own_pids),
        )
        if observed_through_s:
            heartbeat.observed_through.CopyFrom(wire.timestamp(observed_through_s))
        return heartbeat

    def _publish_probe(self, update: pb.ProbeUpdate) -> None:
        if self._link is not None:
            self._link.send_probe_update(update)

    # --- facts about the node

    def _nccl_tests(self) -> str:
        return str(self._probing.tool() or "")

    @property
    def _infiniband(self) -> bool:
        if self._simulation is not None:
            return bool(self._simulation.get("infiniband", False))
        return has_infiniband()


class TaskEndedError(RuntimeError):
    """A background task ended; the name says which."""


def _boot_id(path: Path) -> str:
    try:
        boot_id = path.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise SystemExit(f"nvcre-agent: cannot read the boot id from {path}: {error}; see --boot-id-file") from error
    if not boot_id:  # it would be another boot than the last one
        raise SystemExit(f"nvcre-agent: {path} names no boot, it is empty; see --boot-id-file")
    return boot_id


def _simulation(path: Path | None) -> Mapping[str, object] | None:
    """The node description; what the simulated driver makes of it is the driver's business."""
    if path is None:
        return None
    try:
        loaded = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(f"nvcre-agent: --simulate {path}: {error}") from error
    if not isinstance(loaded, dict):
        raise SystemExit(f"nvcre-agent: --simulate {path}: must be a JSON object")
    return loaded
