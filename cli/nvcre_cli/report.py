"""What a Job's run showed, in one value: result, nodes to blame, figures, probes. Text and JSON are rendered from it.

Builds the value from API objects (raw JSON); fetches and prints nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from nvcre_kube.resources import JsonObject

from nvcre_cli.goodput import goodput_of
from nvcre_cli.outcome import Result, condition, failure, never_ran, result, thresholds

MAX_WARNINGS = 20
NOT_TAKEN_UP = (
    "not taken up yet: the warnings say why; without one, look whether a coordinator runs "
    "(kubectl get pods -n nvcre-system)"
)
WINDOW_BEFORE = timedelta(minutes=5)  # as attribution counts a fault towards a run (DESIGN 6.3)


@dataclass(frozen=True, slots=True)
class Gathered:
    """The objects of one Job, as read from the API server."""

    job: JsonObject
    measurements: Sequence[JsonObject] = ()
    pods: Sequence[JsonObject] = ()
    node_healths: Sequence[JsonObject] = ()
    ran_on: frozenset[str] = frozenset()
    warnings: Sequence[JsonObject] = ()


@dataclass(frozen=True, slots=True)
class JobReport:
    """`note` says why we stopped waiting when that was not the Job's own end; `never_ran`: no workload, no verdict."""

    namespace: str
    name: str
    uid: str
    result: Result
    headline: str
    note: str
    simulated: bool
    conditions: list[JsonObject]
    failed_nodes: list[JsonObject]
    attribution: str
    test_type: str
    bandwidth: list[JsonObject]
    goodput: list[JsonObject]
    log_gaps: list[JsonObject]
    thresholds: dict[str, str]
    probes: list[JsonObject]
    nodes: list[JsonObject]
    incidents: list[JsonObject]
    warnings: list[JsonObject]
    failure_log: JsonObject | None
    never_ran: bool

    def as_json(self) -> JsonObject:
        return {
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "result": str(self.result),
            "headline": self.headline,
            "note": self.note,
            "simulated": self.simulated,
            "conditions": self.conditions,
            "failedNodes": self.failed_nodes,
            "attribution": self.attribution,
            "testType": self.test_type,
            "bandwidth": self.bandwidth,
            "goodput": self.goodput,
            "logGaps": self.log_gaps,
            "thresholds": self.thresholds,
            "probes": self.probes,
            "nodes": self.nodes,
            "incidents": self.incidents,
            "warnings": self.warnings,
            "failureLog": self.failure_log,
            "neverRan": self.never_ran,
        }


def build(gathered: Gathered, *, note: str = "", gave_up: bool = False) -> JobReport:
    """`gave_up`: we stopped waiting (timeout, or a workload that hangs on), which is never a pass."""
    job = gathered.job
    metadata, status = job["metadata"], job.get("status") or {}
    outcome = result(job)
    if gave_up and outcome is Result.RUNNING:
        outcome = Result.FAILED
    healths = _healths_of_job(gathered)
    bandwidth = [m for m in gathered.measurements if m.get("kind") == "BandwidthMeasurement"]
    return JobReport(
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        result=outcome,
        headline=_headline(job, outcome, note),
        note=note,
        simulated=any((h.get("status") or {}).get("simulated") is True for h in healths),
        conditions=list(status.get("conditions") or []),
        failed_nodes=list(status.get("failedNodes") or []),
        attribution=condition(job, "Attributed").get("message", ""),
        test_type=next((str((m.get("spec") or {}).get("testType") or "") for m in bandwidth), ""),
        bandwidth=[row for m in bandwidth for row in (m.get("status") or {}).get("results") or ()],
        goodput=[goodput_of(m) for m in gathered.measurements if m.get("kind") == "GoodputMeasurement"],
        log_gaps=[gap for m in gathered.measurements for gap in (m.get("status") or {}).get("logGaps") or ()],
        thresholds=thresholds(job),
        probes=_probes(job, healths),
        nodes=[_node(health) for health in healths],
        incidents=_incidents(job, healths),
        warnings=warnings(gathered),
        failure_log=status.get("failureLog"),
        never_ran=never_ran(job),
    )


