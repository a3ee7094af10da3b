"""Was a GPU reset between two snapshots? Decides from readings that only a reset (or a driver reload) takes back.

The recovery action returns to none, a row remap is not pending any more, or a GPU that refused every call answers
again. Error counters say nothing: a person may clear them. A value, kept over restarts of the agent within one boot,
so that a reset that was done by hand while the agent was down is seen too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nvcre_agent.nvml.snapshot import GpuSnapshot, Snapshot, Unread


@dataclass(frozen=True, slots=True)
class Signs:
    """As last read. `wanted`: the driver asks for a recovery; `refused`: no call is answered until the GPU is reset."""

    wanted: bool = False
    remap_pending: bool = False
    refused: bool = False

    @property
    def needs_reset(self) -> bool:
        return self.wanted or self.refused


@dataclass(frozen=True, slots=True)
class ResetSigns:
    gpus: Mapping[str, Signs] = field(default_factory=dict)  # by UUID

    def step(self, snapshot: Snapshot) -> tuple["ResetSigns", tuple[str, ...]]:
        """(what to remember, UUIDs of the GPUs that were reset since the last step)."""
        gpus, reset = dict(self.gpus), []
        for gpu in snapshot.gpus:
            before = self.gpus.get(gpu.identity.uuid, Signs())
            gpus[gpu.identity.uuid] = now = _signs(gpu, before)
            if (before.needs_reset and not now.needs_reset) or (before.remap_pending and not now.remap_pending):
                reset.append(gpu.identity.uuid)
        return ResetSigns(gpus), tuple(reset)

    def to_json(self, boot_id: str) -> dict[str, Any]:
        gpus = {uuid: [signs.wanted, signs.remap_pending, signs.refused] for uuid, signs in self.gpus.items()}
        return {"boot_id": boot_id, "gpus": gpus}

    @classmethod
    def from_json(cls, raw: dict[str, Any], boot_id: str) -> "ResetSigns":
        """Of another boot nothing: how a GPU looked before a reboot is no sign of a reset since.

        KeyError, AttributeError, TypeError or ValueError where `raw` did not come from `to_json`.
        """
        if raw["boot_id"] != boot_id:
            return cls()
        return cls({uuid: Signs(*map(bool, signs)) for uuid, signs in raw["gpus"].items()})


def _signs(gpu: GpuSnapshot, before: Signs) -> Signs:
    """A reading that failed leaves what was known."""
    if gpu.access is Unread.RESET_REQUIRED:
        return replace(before, refused=True)
    if gpu.access is not None:
        return before
    action, pending = gpu.recovery_action, gpu.remap_pending
    remap_pending = pending == 1 if isinstance(pending, int) else before.remap_pending
    if isinstance(action, int):
        return Signs(action != 0, remap_pending)
    # Where the driver has no recovery action, an answer is the sign that the refusal is over. That it does not tell the
    # action any more is no sign that it does not ask for one.
    return Signs(before.wanted, remap_pending, before.refused and action is not Unread.NOT_SUPPORTED)
