"""Nodes that say the same, as one row: of 500 nodes a person reads the few that differ.  JSON keeps every row.

What differs comes first, each row as it was; what more than FEW nodes have alike follows, one row each.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from nvcre_kube.resources import JsonObject

FEW = 8
SHOWN_OF_A_NODE = ("verdict", "gpus", "product", "driver", "message")


def names(of: Sequence[str]) -> str:
    """`node-0, node-1, node-2 and 497 more`."""
    return ", ".join(of) if len(of) <= FEW // 2 else f"{', '.join(of[:3])} and {len(of) - 3} more"


def nodes(rows: Sequence[JsonObject], shown: Sequence[str] = SHOWN_OF_A_NODE) -> list[JsonObject]:
    """Alike: all that is shown of them, so that a node with another driver stands out too."""
    return _folded(rows, lambda row: tuple(str(row[key]) for key in shown), _as_one_node)


def probes(rows: Sequence[JsonObject]) -> list[JsonObject]:
    """Alike: passes of one kind, whatever their figures; and what was not tested, for the same reason."""
    return _folded(rows, _outcome, _as_one_probe)


def failed_nodes(rows: Sequence[JsonObject]) -> list[JsonObject]:
    """Alike: a group that could not be narrowed, where nothing is known of one that is not known of all."""
    return _folded(rows, lambda row: repr({**row, "name": ""}), _as_one_node)


def incidents(rows: Sequence[JsonObject]) -> list[JsonObject]:
    """Alike: the same fault on many nodes or GPUs, as of a fabric or a power feed; those it met first are named."""
    return _folded(rows, _fault, _as_one_incident)


def _folded(
    rows: Sequence[JsonObject],
    alike: Callable[[JsonObject], Hashable],
    as_one: Callable[[Sequence[JsonObject]], JsonObject],
) -> list[JsonObject]:
    groups: dict[Hashable, list[JsonObject]] = {}
    for row in rows:
        groups.setdefault(alike(row), []).append(row)
    many = [group for group in groups.values() if len(group) > FEW]
    return [row for row in rows if len(groups[alike(row)]) <= FEW] + [as_one(group) for group in many]


def _as_one_node(group: Sequence[JsonObject]) -> JsonObject:
    return {**group[0], "name": f"{len(group)} nodes: {names([row['name'] for row in group])}"}


def _fault(incident: JsonObject) -> Hashable:
    what = [incident.get(key) for key in ("kind", "code", "check", "faultClass", "injected")]
    return (*what, (incident.get("component") or {}).get("kind"))


def _as_one_incident(group: Sequence[JsonObject]) -> JsonObject:
    nodes_hit = list(dict.fromkeys(row["node"] for row in group))
    kind = (group[0].get("component") or {}).get("kind", "")
    return {
        **group[0],
        "node": f"{len(nodes_hit)} nodes: {names(nodes_hit)}" if len(nodes_hit) > 1 else nodes_hit[0],
        "component": {"kind": f"{len(group)} x {kind}".rstrip(" x")},
        "message": f"the first: {group[0].get('message', '')}",
        "count": sum(int(row.get("count", 1)) for row in group),
        "sources": sorted({source for row in group for source in row.get("sources") or ()}),
    }


def _outcome(probe: JsonObject) -> Hashable:
    verdict = probe.get("verdict") or probe.get("state")
    why = "" if verdict == "Pass" else probe.get("comparison") or probe.get("message")
    return probe.get("kind"), verdict, why


def _as_one_probe(group: Sequence[JsonObject]) -> JsonObject:
    measured = [row for row in group if row.get("busBandwidthGBps")]
    one = {**group[0], "node": f"{len(group)} nodes: {names([row['node'] for row in group])}"}
    if measured:
        measured.sort(key=lambda row: float(row["busBandwidthGBps"]))
        least, most = measured[0], measured[-1]
        one["busBandwidthGBps"] = f"{least['busBandwidthGBps']} to {most['busBandwidthGBps']}"
        one["comparison"] = f"the lowest, {least['node']}: {least.get('comparison') or least.get('message') or ''}"
    return one
