"""Lines of the NVIDIA driver and of NVSwitch: Xid, SXid, bus loss, failed initialisation.

Each function takes one line and gives an event or None. Shapes span driver 3xx to 6xx: with and without `PCI:`, pid,
name and comma after the code. Patterns are anchored, so a program that quotes such a line makes no event.
"""

import re
from collections import deque
from dataclasses import dataclass

from nvcre_agent.kernel.model import KernelEvent, KernelEventKind
from nvcre_agent.xid.classify import link_event, recovery_action

_PCI = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_XID = re.compile(rf"NVRM: Xid ?\((?:PCI:)?({_PCI})([^)]{{0,64}})\):? *(\d{{1,9}})(?=\W|$)[,:;]? *")
_GPU_INSTANCE = re.compile(r"\bGPU-I: *(\d{1,4})\b")
_COMPUTE_INSTANCE = re.compile(r"\bGPU-CI: *(\d{1,4})\b")
_CLUSTER = re.compile(r"\bGPC (\d{1,3}), TPC (\d{1,3})\b")
_MMU_CLIENT = re.compile(r"\b((?:GPC|HUB)CLIENT_\w{1,32}) faulted\b")
_QUOTE = "['\"\u2018\u2019\u201c\u201d]?"  # people and word processors change the driver's
_PID = re.compile(rf"pid={_QUOTE}(<[^>,]{{1,16}}>|\d{{1,10}}){_QUOTE}(?:, *|$)")
_NAME = re.compile(rf"name={_QUOTE}([^,]{{0,64}}?){_QUOTE}(?:, *|$)")
_CAUSE = re.compile(r"caused by previous Xid (\d{1,9})")
_LINK = re.compile(r"\b[Ll]ink (\d{1,3})\b")
_NVLINK_CODES = frozenset({74, 136, 155, 166, 170})
_SXID = re.compile(rf"nvidia-nvswitch(\d{{0,3}}): SXid \((?:PCI:)?({_PCI})\): *(\d{{1,9}})(?=\W|$)[,:;]? *")
_SXID_WORD = re.compile(r"(Non-?fatal|Fatal)\b", re.IGNORECASE)
_SXID_LINK = re.compile(r"\bLink (\d{1,3})\b")
_SXID_DETAIL = ("Severity ", "Data {")
_BUS_DROP = re.compile(rf"NVRM: GPU (?:at (?:PCI:)?)?({_PCI}):? ((?:GPU )?has fallen off the bus\.?)")
_RM_INIT = re.compile(rf"NVRM: GPU (?:at PCI:)?({_PCI}): (RmInitAdapter(?: failed!|: Cannot initialize GSP).{{0,200}})")
_RM_INIT_NO_DEVICE = re.compile(
    r"NVRM: (?:GPU\d{1,3} )?(RmInitAdapter: Cannot initialize GSP firmware RM.{0,200}"
    r"|RmInitAdapter failed!.{0,200}"
    r"|.{0,64}failed to wait for GFW boot complete.{0,200}"
    r"|The NVIDIA probe routine failed for \d+ device\(s\)\.?"
    r"|None of the NVIDIA .{0,64}were initialized[.!]?)"
)
_ADAPTER = re.compile(rf"NVRM: (The NVIDIA GPU ({_PCI})\b.{{0,200}})")
_ADAPTER_ENDS = ("fallen off the bus and is not responding to commands", "is not supported by")


def xid(line: str) -> KernelEvent | None:
    if (found := _XID.match(line)) is None:
        return None
    code, position = int(found[3]), found.end()
    pid = process = None
    if (field := _PID.match(line, position)) is not None:
        pid = int(field[1]) if field[1].isdigit() else None
        position = field.end()
    if (field := _NAME.match(line, position)) is not None:
        process = None if field[1] in ("<unknown>", "") else field[1]
        position = field.end()
    message = line[position:]
    nvlink = severity = action = None
    injected = False
    if 144 <= code <= 150 and (event := link_event(message)) is not None:
        nvlink, severity, injected = event.link, "Fatal" if event.fatal else "Nonfatal", event.injected
    elif code in _NVLINK_CODES and (field := _LINK.search(message)) is not None:
        nvlink = int(field[1])
    elif code == 154 and (change := recovery_action(message)) is not None:
        action = change[1]
    cause = _CAUSE.search(message)
    instances = found[2]
    return KernelEvent(
        kind=KernelEventKind.XID,
        message=message,
        raw=line,
        pci=found[1],
        code=code,
        pid=pid,
        process=process,
        nvlink=nvlink,
        severity=severity,
        recovery_action=action,
        caused_by=int(cause[1]) if cause else None,
        unit=_unit(code, message),
        gpu_instance=int(one[1]) if (one := _GPU_INSTANCE.search(instances)) else None,
        compute_instance=int(one[1]) if (one := _COMPUTE_INSTANCE.search(instances)) else None,
        injected=injected,
    )


