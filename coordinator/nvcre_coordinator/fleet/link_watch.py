"""Who has told of link faults lately, by NVLink domain: the memory behind core/link_faults.py.

Holds only nodes with an open link fault. A domain is the clique that GPU feature discovery labels a node of a rack with
(`nvidia.com/gpu.clique`). A node without it shares no NVLink with others (HGX: links end inside the chassis) and is not
held: nobody is a witness of what happens to it, nor it of others. Lost with the leader, told anew by every stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from nvcre_coordinator.core.incidents import Incident
from nvcre_coordinator.core.link_faults import CROWD, LinkEvent, LinkReport, link_event, reports

ALARM_AGAIN = timedelta(days=1)
MOST_NODES = 128  # of one domain; a rack has 72 GPUs, so no more nodes


class LinkWatch:
    def __init__(self) -> None:
        self._told: dict[str, dict[str, tuple[LinkReport, ...]]] = {}
        self._domain_of: dict[str, str] = {}
        self._alarmed: dict[str, datetime] = {}  # by domain

    def told(self, node: str, domain: str, open_now: Sequence[Incident]) -> frozenset[str]:
        """What the node has open now; returns the other nodes whose verdict this may change."""
        now = reports(open_now) if domain else ()
        if self._domain_of.get(node, domain) != domain:
            self.forget(node)
        known = self._told.get(domain, {})
        if known.get(node, ()) == now:
            return frozenset()
        if now:
            in_domain = self._told.setdefault(domain, {})
            if node not in in_domain and len(in_domain) >= MOST_NODES:
                self.forget(next(iter(in_domain)))
            in_domain[node] = now
            self._domain_of[node] = domain
        else:
            self.forget(node)
        others = frozenset(self._told.get(domain, {})) - {node}
        return others if len(others) + 1 >= CROWD else frozenset()

    def event(self, node: str) -> LinkEvent | None:
        """The event that the node is a witness of."""
        found = link_event(node, self._told.get(self._domain_of.get(node, ""), {}))
        return found if found is not None and found.witness(node) else None

    def is_new(self, event: LinkEvent, now: datetime) -> bool:
        """Is it to be told? Once, and again when it lasts a day."""
        domain = self._domain_of.get(event.nodes[0], "")
        last = self._alarmed.get(domain)
        if last is not None and now - last < ALARM_AGAIN:
            return False
        self._alarmed[domain] = now
        return True

    def forget(self, node: str) -> None:
        domain = self._domain_of.pop(node, None)
        if domain is not None:
            self._told[domain].pop(node, None)
            if not self._told[domain]:
                del self._told[domain]
                self._alarmed.pop(domain, None)
