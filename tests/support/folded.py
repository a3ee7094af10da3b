"""What a node's folding has told and what is open in it: the part that the nodes of the agent's tests share."""

from collections.abc import Iterable

from nvcre_agent.incidents.folding import Folding
from nvcre_agent.incidents.model import Change, Incident


class Folded:
    folding: Folding

    @property
    def open(self) -> tuple[Incident, ...]:
        return self.folding.open_incidents

    def only(self) -> Incident:
        [incident] = self.open
        return incident


class Told(Folded):
    """It keeps what was told, too."""

    changes: list[Change]

    def _told(self, changes: Iterable[Change]) -> list[Change]:
        changes = list(changes)
        self.changes += changes
        return changes
