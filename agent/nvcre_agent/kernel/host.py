"""Lines of the host around the GPUs: PCIe AER, InfiniBand and mlx5, the OOM killer, machine checks.

Each function takes one line and gives an event or None.
"""

import re
from collections import deque

from nvcre_agent.kernel.model import KernelEvent, KernelEventKind

_PCI = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_AER = re.compile(rf"(?:[\w-]{{1,32}} )?(?P<port>{_PCI}): (?P<message>AER: .{{1,500}})")
_AER_RECEIVED = re.compile(
    r"AER: (?P<multiple>Multiple )?(?P<severity>Correct(?:ed|able)|Uncorrect(?:ed|able) \((?:Non-Fatal|Fatal)\)) "
    r"error(?:\(s\))?(?: message)? received:?"
    rf"(?:.{{0,16}}?(?P<device>{_PCI}))?"
)
_BUS_ERROR = re.compile(
    rf"(?:[\w-]{{1,32}} )?(?P<device>{_PCI}): (?:AER: )?(?P<message>PCIe Bus Error: "
    r"severity=(?P<severity>Correct(?:ed|able)|Uncorrect(?:ed|able) \((?:Non-Fatal|Fatal)\)).{0,200})"
)
_MLX5 = re.compile(
    rf"(?:mlx5_(?:core|ib) (?P<pci>{_PCI})(?: (?P<device>[\w.-]{{1,32}})(?: \([^)]{{1,32}}\))?)?"
    r"|infiniband (?P<ib>mlx5_[\w.-]{1,27})): (?P<message>.{1,500})"
)
_MLX5_PORT = re.compile(r"(?:Port: \d+ )?Link (?P<state>DOWN|ACTIVE|UP)\b", re.IGNORECASE)
_WATCHDOG = re.compile(r"NETDEV WATCHDOG: (?P<device>[\w.-]{1,32}) \(mlx5_core\): transmit queue \d+ timed out")
_CARRIER = re.compile(r"(?P<device>ib\w{1,30}): lost carrier\b")
_OOM = re.compile(
    r"(?P<message>(?:Memory cgroup out of memory: |Out of memory(?: \(oom_kill_allocating_task\))?: )?"
    r"Killed process (?P<pid>\d{1,10})(?:, UID \d{1,10},)? \((?P<process>.{0,64}?)\))(?=[ ,]|$)"
)
_MCE = re.compile(
    r"mce: (?:\[Hardware Error\]: |(?P<consumed>(?=Uncorrected hardware memory error in )))(?P<message>.{1,200})"
)
_MCE_HEAD = re.compile(
    r"CPU \d+: Machine Check(?P<exception> Exception)?: "
    r"(?:[0-9a-fA-F]{1,16} Bank \d{1,3}: (?P<status>[0-9a-fA-F]{16})\b)?"
)
_UNCORRECTED = 1 << 61  # UC of MCi_STATUS
_MCE_DECODED = re.compile(
    r"\[Hardware Error\]: "
    r"(?P<message>(?P<word>Corrected|Deferred|Uncorrected|System Fatal)\b[^.]{0,64} ?error\b.{0,100})"
)
_FIRMWARE_ERROR = re.compile(
    r"\{\d{1,10}\}\[Hardware Error\]: +(?P<message>event severity: (?P<word>corrected|recoverable|fatal|info)\b.{0,64})"
)
_EDAC = re.compile(r"EDAC (?:\w{1,32}: )?(?P<device>[\w.#-]{1,32}): (?P<message>(?:\d+ )?(?P<word>CE|UE) .{0,200})")
_MEMORY_FAILURE = re.compile(r"Memory failure: (?P<message>(?P<page>0x[0-9a-fA-F]{1,16}): .{1,200})")

# What mlx5 says of itself, and how bad it is (NVSentinel's NIC driver patterns).
_MLX5_WORDS = (
    ("unrecoverable hardware error", "Fatal"),
    ("health recovery failed", "Fatal"),
    ("Fatal error", "Fatal"),
    ("device's health compromised", "Fatal"),
    ("Will cause a leak of a command resource", "Fatal"),
    ("High temperature on sensors", "Temperature"),
    ("Cable error", "Module"),
    ("Cable unplugged", "Module"),
    ("Port module event[error]", "Module"),
    ("High Temperature", "Temperature"),
    ("Detected insufficient power", "Error"),
    ("ACCESS_REG", "Error"),
    ("NETDEV WATCHDOG: ", "Error"),  # since Linux 6.5 with the device before it
)
_MLX5_HEALTH = re.compile(
    r"(?:\w{1,64}:\d{1,6}:\(pid \d{1,10}\): )?Health issue observed, .{1,64}, severity\(\d\) (?P<word>\w+)"
)
_MLX5_HEALTH_FATAL = ("EMERGENCY", "ALERT", "CRITICAL", "ERROR")


CANNOT_RECOVER = "Cannot recover"


