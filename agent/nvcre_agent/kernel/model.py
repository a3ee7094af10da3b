"""What a recognised kernel line says, as values. Addresses stay as printed; who they belong to is decided elsewhere."""

from dataclasses import dataclass
from enum import StrEnum


class KernelEventKind(StrEnum):
    XID = "xid"
    SXID = "sxid"
    BUS_DROP = "bus_drop"
    RM_INIT_FAILED = "rm_init_failed"
    PCIE_AER = "pcie_aer"
    IB_LINK = "ib_link"
    OOM_KILL = "oom_kill"
    MCE = "mce"
    EDAC = "edac"
    MEMORY_FAILURE = "memory_failure"


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """`severity` is the printed word, where there is one.

    `unit` is the part of the GPU that an Xid 13 or 31 names; the instances are those of MIG, None for the whole GPU.
    `state` of a NIC is DOWN, ACTIVE, Fatal, Module, Temperature or Error. `line` is the number that the caller gave to
    the line where the event begins.
    """

    kind: KernelEventKind
    message: str
    raw: str
    pci: str | None = None
    code: int | None = None
    pid: int | None = None
    process: str | None = None
    nvlink: int | None = None
    severity: str | None = None
    recovery_action: int | None = None
    caused_by: int | None = None
    switch: int | None = None
    device: str | None = None
    state: str | None = None
    unit: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    injected: bool = False
    line: int = 0
