"""What the node looked like when it was last known good, and its last minutes: the yardstick of the checks.

A pure value that grows with each snapshot (`advance`) before the checks look at it.  What the agent keeps over restarts
goes through `to_json` and `from_json`: a GPU missing after a reboot is missed, and an old error counter is not taken
for a new error.  The history of rates is not kept: it is minutes long and changes with every snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nvcre_agent.checks.history import COUNTERS, GpuHistory, Sample, Series
from nvcre_agent.checks.ports import Ports
from nvcre_agent.host.model import NOTHING, Host
from nvcre_agent.nvml.snapshot import (
    MOST_GPUS,
    GpuIdentity,
    GpuSnapshot,
    Reading,
    Snapshot,
    identity_from_json,
    to_json,
)

CONFIRMED_AFTER = 3  # snapshots in a row that show another GPU in a slot, before the old one counts as replaced
_KEPT_COUNTERS = ("nvlink_replays", "nvlink_recoveries")  # of which a single one matters, a restart or not


@dataclass(frozen=True, slots=True)
class GpuBaseline:
    """Per GPU: who it is, its uncorrected ECC total to count from, and the NVLinks that were up once."""

    identity: GpuIdentity
    ecc_uncorrected_volatile: int | None = None
    nvlinks_seen_up: frozenset[int] = frozenset()
    nvlink_replays: int | None = None
    nvlink_recoveries: int | None = None
    history: GpuHistory = field(default=GpuHistory(), compare=False)


@dataclass(frozen=True, slots=True)
class Baseline:
    """`at_s` is the monotonic time of the last snapshot, `replaced` the GPUs that it showed to be replaced."""

    gpus: Mapping[str, GpuBaseline] = field(default_factory=dict)  # by UUID
    newcomers: Mapping[str, int] = field(default_factory=dict)  # UUID in another GPU's slot -> snapshots that saw it
    ports: Ports = Ports()  # noqa: RUF009 - a frozen value
    fabric_manager_seen: bool = False
    at_s: float = field(default=0.0, compare=False)
    replaced: frozenset[str] = field(default=frozenset(), compare=False)  # UUIDs

    def advance(self, snapshot: Snapshot, host: Host = NOTHING) -> Baseline:
        """Learn GPUs that answer and ports that are active."""
        at_s = snapshot.monotonic_ns / 1e9
        answering = {gpu.identity.uuid: gpu for gpu in snapshot.gpus if gpu.access is None}
        taken = {gpu.identity.pci: gpu.identity for gpu in answering.values()}
        gpus = dict(self.gpus)
        newcomers: dict[str, int] = {}
        replaced: set[str] = set()
        for uuid, known in self.gpus.items():
            other = taken.get(known.identity.pci)
            if other is None or uuid in answering or other.uuid in self.gpus:
                continue
            seen = self.newcomers.get(other.uuid, 0) + 1
            if seen < CONFIRMED_AFTER:
                newcomers[other.uuid] = seen
            else:
                del gpus[uuid]
                replaced.add(uuid)
        for uuid, gpu in answering.items():
            if uuid not in newcomers and (uuid in gpus or len(gpus) < MOST_GPUS):
                gpus[uuid] = _learned(gpus.get(uuid), gpu, at_s)
        running = host.fabric_manager is not None and host.fabric_manager.running
        return Baseline(
            gpus=gpus,
            newcomers=newcomers,
            ports=self.ports.sampled(host.ports, at_s),
            fabric_manager_seen=self.fabric_manager_seen or running,
            at_s=at_s,
            replaced=frozenset(replaced),
        )

    def link_told(self, where: str, *, up: bool, at_s: float) -> Baseline:
        """The kernel says that the link of a NIC went up or down."""
        return replace(self, ports=self.ports.told(where, up=up, at_s=at_s))

    def to_json(self, boot_id: str) -> dict[str, Any]:
        return {
            "boot_id": boot_id,
            "gpus": [
                {
                    "identity": to_json(known.identity),
                    "ecc_uncorrected_volatile": known.ecc_uncorrected_volatile,
                    "nvlinks_seen_up": sorted(known.nvlinks_seen_up),
                    "nvlink_replays": known.nvlink_replays,
                    "nvlink_recoveries": known.nvlink_recoveries,
                }
                for known in self.gpus.values()
            ],
            "newcomers": dict(self.newcomers),
            "ports": self.ports.to_json(),
            "fabric_manager_seen": self.fabric_manager_seen,
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any], boot_id: str) -> Baseline:
        """KeyError, TypeError or ValueError where `raw` did not come from `to_json`."""
        known = [
            GpuBaseline(
                identity=identity_from_json(gpu["identity"]),
                ecc_uncorrected_volatile=gpu["ecc_uncorrected_volatile"],
                nvlinks_seen_up=frozenset(int(link) for link in gpu["nvlinks_seen_up"]),
                nvlink_replays=gpu["nvlink_replays"],
                nvlink_recoveries=gpu["nvlink_recoveries"],
            )
            for gpu in raw["gpus"]
        ]
        return cls(
            gpus={gpu.identity.uuid: gpu for gpu in known},
            newcomers={str(uuid): int(seen) for uuid, seen in raw["newcomers"].items()},
            ports=Ports.from_json(raw["ports"], same_boot=raw["boot_id"] == boot_id),
            fabric_manager_seen=bool(raw["fabric_manager_seen"]),
        )


def _learned(known: GpuBaseline | None, gpu: GpuSnapshot, at_s: float) -> GpuBaseline:
    up = frozenset(link for link, active in enumerate(gpu.nvlinks) if active == 1)
    if known is None:
        known = GpuBaseline(gpu.identity)
    return GpuBaseline(
        identity=gpu.identity,
        ecc_uncorrected_volatile=_lower(known.ecc_uncorrected_volatile, gpu.ecc_uncorrected_volatile),
        nvlinks_seen_up=known.nvlinks_seen_up | up,
        nvlink_replays=_newest(known.nvlink_replays, gpu.nvlink_replays),
        nvlink_recoveries=_newest(known.nvlink_recoveries, gpu.nvlink_recoveries),
        history=_going_on(known, at_s).extended(gpu, at_s),
    )


def _going_on(known: GpuBaseline, at_s: float) -> GpuHistory:
    """After a restart of the agent the kept counters begin where they were left."""
    counters = list(known.history.counters)
    for name in _KEPT_COUNTERS:
        kept, index = getattr(known, name), COUNTERS.index(name)
        if kept is not None and not counters[index].samples:
            counters[index] = Series((Sample(at_s, kept),))
    return replace(known.history, counters=tuple(counters))


def _lower(known: int | None, now: Reading) -> int | None:
    """A counter below its baseline was reset (driver reload, GPU reset): count from there."""
    if not isinstance(now, int):
        return known
    return now if known is None else min(known, now)


def _newest(known: int | None, now: Reading) -> int | None:
    return now if isinstance(now, int) else known
