"""Server-side tables: what `kubectl get` prints. Pure; ages are relative to a `now` that is given.

Columns of custom kinds come from their CRD, those of Pods, Nodes and Events are the real server's, every other kind has
a name and the columns of its entry in `builtin`, or an age.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from nvcre_local.apiserver import jsonpath
from nvcre_local.apiserver.resources import Column, Resource
from nvcre_local.apiserver.storage import Json
from nvcre_local.apiserver.views import metadata_only, shown

_NAME_COLUMN: Json = {
    "name": "Name", "type": "string", "format": "name", "description": "Name of the object", "priority": 0,
}  # fmt: skip
_AGE = (Column("Age", "date", ".metadata.creationTimestamp"),)

_POD_COLUMNS = (
    Column("Ready", "string", ""), Column("Status", "string", ""), Column("Restarts", "string", ""),
    Column("Age", "string", ""), Column("IP", "string", "", priority=1), Column("Node", "string", "", priority=1),
)  # fmt: skip
_NODE_COLUMNS = (
    Column("Status", "string", ""), Column("Roles", "string", ""), Column("Age", "string", ""),
    Column("Version", "string", ""), Column("Internal-IP", "string", "", priority=1),
)  # fmt: skip
_EVENT_COLUMNS = (
    Column("Last Seen", "string", ""), Column("Type", "string", ""), Column("Reason", "string", ""),
    Column("Object", "string", ""), Column("Message", "string", ""),
    Column("Source", "string", "", priority=1), Column("Count", "integer", "", priority=1),
)  # fmt: skip

Cells = Callable[[Json, datetime], list[Any]]


def table(resource: Resource, bodies: Iterable[Json], now: datetime, *, include: str, metadata: Json) -> Json:
    """A meta.k8s.io/v1 Table; `include` says what each row carries along: None, Metadata or Object."""
    columns, cells = _layout(resource)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [_NAME_COLUMN, *(_definition(column) for column in columns)],
        "rows": [_row(resource, body, cells(body, now), include) for body in bodies],
    }


def _definition(column: Column) -> Json:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    }


def _row(resource: Resource, body: Json, cells: list[Any], include: str) -> Json:
    row: Json = {"cells": [body["metadata"]["name"], *cells]}
    match include:
        case "None":
            pass
        case "Object":
            row["object"] = shown(resource, body)
        case _:
            row["object"] = metadata_only(body)
    return row


def _layout(resource: Resource) -> tuple[tuple[Column, ...], Cells]:
    match resource.lies_in:
        case "pods":
            return _POD_COLUMNS, _pod_cells
        case "nodes":
            return _NODE_COLUMNS, _node_cells
        case "events":
            return _EVENT_COLUMNS, _event_cells
        case _:
            columns = resource.columns or _AGE
            return columns, lambda body, now: [_cell(column, body, now) for column in columns]


def _cell(column: Column, body: Json, now: datetime) -> Any:  # noqa: PLR0911 - a table of types
    found = jsonpath.find(body, column.path)
    value = found[0] if found else None
    match column.type, value:
        case _, None:
            return None
        case "date", str():
            return age(value, now)
        case (("integer" | "number"), bool()):
            return None
        case "integer", int() | float():
            return int(value)
        case "number", int() | float():
            return value
        case "boolean", bool():
            return value
        case "string", str():
            return value
        case "string", bool():
            return "true" if value else "false"
        case "string", _:
            return msgspec.json.encode(value).decode()
        case _:
            return None


# --- pods


def _pod_cells(pod: Json, now: datetime) -> list[Any]:
    spec, status = pod.get("spec", {}), pod.get("status", {})
    statuses = status.get("containerStatuses") or []
    restarts = sum(int(found.get("restartCount", 0)) for found in statuses)
    ready = sum(bool(found.get("ready")) for found in statuses)
    return [
        f"{ready}/{len(spec.get('containers', []))}",
        pod_state(pod),
        str(restarts),
        age(pod["metadata"].get("creationTimestamp"), now),
        status.get("podIP") or "<none>",
        spec.get("nodeName") or "<none>",
    ]


def pod_state(pod: Json) -> str:
    """The STATUS column: the most telling reason of phase, containers and deletion."""
    status = pod.get("status", {})
    said = str(status.get("reason") or status.get("phase") or "Unknown")
    running = False
    for container in reversed(status.get("containerStatuses") or []):
        state = container.get("state") or {}
        waiting, terminated = state.get("waiting") or {}, state.get("terminated")
        if waiting.get("reason"):
            said = waiting["reason"]
        elif terminated:
            said = terminated.get("reason") or _ending(terminated)
        elif container.get("ready") and state.get("running") is not None:
            running = True
    if said == "Completed" and running:
        said = "Running"
    if pod["metadata"].get("deletionTimestamp"):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return said


def _ending(terminated: Json) -> str:
    signal = terminated.get("signal")
    return f"Signal:{signal}" if signal else f"ExitCode:{terminated.get('exitCode')}"


# --- nodes


def _node_cells(node: Json, now: datetime) -> list[Any]:
    status = node.get("status", {})
    ready = [found.get("status") for found in status.get("conditions") or () if found.get("type") == "Ready"]
    states = [{"True": "Ready", "False": "NotReady"}.get(ready[0], "Unknown") if ready else "Unknown"]
    if node.get("spec", {}).get("unschedulable"):
        states.append("SchedulingDisabled")
    addresses = status.get("addresses") or ()
    internal = [found.get("address") for found in addresses if found.get("type") == "InternalIP"]
    return [
        ",".join(states),
        _roles(node["metadata"].get("labels") or {}),
        age(node["metadata"].get("creationTimestamp"), now),
        (status.get("nodeInfo") or {}).get("kubeletVersion", ""),
        internal[0] if internal else "<none>",
    ]


def _roles(labels: dict[str, str]) -> str:
    prefix = "node-role.kubernetes.io/"
    roles = sorted(key.removeprefix(prefix) for key in labels if key.startswith(prefix) and key != prefix)
    return ",".join(roles) or "<none>"


# --- events


def _event_cells(event: Json, now: datetime) -> list[Any]:
    series = event.get("series") or {}
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    involved = event.get("involvedObject") or {}
    source = (event.get("source") or {}).get("component") or event.get("reportingComponent") or ""
    return [
        age(last or event["metadata"].get("creationTimestamp"), now),
        event.get("type", ""),
        event.get("reason", ""),
        f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}",
        str(event.get("message", "")).strip(),
        source,
        series.get("count") or event.get("count") or 1,
    ]


# --- ages


def age(since: Any, now: datetime) -> str:
    """As k8s.io/apimachinery's HumanDuration: two units while they matter, one later."""
    if not isinstance(since, str):
        return "<unknown>"
    try:
        then = datetime.fromisoformat(since)
    except ValueError:
        return "<invalid>"
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    return human_duration(int((now - then).total_seconds()))


def human_duration(seconds: int) -> str:  # noqa: PLR0911 - a table of ranges
    if seconds < -1:
        return "<invalid>"
    if seconds < 0:
        return "0s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return _two(minutes, "m", seconds % 60, "s")
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 365 * 2:
        return f"{days}d"
    if days < 365 * 8:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two(big: int, big_unit: str, small: int, small_unit: str) -> str:
    return f"{big}{big_unit}{small}{small_unit}" if small else f"{big}{big_unit}"
