"""From the agents' protobuf messages to the types of the rules; the one place where both vocabularies meet.

Everything here comes from outside. Strings are cut to what the NodeHealth schema takes, lists are bounded, numbers and
times are checked, times are put on the coordinator's clock. What cannot be used at all raises BadMessage, which ends
the stream with its text. Values that a newer agent may know and we do not are kept as the nearest thing that blames
nobody: an unknown fault warns, never vanishes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Literal

from google.protobuf.timestamp_pb2 import Timestamp
from nvcre_protos import nvcre_agent_v1_pb2 as pb
from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, IncidentKind, Source

from nvcre_coordinator.core.clock_offset import ClockOffset
from nvcre_coordinator.core.incidents import Component, Effect, Event, EventKind, Incident, Snapshot
from nvcre_coordinator.core.localisation import ProbeKind, ProbeResult, ProbeState, SizeBandwidth
from nvcre_coordinator.core.node_verdict import Gpu, Monitor, MonitorState
from nvcre_coordinator.fleet.status import MAX_GPUS, Inventory

MAX_EVENTS = 1024  # in one batch; our agent sends 64
MAX_SNAPSHOT = 1024  # open incidents in one snapshot; our agent keeps 512
MAX_MONITORS = 32
MAX_EFFECTS = 16
MAX_SIZES = 64
MAX_RUNS = 16
MAX_INT64 = (1 << 63) - 1
MAX_BANDWIDTH_GBPS = 1e6
# Nothing this project watches happened before, and no clock of ours is right after it.
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
LATEST = datetime(2200, 1, 1, tzinfo=UTC)

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
# What the API server stores as six bytes each: its JSON is safe for HTML.
_SIXFOLD = re.compile("[<>&\u2028\u2029]")
_SPACES = str.maketrans("\t\n\r", "   ")
# What moves a terminal's cursor (C0, C1), turns a line around (bidirectional controls), or is no character.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")

_INCIDENT_KINDS = {pb.IncidentKind.Value(f"INCIDENT_KIND_{member.name}"): member for member in IncidentKind}
_FAULT_CLASSES = {pb.FaultClass.Value(f"FAULT_CLASS_{member.name}"): member for member in FaultClass}
_BLAMES = {pb.Blame.Value(f"BLAME_{member.name}"): member for member in Blame}
_COMPONENT_KINDS = {pb.ComponentKind.Value(f"COMPONENT_KIND_{member.name}"): member for member in ComponentKind}
_SOURCES = {pb.Source.Value(f"SOURCE_{member.name}"): member for member in Source}
_EVENT_KINDS = {pb.EventKind.Value(f"EVENT_KIND_{member.name}"): member for member in EventKind}
_MONITOR_STATES = {pb.MonitorState.Value(f"MONITOR_STATE_{member.name}"): member for member in MonitorState}
_PROBE_STATES = {pb.ProbeState.Value(f"PROBE_STATE_{member.name}"): member for member in ProbeState}
PROBE_KINDS = {member: pb.ProbeKind.Value(f"PROBE_KIND_{member.name}") for member in ProbeKind}


class BadMessage(Exception):
    """The message cannot be used; the text names the field, and goes back to the agent."""


def cut(text: str, limit_bytes: int) -> str:
    """At most so many bytes of UTF-8 in one line, never ending inside a character, without control characters.

    Stored it takes little more than twice that, so that nobody can make a NodeHealth too large to be written: a text
    that is full of `<`, `>` and `&` loses them.
    """
    text = _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text[:limit_bytes].translate(_SPACES))
    if 16 * len(_SIXFOLD.findall(text)) > limit_bytes:
        text = _SIXFOLD.sub("?", text)
    encoded = text.encode()
    return text if len(encoded) <= limit_bytes else encoded[:limit_bytes].decode(errors="ignore")


def identifier(text: str, field: str) -> str:
    if not _ID.fullmatch(text):
        raise BadMessage(f"{field}: must be 1 to 64 of A-Z a-z 0-9 . _ : - and is {cut(text, 80)!r}")
    return text


def sequence(value: int, field: str) -> int:
    if not 0 <= value <= MAX_INT64:
        raise BadMessage(f"{field}: {value} does not fit into 63 bits")
    return value


def moment(stamp: Timestamp, field: str, correction: timedelta = timedelta(0)) -> datetime:
    """The time on our clock, to the millisecond, in 2000 or later. Raises BadMessage outside of 2000 to 2200."""
    if not EARLIEST.timestamp() <= stamp.seconds < LATEST.timestamp() or not 0 <= stamp.nanos < 1_000_000_000:
        raise BadMessage(f"{field}: {stamp.seconds} s {stamp.nanos} ns is not a usable time")
    at = datetime.fromtimestamp(stamp.seconds, UTC) + timedelta(milliseconds=stamp.nanos // 1_000_000)
    return max(at - correction, EARLIEST)


def _optional_moment(message: pb.Incident | pb.ProbeUpdate, field: str, correction: timedelta) -> datetime | None:
    return moment(getattr(message, field), field, correction) if message.HasField(field) else None  # type: ignore[arg-type]


def incident(message: pb.Incident, clock: ClockOffset, *, time_uncertain: bool = False) -> Incident:
    component = None
    if message.HasField("component"):
        component = Component(
            kind=_COMPONENT_KINDS.get(message.component.kind, ComponentKind.NODE),
            index=min(message.component.index, (1 << 31) - 1) if message.component.HasField("index") else None,
            uuid=cut(message.component.uuid, 96),
            pci_bus_id=cut(message.component.pci_bus_id, 32),
            gpu_instance=_instance(message.component, "gpu_instance"),
            compute_instance=_instance(message.component, "compute_instance"),
        )
    known = message.kind in _INCIDENT_KINDS
    return Incident(
        id=identifier(message.id, "incident.id"),
        kind=_INCIDENT_KINDS.get(message.kind, IncidentKind.HEALTH_CHECK),
        code=message.code,
        mnemonic=cut(message.mnemonic, 128),
        fault_class=_FAULT_CLASSES.get(message.fault_class, FaultClass.UNKNOWN),
        blame=_BLAMES.get(message.blame, Blame.NO) if known else Blame.NO,
        blame_condition=cut(message.blame_condition, 512),
        component=component,
        message=cut(message.message, 256),
        remedy=cut(message.remedy, 512),
        sources=tuple(dict.fromkeys(_SOURCES[source] for source in message.sources if source in _SOURCES)),
        count=min(message.count, MAX_INT64),
        first_seen=_optional_moment(message, "first_seen", clock.correction),
        last_seen=_optional_moment(message, "last_seen", clock.correction),
        recovered_at=_optional_moment(message, "recovered_at", clock.correction),
        injected=message.injected,
        simulated=message.simulated,
        pid=message.pid,
        process=cut(message.process, 253),
        caused_by_code=message.caused_by_code,
        effects=tuple(
            Effect(code=effect.code, count=min(effect.count, MAX_INT64)) for effect in message.effects[:MAX_EFFECTS]
        ),
        check=cut(message.check, 128) if known else f"UnknownIncidentKind{int(message.kind)}",
        raw=cut(message.raw, 256),
        unit=cut(message.unit, 64),
        pod_uid=cut(message.pod_uid, 64),
        container_id=cut(message.container_id, 128),
        recovered_by=cut(message.recovered_by, 64),
        time_uncertain=time_uncertain or clock.uncertain,
    )


def _instance(component: pb.Component, field: Literal["gpu_instance", "compute_instance"]) -> int | None:
    return min(getattr(component, field), (1 << 31) - 1) if component.HasField(field) else None


def events(batch: pb.EventBatch, clock: ClockOffset) -> list[Event]:
    if len(batch.events) > MAX_EVENTS:
        raise BadMessage(f"event_batch: {len(batch.events)} events, at most {MAX_EVENTS} are taken at once")
    return [_event(event, clock) for event in batch.events]


def _event(event: pb.Event, clock: ClockOffset) -> Event:
    return Event(
        seq=sequence(event.seq, "event.seq"),
        kind=_EVENT_KINDS.get(event.kind, EventKind.UPDATED),
        incident=incident(event.incident, clock, time_uncertain=event.time_uncertain),
        time=moment(event.time, "event.time", clock.correction),
    )


def snapshot(message: pb.Snapshot, clock: ClockOffset) -> Snapshot:
    if len(message.open_incidents) > MAX_SNAPSHOT:
        raise BadMessage(f"snapshot: {len(message.open_incidents)} open incidents, at most {MAX_SNAPSHOT} are taken")
    return Snapshot(
        outbox_id=identifier(message.outbox_id, "snapshot.outbox_id"),
        seq=sequence(message.seq, "snapshot.seq"),
        time=moment(message.time, "snapshot.time", clock.correction),
        open=tuple(incident(each, clock) for each in message.open_incidents),
    )


def monitors(messages: Iterable[pb.Monitor]) -> tuple[Monitor, ...]:
    """By name, each once; a state that we do not know is as good as blind."""
    found: dict[str, Monitor] = {}
    for message in messages:
        name = cut(message.name, 63)
        if name and (name in found or len(found) < MAX_MONITORS):
            found[name] = Monitor(
                name=name,
                state=_MONITOR_STATES.get(message.state, MonitorState.BLIND),
                reason=cut(message.reason, 128),
                message=cut(message.message, 512),
            )
    return tuple(found[name] for name in sorted(found))


def inventory(message: pb.Inventory) -> Inventory:
    return Inventory(
        driver_version=cut(message.driver_version, 64),
        cuda_version=cut(message.cuda_version, 64),
        nccl_tests=cut(message.nccl_tests, 1024),
        infiniband=message.infiniband,
        gpus=tuple(
            Gpu(
                index=min(gpu.index, (1 << 31) - 1),
                uuid=cut(gpu.uuid, 96),
                pci_bus_id=cut(gpu.pci_bus_id, 32),
                product=cut(gpu.product, 128),
                serial=cut(gpu.serial, 64),
            )
            for gpu in message.gpus[:MAX_GPUS]
        ),
    )


def probe_result(update: pb.ProbeUpdate, kind: ProbeKind, clock: ClockOffset) -> ProbeResult | None:
    """The final result, or None while it runs. The best run is the one fastest at its largest size."""
    state = _PROBE_STATES.get(update.state)
    if state is None:
        return None
    reason, message = cut(update.reason, 128), cut(update.message, 512)
    runs = update.runs[:MAX_RUNS]
    best: pb.ProbeRun | None = None
    if state is ProbeState.MEASURED:
        best = max((run for run in runs if _usable(run)), key=_at_largest, default=None)
        if best is None:
            state, reason = ProbeState.ERROR, reason or "NoUsableRun"
            message = message or "the agent says it measured, and sent no run with plausible figures"
    sizes = sorted(best.sizes, key=lambda row: row.size_bytes) if best is not None else []
    return ProbeResult(
        probe_id=update.probe_id,
        kind=kind,
        state=state,
        reason=reason,
        message=message,
        bus_bandwidth_gbps=f"{_at_largest(best):.2f}" if best is not None else "",
        runs=tuple(f"{_at_largest(run):.2f}" for run in runs if _usable(run)) if best else (),
        results=tuple(
            SizeBandwidth(size_bytes=row.size_bytes, alg_bw=f"{row.algbw_gbps:.2f}", bus_bw=f"{row.busbw_gbps:.2f}")
            for row in sizes
        ),
        gpu_product=cut(update.gpu_product, 128),
        driver_version=cut(update.driver_version, 64),
        nccl_version=cut(update.nccl_version, 64),
        arguments=cut(update.arguments, 1024),
        simulated=update.simulated,
        started_at=_optional_moment(update, "started_at", clock.correction),
        finished_at=_optional_moment(update, "finished_at", clock.correction),
    )


def _usable(run: pb.ProbeRun) -> bool:
    """Completed, right, and within what any interconnect does: NaN or 1e300 must not become a median."""
    return (
        run.exit_code == 0
        and run.wrong_elements == 0
        and 0 < len(run.sizes) <= MAX_SIZES
        and all(
            row.size_bytes <= MAX_INT64
            and math.isfinite(row.algbw_gbps)
            and math.isfinite(row.busbw_gbps)
            and 0 <= row.algbw_gbps <= MAX_BANDWIDTH_GBPS
            and 0 <= row.busbw_gbps <= MAX_BANDWIDTH_GBPS
            for row in run.sizes
        )
    )


def _at_largest(run: pb.ProbeRun) -> float:
    return max(run.sizes, key=lambda row: row.size_bytes).busbw_gbps
