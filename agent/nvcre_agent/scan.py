"""One look at this node: what the running agent would say if it had started now and could not wait.

`look` lets the agent's own sources and rules (watch.py over NVML and the kernel log of this boot) run once and ends
them; `judge` makes the verdicts of what was seen. No baseline is known: what is wrong only against the past, a GPU that
is not listed any more or an error counter that rose, is not seen. It neither talks to a coordinator nor keeps anything.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from nvcre_protos import nvcre_agent_v1_pb2 as pb
from nvcre_protos.vocabulary import HARDWARE, Blame

from nvcre_agent import __version__
from nvcre_agent.checks import rules
from nvcre_agent.checks.baseline import Baseline
from nvcre_agent.checks.limits import Limits, in_use
from nvcre_agent.checks.model import Undecided
from nvcre_agent.host.reading import HostReader
from nvcre_agent.incidents.model import Incident
from nvcre_agent.metrics import Metrics
from nvcre_agent.nvml.monitor import NvmlMonitor
from nvcre_agent.nvml.snapshot import GpuIdentity, Inventory, Snapshot, Unread
from nvcre_agent.nvml.timing import Timing
from nvcre_agent.outbox import open_outbox
from nvcre_agent.watch import Watch

KERNEL_LOG_DEADLINE_S = 10.0


class Verdict(StrEnum):
    HEALTHY = "Healthy"
    SUSPECT = "Suspect"
    BLIND = "Blind"  # something could not be looked at, and nothing that was seen accuses


@dataclass(frozen=True, slots=True)
class NotSeen:
    """`reason` is a CamelCase word, `message` names the remedy; `gpu` is the UUID of the only GPU concerned."""

    what: str
    reason: str
    message: str
    gpu: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look brought; `snapshot` is None where NVML gave none."""

    inventory: Inventory | None
    snapshot: Snapshot | None
    incidents: tuple[Incident, ...]
    blind: tuple[NotSeen, ...]
    kernel_counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Gpu:
    identity: GpuIdentity
    verdict: Verdict
    incidents: tuple[Incident, ...]


@dataclass(frozen=True, slots=True)
class Report:
    verdict: Verdict
    gpus: tuple[Gpu, ...]
    accusing: tuple[Incident, ...]
    notes: tuple[Incident, ...]
    lost_unidentified: int  # GPUs that NVML lists and that are too lost to say who they are
    not_seen: tuple[NotSeen, ...]


def judge(seen: Seen) -> Report:
    """A GPU or node is Healthy only where everything was looked at."""
    found = [one for one in seen.incidents if accuses(one)]
    accusing = tuple(sorted(found, key=lambda one: not one.component.pci_bus_id))  # first the ones that say which GPU
    not_seen = (*seen.blind, *_not_seen(seen.snapshot))
    lost = (
        sum(why in (Unread.LOST, Unread.RESET_REQUIRED) for why in seen.snapshot.unidentified) if seen.snapshot else 0
    )
    gpus = []
    for identity in seen.inventory.gpus if seen.inventory else ():
        own = tuple(one for one in seen.incidents if _is_of(one, identity))
        unseen = bool(seen.blind) or any(one.gpu == identity.uuid for one in not_seen)
        gpus.append(Gpu(identity, _verdict(suspect=any(map(accuses, own)), unseen=unseen), own))
    return Report(
        verdict=_verdict(suspect=bool(accusing) or lost > 0, unseen=bool(not_seen)),
        gpus=tuple(gpus),
        accusing=accusing,
        notes=tuple(one for one in seen.incidents if not accuses(one)),
        lost_unidentified=lost,
        not_seen=not_seen,
    )


def accuses(incident: Incident) -> bool:
    """Would the node be Faulty or Suspect by it?  (core/escalation.py of the coordinator, without a history)"""
    return incident.blame is not Blame.NO and incident.fault_class in HARDWARE and not incident.injected


def _verdict(*, suspect: bool, unseen: bool) -> Verdict:
    if suspect:
        return Verdict.SUSPECT
    return Verdict.BLIND if unseen else Verdict.HEALTHY


def _is_of(incident: Incident, identity: GpuIdentity) -> bool:
    component = incident.component
    return identity.uuid == component.uuid or str(identity.pci) == component.pci_bus_id


