"""From what a source said to a classified signal with an owner: kernel events and NVML events become `Signal`s.

Attribution goes through the inventory (the last good identity map), by (domain, bus, device) as numbers, because the
kernel prints four digits of the domain and NVML eight.
"""

from dataclasses import dataclass, replace

from nvcre_protos.vocabulary import ComponentKind, IncidentKind, Source

from nvcre_agent.checks.model import Component
from nvcre_agent.incidents.model import Signal
from nvcre_agent.kernel.host import aer_severity
from nvcre_agent.kernel.model import KernelEvent, KernelEventKind
from nvcre_agent.nvml.snapshot import EventType, Inventory, NvmlEvent, PciAddress
from nvcre_agent.process_owner import NOBODY, Owner
from nvcre_agent.xid.classify import classify_kernel, classify_sxid, classify_xid
from nvcre_agent.xid.model import Classification

NO_GPUS = Inventory(gpus=(), driver_version="", cuda_version="")

_KINDS = {
    KernelEventKind.XID: IncidentKind.XID,
    KernelEventKind.SXID: IncidentKind.SXID,
    KernelEventKind.BUS_DROP: IncidentKind.BUS_DROP,
    KernelEventKind.RM_INIT_FAILED: IncidentKind.RM_INIT_FAILED,
    KernelEventKind.PCIE_AER: IncidentKind.PCIE_AER,
    KernelEventKind.IB_LINK: IncidentKind.IB_LINK,
    KernelEventKind.OOM_KILL: IncidentKind.OOM_KILL,
    KernelEventKind.MCE: IncidentKind.MACHINE_CHECK,
    KernelEventKind.EDAC: IncidentKind.MACHINE_CHECK,
    KernelEventKind.MEMORY_FAILURE: IncidentKind.MACHINE_CHECK,
}


@dataclass(frozen=True, slots=True)
class Moment:
    """When something happened, and how long ago. `uncertain` marks wall time derived from the boot clock."""

    time_s: float
    monotonic_s: float
    uncertain: bool = False
    age_s: float = 0.0


def from_kernel(
    event: KernelEvent,
    inventory: Inventory,
    at: Moment,
    *,
    injected: bool,
    origin: str = "",
    owner: Owner = NOBODY,
) -> Signal:
    """`injected`: the record was written by a process, not by the kernel; `origin` names the record."""
    subject, component = _owner(event, inventory)
    return Signal(
        kind=_KINDS[event.kind],
        code=event.code or 0,
        subject=subject,
        component=component,
        source=Source.KERNEL_LOG,
        verdict=verdict_of(event),
        message=event.message or event.raw,
        time_s=at.time_s,
        monotonic_s=at.monotonic_s,
        time_uncertain=at.uncertain,
        injected=injected or event.injected,
        pid=event.pid or 0,
        process=event.process or "",
        caused_by=event.caused_by or 0,
        unit=event.unit or "",
        pod_uid=owner.pod_uid,
        container_id=owner.container_id,
        raw=event.raw,
        origin=f"{origin}/{event.raw}" if origin else "",
        age_s=at.age_s,
    )


def from_nvml(event: NvmlEvent) -> Signal | None:
    """Only Xid events; the other types announce what the Xid or the next snapshot says anyway. Xid 0 says nothing."""
    if event.event_type is not EventType.XID or event.data == 0:
        return None
    verdict = classify_xid(event.data)
    if event.gpu is None:
        subject, component = "", Component(ComponentKind.NODE)
    else:
        subject = str(event.gpu.pci)
        instances = (event.gpu_instance, event.compute_instance)
        component = Component(ComponentKind.GPU, event.gpu.index, event.gpu.uuid, subject, *instances)
    return Signal(
        kind=IncidentKind.XID,
        code=event.data,
        subject=subject,
        component=component,
        source=Source.NVML,
        verdict=verdict,
        message=f"NVML reports Xid {event.data}" + (f" ({verdict.mnemonic})" if verdict.mnemonic else ""),
        time_s=event.time_s,
        monotonic_s=event.monotonic_ns / 1e9,
    )


def gpu_component(pci: PciAddress, inventory: Inventory) -> Component:
    known = inventory.by_pci(pci)
    if known is None:
        return Component(ComponentKind.GPU, pci_bus_id=str(pci))
    return Component(ComponentKind.GPU, known.index, known.uuid, str(known.pci))


def _owner(event: KernelEvent, inventory: Inventory) -> tuple[str, Component]:
    """(subject, component) of a line; the node where no device is named."""
    bus_id = _with_function(event.pci) if event.pci is not None else ""
    match event.kind:
        case KernelEventKind.IB_LINK:
            return bus_id or event.device or "", Component(ComponentKind.NIC, pci_bus_id=bus_id)
        case KernelEventKind.SXID:
            kind = ComponentKind.FABRIC if event.nvlink is None else ComponentKind.NVLINK
            return f"{bus_id}/{event.nvlink}", Component(kind, event.nvlink, pci_bus_id=bus_id)
        case _ if event.pci is None:
            return event.device or "", Component(ComponentKind.NODE)
    pci = PciAddress.parse(event.pci)
    if event.kind is KernelEventKind.PCIE_AER and inventory.by_pci(pci) is None:
        return bus_id, Component(ComponentKind.NODE, pci_bus_id=bus_id)
    gpu = gpu_component(pci, inventory)
    if event.nvlink is not None:
        gpu = Component(ComponentKind.NVLINK, event.nvlink, gpu.uuid, gpu.pci_bus_id)
    if event.gpu_instance is not None or event.compute_instance is not None:
        gpu = replace(gpu, gpu_instance=event.gpu_instance, compute_instance=event.compute_instance)
    return str(pci), gpu


def _with_function(printed: str) -> str:
    """NVML's spelling with the function kept, because the two ports of a NIC differ in nothing else."""
    _, dot, function = printed.partition(".")
    return str(PciAddress.parse(printed))[:-1] + (function if dot else "0")


def verdict_of(event: KernelEvent) -> Classification:
    code = event.code or 0
    match event.kind:
        case KernelEventKind.XID:
            return classify_xid(code, event.message)
        case KernelEventKind.SXID:
            return classify_sxid(code, event.severity)
        case KernelEventKind.RM_INIT_FAILED:
            return classify_kernel("RmInitFailed", "" if event.pci else "no device")
        case KernelEventKind.PCIE_AER:
            return classify_kernel("PcieAer", aer_severity(event.severity or ""))
        case KernelEventKind.IB_LINK:
            return classify_kernel("IbLink", event.state or "")
        case kind:
            return classify_kernel(_KINDS[kind].value, event.severity or "")
