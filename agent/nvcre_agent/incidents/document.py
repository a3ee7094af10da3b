"""An incident as people and programs read it: JSON with the field names of NodeHealth (docs/architecture.md)."""

from datetime import UTC, datetime
from typing import Any

from nvcre_agent.incidents.model import Incident


def document(one: Incident) -> dict[str, Any]:
    component = one.component
    return {
        "id": one.id,
        "kind": one.kind,
        "code": one.code,
        "mnemonic": one.mnemonic,
        "faultClass": one.fault_class,
        "blame": one.blame,
        "blameCondition": one.blame_condition,
        "component": {
            "kind": component.kind,
            "index": component.index,
            "uuid": component.uuid,
            "pciBusId": component.pci_bus_id,
            "gpuInstance": component.gpu_instance,
            "computeInstance": component.compute_instance,
        },
        "check": one.check,
        "message": one.message,
        "remedy": one.remedy,
        "sources": list(one.sources),
        "count": one.count,
        "effects": [{"code": code, "count": count} for code, count in one.effects.items()],
        "firstSeen": utc(one.first_seen_s),
        "lastSeen": utc(one.last_seen_s),
        "injected": one.injected,
        "pid": one.pid,
        "process": one.process,
        "unit": one.unit,
        "podUID": one.pod_uid,
        "containerID": one.container_id,
        "raw": one.raw,
    }


def utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