def warnings(gathered: Gathered) -> list[JsonObject]:
    """One entry a kind of trouble: many Pods may complain about the same; what a condition says is not said again."""
    said = [str(c.get("message", "")) for c in (gathered.job.get("status") or {}).get("conditions") or ()]
    found: dict[tuple[str, str], JsonObject] = {}
    for event in gathered.warnings:
        regarding = event.get("involvedObject") or {}
        reason, message = str(event.get("reason", "")), str(event.get("message", ""))
        if any(message in known for known in said):
            continue
        about = f"{regarding.get('kind', '')}/{regarding.get('name', '')}"
        entry = found.setdefault(
            (reason, message), {"reason": reason, "message": message, "about": about, "objects": 0}
        )
        entry["objects"] += 1
    return list(found.values())[:MAX_WARNINGS]


def _headline(job: JsonObject, outcome: Result, note: str) -> str:
    against = failure(job)
    if against is not None:
        return f"{against['reason']}: {against.get('message', '')}".rstrip(": ")
    if outcome is Result.FAILED:  # by the clock: what the Job said last is why
        last_words = str(condition(job, "InProgress").get("message", ""))
        return f"{note}: {last_words}" if last_words else note
    for kind in ("Attributed", "Succeeded", "InProgress"):
        last = condition(job, kind)
        if last.get("status") == ("Unknown" if kind == "Attributed" else "True"):
            return str(last.get("message", ""))
    return NOT_TAKEN_UP


def _healths_of_job(gathered: Gathered) -> list[JsonObject]:
    """Nodes that ran a Pod of it, were probed for it or are blamed; all of them while none of that is known."""
    job = gathered.job
    names = {(pod.get("spec") or {}).get("nodeName") for pod in gathered.pods} | gathered.ran_on
    names |= {node["name"] for node in (job.get("status") or {}).get("failedNodes") or ()}
    names |= {h["metadata"]["name"] for h in gathered.node_healths if _own_probes(job, h)}
    names.discard(None)
    return sorted(
        (h for h in gathered.node_healths if not names or h["metadata"]["name"] in names),
        key=lambda h: natural(h["metadata"]["name"]),
    )


def natural(name: str) -> list[Any]:
    """node-10 comes after node-9."""
    parts: list[Any] = []
    number = ""
    for char in f"{name} ":
        if char.isdecimal():
            number += char
            continue
        if number:
            parts.append((1, int(number), ""))
            number = ""
        parts.append((0, 0, char))
    return parts


def _own_probes(job: JsonObject, health: JsonObject) -> list[JsonObject]:
    uid = job["metadata"].get("uid")
    return [p for p in (health.get("status") or {}).get("probes") or () if uid and p.get("jobUID") == uid]


def _probes(job: JsonObject, healths: Iterable[JsonObject]) -> list[JsonObject]:
    return [{"node": h["metadata"]["name"], **probe} for h in healths for probe in reversed(_own_probes(job, h))]


def _node(health: JsonObject) -> JsonObject:
    status = health.get("status") or {}
    inventory = status.get("inventory") or {}
    gpus = inventory.get("gpus") or []
    return {
        "name": health["metadata"]["name"],
        "verdict": status.get("verdict", "Unknown"),
        "message": status.get("message", ""),
        "gpus": len(gpus),
        "product": gpus[0].get("product", "") if gpus else "",
        "driver": inventory.get("driverVersion", ""),
        "simulated": status.get("simulated") is True,
    }


def _incidents(job: JsonObject, healths: Iterable[JsonObject]) -> list[JsonObject]:
    """What the agents saw on these nodes around the run, blamed or not, by time."""
    created = moment(job["metadata"].get("creationTimestamp"))
    found = []
    for health in healths:
        status = health.get("status") or {}
        for incident in [*(status.get("incidents") or ()), *(status.get("closedIncidents") or ())]:
            last = moment(incident.get("lastSeen"))
            if created is None or last is None or last >= created - WINDOW_BEFORE:
                found.append({"node": health["metadata"]["name"], **incident})
    return sorted(found, key=lambda incident: str(incident.get("firstSeen", "")))


def moment(text: Any) -> datetime | None:
    """A time of the API; None for anything that is none, and for one without a zone."""
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return found.astimezone(UTC) if found is not None and found.tzinfo is not None else None
