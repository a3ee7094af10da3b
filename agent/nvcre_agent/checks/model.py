"""The words of a finding: what a check says about a GPU, independent of the wire.

Enum members carry the wire contract's names (protos/nvcre_agent_v1.proto) so that the link maps them one to one.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

MAX_MESSAGE_BYTES = 256  # Incident.message of the wire contract


class FaultClass(enum.Enum):
    FATAL_HARDWARE = "FATAL_HARDWARE"
    NEEDS_RESET = "NEEDS_RESET"
    NEEDS_REBOOT = "NEEDS_REBOOT"
    APPLICATION = "APPLICATION"
    INFORMATIONAL = "INFORMATIONAL"
    UNKNOWN = "UNKNOWN"


class Blame(enum.Enum):
    YES = "YES"
    NO = "NO"
    CONDITIONAL = "CONDITIONAL"


class ComponentKind(enum.Enum):
    GPU = "GPU"
    NVLINK = "NVLINK"
    NIC = "NIC"
    FABRIC = "FABRIC"
    NODE = "NODE"


@dataclass(frozen=True, slots=True)
class Component:
    """`index` is the GPU index as NVML counts, for an NVLink the link number; uuid and pci_bus_id name the GPU."""

    kind: ComponentKind
    index: int | None = None
    uuid: str = ""
    pci_bus_id: str = ""  # NVML form: 00000000:3B:00.0


@dataclass(frozen=True, slots=True)
class Finding:
    """Something is wrong, as long as a check keeps saying so.

    `key` is `check/uuid`: the same condition of the same GPU always has the same key, over restarts too.
    """

    key: str
    check: str
    component: Component
    fault_class: FaultClass
    blame: Blame
    message: str
    remedy: str
    blame_condition: str = ""


@dataclass(frozen=True, slots=True)
class Undecided:
    """The check could not look (value unread): an open finding of this key neither recovers nor grows."""

    key: str
