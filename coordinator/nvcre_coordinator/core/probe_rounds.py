"""The steps of probing one node after a slow run: reserve its GPUs, order the probes, store results, release.

`decide` sees the whole situation and returns what to do next; it is level triggered, so a new leader that sees a
reservation Pod and some stored results simply goes on. "Not tested" is an answer of its own, with a reason: a busy,
silent or unreachable node must never look slow and never look fine (DESIGN 6.6). Judging the figures is
core/localisation.py; Pods and agents are fleet/probes.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, StrEnum

from nvcre_coordinator.core.localisation import ProbeKind, ProbeResult


class NotTested(StrEnum):
    """Reasons that the coordinator gives; agents have reasons of their own."""

    NOT_PLACED = "NotPlaced"
    RESERVATION_LOST = "ReservationLost"
    NO_GPUS = "NoGPUs"
    GPUS_MISSING = "GPUsMissing"
    FOREIGN_PROCESSES = "ForeignProcesses"
    AGENT_NOT_CONNECTED = "AgentNotConnected"
    NO_INFINIBAND = "NoInfiniBand"
    TIMEOUT = "Timeout"


class PodPhase(Enum):
    PENDING = "Pending"
    RUNNING = "Running"
    ENDED = "Ended"
    DELETING = "Deleting"


@dataclass(frozen=True, slots=True)
class Reservation:
    """The Pod that holds the node's GPUs for us."""

    phase: PodPhase
    created_at: datetime
    running_since: datetime | None = None
    message: str = ""  # the scheduler's or kubelet's word about it


@dataclass(frozen=True, slots=True)
class Ordered:
    """An order that went out. `answer` is the final result once the agent gave one."""

    at: datetime
    answer: ProbeResult | None = None
    on_this_stream: bool = True  # the agent has reconnected since: the same order is sent again


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that matters for one node of a round. Times are the coordinator's."""

    kinds: tuple[ProbeKind, ...]
    started_at: datetime
    gpus: int  # what the node offers
    gpus_of_peers: int = 0  # what the fullest node of the round with the same product offers
    stored: frozenset[ProbeKind] = frozenset()  # kinds whose result is in NodeHealth
    reservation: Reservation | None = None
    slot_free: bool = True
    connected: bool = True
    lost_since: datetime | None = None  # the agent's stream
    infiniband: bool | None = None
    foreign_processes: int | None = None  # from a heartbeat newer than the reservation's start; None: none yet
    ordered: Mapping[ProbeKind, Ordered] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Patience:
    placed: timedelta = timedelta(seconds=60)
    agent: timedelta = timedelta(seconds=60)
    heartbeat: timedelta = timedelta(seconds=10)
    foreign: timedelta = timedelta(seconds=30)  # the slow run's own processes may still be ending
    probe: timedelta = timedelta(seconds=120)  # all runs of one kind
    margin: timedelta = timedelta(seconds=10)  # for the answer to arrive


@dataclass(frozen=True, slots=True)
class Reserve:
    """Create the reservation Pod."""


@dataclass(frozen=True, slots=True)
class Release:
    """Delete the reservation Pod."""


@dataclass(frozen=True, slots=True)
class AskAgent:
    """Ask for a heartbeat now."""


@dataclass(frozen=True, slots=True)
class Order:
    kind: ProbeKind


@dataclass(frozen=True, slots=True)
class Cancel:
    kind: ProbeKind
    reason: str


@dataclass(frozen=True, slots=True)
class Store:
    """Store the answer that the agent gave."""

    result: ProbeResult


@dataclass(frozen=True, slots=True)
class GiveUp:
    kind: ProbeKind
    reason: NotTested
    message: str


Action = Reserve | Release | AskAgent | Order | Cancel | Store | GiveUp


@dataclass(frozen=True, slots=True)
class Decision:
    actions: tuple[Action, ...] = ()
    look_again: timedelta | None = None
    done: bool = False  # every kind has a stored result and nothing is reserved


