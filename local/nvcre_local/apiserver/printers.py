"""The columns of the built-in kinds and how their cells are worked out, as a real server does it.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nvcre_local.apiserver.ages import age
from nvcre_local.apiserver.resources import Column
from nvcre_local.apiserver.storage import Json

NAME = Column("Name", "string", ".metadata.name", "name", "Name of the object")
_NONE = "<none>"
_UNKNOWN = "<unknown>"


@dataclass(frozen=True, slots=True)
class Printer:
    columns: tuple[Column, ...]
    cells: Callable[[Json, datetime], list[Any]]


def _shown(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, "string", "") for name in names)


def _wide(*names: str) -> tuple[Column, ...]:
    """With `-o wide` only."""
    return tuple(Column(name, "string", "", priority=1) for name in names)


def _name(body: Json) -> str:
    return str(body["metadata"]["name"])


def _age(body: Json, now: datetime) -> str:
    return age(body["metadata"].get("creationTimestamp"), now)


# --- pods


def _pod_cells(pod: Json, now: datetime) -> list[Any]:
    spec, status = pod.get("spec", {}), pod.get("status", {})
    statuses = status.get("containerStatuses") or []
    ready = sum(bool(found.get("ready") and "running" in (found.get("state") or {})) for found in statuses)
    return [
        _name(pod),
        f"{ready}/{len(spec.get('containers', []))}",
        pod_state(pod),
        _restarts(statuses, now),
        _age(pod, now),
        status.get("podIP") or _NONE,
        spec.get("nodeName") or _NONE,
        status.get("nominatedNodeName") or _NONE,
        _NONE,
    ]


def _restarts(statuses: list[Json], now: datetime) -> str:
    count = sum(int(found.get("restartCount", 0)) for found in statuses)
    ends = [((found.get("lastState") or {}).get("terminated") or {}).get("finishedAt", "") for found in statuses]
    last = max(ends, default="")
    return f"{count} ({age(last, now)} ago)" if count and last else str(count)


def pod_state(pod: Json) -> str:
    """The STATUS column: the most telling reason of phase, containers and deletion."""
    status = pod.get("status", {})
    said = str(status.get("reason") or status.get("phase") or "Unknown")
    conditions = {found.get("type"): found for found in status.get("conditions") or ()}
    if conditions.get("PodScheduled", {}).get("reason") == "SchedulingGated":
        said = "SchedulingGated"
    said = _of_init_containers(pod) or _of_containers(status, conditions, said)
    if "deletionTimestamp" in pod["metadata"]:
        if status.get("reason") == "NodeLost":
            return "Unknown"
        if status.get("phase") not in ("Succeeded", "Failed"):
            return "Terminating"
    return said


def _of_init_containers(pod: Json) -> str:
    """Empty once they are through."""
    for index, found in enumerate(pod.get("status", {}).get("initContainerStatuses") or ()):
        state = found.get("state") or {}
        waiting, terminated = state.get("waiting") or {}, state.get("terminated")
        if terminated is not None and terminated.get("exitCode") == 0:
            continue
        if terminated is not None:
            return f"Init:{terminated.get('reason') or _ending(terminated)}"
        if waiting.get("reason") not in (None, "", "PodInitializing"):
            return f"Init:{waiting['reason']}"
        return f"Init:{index}/{len(pod['spec'].get('initContainers', []))}"
    return ""


def _of_containers(status: Json, conditions: dict[Any, Json], said: str) -> str:
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
        return "Running" if conditions.get("Ready", {}).get("status") == "True" else "NotReady"
    return said


def _ending(terminated: Json) -> str:
    signal = terminated.get("signal")
    return f"Signal:{signal}" if signal else f"ExitCode:{terminated.get('exitCode')}"


# --- nodes


def _node_cells(node: Json, now: datetime) -> list[Any]:
    status = node.get("status", {})
    ready = [found.get("status") for found in status.get("conditions") or () if found.get("type") == "Ready"]
    states = ["Ready" if ready[0] == "True" else "NotReady"] if ready else ["Unknown"]
    if node.get("spec", {}).get("unschedulable"):
        states.append("SchedulingDisabled")
    addresses = {found.get("type"): found.get("address") for found in status.get("addresses") or ()}
    info = status.get("nodeInfo") or {}
    return [
        _name(node),
        ",".join(states),
        _roles(node["metadata"].get("labels") or {}),
        _age(node, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP") or _NONE,
        addresses.get("ExternalIP") or _NONE,
        info.get("osImage") or _UNKNOWN,
        _kernel(info),
        info.get("containerRuntimeVersion") or _UNKNOWN,
    ]


def _kernel(info: Json) -> str:
    version, architecture = info.get("kernelVersion"), info.get("architecture")
    return f"{version} ({architecture})" if version and architecture else version or _UNKNOWN


def _roles(labels: dict[str, str]) -> str:
    prefix = "node-role.kubernetes.io/"
    roles = sorted(key.removeprefix(prefix) for key in labels if key.startswith(prefix) and key != prefix)
    return ",".join(roles) or _NONE


# --- events


def _event_cells(event: Json, now: datetime) -> list[Any]:
    series, involved = event.get("series") or {}, event.get("involvedObject") or {}
    first = age(event.get("firstTimestamp") or event.get("eventTime"), now)
    last = age(series.get("lastObservedTime") or event.get("lastTimestamp"), now)
    kind = str(involved.get("kind", "")).lower()
    return [
        first if last == _UNKNOWN else last,
        event.get("type", ""),
        event.get("reason", ""),
        f"{kind}/{involved['name']}" if involved.get("name") else kind,
        involved.get("fieldPath", ""),
        ", ".join(_event_source(event)),
        str(event.get("message", "")).strip(),
        first,
        series.get("count") or event.get("count") or 1,
        _name(event),
    ]


def _event_source(event: Json) -> Iterator[str]:
    source = event.get("source") or {}
    yield source.get("component") or event.get("reportingComponent") or ""
    if place := source.get("host") or event.get("reportingInstance"):
        yield place


# --- the small ones


def _service_cells(service: Json, now: datetime) -> list[Any]:
    spec = service.get("spec", {})
    ports = [f"{port.get('port')}/{port.get('protocol', 'TCP')}" for port in spec.get("ports") or ()]
    selector = ",".join(f"{key}={value}" for key, value in sorted((spec.get("selector") or {}).items()))
    return [
        _name(service),
        spec.get("type", ""),
        spec.get("clusterIP") or _NONE,
        _NONE,
        ",".join(ports) or _NONE,
        _age(service, now),
        selector or _NONE,
    ]


def _size(body: Json) -> int:
    return len(body.get("data") or {}) + len(body.get("binaryData") or {})


BUILTIN: dict[str, Printer] = {
    "pods": Printer(
        (
            NAME,
            *_shown("Ready", "Status", "Restarts", "Age"),
            *_wide("IP", "Node", "Nominated Node", "Readiness Gates"),
        ),
        _pod_cells,
    ),
    "nodes": Printer(
        (
            NAME,
            *_shown("Status", "Roles", "Age", "Version"),
            *_wide("Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime"),
        ),
        _node_cells,
    ),
    "events": Printer(
        (
            *_shown("Last Seen", "Type", "Reason", "Object"),
            *_wide("Subobject", "Source"),
            *_shown("Message"),
            *_wide("First Seen", "Count"),
            Column("Name", "string", "", "name", priority=1),
        ),
        _event_cells,
    ),
    "services": Printer(
        (NAME, *_shown("Type", "Cluster-IP", "External-IP", "Port(s)", "Age"), *_wide("Selector")), _service_cells
    ),
    "configmaps": Printer(
        (NAME, *_shown("Data", "Age")), lambda body, now: [_name(body), _size(body), _age(body, now)]
    ),
    "secrets": Printer(
        (NAME, *_shown("Type", "Data", "Age")),
        lambda body, now: [_name(body), body.get("type", ""), _size(body), _age(body, now)],
    ),
    "namespaces": Printer(
        (NAME, *_shown("Status", "Age")),
        lambda body, now: [_name(body), body.get("status", {}).get("phase", ""), _age(body, now)],
    ),
    "serviceaccounts": Printer((NAME, *_shown("Age")), lambda body, now: [_name(body), _age(body, now)]),
    "leases.coordination.k8s.io": Printer(
        (NAME, *_shown("Holder", "Age")),
        lambda body, now: [_name(body), body.get("spec", {}).get("holderIdentity", ""), _age(body, now)],
    ),
    "customresourcedefinitions.apiextensions.k8s.io": Printer(
        (NAME, Column("Created At", "date", "")),
        lambda body, _: [_name(body), body["metadata"]["creationTimestamp"]],
    ),
}
