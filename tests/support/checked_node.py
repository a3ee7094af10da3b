"""A node of eight healthy H100 under the agent's checks: snapshots go in, incidents come out, on a clock of its own.

It does what watch.py does with a snapshot, without processes and disks; `restart` is an agent that starts again.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from nvcre_agent.checks import limits, rules, tracker
from nvcre_agent.checks.baseline import Baseline
from nvcre_agent.checks.model import Finding
from nvcre_agent.host.model import NOTHING, FabricManager, Host, IbPort
from nvcre_agent.incidents.folding import Folding
from nvcre_agent.incidents.reset_signs import ResetSigns
from nvcre_agent.incidents.signals import NO_GPUS, Moment, from_kernel
from nvcre_agent.kernel.parsers import LineParser
from nvcre_agent.nvml.snapshot import GpuIdentity, GpuSnapshot, PciAddress, Snapshot, Unread
from nvcre_protos.vocabulary import RecoveredBy

from support.folded import Folded

WALL = 1_800_000_000.0
BETWEEN_SNAPSHOTS_S = 30.0


def identity(index: int, uuid: str | None = None, *, product: str = "NVIDIA H100 80GB HBM3") -> GpuIdentity:
    return GpuIdentity(index, uuid or f"GPU-{index}", PciAddress(0, 0x1B + index, 0), product, str(index))


def healthy(index: int, **changes: Any) -> GpuSnapshot:
    sound = GpuSnapshot(
        identity(index),
        access=None,
        ecc_uncorrected_volatile=0,
        ecc_corrected_volatile=0,
        remap_pending=0,
        remap_failure=0,
        remapped_correctable=0,
        remapped_uncorrectable=0,
        nvlinks=(1,) * 18,
        nvlink_crc_errors=0,
        nvlink_replays=0,
        nvlink_recoveries=0,
        recovery_action=0,
        clocks_event_reasons=0,
        pstate=0,
        utilization_gpu=0,
        pcie_generation=5,
        pcie_generation_max=5,
        pcie_width=16,
        pcie_width_max=16,
        pcie_replays=0,
        temperature_margin_c=40,
        ecc_mode=1,
        persistence_mode=1,
        mig_mode=0,
        fabric_state=3,
        fabric_status=0,
        fabric_health_mask=0,
        fabric_health_summary=0,
    )
    return replace(sound, **changes)


def port(
    name: str = "mlx5_0/1", *, pci: str = "00000000:19:00.0", state: str = "ACTIVE", planned: bool = False
) -> IbPort:
    return IbPort(name, pci, state == "ACTIVE", state, "LinkUp" if state == "ACTIVE" else "Polling", planned)


def snapshot(*gpus: GpuSnapshot, at_s: float = 0.0, device_count: int | Unread | None = None) -> Snapshot:
    count = len(gpus) if device_count is None else device_count
    return Snapshot(WALL + at_s, int(at_s * 1e9), count, gpus)


class CheckedNode(Folded):
    def __init__(self, now_s: float = 1000.0) -> None:
        self.limits = limits.shipped()
        self.boot_id = "boot-1"
        self.now_s = now_s
        self._next_look_s = self.now_s + BETWEEN_SNAPSHOTS_S
        self.gpus = {index: healthy(index) for index in range(8)}
        self.ports: tuple[IbPort, ...] | None = ()
        self.fabric_manager: FabricManager | None = None
        self.baseline = Baseline()
        self.tracker = tracker.Tracker()
        self._numbers = itertools.count(1)
        self.folding = self._new_folding()
        self._signs = ResetSigns()
        self.changes: list[str] = []  # "opened row_remap_pending", in order
        self.ended: list[RecoveredBy] = []  # what ended incidents, in order

    def _new_folding(self) -> Folding:
        return Folding(boot_id=self.boot_id, simulated=False, new_id=lambda: f"incident-{next(self._numbers)}")

    @property
    def snapshot(self) -> Snapshot:
        return snapshot(*self.gpus.values(), at_s=self.now_s)

    @property
    def checks(self) -> list[str]:
        return sorted(one.check for one in self.open)

    def set(self, index: int, **changes: Any) -> None:
        self.gpus[index] = replace(self.gpus[index], **changes)

    def look(self) -> None:
        """One snapshot now."""
        seen, host = self.snapshot, Host(self.ports, self.fabric_manager)
        self.baseline = self.baseline.advance(seen, host)
        said = rules.evaluate(seen, self.baseline, self.limits, host)
        self.tracker, found = self.tracker.step(said, self.now_s, self.limits, replaced=self.baseline.replaced)
        at = {"now_s": WALL + self.now_s, "monotonic_s": self.now_s}
        changes = self.folding.answering(
            [gpu.identity for gpu in seen.gpus if gpu.access is None], expected=self.baseline.gpus, **at
        )
        for one in found:
            self.changes.append(f"{type(one).__name__.lower()} {one.finding.check}")
            match one:
                case tracker.Opened():
                    self.folding.finding_opened(one.finding, **at)
                case tracker.Updated():
                    self.folding.finding_updated(one.finding, **at)
                case tracker.Recovered():
                    changes += self.folding.finding_recovered(one.finding, **at)
        self.ended += [one.incident.recovered_by for one in changes if one.incident.recovered_by is not None]
        self._signs, reset = self._signs.step(seen)
        for gpu in seen.gpus:
            if gpu.identity.uuid in reset:
                self.folding.reset_seen(str(gpu.identity.pci), **at)

    def watch(self, seconds: float) -> None:
        """`seconds` pass, with snapshots at the agent's pace."""
        end_s = self.now_s + seconds
        while self._next_look_s <= end_s:
            self.now_s = self._next_look_s
            self._next_look_s += BETWEEN_SNAPSHOTS_S
            self.folding.tick(WALL + self.now_s, self.now_s)
            self.look()
        self.now_s = end_s

    def kernel(self, text: str) -> None:
        """A line of the kernel now."""
        at = {"now_s": WALL + self.now_s, "monotonic_s": self.now_s}
        for event in LineParser().feed(text):
            told = self.baseline.ports.located(event)
            signal = from_kernel(told, NO_GPUS, Moment(WALL + self.now_s, self.now_s), injected=False)
            match event.state:
                case "ACTIVE":
                    self.baseline = self.baseline.link_told(signal.subject, up=True, at_s=self.now_s)
                    self.folding.link_active(signal.subject, **at)
                case "DOWN":
                    self.baseline = self.baseline.link_told(signal.subject, up=False, at_s=self.now_s)
                    if not any(found.component.pci_bus_id == signal.subject for found in self.tracker.open):
                        self.folding.fold(signal)
                case _:
                    self.folding.fold(signal)

    def restart(self, *, boot_id: str | None = None) -> None:
        """The agent ends and starts again, with a new boot id after a reboot of the node."""
        kept, _ = self.folding.take_dirty()
        stored = self.baseline.to_json(self.boot_id)
        if boot_id is not None:
            self.boot_id, self.now_s = boot_id, 60.0
            self._next_look_s = self.now_s + BETWEEN_SNAPSHOTS_S
        self.baseline = Baseline.from_json(stored, self.boot_id)
        self.folding = self._new_folding()
        self.folding.restore(kept, now_s=WALL + self.now_s, monotonic_s=self.now_s)
        self.tracker = tracker.Tracker.resume(self.folding.open_findings, self.now_s)


def findings(seen: Snapshot, baseline: Baseline, host: Host = NOTHING) -> list[Finding]:
    """What the checks find, with the baseline that has learned from what they look at."""
    said = rules.evaluate(seen, baseline.advance(seen, host), limits.shipped(), host)
    return [answer for answer in said if isinstance(answer, Finding)]


def undecided(seen: Snapshot, baseline: Baseline, host: Host = NOTHING) -> dict[str, str]:
    """Keys of what the checks could not look at, with the circumstance."""
    said = rules.evaluate(seen, baseline.advance(seen, host), limits.shipped(), host)
    return {answer.key: answer.because for answer in said if not isinstance(answer, Finding)}