def _unit(code: int, message: str) -> str | None:
    """The part of the GPU, in words that are the same whatever else the line says."""
    if code == 13 and (found := _CLUSTER.search(message)) is not None:
        return f"GPC {int(found[1])}, TPC {int(found[2])}"
    if code == 31 and (found := _MMU_CLIENT.search(message)) is not None:
        return found[1]
    return None


def sxid(line: str) -> KernelEvent | None:
    """The first line of an SXid; `Severity ...` and `Data {...}` lines of the same number are its details."""
    if (found := _SXID.match(line)) is None:
        return None
    message = line[found.end() :]
    if message.startswith(_SXID_DETAIL):
        return None
    word = _SXID_WORD.match(message)
    link = _SXID_LINK.search(message)
    return KernelEvent(
        kind=KernelEventKind.SXID,
        message=message,
        raw=line,
        pci=found[2],
        code=int(found[3]),
        switch=int(found[1]) if found[1] else None,
        nvlink=int(link[1]) if link else None,
        severity=None if word is None else "Fatal" if word[1].lower() == "fatal" else "Non-fatal",
    )


def bus_drop(line: str) -> KernelEvent | None:
    if (found := _BUS_DROP.match(line)) is None:
        return None
    return KernelEvent(kind=KernelEventKind.BUS_DROP, message=found[2], raw=line, pci=found[1])


def rm_init_failed(line: str) -> KernelEvent | None:
    """Only the line that says why; `rm_init_adapter failed, device minor number N` repeats it."""
    if (found := _RM_INIT.match(line)) is not None:
        return KernelEvent(kind=KernelEventKind.RM_INIT_FAILED, message=found[2].rstrip(), raw=line, pci=found[1])
    if (found := _RM_INIT_NO_DEVICE.match(line)) is not None:
        return KernelEvent(kind=KernelEventKind.RM_INIT_FAILED, message=found[1].rstrip(), raw=line)
    return None


class BusDropLines:
    """The bus loss that is told in up to three lines, in one record or in several.

        NVRM: The NVIDIA GPU 0000:b3:00.0
        NVRM: (PCI ID: 10de:20b0) installed in this system has
        NVRM: fallen off the bus and is not responding to commands.

    The same first two lines also introduce "is not supported by", which is configuration and no event. Two GPUs that
    are lost at once may tell it with their lines mixed: the first address belongs to the first end.
    """

    MAX_OPEN = 16
    LINES_EACH = 3

    def __init__(self) -> None:
        self._open: deque[_Adapter] = deque(maxlen=self.MAX_OPEN)
        self._lines_left = 0  # of the driver, until the open ones are given up

    @property
    def unfinished(self) -> int | None:
        return self._open[0].number if self._open else None

    def feed(self, line: str, number: int = 0) -> KernelEvent | None:
        if (found := _ADAPTER.match(line)) is not None:
            self._open.append(_Adapter(found[2], number, [found[1].rstrip()]))
            self._lines_left = self.LINES_EACH * len(self._open)
        elif self._open:
            # A line names no GPU: a middle one belongs to the first that has none yet, an end to the first.
            one = next((one for one in self._open if len(one.said) == 1), self._open[0])
            one.said.append(line.removeprefix("NVRM: ").rstrip()[:200])
        else:
            return None
        end = next((end for end in _ADAPTER_ENDS if end in line), None)
        if end is not None:
            lost = self._open.popleft()
            return lost.event(line) if end == _ADAPTER_ENDS[0] else None
        self._lines_left -= 1
        if self._lines_left <= 0:
            self._open.clear()
        return None


@dataclass(slots=True)
class _Adapter:
    pci: str
    number: int  # of its first line
    said: list[str]

    def event(self, last: str) -> KernelEvent:
        message = " ".join(self.said)
        return KernelEvent(KernelEventKind.BUS_DROP, message, raw=last, pci=self.pci, line=self.number)