def _not_seen(snapshot: Snapshot | None) -> Iterator[NotSeen]:
    """What the snapshot does not tell of the GPUs; those that are lost or need a reset are accused for it instead."""
    if snapshot is None:
        return
    for why in snapshot.unidentified:
        if why not in (Unread.LOST, Unread.RESET_REQUIRED):
            yield NotSeen(
                "nvml", why.value, "a GPU that NVML lists does not say who it is; run as root or privileged, see dmesg"
            )
    if not snapshot.gpus and not snapshot.unidentified:
        yield NotSeen("nvml", "NoGpu", "NVML lists no GPU; see lspci, and give the container its NVIDIA devices")
    said = rules.evaluate(snapshot, Baseline(), in_use())
    open_questions = {one.key for one in said if isinstance(one, Undecided) and not one.because}
    for gpu in snapshot.gpus:
        if gpu.access in (Unread.LOST, Unread.RESET_REQUIRED):
            continue
        checks = sorted(key.partition("/")[0] for key in open_questions if key.endswith(f"/{gpu.identity.uuid}"))
        if checks:
            reason = gpu.access.value if gpu.access else "Unread"
            message = f"GPU {gpu.identity.index}: {', '.join(checks)} not checked; run as root or privileged, see dmesg"
            yield NotSeen("nvml", reason, message, gpu.identity.uuid)


async def look(*, boot_id: str, kernel_log: Path, simulate: Path | None, host: HostReader, deadline_s: float) -> Seen:
    """Both sources once. NVML may take `deadline_s`; what has not answered then is told as not seen."""
    outbox = open_outbox(Path(":memory:"))  # a scan keeps nothing; the agent's container has no place to write either
    nvml = NvmlMonitor(simulate=simulate, timing=Timing(start_s=deadline_s, stop_s=1.0))
    watch = Watch(
        boot_id=boot_id,
        kernel_log=kernel_log,
        nvml=nvml,
        host=host,
        outbox=outbox,
        metrics=Metrics("scan", __version__),
        simulated=simulate is not None,
        limits=_at_once(in_use()),
    )
    outbox.start()
    await nvml.start()
    tasks = [asyncio.create_task(outbox.run()), asyncio.create_task(watch.run_nvml())]
    try:
        snapshot = await _snapshot(nvml, watch, deadline_s)
        # The kernel log comes second: its lines are attributed by the inventory.
        tasks.append(asyncio.create_task(watch.run_kernel_log()))
        await asyncio.sleep(0)
        through_s = await watch.settle(KERNEL_LOG_DEADLINE_S if snapshot else 1.0)
        watch.folding.tick(time.time(), time.monotonic())  # what is long over or was reset is closed
        for task in tasks:
            if task.done():
                task.result()  # raises what ended it
        blind = tuple(_blind(watch, kernel_log, snapshot, through_s, deadline_s))
        return Seen(watch.inventory, snapshot, watch.folding.open_incidents, blind, watch.kernel_counts)
    finally:
        await nvml.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await outbox.close()


async def _snapshot(nvml: NvmlMonitor, watch: Watch, deadline_s: float) -> Snapshot | None:
    """The first snapshot after NVML has begun to watch; None once it is blind, or after the deadline."""
    changed = asyncio.Event()
    watch.on_state = changed.set
    try:
        async with asyncio.timeout(deadline_s):
            while nvml.state.reason == "Starting":
                await changed.wait()
                changed.clear()
            return await nvml.snapshot(deadline_s)
    except TimeoutError:
        return None


def _blind(
    watch: Watch, kernel_log: Path, snapshot: Snapshot | None, through_s: float, deadline_s: float
) -> Iterator[NotSeen]:
    monitors = {monitor.name: monitor for monitor in watch.monitors()}
    nvml, kernel = monitors["nvml"], monitors["kernel-log"]
    if nvml.state == pb.MONITOR_STATE_BLIND and nvml.reason != "Starting":
        yield NotSeen("nvml", nvml.reason, nvml.message)
    elif snapshot is None:
        message = f"NVML gave no answer within {deadline_s:g} s; see dmesg for Xid 119/120 and blocked tasks"
        yield NotSeen("nvml", "NvmlUnresponsive", message)
    if kernel.state == pb.MONITOR_STATE_BLIND:
        yield NotSeen("kernel-log", kernel.reason, kernel.message)
    elif watch.kernel_counts["records"] == 0:
        yield NotSeen("kernel-log", "Empty", f"{kernel_log} has no record of the kernel; is it the kernel log?")
    elif snapshot is not None and through_s == 0:
        yield NotSeen("kernel-log", "NotReadToItsEnd", f"NVML events or {kernel_log} did not come to an end in time")
    for finding in watch.waiting:
        if finding.check == "gpu_unreadable":
            continue  # _not_seen tells it already, and of one GPU only
        wait_s = in_use().hysteresis[finding.check].raise_after_s
        message = f"{finding.message}; a fault if it lasts for {wait_s:g} s, so look again"
        yield NotSeen(finding.check, "Waiting", message, finding.component.uuid)


def _at_once(limits: Limits) -> Limits:
    """A single look cannot see how long a condition lasts; where that decides, it stays a waiting one."""
    hysteresis = {
        check: times if times.waits else replace(times, raise_after_s=0.0) for check, times in limits.hysteresis.items()
    }
    return replace(limits, hysteresis=hysteresis)
