"""What the node's GPUs looked like when they were last known good: the yardstick of the checks.

A pure value that grows with each snapshot (`advance`) and that the agent keeps over restarts (`to_json`, `from_json`),
so that a GPU missing after a reboot is missed, and an old error counter is not taken for a new error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nvcre_agent.nvml.snapshot import GpuIdentity, GpuSnapshot, Reading, Snapshot, identity_from_json, to_json


@dataclass(frozen=True, slots=True)
class GpuBaseline:
    """Per GPU: who it is, its uncorrected ECC total to count from, and the NVLinks that were up once."""

    identity: GpuIdentity
    ecc_uncorrected_volatile: int | None = None
    nvlinks_seen_up: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Baseline:
    gpus: Mapping[str, GpuBaseline] = field(default_factory=dict)  # by UUID

    def advance(self, snapshot: Snapshot) -> Baseline:
        """Learn GPUs that answer.  One whose slot now holds another UUID was replaced and is forgotten."""
        answering = [gpu for gpu in snapshot.gpus if gpu.access is None]
        taken = {gpu.identity.pci: gpu.identity.uuid for gpu in answering}
        gpus = {uuid: known for uuid, known in self.gpus.items() if taken.get(known.identity.pci, uuid) == uuid}
        for gpu in answering:
            gpus[gpu.identity.uuid] = _learn(self.gpus.get(gpu.identity.uuid), gpu)
        return Baseline(gpus)

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "identity": to_json(known.identity),
                "ecc_uncorrected_volatile": known.ecc_uncorrected_volatile,
                "nvlinks_seen_up": sorted(known.nvlinks_seen_up),
            }
            for known in self.gpus.values()
        ]

    @classmethod
    def from_json(cls, raw: list[dict[str, Any]]) -> Baseline:
        """KeyError, TypeError or ValueError where `raw` did not come from `to_json`."""
        known = [
            GpuBaseline(
                identity=identity_from_json(gpu["identity"]),
                ecc_uncorrected_volatile=gpu["ecc_uncorrected_volatile"],
                nvlinks_seen_up=frozenset(int(link) for link in gpu["nvlinks_seen_up"]),
            )
            for gpu in raw
        ]
        return cls({gpu.identity.uuid: gpu for gpu in known})


def _learn(known: GpuBaseline | None, gpu: GpuSnapshot) -> GpuBaseline:
    up = frozenset(link for link, active in enumerate(gpu.nvlinks) if active == 1)
    if known is None:
        known = GpuBaseline(gpu.identity)
    return replace(
        known,
        identity=gpu.identity,
        ecc_uncorrected_volatile=_lower(known.ecc_uncorrected_volatile, gpu.ecc_uncorrected_volatile),
        nvlinks_seen_up=known.nvlinks_seen_up | up,
    )


def _lower(known: int | None, now: Reading) -> int | None:
    """A counter below its baseline was reset (driver reload, GPU reset): count from there."""
    if not isinstance(now, int):
        return known
    return now if known is None else min(known, now)
