"""What a check says about a component of the node, independent of the wire."""

from __future__ import annotations

from dataclasses import dataclass

from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, Source


@dataclass(frozen=True, slots=True)
class Component:
    """`index` is the GPU index as NVML counts, for an NVLink the link number; uuid and pci_bus_id name the GPU.

    The MIG instances are those of the fault; without them it concerns every instance of the GPU.
    """

    kind: ComponentKind
    index: int | None = None
    uuid: str = ""
    pci_bus_id: str = ""  # NVML form: 00000000:3B:00.0
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something is wrong, as long as a check keeps saying so.

    `key` is `check/uuid`, `check/port` or `check/node`: the same condition of the same thing always has the same key,
    over restarts too.
    """

    key: str
    check: str
    component: Component
    fault_class: FaultClass
    blame: Blame
    message: str
    remedy: str
    blame_condition: str = ""
    source: Source = Source.NVML


@dataclass(frozen=True, slots=True)
class Undecided:
    """The check could not look: an open finding of this key neither recovers nor grows.

    `because` names the ordinary circumstance that hides the value (an idle GPU, MIG instances); it is empty where a
    value should have been readable and was not.
    """

    key: str
    because: str = ""
