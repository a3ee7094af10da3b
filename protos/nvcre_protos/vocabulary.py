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


HARDWARE = frozenset({FaultClass.FATAL_HARDWARE, FaultClass.NEEDS_RESET, FaultClass.NEEDS_REBOOT})
"""The classes by which a node may be accused."""


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


class RecoveredBy(StrEnum):
    """What ended an incident."""

    QUIET = "Quiet"  # not repeated for a while; nothing was broken
    RESET = "Reset"
    REBOOT = "Reboot"
    REPLACED = "Replaced"  # another GPU stands in the slot
    LINK_ACTIVE = "LinkActive"
    CONDITION_GONE = "ConditionGone"  # the check that found it finds it no more
    SET_HEALTHY = "SetHealthy"  # a person said so
    EVICTED = "Evicted"  # too many open incidents; not known to be over


class Source(StrEnum):
    NVML = "nvml"
    KERNEL_LOG = "kernel-log"
    HOST = "host"
