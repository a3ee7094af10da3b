"""What a saved kernel log says: its events with triage labels (schema kernel/1), and what a person needs to know.

Pure: entries in, events out, totals kept. Parsing and verdicts are those of the live agent (kernel/, xid/, incidents/);
what is decided here is only what one log without the rest of the world allows: which line repeats which, and whether
somebody should look at the node. No blame follows from it. Memory is bounded whatever the log's size.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from nvcre_protos.vocabulary import FaultClass

from nvcre_agent.incidents import signals
from nvcre_agent.kernel import context
from nvcre_agent.kernel.envelope import Stamp, Writer, looks_like_kernel
from nvcre_agent.kernel.host import CANNOT_RECOVER
from nvcre_agent.kernel.model import KernelEvent, KernelEventKind
from nvcre_agent.kernel.order import InOrder
from nvcre_agent.kernel.parsers import LineParser
from nvcre_agent.kernel.saved import Entry
from nvcre_agent.xid.model import Classification

SAME_LOSS_S = 300.0  # an Xid 79 and a bus loss line of one address are one loss (NVSentinel)
OUT_OF_ORDER_S = 1.0
MAX_ROWS = 4096
MAX_ADDRESSES = 256
MAX_LISTED = 5
_QUOTES = re.compile(r"NVRM: Xid \(|SXid \(PCI:|GPU has fallen off the bus")
_CODE_AT_THE_END = re.compile(r"Xid ?\([^)]{0,96}\):? *\d{1,9}$")
_PROBE_FAILED = ("The NVIDIA probe routine", "None of the NVIDIA")
_DETAIL_FIELDS = ("nvlink", "severity", "recovery_action", "caused_by", "switch", "device", "state")
_PRINTED_SEVERITY = frozenset({KernelEventKind.XID, KernelEventKind.SXID, KernelEventKind.PCIE_AER})


@dataclass(frozen=True, slots=True)
class Told:
    """One event of the log with its labels."""

    event: KernelEvent
    verdict: Classification
    hardware: bool | None
    duplicate_of_line: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The event as kernel/1 spells it."""
        event = self.event
        told: dict[str, Any] = {
            "kind": event.kind.value,
            "pci": event.pci,
            "code": event.code,
            "pid": event.pid,
            "process": event.process,
            "message": event.message,
            "hardware": self.hardware,
        }
        details = {name: value for name in _DETAIL_FIELDS if (value := getattr(event, name)) is not None}
        if event.kind not in _PRINTED_SEVERITY or event.severity == CANNOT_RECOVER:
            details.pop("severity", None)
        if event.kind is not KernelEventKind.IB_LINK:
            details.pop("device", None)
        if self.duplicate_of_line is not None:
            details["duplicate_of_line"] = self.duplicate_of_line
        return told | details | {"line": event.line}


@dataclass(slots=True)
class Row:
    """Events that say the same of the same device."""

    first: Told
    address: str
    count: int = 0
    first_at: Stamp | None = None
    last_at: Stamp | None = None


@dataclass(slots=True)
class Listed:
    """Lines that are only counted, with the numbers of the first few."""

    count: int = 0
    lines: list[int] = field(default_factory=list)

    def add(self, line: int) -> None:
        self.count += 1
        if len(self.lines) < MAX_LISTED:
            self.lines.append(line)


