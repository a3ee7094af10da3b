"""One NVLink dies and many nodes of its domain log it: who saw it, and who is to blame?

In a rack-scale fabric (GB200 NVL72) the victims log too; a line whose reason points to the far end says so. Such an
end never accuses its own node. Where at least three nodes tell of link faults in the same minute, all that have no
reason of their own are *witnesses* of one event: an end with a local reason is to blame, else what they have in common,
which is the far end of the link (an NVSwitch, by number) or the fabric. A witness is neither faulty nor suspect; one
sentence tells the event. Decides only; fleet/link_watch.py remembers who has told what.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
from nvcre_protos.vocabulary import Blame, ComponentKind

from nvcre_coordinator.core.incidents import Incident

# "Investigate peer device" among the reasons of NETIR_LINK_EVT and NETIR_LINK_DOWN (NVIDIA's Xid catalogue, Xid 149);
# agent/nvcre_agent/xid/nvlink5.yaml has all of them.
_PEER_REASONS = frozenset({21, 32, 33, 34, 35, 36, 37})
_LINK_CODES = frozenset({74, *range(144, 151), 155})
_REASON = re.compile(r"NETIR_LINK_(?:EVT|DOWN)\b.{0,80}?\(0x([0-9a-fA-F]{8})\b")
SAME_MINUTE = timedelta(minutes=1)
CROWD = 3  # nodes


def far_end(incident: Incident) -> bool:
    """Does its line say that the other end of the link is to be looked at?"""
    if incident.code != 149:
        return False
    word = _REASON.search(incident.raw)
    return word is not None and (int(word[1], 16) >> 20) & 0x3F in _PEER_REASONS


def without_victims(incident: Incident) -> Incident:
    """As told, but an end that was hit from the other side accuses its node under a condition at most.

    A recovery action (Xid 154) that the driver asks for afterwards says what this GPU needs, not whose fault it is.
    """
    if incident.blame is not Blame.YES or not far_end(incident):
        return incident
    condition = "the far end of the link reports nothing of its own"
    return msgspec.structs.replace(incident, blame=Blame.CONDITIONAL, blame_condition=condition)


def of_link(incident: Incident) -> bool:
    component = incident.component
    return (
        incident.code in _LINK_CODES
        and component is not None
        and component.kind in (ComponentKind.NVLINK, ComponentKind.GPU)
        and not incident.injected
        and incident.first_seen is not None
    )


@dataclass(frozen=True, slots=True)
class LinkReport:
    """What one node says of its links at one time."""

    at: datetime
    link: int | None
    local: bool  # it has a reason of its own


def reports(incidents: Sequence[Incident]) -> tuple[LinkReport, ...]:
    return tuple(
        LinkReport(
            incident.first_seen,
            incident.component.index if incident.component.kind is ComponentKind.NVLINK else None,
            incident.blame is Blame.YES,
        )
        for incident in incidents
        if of_link(incident) and incident.first_seen is not None and incident.component is not None
    )


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """One event in a domain, told by several nodes."""

    at: datetime
    nodes: tuple[str, ...]
    guilty: tuple[str, ...]  # those with a local reason
    sentence: str

    def witness(self, node: str) -> bool:
        return node in self.nodes and node not in self.guilty

    def covers(self, incident: Incident) -> bool:
        """Is this incident of a node a telling of the event?"""
        first = incident.first_seen
        return of_link(incident) and first is not None and abs(first - self.at) <= SAME_MINUTE


def link_event(node: str, told: Mapping[str, Sequence[LinkReport]]) -> LinkEvent | None:
    """The event that this node's newest report belongs to; None where fewer than three nodes tell of one.

    `told` has the reports of all nodes of its NVLink domain.
    """
    own = told.get(node, ())
    if not own:
        return None
    at = max(report.at for report in own)
    near = {name: [report for report in found if abs(report.at - at) <= SAME_MINUTE] for name, found in told.items()}
    nodes = tuple(sorted(name for name, found in near.items() if found))
    if len(nodes) < CROWD:
        return None
    guilty = tuple(sorted(name for name in nodes if any(report.local for report in near[name])))
    links = {report.link for found in near.values() for report in found if report.link is not None}
    link = next(iter(links)) if len(links) == 1 else None
    if guilty:
        cause = f"{', '.join(guilty[:3])} has a reason of its own"
    elif link is not None:
        cause = f"none has a reason of its own: look at the NVSwitch at the far end of link {link}"
    else:
        cause = "none has a reason of its own: look at the NVLink switches between them"
    return LinkEvent(at, nodes, guilty, f"{len(nodes)} nodes tell of a dead NVLink within a minute; {cause}")
