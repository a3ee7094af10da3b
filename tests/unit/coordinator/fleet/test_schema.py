"""Our view of NodeHealth and the CRD agree field for field, and the fullest status stays far below what etcd takes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from nvcre_coordinator.core.clock_offset import ASSUMED_DELAY, ClockOffset
from nvcre_coordinator.core.incidents import MAX_CLOSED, MAX_OPEN, Cursor
from nvcre_coordinator.core.node_verdict import GpuVerdict, Verdict, bad_gpus
from nvcre_coordinator.fleet import wire
from nvcre_coordinator.fleet.node_health import WORKLOAD_BYTES
from nvcre_coordinator.fleet.node_record import GPU_MESSAGE_BYTES
from nvcre_coordinator.fleet.status import MAX_PROBES, NodeHealthStatus
from nvcre_protos import nvcre_agent_v1_pb2 as pb
from nvcre_protos.vocabulary import FaultClass

CRD = Path(__file__).parents[4] / "daemonset/crds/nodehealths.yaml"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
UNSURE = ClockOffset(2 * ASSUMED_DELAY, 2 * ASSUMED_DELAY)


def schema() -> dict[str, Any]:
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    return dict(version["schema"]["openAPIV3Schema"]["properties"]["status"])


def fields(properties: dict[str, Any]) -> dict[str, Any]:
    """Names, and below them the names of objects and of objects in lists."""
    found = {}
    for name, value in properties.items():
        inner = value.get("items", value)
        found[name] = fields(inner["properties"]) if "properties" in inner else None
    return found


def view(kind: Any) -> dict[str, Any]:
    found = {}
    for field in msgspec.inspect.type_info(kind).fields:  # type: ignore[attr-defined]
        types = getattr(field.type, "types", (field.type,))
        items = [getattr(each, "item_type", each) for each in types]
        structs = [item.cls for item in items if isinstance(item, msgspec.inspect.StructType)]
        found[field.encode_name] = view(structs[0]) if structs else None
    return found


def test_the_view_has_the_fields_of_the_schema_and_no_others() -> None:
    assert view(NodeHealthStatus) == fields(schema()["properties"])


def fullest(text: str = "x") -> NodeHealthStatus:
    long = text * 100_000
    stamp = pb.Snapshot().time.__class__(seconds=1_767_225_600)
    told = pb.Incident(
        kind=pb.INCIDENT_KIND_XID, code=(1 << 32) - 1, fault_class=pb.FAULT_CLASS_FATAL_HARDWARE,
        blame=pb.BLAME_CONDITIONAL, blame_condition=long, mnemonic=long, message=long, remedy=long, process=long,
        raw=long, check=long, count=(1 << 64) - 1, first_seen=stamp, last_seen=stamp, recovered_at=stamp,
        injected=True, simulated=True, pid=1, caused_by_code=1, sources=[1, 2] * 50,
        effects=[pb.Effect(code=1, count=(1 << 64) - 1)] * 100,
        component=pb.Component(kind=pb.COMPONENT_KIND_GPU, index=(1 << 32) - 1, uuid=long, pci_bus_id=long),
    )  # fmt: skip
    incidents = []
    for number in range(MAX_OPEN + MAX_CLOSED):
        told.id = f"{number:064d}"
        incidents.append(wire.incident(told, UNSURE, time_uncertain=True))
    sizes = [pb.SizeBandwidth(size_bytes=1 << index % 60, algbw_gbps=1, busbw_gbps=1) for index in range(500)]
    probe = wire.probe_result(
        pb.ProbeUpdate(
            probe_id="p" * 64, state=pb.PROBE_STATE_MEASURED, reason=long, message=long, gpu_product=long,
            driver_version=long, nccl_version=long, arguments=long, runs=[pb.ProbeRun(sizes=sizes)],
        ),
        next(iter(wire.PROBE_KINDS)),
        UNSURE,
    )  # fmt: skip
    assert probe is not None
    gpus = [pb.Gpu(index=index, uuid=long, pci_bus_id=long, product=long, serial=long) for index in range(500)]
    inventory = wire.inventory(
        pb.Inventory(gpus=gpus, driver_version=long, cuda_version=long, nccl_tests=long, infiniband=True)
    )
    added = {"workload": wire.cut(long, WORKLOAD_BYTES), "escalation": wire.cut(long, 128), "during_maintenance": True}
    incidents = [msgspec.structs.replace(incident, **added) for incident in incidents]
    verdicts = [
        GpuVerdict(
            index=gpu.index, uuid=gpu.uuid, verdict=Verdict.FAULTY, fault_class=FaultClass.FATAL_HARDWARE,
            message=wire.cut(long, GPU_MESSAGE_BYTES),
        )
        for gpu in inventory.gpus
    ]  # fmt: skip
    return NodeHealthStatus(
        verdict=Verdict.FAULTY,
        message=wire.cut(long, 512),
        fault_class=FaultClass.FATAL_HARDWARE,
        bad_gpus=bad_gpus(verdicts)[:512],
        gpus=tuple(verdicts),
        simulated=True,
        boot_id=wire.cut(long, 64),
        agent_version=wire.cut(long, 64),
        last_transition_time=NOW,
        gpu_count=len(inventory.gpus),
        inventory=inventory,
        monitors=wire.monitors(pb.Monitor(name=f"{index}{long}", message=long, reason=long) for index in range(99)),
        incidents=tuple(incidents[:MAX_OPEN]),
        closed_incidents=tuple(incidents[MAX_OPEN:]),
        probes=(probe,) * MAX_PROBES,
        cursors=(Cursor(outbox_id="a" * 64, seq=wire.MAX_INT64), Cursor(outbox_id="b" * 64, seq=wire.MAX_INT64)),
    )


def test_the_fullest_status_is_half_of_what_etcd_takes() -> None:
    assert len(json.dumps(fullest().to_json())) < 750 * 1024  # of about 1.5 MB


@pytest.mark.parametrize("text", ["<", "&>", "<" + 15 * '"', '<"', "\n\\", "\u2028", "\x01", "\N{GRINNING FACE}"])
def test_no_text_makes_a_status_that_etcd_does_not_take(text: str) -> None:
    stored = json.dumps(fullest(text).to_json(), ensure_ascii=False)
    for six_bytes in "<>&\u2028\u2029":  # as the API server writes them
        stored = stored.replace(six_bytes, "\\u003c")
    assert len(stored.encode()) < 1400 * 1024


def test_what_we_write_is_what_we_read() -> None:
    assert NodeHealthStatus.from_json(json.loads(json.dumps(fullest().to_json()))) == fullest()


def complaints(value: Any, rule: dict[str, Any], path: str) -> list[str]:
    found = []
    match value:
        case dict():
            found += [f"{path}.{name} is missing" for name in rule.get("required", ()) if name not in value]
            for name, inner in value.items():
                if name not in rule["properties"]:
                    found.append(f"{path}.{name} is unknown")
                else:
                    found += complaints(inner, rule["properties"][name], f"{path}.{name}")
        case list():
            if len(value) > rule.get("maxItems", len(value)):
                found.append(f"{path} has {len(value)} items")
            for inner in value:
                found += complaints(inner, rule["items"], f"{path}[]")
        case str():
            if len(value) > rule.get("maxLength", len(value)) or value not in rule.get("enum", [value]):
                found.append(f"{path} is {value[:80]!r}, {len(value)} characters")
    return found


def test_the_fullest_status_keeps_every_limit_of_the_schema() -> None:
    assert complaints(fullest().to_json(), schema(), "status") == []