class Reading:
    """Read once; `node_suspect` and the totals are complete after the last event."""

    def __init__(self) -> None:
        self._parser = LineParser()
        self._order = InOrder()
        self._stamp: Stamp | None = None  # of the last entry that began
        self._believed = False  # whether further lines of the last entry may be the kernel's
        self._losses: dict[str, tuple[int, KernelEventKind, Stamp | None]] = {}
        self._recovery: dict[str, int] = {}  # address -> recovery action the driver asked for last
        self._hardware = False
        self._probe_failed = False
        self._unsupported = False
        self.rows: dict[tuple[object, ...], Row] = {}
        self.rows_left_out = 0
        self.events = 0
        self.recognised = 0
        self.identities: dict[str, context.Identity] = {}
        self.notes: dict[str, Listed] = {}
        self.quoted = Listed()
        self.unread = Listed()

    @property
    def node_suspect(self) -> bool:
        """A hardware event, a recovery action still asked for, or a GPU that the driver could not take up."""
        return self._hardware or any(self._recovery.values()) or (self._probe_failed and not self._unsupported)

    @property
    def recovery_asked(self) -> dict[str, int]:
        return {address: action for address, action in self._recovery.items() if action}

    def read(self, entries: Iterable[Entry]) -> Iterator[Told]:
        for entry in entries:
            if entry.text and _begins_a_boot(entry):
                yield from (self._tell(*one) for one in self._order.rest())
                self._losses.clear()
                self._recovery.clear()
            self._feed(entry)
            if self._order:
                settled = self._order.settled(entry.line, self._parser.unfinished)
                yield from (self._tell(*one) for one in settled)
        yield from (self._tell(*one) for one in self._order.rest())

    def _feed(self, entry: Entry) -> None:
        if not entry.text and not entry.continues:  # of the kernel or not, it says nothing
            self._parser.skip()
            self._believed = entry.writer is not Writer.PROCESS
            self.recognised += entry.writer is Writer.KERNEL
            return
        if entry.continues:
            believed = self._believed
            found = self._parser.feed_rest(entry.text, entry.line) if believed else iter(())
        else:
            believed = self._believed = entry.writer is not Writer.PROCESS
            self._stamp = entry.stamp
            code_is_cut = entry.cut and _CODE_AT_THE_END.search(entry.text) is not None
            found = self._parser.feed(entry.text, entry.line) if believed and not code_is_cut else iter(())
        some = False
        for event in found:
            some = True
            self._order.add(event, replace(entry, stamp=self._stamp) if entry.continues else entry)
        if believed:
            self._learn(entry, some)
        elif _quotes(entry.text):
            self.quoted.add(entry.line)

    def _tell(self, event: KernelEvent, entry: Entry) -> Told:
        verdict = signals.verdict_of(event)
        hardware = verdict.hardware
        if event.message.startswith(_PROBE_FAILED):
            hardware, self._probe_failed = None, True
        address = _address(event)
        told = Told(event, verdict, hardware, self._duplicate(event, address, entry.stamp))
        self.events += 1
        self._hardware = self._hardware or hardware is True
        if event.recovery_action is not None and (address in self._recovery or len(self._recovery) < MAX_ADDRESSES):
            self._recovery[address] = event.recovery_action
        self._count(told, address, entry)
        return told

    def _count(self, told: Told, address: str, entry: Entry) -> None:
        event = told.event
        device = (address, event.nvlink, event.switch, event.device)
        key = (*device, event.kind, event.code, told.verdict, told.hardware, event.injected)
        row = self.rows.get(key)
        if row is None:
            if len(self.rows) >= MAX_ROWS:
                self.rows_left_out += 1
                return
            row = self.rows[key] = Row(told, address, first_at=entry.stamp)
        row.count += entry.repeats
        row.last_at = entry.stamp or row.last_at

    def _duplicate(self, event: KernelEvent, address: str, stamp: Stamp | None) -> int | None:
        """The line that told the same bus loss before, in the other of its two forms or as a line without Xid."""
        if event.kind is not KernelEventKind.BUS_DROP and event.code != 79:
            return None
        before = self._losses.get(address)
        if before is not None and _near(before[2], stamp) and KernelEventKind.BUS_DROP in (event.kind, before[1]):
            return before[0]
        if len(self._losses) < MAX_ADDRESSES or address in self._losses:
            self._losses[address] = (event.line, event.kind, stamp)
        return None

    def _learn(self, entry: Entry, some: bool) -> None:
        text = entry.text
        meaning = None if some else context.note(text)
        if meaning is not None:
            self.notes.setdefault(meaning, Listed()).add(entry.line)
            self._unsupported = self._unsupported or "is not supported by" in text
        if (who := context.identity(text)) is not None and (
            len(self.identities) < MAX_ADDRESSES or who.pci in self.identities
        ):
            before = self.identities.get(who.pci, who)
            self.identities[who.pci] = context.Identity(
                who.pci, who.uuid or before.uuid, _or(who.index, before.index), _or(who.minor, before.minor)
            )
        if entry.writer is Writer.KERNEL or some or meaning is not None or looks_like_kernel(text):
            self.recognised += 1
        if some:
            return
        if text.startswith("NVRM: Xid") and not entry.continues:
            self.unread.add(entry.line)
        elif _quotes(text) and not text.startswith("nvidia-nvswitch"):
            self.quoted.add(entry.line)

    def worst(self) -> Row | None:
        """The row to begin with: hardware first, then by class, then by time."""
        return min(self.rows.values(), key=lambda row: _rank(row.first), default=None)


_CLASSES = (
    FaultClass.FATAL_HARDWARE,
    FaultClass.NEEDS_REBOOT,
    FaultClass.NEEDS_RESET,
    FaultClass.INFORMATIONAL,
    FaultClass.APPLICATION,
    FaultClass.UNKNOWN,
)


def _rank(told: Told) -> tuple[bool, int]:
    return told.hardware is not True, _CLASSES.index(told.verdict.fault_class)


def _address(event: KernelEvent) -> str:
    """What the same device is called whether or not the line prints its function; both ports of a NIC stay apart."""
    if event.pci is None:
        return event.device or ""
    return event.pci.lower() if event.kind is KernelEventKind.IB_LINK else event.pci.lower().partition(".")[0]


def _near(one: Stamp | None, other: Stamp | None) -> bool:
    if one is None or other is None or one.clock is not other.clock:
        return True
    before, after = one.seconds, other.seconds
    if before is None or after is None:
        return True
    # Two processors may print a little out of order; a clock that goes back further is that of another boot.
    return -OUT_OF_ORDER_S <= after - before <= SAME_LOSS_S


def _begins_a_boot(entry: Entry) -> bool:
    """The kernel's first line, or the one that journalctl prints between two boots, which nobody wrote."""
    if entry.text.startswith("Linux version "):
        return entry.writer is not Writer.PROCESS and not entry.continues
    return entry.writer is Writer.NOBODY_SAYS and entry.text.startswith(("-- Boot ", "-- Reboot --"))


def _quotes(text: str) -> bool:
    return _QUOTES.search(text) is not None


def _or(one: int | None, other: int | None) -> int | None:
    return other if one is None else one
