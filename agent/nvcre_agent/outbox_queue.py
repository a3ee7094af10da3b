"""The events that wait for their acknowledgement: in order, bounded by number, bytes and age. Neither disk nor wire.

Which one goes when there is no room: the oldest of those that accuse least, so that what may blame hardware goes last.
A newer update of an incident replaces the older one, which loses nothing: each event carries its incident whole.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from nvcre_protos import nvcre_agent_v1_pb2 as pb

from nvcre_agent.incidents.model import ChangeKind


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_age_s` counts on a clock that nobody sets (`age_s`)."""

    max_events: int = 4096
    max_bytes: int = 4 << 20
    max_age_s: float = 7 * 86400.0


class DropReason(StrEnum):
    FULL = "full"  # over max_events or max_bytes
    AGE = "age"
    REFUSED = "refused"  # the coordinator ended the stream over it
    CORRUPT = "corrupt"  # rows of the file that could not be read; a file that was set aside counts as one


@dataclass(frozen=True, slots=True)
class PendingEvent:
    seq: int
    kind: ChangeKind
    event: pb.Event
    size: int


def age_s(event: pb.Event, boot_id: str, monotonic_s: float) -> float:
    """Since it happened, whatever was done to the wall clock. An earlier boot's is as old as this boot, at least."""
    return monotonic_s - (event.monotonic_ns / 1e9 if event.boot_id == boot_id else 0.0)


def rank(incident: pb.Incident) -> int:
    """How long it is kept when there is no room."""
    if incident.injected:
        return 0
    return {pb.BLAME_YES: 2, pb.BLAME_CONDITIONAL: 1}.get(incident.blame, 0)


class EventQueue:
    def __init__(self, limits: Limits, boot_id: str) -> None:
        self._limits = limits
        self._boot_id = boot_id
        self._events: OrderedDict[int, PendingEvent] = OrderedDict()
        self._by_rank: tuple[OrderedDict[int, None], ...] = (OrderedDict(), OrderedDict(), OrderedDict())
        self._update_of: dict[str, int] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[PendingEvent]:
        return iter(self._events.values())

    @property
    def first(self) -> int | None:
        return next(iter(self._events), None)

    @property
    def last(self) -> int | None:
        return next(reversed(self._events), None)

    def put(self, one: PendingEvent) -> None:
        """With a number above all others."""
        self._events[one.seq] = one
        self._by_rank[rank(one.event.incident)][one.seq] = None
        self.bytes += one.size
        if one.kind is ChangeKind.UPDATED:
            self._update_of[one.event.incident.id] = one.seq

    def remove(self, seq: int) -> PendingEvent:
        one = self._events.pop(seq)
        del self._by_rank[rank(one.event.incident)][seq]
        self.bytes -= one.size
        if self._update_of.get(one.event.incident.id) == seq:
            del self._update_of[one.event.incident.id]
        return one

    def update_of(self, incident_id: str) -> int | None:
        """The update that a newer event of the incident replaces."""
        return self._update_of.get(incident_id)

    def remove_excess(self, monotonic_s: float) -> list[tuple[int, DropReason]]:
        gone: list[tuple[int, DropReason]] = []
        limits = self._limits
        while self._events:
            oldest = next(iter(self))
            if age_s(oldest.event, self._boot_id, monotonic_s) <= limits.max_age_s:
                break
            gone.append((oldest.seq, DropReason.AGE))
            self.remove(oldest.seq)
        while len(self._events) > limits.max_events or self.bytes > limits.max_bytes:
            least = next(by_age for by_age in self._by_rank if by_age)
            gone.append((next(iter(least)), DropReason.FULL))
            self.remove(gone[-1][0])
        return gone
