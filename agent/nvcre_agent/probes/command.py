"""Which command does a probe order mean?  Decides argv and environment; starts nothing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nvcre_agent.probes.model import Order, ProbeKind

MAX_RUNS = 20
MAX_ITERATIONS = 10_000
MAX_BYTES = 64 * 1024**3
TOOL = "all_reduce_perf"

# What a probe inherits.  nccl-tests writes its whole environment into reports, and nothing of the agent's business
# (tokens, addresses) belongs there.
_INHERITED = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
# A site's description of its network and topology; everything else of NCCL would make peers incomparable.
_SITE = ("NCCL_IB_", "NCCL_SOCKET_", "NCCL_NET", "NCCL_TOPO_FILE", "NCCL_CROSS_NIC")

_NCCL: Mapping[ProbeKind, Mapping[str, str]] = {
    # NVLink SHARP off: with it busbw can exceed the link rate and hides a slow link (nccl-tests issue 366).
    ProbeKind.NVLINK_ALL_REDUCE: {"NCCL_NVLS_ENABLE": "0"},
    # Without P2P and shared memory the traffic of one node has to loop through its own NICs.
    ProbeKind.NIC_LOOPBACK: {"NCCL_NVLS_ENABLE": "0", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
}


@dataclass(frozen=True, slots=True)
class Command:
    argv: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def arguments(self) -> str:
        """For comparison between peers: NCCL settings, then the tool by its name and its arguments."""
        settings = [f"{name}={value}" for name, value in sorted(self.environment.items()) if name.startswith("NCCL_")]
        return shlex.join([*settings, Path(self.argv[0]).name, *self.argv[1:]])


def invalid(order: Order) -> str | None:
    """What is wrong with the order, field by field, or None."""
    checks = (
        (bool(order.probe_id), "probe_id is empty"),
        (0 < order.min_bytes <= order.max_bytes, f"min_bytes {order.min_bytes} must be 1 to max_bytes"),
        (order.max_bytes <= MAX_BYTES, f"max_bytes {order.max_bytes} is over {MAX_BYTES}"),
        (order.step_factor >= 2, f"step_factor {order.step_factor} must be at least 2"),
        (0 < order.iterations <= MAX_ITERATIONS, f"iterations {order.iterations} must be 1 to {MAX_ITERATIONS}"),
        (0 < order.runs <= MAX_RUNS, f"runs {order.runs} must be 1 to {MAX_RUNS}"),
        (order.timeout_s > 0, f"timeout {order.timeout_s} s must be above 0"),
    )
    return next((message for good, message in checks if not good), None)


def command(
    order: Order, *, tool: Path, gpus: int, inherited: Mapping[str, str], also_inherit: tuple[str, ...] = ()
) -> Command:
    """`also_inherit` names further variables, or with a trailing `*` their prefix (the simulation's own)."""
    argv = (
        str(tool),
        *("-b", str(order.min_bytes)),
        *("-e", str(order.max_bytes)),
        *("-f", str(order.step_factor)),
        *("-n", str(order.iterations)),
        *("-g", str(gpus)),
        *("-c", "1"),
    )
    prefixes = (*_SITE, *(name.removesuffix("*") for name in also_inherit if name.endswith("*")))
    names = {*_INHERITED, *also_inherit}
    environment = {
        name: value for name, value in inherited.items() if name in names or any(name.startswith(p) for p in prefixes)
    }
    return Command(argv, {**environment, **_NCCL[order.kind]})
