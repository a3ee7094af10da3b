"""Signals in, incidents and changes out: the values of folding, independent of wire and storage.

Times are Unix seconds on the agent's wall clock; `monotonic_s` is for windows only and survives no reboot.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from nvcre_protos.vocabulary import Blame, FaultClass, IncidentKind, RecoveredBy, Source

from nvcre_agent.checks.model import Component
from nvcre_agent.xid.model import Classification, Clears

MAX_MESSAGE_BYTES = 256  # of a text of an Incident (protos/nvcre_agent_v1.proto)


class ChangeKind(Enum):
    OPENED = "opened"
    UPDATED = "updated"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True)
class Signal:
    """One thing that a source said, already classified and attributed to a component.

    `subject` is what incidents are kept apart by: the GPU's slot or UUID, the NIC, or "" for the node. `origin` names
    the record where it can be read again: the same record always opens the incident of the same id.
    """

    kind: IncidentKind
    code: int
    subject: str
    component: Component
    source: Source
    verdict: Classification
    message: str
    time_s: float
    monotonic_s: float
    time_uncertain: bool = False
    injected: bool = False
    pid: int = 0
    process: str = ""
    caused_by: int = 0
    unit: str = ""
    pod_uid: str = ""
    container_id: str = ""
    raw: str = ""
    origin: str = ""
    age_s: float = 0.0  # how long ago it was when it was read


@dataclass(frozen=True, slots=True)
class Incident:
    """An incident as it is told: the newest one replaces all earlier ones of its id."""

    id: str
    kind: IncidentKind
    code: int
    fault_class: FaultClass
    blame: Blame
    component: Component
    message: str
    first_seen_s: float
    last_seen_s: float
    sources: tuple[Source, ...] = ()
    count: int = 1
    blame_condition: str = ""
    mnemonic: str = ""
    remedy: str = ""
    recovered_at_s: float | None = None
    injected: bool = False
    simulated: bool = False
    pid: int = 0
    process: str = ""
    caused_by: int = 0
    unit: str = ""
    pod_uid: str = ""
    container_id: str = ""
    recovered_by: RecoveredBy | None = None
    effects: Mapping[int, int] = field(default_factory=dict)
    check: str = ""
    raw: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """One event of the outbox. `time_s` and `monotonic_s` say when it happened."""

    kind: ChangeKind
    incident: Incident
    time_s: float
    monotonic_s: float
    time_uncertain: bool = False


@dataclass(frozen=True, slots=True)
class Kept:
    """An open incident as it is written to disk, with what folding needs to go on after a restart."""

    incident: Incident
    subject: str
    clears: Clears
    boot_id: str
    last_monotonic_s: float
    remedied: bool = False
    finding_key: str = ""


def shortened(text: str, limit: int = MAX_MESSAGE_BYTES) -> str:
    """At most `limit` bytes of UTF-8, cut between characters."""
    text = text.encode("utf-8", "replace").decode()  # lone surrogates cannot go over the wire
    encoded = text.encode()
    return text if len(encoded) <= limit else encoded[: limit - 3].decode("utf-8", "ignore") + "..."
