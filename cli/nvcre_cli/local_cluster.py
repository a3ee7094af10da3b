"""Plans a local cluster from what was typed: a scenario by file or name, or the GPUs that are really here.

Raises UsageProblem with one line that says what is missing and what to do. Starts nothing.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from nvcre_local.api_servers import ServerKind
from nvcre_local.cluster import ClusterPlan
from nvcre_local.cluster_hardware import NoGpus, find_gpus, find_nccl_tests
from nvcre_local.cluster_objects import NotInstalled, example_scenarios
from nvcre_local.scenario import Scenario, ScenarioError
from nvcre_local.scenario_file import MAX_NODES, read_scenario

from nvcre_cli.installed import missing_packages
from nvcre_cli.problems import Problem, UsageProblem

SIMULATE = "to simulate a cluster, add for example: --scenario healthy"


def find_scenario(given: str) -> Scenario:
    """A file, or the name of one of examples/scenarios."""
    try:
        examples = example_scenarios()
    except NotInstalled:
        examples = {}
    path = examples.get(given) if not Path(given).is_file() else Path(given)
    if path is None:
        likely = [name for name in examples if given and given in name] or get_close_matches(given, examples, 1)
        meant = f"; did you mean {likely[0]}?" if likely else ""
        known = ", ".join(examples) or "the examples"
        raise UsageProblem(f"scenario {given!r}: no such file, and not one of {known}{meant}")
    try:
        return read_scenario(path)
    except ScenarioError as error:
        raise UsageProblem(str(error)) from None


def plan_cluster(
    *,
    scenario: str | None,
    nodes: int | None,
    namespaces: tuple[str, ...],
    listen: str,
    keep: bool,
    needs_workload: bool,
    server: ServerKind = ServerKind.EMBEDDED,
    attach: Path | None = None,
) -> ClusterPlan:
    """`needs_workload`: without a scenario the Job will run nccl-tests, so they must be there."""
    missing = missing_packages()
    if missing:
        raise UsageProblem(f"a local cluster needs {', '.join(missing)}: install nvcre[local] instead of nvcre[cli]")
    if nodes is not None and not 1 <= nodes <= MAX_NODES:
        raise UsageProblem(f"--nodes {nodes} is not within 1 to {MAX_NODES}")
    if scenario is not None:
        chosen = find_scenario(scenario)
        if nodes is not None:
            try:
                chosen = chosen.with_nodes(nodes)
            except ScenarioError as error:
                raise UsageProblem(str(error)) from None
        return ClusterPlan(chosen, namespaces=namespaces, listen=listen, keep=keep, server=server, attach=attach)
    try:
        hardware = find_gpus()
    except NoGpus as missing:
        raise UsageProblem(f"no GPU to test: {missing}; {SIMULATE}") from None
    if nodes not in (None, 1):
        raise UsageProblem(f"--nodes {nodes}: this machine is one node; {SIMULATE}")
    programs = find_nccl_tests()
    if programs is None and needs_workload:
        raise Problem(
            f"not tested: {hardware.gpus} x {hardware.product} are here, but all_reduce_perf of nccl-tests "
            "is neither in $NCCL_TESTS_DIR nor on the PATH"
        )
    return ClusterPlan(
        None, hardware, programs, namespaces=namespaces, listen=listen, keep=keep, server=server, attach=attach
    )