def decide(seen: Observed, now: datetime, patience: Patience) -> Decision:  # noqa: PLR0911 - one return a rule
    """What to do next for this node. After stored results or a changed Pod it is asked again at once."""
    missing = [kind for kind in seen.kinds if kind not in seen.stored]
    if ProbeKind.NIC_LOOPBACK in missing and seen.infiniband is False:
        text = "the node has no InfiniBand; a NIC loopback would measure something else"
        return Decision((GiveUp(ProbeKind.NIC_LOOPBACK, NotTested.NO_INFINIBAND, text),))
    if not missing:
        if seen.reservation is not None:
            releases = () if seen.reservation.phase is PodPhase.DELETING else (Release(),)
            return Decision(releases, patience.margin)
        return Decision(done=True)
    if answered := [order.answer for kind in missing if (order := seen.ordered.get(kind)) and order.answer]:
        return Decision(tuple(Store(answer) for answer in answered))
    if not seen.connected:
        left = max(seen.started_at, seen.lost_since or seen.started_at) + patience.agent - now
        if left <= timedelta(0):
            return _give_up(missing, NotTested.AGENT_NOT_CONNECTED, "no agent is connected from this node")
        return Decision(look_again=left)
    return _reserve(seen, missing, now, patience)


def _reserve(  # noqa: PLR0911 - one return a rule
    seen: Observed, missing: list[ProbeKind], now: datetime, patience: Patience
) -> Decision:
    match seen.reservation:
        case None if seen.gpus <= 0:
            return _give_up(missing, NotTested.NO_GPUS, "the node offers no nvidia.com/gpu to reserve")
        case None if seen.gpus < seen.gpus_of_peers:
            # another number of ranks is another measurement: it would look slow, or fast
            text = f"the node has {seen.gpus} GPUs, others of the run have {seen.gpus_of_peers}"
            return _give_up(missing, NotTested.GPUS_MISSING, text)
        case None if not seen.slot_free:
            return Decision(look_again=patience.margin)
        case None if now - seen.started_at > 2 * patience.placed:
            # created again and again, and somebody deletes it
            return _give_up(missing, NotTested.RESERVATION_LOST, "the reservation Pod vanished")
        case None:
            return Decision((Reserve(),), patience.placed)
        case Reservation(phase=PodPhase.PENDING, created_at=created_at, message=message):
            left = created_at + patience.placed - now
            if left <= timedelta(0):
                why = message or "no word from the scheduler"
                text = f"the GPUs could not be reserved within {patience.placed.total_seconds():g} s: {why}"
                return _give_up(missing, NotTested.NOT_PLACED, text)
            return Decision(look_again=left)
        case Reservation(phase=PodPhase.ENDED | PodPhase.DELETING, message=message):
            text = f"the reservation Pod ended: {message or 'no reason given'}"
            return _give_up(missing, NotTested.RESERVATION_LOST, text)
        case Reservation() as held:
            return _probe(seen, held, missing, now, patience)


def _probe(  # noqa: PLR0911 - one return a rule
    seen: Observed, held: Reservation, missing: list[ProbeKind], now: datetime, patience: Patience
) -> Decision:
    kind = missing[0]
    order = seen.ordered.get(kind)
    if order is not None:
        left = order.at + patience.probe + patience.margin - now
        if left <= timedelta(0):
            text = f"no result within {patience.probe.total_seconds():g} s"
            return Decision((Cancel(kind, "Timeout"), GiveUp(kind, NotTested.TIMEOUT, text)))
        return Decision(() if order.on_this_stream else (Order(kind),), left)
    if seen.ordered:  # the GPUs have been ours since an earlier kind was ordered
        return Decision((Order(kind),), patience.probe + patience.margin)
    since = now - (held.running_since or held.created_at)
    match seen.foreign_processes:
        case None if since < patience.heartbeat:
            return Decision((AskAgent(),), patience.heartbeat - since)
        case int(count) if count > 0:
            if since < patience.foreign:
                return Decision((AskAgent(),), min(patience.heartbeat / 4, patience.foreign - since))
            text = f"{count} foreign process(es) on the GPUs"
            return _give_up(missing, NotTested.FOREIGN_PROCESSES, text)
        case _:  # the agent looks again itself before and while it measures
            return Decision((Order(kind),), patience.probe + patience.margin)


def _give_up(missing: list[ProbeKind], reason: NotTested, message: str) -> Decision:
    return Decision(tuple(GiveUp(kind, reason, message) for kind in missing))
