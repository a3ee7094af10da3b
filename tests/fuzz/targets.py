"""The targets by name, and their seeds: small inputs that reach far, and what broke one once."""

from collections.abc import Callable
from pathlib import Path

from fuzz import kernel_targets, log_targets, network_targets, nvml_targets, operator_targets

SEEDS = Path(__file__).with_name("seeds")
CORPUS = Path(__file__).parents[1] / "corpus"

TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        kernel_targets.kernel_log,
        kernel_targets.saved_log,
        nvml_targets.nvml,
        network_targets.http,
        network_targets.coordinator_messages,
        network_targets.agent_messages,
        log_targets.workload_log,
        log_targets.log_profile,
        operator_targets.agent_config,
        operator_targets.control,
    )
}


_OF_CORPUS = {"saved_log": "ks*.log", "workload_log": "[nt]s*.log"}


def seeds(target: str) -> list[Path]:
    logs = CORPUS.glob(_OF_CORPUS[target]) if target in _OF_CORPUS else ()
    return sorted([*(SEEDS / target).glob("*"), *logs])
