"""The checks: what is wrong with the node at one moment, seen against its baseline.

Each check is a pure function over what was read (an NVML snapshot, or the host), the baseline that has just learned
from it, and the limits; it says `Finding`s, and `Undecided` where it could not read its value, so that a hung or lost
GPU never looks recovered.  `evaluate` runs all of them; `tracker` decides when a finding opens and when it has
recovered.  A new check is a function in the module of its topic, a line below, and its numbers in limits.yaml.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nvcre_agent.checks import gpu as gpus
from nvcre_agent.checks.baseline import Baseline
from nvcre_agent.checks.clocks import hw_slowdown, temperature_margin
from nvcre_agent.checks.configuration import ecc_mode, mig, persistence_mode
from nvcre_agent.checks.fabric import explained, fabric_health, fabric_manager, fabric_registration, fabric_status
from nvcre_agent.checks.infiniband import ib_port_down, ib_port_flapping
from nvcre_agent.checks.limits import Limits
from nvcre_agent.checks.memory import (
    ecc_corrected,
    ecc_uncorrected,
    page_retirement_pending,
    retired_pages,
    row_remap_failure,
    row_remap_limit,
    row_remap_pending,
)
from nvcre_agent.checks.model import Finding, Undecided
from nvcre_agent.checks.nvlink import nvlink_down, nvlink_errors
from nvcre_agent.checks.pcie import pcie_link, pcie_replays
from nvcre_agent.checks.presence import absent, gpu_lost, gpu_missing, gpu_unreadable, recovery_action
from nvcre_agent.host.model import NOTHING, Host
from nvcre_agent.nvml.snapshot import Snapshot

GPU_CHECKS: tuple[Callable[[Snapshot, Baseline, Limits], Iterable[Finding | Undecided]], ...] = (
    gpu_lost,
    gpu_missing,
    gpu_unreadable,
    recovery_action,
    ecc_uncorrected,
    ecc_corrected,
    row_remap_failure,
    row_remap_pending,
    row_remap_limit,
    retired_pages,
    page_retirement_pending,
    nvlink_down,
    nvlink_errors,
    fabric_registration,
    fabric_status,
    fabric_health,
    pcie_link,
    pcie_replays,
    hw_slowdown,
    temperature_margin,
    persistence_mode,
    ecc_mode,
    mig,
)
HOST_CHECKS: tuple[Callable[[Host, Baseline, Limits], Iterable[Finding | Undecided]], ...] = (
    fabric_manager,
    ib_port_down,
    ib_port_flapping,
)


def evaluate(
    snapshot: Snapshot, baseline: Baseline, limits: Limits, host: Host = NOTHING
) -> tuple[Finding | Undecided, ...]:
    """What all checks say; of a GPU that is not in the snapshot the others cannot say that it has recovered."""
    said = [answer for check in GPU_CHECKS for answer in check(snapshot, baseline, limits)]
    said += [answer for check in HOST_CHECKS for answer in check(host, baseline, limits)]
    said = list(explained(said))
    found = {answer.key for answer in said}
    for identity in absent(snapshot, baseline):
        keys = [gpus.key(check.__name__, identity) for check in GPU_CHECKS if check is not gpu_missing]
        said += [Undecided(key) for key in keys if key not in found]
    return tuple(said)
