"""Our values to the messages of the wire contract and back; the only module that knows both."""

from collections.abc import Iterable
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from nvcre_protos import nvcre_agent_v1_pb2 as pb
from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, IncidentKind, RecoveredBy, Source

from nvcre_agent.checks.model import Component
from nvcre_agent.incidents.model import Change, ChangeKind, Incident
from nvcre_agent.nvml.snapshot import Inventory

_KIND = {member: pb.IncidentKind.Value(f"INCIDENT_KIND_{member.name}") for member in IncidentKind}
_CLASS = {member: pb.FaultClass.Value(f"FAULT_CLASS_{member.name}") for member in FaultClass}
_BLAME = {member: pb.Blame.Value(f"BLAME_{member.name}") for member in Blame}
_COMPONENT = {member: pb.ComponentKind.Value(f"COMPONENT_KIND_{member.name}") for member in ComponentKind}
_SOURCE = {member: pb.Source.Value(f"SOURCE_{member.name}") for member in Source}
_CHANGE = {member: pb.EventKind.Value(f"EVENT_KIND_{member.name}") for member in ChangeKind}
_K = TypeVar("_K")
_V = TypeVar("_V")
_MAX_UINT32 = 2**32 - 1
# The coordinator refuses a message with any other time, and a node whose clock battery is empty starts in 1970: what it
# has to say matters more than when, and the coordinator corrects by how far the heartbeats are off.
_EARLIEST_S, _LATEST_S = 946_684_800.0, 7_258_118_399.0  # 2000-01-01 to 2199-12-31


def timestamp(seconds: float) -> Timestamp:
    """Unix seconds to a Timestamp, cut to what the coordinator takes."""
    whole, part = divmod(min(max(seconds, _EARLIEST_S), _LATEST_S), 1.0)
    return Timestamp(seconds=int(whole), nanos=min(round(part * 1e9), 999_999_999))


def seconds(stamp: Timestamp) -> float:
    return stamp.seconds + stamp.nanos / 1e9


def duration_s(value: Duration) -> float:
    """Seconds, of any value that the wire can carry; ToTimedelta raises where a timedelta ends."""
    return value.seconds + value.nanos / 1e9


def event(change: Change, boot_id: str) -> pb.Event:
    """The event of a change; its seq is set by who sends it."""
    return pb.Event(
        kind=_CHANGE[change.kind],
        incident=incident(change.incident),
        boot_id=boot_id,
        time=timestamp(change.time_s),
        monotonic_ns=max(0, round(change.monotonic_s * 1e9)),
        time_uncertain=change.time_uncertain,
    )


def incident(value: Incident) -> pb.Incident:
    message = pb.Incident(
        id=value.id,
        kind=_KIND[value.kind],
        code=min(value.code, _MAX_UINT32),
        fault_class=_CLASS[value.fault_class],
        blame=_BLAME[value.blame],
        blame_condition=value.blame_condition,
        component=component(value.component),
        mnemonic=value.mnemonic,
        message=value.message,
        remedy=value.remedy,
        sources=[_SOURCE[source] for source in value.sources],
        count=value.count,
        first_seen=timestamp(value.first_seen_s),
        last_seen=timestamp(value.last_seen_s),
        injected=value.injected,
        simulated=value.simulated,
        pid=min(value.pid, _MAX_UINT32),
        process=value.process,
        caused_by_code=min(value.caused_by, _MAX_UINT32),
        effects=[pb.Effect(code=min(code, _MAX_UINT32), count=count) for code, count in sorted(value.effects.items())],
        check=value.check,
        raw=value.raw,
        unit=value.unit,
        pod_uid=value.pod_uid,
        container_id=value.container_id,
        recovered_by=value.recovered_by or "",
    )
    if value.recovered_at_s is not None:
        message.recovered_at.CopyFrom(timestamp(value.recovered_at_s))
    return message


def incident_from(message: pb.Incident) -> Incident:
    """What `incident` wrote. Raises KeyError on an enum value of a newer version."""
    return Incident(
        id=message.id,
        kind=_inverse(_KIND)[message.kind],
        code=message.code,
        fault_class=_inverse(_CLASS)[message.fault_class],
        blame=_inverse(_BLAME)[message.blame],
        blame_condition=message.blame_condition,
        component=Component(
            kind=_inverse(_COMPONENT)[message.component.kind],
            index=message.component.index if message.component.HasField("index") else None,
            uuid=message.component.uuid,
            pci_bus_id=message.component.pci_bus_id,
            gpu_instance=message.component.gpu_instance if message.component.HasField("gpu_instance") else None,
            compute_instance=(
                message.component.compute_instance if message.component.HasField("compute_instance") else None
            ),
        ),
        mnemonic=message.mnemonic,
        message=message.message,
        remedy=message.remedy,
        sources=tuple(_inverse(_SOURCE)[source] for source in message.sources),
        count=message.count,
        first_seen_s=seconds(message.first_seen),
        last_seen_s=seconds(message.last_seen),
        recovered_at_s=seconds(message.recovered_at) if message.HasField("recovered_at") else None,
        injected=message.injected,
        simulated=message.simulated,
        pid=message.pid,
        process=message.process,
        caused_by=message.caused_by_code,
        effects={effect.code: effect.count for effect in message.effects},
        check=message.check,
        raw=message.raw,
        unit=message.unit,
        pod_uid=message.pod_uid,
        container_id=message.container_id,
        recovered_by=RecoveredBy(message.recovered_by) if message.recovered_by else None,
    )


def component(value: Component) -> pb.Component:
    message = pb.Component(kind=_COMPONENT[value.kind], uuid=value.uuid, pci_bus_id=value.pci_bus_id)
    if value.index is not None:
        message.index = value.index
    if value.gpu_instance is not None:
        message.gpu_instance = value.gpu_instance
    if value.compute_instance is not None:
        message.compute_instance = value.compute_instance
    return message


def inventory(value: Inventory | None, *, nccl_tests: str, infiniband: bool) -> pb.Inventory:
    message = pb.Inventory(nccl_tests=nccl_tests, infiniband=infiniband)
    if value is not None:
        message.driver_version = value.driver_version
        message.cuda_version = value.cuda_version
        message.gpus.extend(
            pb.Gpu(index=gpu.index, uuid=gpu.uuid, pci_bus_id=str(gpu.pci), product=gpu.product, serial=gpu.serial)
            for gpu in value.gpus
        )
    return message


def incidents(values: Iterable[Incident]) -> list[pb.Incident]:
    return [incident(value) for value in values]


def _inverse(mapping: dict[_K, _V]) -> dict[_V, _K]:
    return {value: key for key, value in mapping.items()}
