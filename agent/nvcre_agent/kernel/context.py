"""Kernel lines that are no fault by themselves but explain one: hung tasks, GSP heartbeats, dropped lines, identities.

Nothing here opens an incident or accuses a node. The meanings are for people who read a saved log.
"""

import re
from dataclasses import dataclass

_PCI = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a line tells about a GPU beside its address; None where it does not."""

    pci: str
    uuid: str | None = None
    index: int | None = None
    minor: int | None = None


_NOTES = {
    r"NVRM: .{0,64}(?:_kgspIsHeartbeatTimedOut|Heartbeat timed out)": "GSP heartbeat lost; Xid 119 or 120 may follow",
    r"NVRM: .{0,64}Rate limiting GSP RPC error prints": (
        "GSP messages are rate-limited from here on: their counts are too low"
    ),
    r"(?:\*\* |printk: |.{1,64}: )?\d{1,12} (?:(?:printk )?messages? (?:dropped|suppressed)|callbacks suppressed)": (
        "kernel lines were dropped: counts are too low"
    ),
    r"INFO: task .{1,64} blocked for more than \d{1,9} seconds": (
        "hung task: with nvidia frames below it the driver is wedged and NVML calls hang"
    ),
    r".{1,64}\[\d{1,10}\]: segfault at .{1,128} in lib(?:nccl|cuda|cudart|nvidia-ml)\b": (
        "segmentation fault in a CUDA library: the application"
    ),
    r"NVRM: .{0,64}uvm encountered global fatal error": "the driver's unified memory failed: CUDA needs a reboot",
    r"NVRM: .{0,64}knvlink(?:UpdatePostRxDetectLinkMask|DiscoverPostRxDetLinks)": (
        "NVLinks were missing when the GPU came up"
    ),
    r"nvidia-peermem .{0,64}(?:ERROR|invalid context)": "peer memory: software",
    r"NVRM: .{0,64}nvCheckOk.{0,16}Failed.{0,64}(?:Out of memory|NV_ERR_NO_MEMORY)": (
        "GPU memory ran out: the application"
    ),
    r".{0,128}Failed to allocate (?:NvKmsKapiDevice|NVKMS)": "the display stack ran out of memory: not hardware",
    r"NVRM: .{0,128}is not supported by the": "a GPU that this driver does not support: configuration",
    r"(?:Uhhuh\. )?NMI received for unknown reason|NMI: (?:PCI system error|IOCK error|IO check error)": (
        "NMI: the platform reports an error"
    ),
    r"pcieport .{1,64}: DPC: containment event": "a PCIe port took its link down after an error (DPC)",
    r"nvidia .{1,64}: Unable to change power state from \w{1,8} to D0, device inaccessible": (
        "a GPU does not answer on PCIe"
    ),
    r"pcieport .{1,64}: pciehp: Slot\(.{1,16}\): (?:Link Down|Card not present)": "a PCIe slot lost its card",
    r"Kernel panic - not syncing": "kernel panic",
    r"(?:NMI )?watchdog: .{0,32}(?:soft lockup|hard LOCKUP)|rcu: INFO: .{0,32}stall": "a CPU was stuck",
    r"(?:mce: )?\[Hardware Error\]: Machine check events logged": "machine checks: rasdaemon or mcelog says which",
    r"mce: CPU\d{1,5}: .{0,32}temperature.{0,16}above threshold": "a CPU is too hot and throttles",
    r"GPU reset executed: GPU-[0-9a-f-]{36}, success: (?:true|false)": "a GPU was reset",
}
_WORTH_A_LOOK = re.compile(  # a word of each of them
    r"NVRM|INFO: task|segfault|dropped|suppressed|peermem|Failed to allocate|"
    r"NMI|panic|Machine check|watchdog|rcu: |temperature|pciehp|DPC|power state|reset"
)
_ANY_NOTE = tuple((re.compile(pattern), meaning) for pattern, meaning in _NOTES.items())
_UUID = re.compile(rf"NVRM: GPU at (?:PCI:)?({_PCI})(?:\.\d)?: (GPU-[0-9a-f-]{{36}})")
_MINOR = re.compile(rf"NVRM: GPU ({_PCI})(?:\.\d)?: rm_init_adapter failed, device minor number (\d{{1,4}})")
_INDEX = re.compile(rf"NVRM: Xid \((?:PCI:)?({_PCI})[^)]{{0,64}}\): .{{0,160}}\bGPU(\d{{1,3}}) GSP\b")


def note(text: str) -> str | None:
    """What the line means beside the events, or None."""
    if _WORTH_A_LOOK.search(text) is None:
        return None
    return next((meaning for pattern, meaning in _ANY_NOTE if pattern.match(text)), None)


def identity(text: str) -> Identity | None:
    if not text.startswith("NVRM: "):
        return None
    if (found := _UUID.match(text)) is not None:
        return Identity(found[1], uuid=found[2])
    if (found := _MINOR.match(text)) is not None:
        return Identity(found[1], minor=int(found[2]))
    if (found := _INDEX.match(text)) is not None:
        return Identity(found[1], index=int(found[2]))
    return None
