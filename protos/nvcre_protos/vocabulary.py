"""The closed sets of words of an incident, spelled as NodeHealth spells them; members bear the wire contract's names.

The agent decides in these words, the wire carries their numbers, the coordinator writes them into NodeHealth.
"""

from enum import StrEnum


class IncidentKind(StrEnum):
    XID = "Xid"
    SXID = "SXid"
    BUS_DROP = "BusDrop"
    RM_INIT_FAILED = "RmInitFailed"
    PCIE_AER = "PcieAer"
    IB_LINK = "IbLink"
    OOM_KILL = "OomKill"
    MACHINE_CHECK = "MachineCheck"
    HEALTH_CHECK = "HealthCheck"


class FaultClass(StrEnum):
    FATAL_HARDWARE = "FatalHardware"
    NEEDS_RESET = "NeedsReset"
    NEEDS_REBOOT = "NeedsReboot"
    APPLICATION = "Application"
    INFORMATIONAL = "Informational"
    UNKNOWN = "Unknown"


class Blame(StrEnum):
    YES = "Yes"
    NO = "No"
    CONDITIONAL = "Conditional"


class ComponentKind(StrEnum):
    GPU = "GPU"
    NVLINK = "NVLink"
    NIC = "NIC"
    FABRIC = "Fabric"
    NODE = "Node"


class Source(StrEnum):
    NVML = "nvml"
    KERNEL_LOG = "kernel-log"
