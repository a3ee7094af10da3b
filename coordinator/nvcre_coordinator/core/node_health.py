"""The part of a NodeHealth that the job side reads: incidents, what the agent is blind for, the boot id, which GPUs.

Incidents are the fleet side's own structs (core/incidents.py), so that there is one view of them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from nvcre_coordinator.core.incidents import Cursor, Incident

BLIND = "Blind"


class MonitorView(msgspec.Struct, frozen=True):
    name: str
    state: str
    reason: str = ""
    message: str = ""


class _Gpu(msgspec.Struct, frozen=True):
    product: str = ""


class _Inventory(msgspec.Struct, frozen=True):
    gpus: tuple[_Gpu, ...] = ()


class _Status(msgspec.Struct, frozen=True):
    verdict: str = "Unknown"
    boot_id: str = msgspec.field(default="", name="bootID")
    inventory: _Inventory = _Inventory()
    monitors: tuple[MonitorView, ...] = ()
    incidents: tuple[Incident, ...] = ()
    closed_incidents: tuple[Incident, ...] = msgspec.field(default=(), name="closedIncidents")
    cursors: tuple[Cursor, ...] = ()


class NodeHealth(msgspec.Struct, frozen=True):
    node: str
    verdict: str = ""
    hardware: tuple[str, int] = ("", 0)  # product and number of its GPUs
    boot_id: str = ""
    blind: str = ""  # why the agent cannot see, one sentence; empty when it can
    open: tuple[Incident, ...] = ()
    closed: tuple[Incident, ...] = ()
    cursors: tuple[Cursor, ...] = ()
    resource_version: str = ""

    def holds(self, cursor: Cursor) -> bool:
        """Every event of that outbox up to there?"""
        return cursor.seq == 0 or any(
            own.outbox_id == cursor.outbox_id and own.seq >= cursor.seq for own in self.cursors
        )


def version_of(obj: dict[str, Any]) -> str:
    return str(obj["metadata"].get("resourceVersion", ""))


def node_health(obj: dict[str, Any]) -> NodeHealth:
    """Raises msgspec.ValidationError naming the field for a status we would not have written."""
    status = msgspec.convert(obj.get("status") or {}, _Status)
    blind = [monitor for monitor in status.monitors if monitor.state == BLIND]
    return NodeHealth(
        node=obj["metadata"]["name"],
        verdict=status.verdict,
        hardware=(gpus[0].product, len(gpus)) if (gpus := status.inventory.gpus) else ("", 0),
        boot_id=status.boot_id,
        blind="; ".join(f"{monitor.name}: {monitor.message or monitor.reason}" for monitor in blind),
        open=status.incidents,
        closed=status.closed_incidents,
        cursors=status.cursors,
        resource_version=version_of(obj),
    )
