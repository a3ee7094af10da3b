"""A node with eight GPUs whose agent folds incidents over restarts and reboots, on a clock that the test moves.

Kernel records and NVML events go in through the agent's own parsers; what the agent would write to disk is kept here,
so that `restart` and `reboot` go on with exactly that. Not here: files, processes, the coordinator.
"""

import itertools
from collections.abc import Iterable

from nvcre_agent.checks.model import Component, Finding
from nvcre_agent.incidents.escalation import History
from nvcre_agent.incidents.folding import Folding
from nvcre_agent.incidents.model import Change, ChangeKind, Kept
from nvcre_agent.incidents.signals import Moment, from_kernel, from_nvml
from nvcre_agent.kernel.parsers import RecordParser
from nvcre_agent.kernel.record import Record, parse_record
from nvcre_agent.nvml.snapshot import EventType, GpuIdentity, Inventory, NvmlEvent, PciAddress
from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, RecoveredBy

from support.folded import Told

WALL = 1_800_000_000.0
GPUS = tuple(
    GpuIdentity(index, f"GPU-{index}", PciAddress(0, 0x3B + index, 0), "NVIDIA H100 80GB HBM3", f"s{index}")
    for index in range(8)
)
BUS_LOST = "GPU has fallen off the bus."


class FaultyNode(Told):
    """`clock_s` is the time since boot, `wall_s` the wall clock; `ring` is what the kernel's ring buffer holds."""

    def __init__(self) -> None:
        self.boot = 1
        self.clock_s = 1000.0
        self.wall_s = WALL
        self.gpus: tuple[GpuIdentity, ...] = GPUS
        self.ring: list[Record] = []
        self.changes: list[Change] = []
        self.disk: dict[str, Kept] = {}
        self.read = 0  # records of the ring that were read and committed
        self._committed = 0  # changes
        self._ids = itertools.count(1)
        self._history = History()
        self._start()

    # --- the life of the node

    def _start(self) -> None:
        self.folding = Folding(
            boot_id=f"boot-{self.boot}",
            simulated=False,
            new_id=lambda: f"i{next(self._ids)}",
            history=History.from_json(self._history.to_json()),
        )
        self._parser = RecordParser()
        self._next = self.read
        self.folding.restore(self.disk.values(), **self.now)
        self.folding.identify(Inventory(self.gpus, "", ""), **self.now)
        self.read_backlog()

    def commit(self) -> None:
        """One transaction of the outbox."""
        keep, forget = self.folding.take_dirty()
        self.disk.update({kept.incident.id: kept for kept in keep})
        for gone in forget:
            self.disk.pop(gone, None)
        self._history = self.folding.take_history() or self._history
        self.read = self._next
        self._committed = len(self.changes)

    def _stop(self, crash: bool) -> None:
        """After a crash what was not committed was never told."""
        if crash:
            del self.changes[self._committed :]
        else:
            self.commit()

    def restart(self, *, crash: bool = False) -> None:
        self._stop(crash)
        self._start()

    def reboot(self, *, down_s: float = 300.0, boot_s: float = 60.0, crash: bool = False) -> None:
        self._stop(crash)
        self.boot += 1
        self.wall_s += down_s + boot_s
        self.clock_s, self.ring, self.read = boot_s, [], 0
        self._start()

    @property
    def now(self) -> dict[str, float]:
        return {"now_s": self.wall_s, "monotonic_s": self.clock_s}

    def wait(self, seconds: float) -> list[Change]:
        self.clock_s += seconds
        self.wall_s += seconds
        return self._told(self.folding.tick(self.wall_s, self.clock_s))

    # --- what it says

    def prints(self, text: str, *, facility: int = 0) -> None:
        """The kernel prints a record; nobody has read it yet."""
        header = f"{facility << 3 | 3},{len(self.ring)},{int(self.clock_s * 1e6)},-;".encode()
        self.ring.append(parse_record(header + text.encode().replace(b"\n", b"\\x0a")))

    def record(self, text: str, *, facility: int = 0) -> list[Change]:
        self.prints(text, facility=facility)
        return self._read(backlog=False)

    def read_backlog(self) -> list[Change]:
        return self._read(backlog=True)

    def _read(self, *, backlog: bool) -> list[Change]:
        told = []
        for record in self.ring[self._next :]:
            at_s = record.microseconds / 1e6 if backlog else self.clock_s
            age_s = self.clock_s - at_s
            at = Moment(self.wall_s - age_s, at_s, uncertain=backlog, age_s=age_s)
            origin = f"boot-{self.boot}/{record.sequence}/{record.microseconds}"
            for event in self._parser.feed(record):
                inventory, forged = Inventory(self.gpus, "", ""), not record.from_kernel
                told += self.folding.fold(from_kernel(event, inventory, at, injected=forged, origin=origin))
        self._next = len(self.ring)
        return self._told(told)

    def xid(self, code: int, text: str = "", *, gpu: int = 0, pid: int = 0, name: str = "train") -> list[Change]:
        process = f"pid={pid}, name={name}, " if pid else ""
        return self.record(f"NVRM: Xid (PCI:0000:{0x3B + gpu:02x}:00): {code}, {process}{text}")

    def nvml_xid(self, code: int, *, gpu: int = 0, instance: int | None = None) -> list[Change]:
        event = NvmlEvent(
            GPUS[gpu], EventType.XID, code, instance, instance and 0, self.wall_s, int(self.clock_s * 1e9)
        )
        signal = from_nvml(event)
        assert signal is not None
        return self._told(self.folding.fold(signal))

    def snapshot(self, gpus: Iterable[GpuIdentity] | None = None) -> list[Change]:
        """NVML is asked: these GPUs answer (all, if not said)."""
        return self._told(self.folding.answering(self.gpus if gpus is None else gpus, **self.now))

    def reset(self, gpu: int = 0) -> list[Change]:
        return self._told(self.folding.reset_seen(str(GPUS[gpu].pci), **self.now))

    def finds(self, check: str, *, gpu: int = 0, fault_class: FaultClass = FaultClass.NEEDS_REBOOT) -> list[Change]:
        return self._told(self.folding.finding_opened(finding(check, gpu, fault_class), **self.now))

    def finds_no_more(self, check: str, *, gpu: int = 0) -> list[Change]:
        return self._told(self.folding.finding_recovered(finding(check, gpu), **self.now))

    # --- what it tells

    def closed(self) -> list[tuple[int, RecoveredBy | None]]:
        """(code, what ended it), in order."""
        return [
            (change.incident.code, change.incident.recovered_by)
            for change in self.changes
            if change.kind is ChangeKind.RECOVERED
        ]


def finding(check: str, gpu: int = 0, fault_class: FaultClass = FaultClass.NEEDS_REBOOT) -> Finding:
    component = Component(ComponentKind.GPU, gpu, GPUS[gpu].uuid, str(GPUS[gpu].pci))
    return Finding(f"{check}/{GPUS[gpu].uuid}", check, component, fault_class, Blame.YES, "broken", "mend it")
