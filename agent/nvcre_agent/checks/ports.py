"""What is remembered of each InfiniBand port: since when it is down, and which outages it had.

A pure value, fed by two sources that see the same thing: the state in sysfs, sampled beside each snapshot, and the
kernel's lines, which have the exact time.  Only a port that was active once is remembered: an unused one is never down.
A port that a person took down has no outage.  Times are monotonic seconds of this boot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nvcre_agent.host.model import IbPort
from nvcre_agent.kernel.model import KernelEvent

MAX_OUTAGES = 32


@dataclass(frozen=True, slots=True)
class Outage:
    ended_s: float
    lasted_s: float


@dataclass(frozen=True, slots=True)
class PortMemory:
    name: str
    pci: str
    down_since_s: float | None = None
    outages: tuple[Outage, ...] = ()  # oldest first
    looked_s: float = field(default=0.0, compare=False)  # last sampled; older kernel lines tell nothing new

    def down(self, at_s: float) -> PortMemory:
        return self if self.down_since_s is not None else replace(self, down_since_s=at_s)

    def up(self, at_s: float) -> PortMemory:
        if self.down_since_s is None:
            return self
        outage = Outage(at_s, max(0.0, at_s - self.down_since_s))
        return replace(self, down_since_s=None, outages=(*self.outages, outage)[-MAX_OUTAGES:])

    def sampled(self, port: IbPort | None, at_s: float) -> PortMemory:
        """`port` is None where sysfs does not list it any more."""
        if port is not None and port.active:
            seen = self.up(at_s)
        elif port is not None and port.planned_down:
            seen = replace(self, down_since_s=None)
        else:
            seen = self.down(at_s)
        return replace(seen, pci=port.pci if port else seen.pci, looked_s=at_s)


@dataclass(frozen=True, slots=True)
class Ports:
    known: Mapping[str, PortMemory] = field(default_factory=dict)  # by name

    def sampled(self, ports: Iterable[IbPort] | None, at_s: float) -> Ports:
        """None: sysfs could not be read, and nothing is learned."""
        if ports is None:
            return self
        listed = {port.name: port for port in ports}
        addresses = {port.pci for port in listed.values() if port.pci}
        known = {
            name: memory.sampled(listed.get(name), at_s)
            for name, memory in self.known.items()
            if name in listed or memory.pci not in addresses  # a name that another one took over at its address is over
        }
        for name, port in listed.items():
            if name not in known and port.active:
                known[name] = PortMemory(name, port.pci, looked_s=at_s)
        return Ports(known)

    def told(self, where: str, *, up: bool, at_s: float) -> Ports:
        """The kernel says that a link went up or down; `where` is its PCI address in NVML's spelling, or its name."""
        return Ports(
            {
                name: memory
                if where not in (memory.pci, name.partition("/")[0]) or at_s < memory.looked_s
                else memory.up(at_s)
                if up
                else memory.down(at_s)
                for name, memory in self.known.items()
            }
        )

    def located(self, event: KernelEvent) -> KernelEvent:
        """With the address of the port's device, where the kernel's line has only its name."""
        if event.pci is not None or event.device is None:
            return event
        pci = next((one.pci for name, one in self.known.items() if name.partition("/")[0] == event.device), "")
        return replace(event, pci=pci or None)

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "name": memory.name,
                "pci": memory.pci,
                "down_since_s": memory.down_since_s,
                "outages": [[outage.ended_s, outage.lasted_s] for outage in memory.outages],
            }
            for memory in self.known.values()
        ]

    @classmethod
    def from_json(cls, raw: list[dict[str, Any]], *, same_boot: bool) -> Ports:
        """Of another boot only the names are of use: its clock says nothing now, and a reboot is a new start."""
        known = {}
        for one in raw:
            memory = PortMemory(str(one["name"]), str(one["pci"]))
            if same_boot:
                since = one["down_since_s"]
                outages = tuple(Outage(float(ended), float(lasted)) for ended, lasted in one["outages"])
                memory = replace(memory, down_since_s=None if since is None else float(since), outages=outages)
            known[memory.name] = memory
        return cls(known)