class PcieErrors:
    """A PCIe error is told by the port that received it, then by the device: one event, at the first of the lines.

    Where the port's line of an uncorrected error is missing, the device's line is the event.
    """

    DETAILS_OF_SEVERAL = 4  # that "Multiple" may introduce
    MAX_DETAILS = 64

    def __init__(self) -> None:
        self._details_left: dict[str, int] = {}  # by severity: two ports may tell at once

    def feed(self, line: str) -> KernelEvent | None:
        if (found := _BUS_ERROR.match(line)) is not None:
            printed, device = found["severity"], found["device"]
            severity = aer_severity(printed)
            if severity == "Corrected":
                return None
            if self._details_left.get(severity, 0) > 0:
                self._details_left[severity] -= 1
                return None
        elif (found := _AER.match(line)) is None:
            return None
        elif (received := _AER_RECEIVED.match(found["message"])) is not None:
            printed, device = received["severity"], received["device"] or found["port"]
            severity = aer_severity(printed)
            left = self._details_left.get(severity, 0) + (self.DETAILS_OF_SEVERAL if received["multiple"] else 1)
            self._details_left[severity] = min(left, self.MAX_DETAILS)
        elif "can't recover" in found["message"]:
            printed, device = CANNOT_RECOVER, found["port"]
        else:
            return None
        return KernelEvent(KernelEventKind.PCIE_AER, found["message"].rstrip(), line, pci=device, severity=printed)


def aer_severity(printed: str) -> str:
    """What the kernel's words mean; they change with its version."""
    if printed == CANNOT_RECOVER:
        return printed
    return "Corrected" if printed.startswith("Correct") else "Non-Fatal" if "Non-Fatal" in printed else "Fatal"


def ib_link(line: str) -> KernelEvent | None:
    if (found := _MLX5.match(line)) is not None:
        message = found["message"].rstrip()
        state = _mlx5_state(message)
        if state is None:
            return None
        return KernelEvent(
            kind=KernelEventKind.IB_LINK,
            message=message,
            raw=line,
            pci=found["pci"],
            device=found["device"] or found["ib"],
            state=state,
        )
    if (found := _WATCHDOG.match(line) or _CARRIER.match(line)) is not None:
        state = "DOWN" if line.endswith("lost carrier") else "Error"
        return KernelEvent(kind=KernelEventKind.IB_LINK, message=line, raw=line, device=found["device"], state=state)
    return None


def _mlx5_state(message: str) -> str | None:
    if (port := _MLX5_PORT.match(message)) is not None:
        return "DOWN" if port["state"].upper() == "DOWN" else "ACTIVE"
    if (health := _MLX5_HEALTH.match(message)) is not None:
        return "Fatal" if health["word"] in _MLX5_HEALTH_FATAL else "Error"
    return next((state for words, state in _MLX5_WORDS if words in message), None)


def oom_kill(line: str) -> KernelEvent | None:
    if (found := _OOM.match(line)) is None:
        return None
    return KernelEvent(
        kind=KernelEventKind.OOM_KILL,
        message=found["message"],
        raw=line,
        pid=int(found["pid"]),
        process=found["process"],
    )


def machine_check(line: str) -> KernelEvent | None:
    """One event for each machine check, at its first line, and for each line of counts that EDAC prints."""
    if (found := _MCE.match(line)) is not None:
        head = _MCE_HEAD.match(found["message"])
        if head is None and found["consumed"] is None:
            return None  # TSC, PROCESSOR and similar lines are details
        severe = head is None or head["exception"] or (head["status"] and int(head["status"], 16) & _UNCORRECTED)
        severity = "Uncorrected" if severe else "Corrected"
        return KernelEvent(KernelEventKind.MCE, found["message"].rstrip(), line, severity=severity)
    if (found := _MCE_DECODED.match(line) or _FIRMWARE_ERROR.match(line)) is not None:
        mild = found["word"] in ("Corrected", "Deferred", "corrected", "info")
        severity = "Corrected" if mild else "Uncorrected"
        return KernelEvent(KernelEventKind.MCE, found["message"].rstrip(), line, severity=severity)
    if (found := _EDAC.match(line)) is not None:
        severity = "Uncorrected" if found["word"] == "UE" else "Corrected"
        return KernelEvent(
            KernelEventKind.EDAC, found["message"].rstrip(), line, severity=severity, device=found["device"]
        )
    return None


class PoisonedPages:
    """A page that is taken out of use: who had it is signalled, then what became of it; one event, the first line."""

    MAX_PAGES = 64

    def __init__(self) -> None:
        self._told: deque[str] = deque(maxlen=self.MAX_PAGES)

    def feed(self, line: str) -> KernelEvent | None:
        found = _MEMORY_FAILURE.match(line)
        if found is None or found["page"] in self._told:
            return None
        self._told.append(found["page"])
        return KernelEvent(KernelEventKind.MEMORY_FAILURE, found["message"].rstrip(), line, severity="Uncorrected")
