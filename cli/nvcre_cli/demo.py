"""`python -m nvcre_cli.demo` (make demo): a GPU breaks in a simulated cluster; does the run find it?

Runs the scenario xid79-mid-run with examples/nccl-all-reduce.yaml, shows the story and the report, and exits 0 exactly
when the report names the node and the GPU that the scenario broke.
"""

from __future__ import annotations

import asyncio
import sys

from nvcre_kube.resources import JsonObject
from nvcre_local.cluster_objects import shipped
from nvcre_local.scenario import Expectation

from nvcre_cli.local import run_manifest, show_reports
from nvcre_cli.local_cluster import plan_cluster
from nvcre_cli.manifest import read_manifest
from nvcre_cli.problems import Problem
from nvcre_cli.report import JobReport
from nvcre_cli.terminal import Terminal

SCENARIO = "xid79-mid-run"
TIMEOUT_S = 300.0


def differences(reports: list[JobReport], expected: Expectation) -> list[str]:
    """Over all Jobs of the run."""
    return differences_in([node for report in reports for node in report.failed_nodes], expected)


def differences_in(failed_nodes: list[JsonObject], expected: Expectation) -> list[str]:
    """What the run should have said and did not; nothing when it found everything, and blames nobody else."""
    found = {node["name"]: node for node in failed_nodes}
    wrong = [f"{name} is blamed, and is healthy" for name in found.keys() - {n.name for n in expected.failed_nodes}]
    for node in expected.failed_nodes:
        blamed = found.get(node.name)
        if blamed is None:
            wrong.append(f"{node.name} is not blamed")
            continue
        if blamed.get("reason") != node.reason:
            wrong.append(f"{node.name}: reason {blamed.get('reason')}, not {node.reason}")
        component = blamed.get("component") or {}
        for key, value in (node.component or {}).items():
            if component.get(key) != value:
                wrong.append(f"{node.name}: component {key} is {component.get(key)}, not {value}")
        codes = {evidence.get("code") for evidence in blamed.get("evidence") or ()}
        wrong += [f"{node.name}: no evidence of Xid {code}" for code in node.codes if code not in codes]
    return wrong


def main() -> int:
    console = Terminal(stderr=True)
    plan = plan_cluster(
        scenario=SCENARIO, nodes=None, namespaces=("default",), listen="127.0.0.1:0", keep=False, needs_workload=True
    )
    assert plan.scenario is not None
    expected = plan.scenario.expect
    assert expected is not None
    console.print(f"[bold]Scenario {SCENARIO}[/bold]: {plan.scenario.description}", highlight=False, soft_wrap=True)
    manifest = read_manifest(shipped("examples", "examples") / "nccl-all-reduce.yaml")
    reports = asyncio.run(run_manifest(plan, manifest, timeout_s=TIMEOUT_S, console=console))
    show_reports(reports, output="text", scenario=SCENARIO)
    wrong = differences(reports, expected)
    if wrong:
        console.print(f"[red]not found:[/red] {'; '.join(wrong)}", highlight=False)
        return 1
    broken = expected.failed_nodes[0]
    where = f"{(broken.component or {}).get('kind')} {(broken.component or {}).get('index')} of {broken.name}"
    console.print(f"[green]found:[/green] {where}, as the scenario broke it", highlight=False)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Problem as problem:
        sys.stderr.write(f"nvcre: {problem}\n")
        sys.exit(problem.exit_code)
