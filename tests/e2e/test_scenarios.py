"""The scenarios, through the command: does the run say which node, which GPU, and why?"""

from __future__ import annotations

from typing import Any

import pytest
from nvcre_cli.demo import differences_in
from nvcre_local.scenario_file import read_scenario

from .conftest import EXAMPLES

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def report(nvcre, request) -> dict[str, Any]:
    """The JSON report of the one Job, after what holds for every scenario was checked."""
    scenario = EXAMPLES / "scenarios" / f"{request.param}.yaml"
    ended = nvcre.run(
        "local", "run", EXAMPLES / "nccl-all-reduce.yaml", "--scenario", scenario, "-o", "json", "--timeout", "2m"
    )
    assert ended.stdout, ended.stderr
    document = ended.document
    expected = read_scenario(scenario).expect
    assert expected is not None
    assert (document["result"], document["simulated"], document["scenario"]) == (expected.result, True, request.param)
    assert ended.code == (0 if expected.result == "PASSED" else 1)
    assert len(document["jobs"]) == 1
    job: dict[str, Any] = document["jobs"][0]
    assert differences_in(job["failedNodes"], expected) == []
    true = {c["type"]: c["reason"] for c in job["conditions"] if c["status"] == "True"}
    assert expected.conditions.items() <= true.items()
    assert nvcre.leftovers() == []
    return job


def scenario(name: str):
    return pytest.mark.parametrize("report", [name], indirect=True)


def the_node(report, name: str) -> dict[str, Any]:
    (node,) = [node for node in report["failedNodes"] if node["name"] == name]
    return node


@scenario("healthy")
def test_healthy_nodes_pass_with_a_figure_for_every_size(report):
    assert report["failedNodes"] == []
    sizes = [row["sizeBytes"] for row in report["bandwidth"]]
    assert sorted(sizes) == [(8 << 20) << n for n in range(11)]
    assert max(float(row["busBW"]) for row in report["bandwidth"]) == pytest.approx(384, rel=0.02)
    assert {node["verdict"] for node in report["nodes"]} == {"Healthy"}


@scenario("xid79-mid-run")
def test_a_gpu_that_falls_off_the_bus_is_named_with_its_uuid_and_both_sources(report):
    node = the_node(report, "node-3")
    assert node["component"]["uuid"].startswith("GPU-")
    assert "ab:00" in node["component"]["pciBusId"].lower()
    (incident,) = [i for i in report["incidents"] if i["node"] == "node-3" and i["code"] == 79]
    assert set(incident["sources"]) == {"nvml", "kernel-log"}


@scenario("slow-nvlink")
def test_the_node_with_slow_nvlinks_is_found_by_the_probes(report):
    probes = {p["node"]: p for p in report["probes"] if p["kind"] == "NVLinkAllReduce"}
    assert {name: probe["verdict"] for name, probe in probes.items()} == {
        "node-0": "Pass",
        "node-1": "Pass",
        "node-2": "Slow",
        "node-3": "Pass",
    }
    assert {evidence["source"] for evidence in the_node(report, "node-2")["evidence"]} == {"probe"}


@scenario("slow-pair")
def test_27_a_node_that_is_slow_only_with_others_is_found_by_pairs_with_proven_good_partners(report):
    assert {probe["verdict"] for probe in report["probes"]} == {"Pass"}
    node = the_node(report, "node-1")
    assert {evidence["source"] for evidence in node["evidence"]} == {"probe"}
    pairs = [evidence["message"].partition(":")[0] for evidence in node["evidence"]]
    assert pairs == ["pair node-0 and node-1", "pair node-1 and node-3", "pair node-2 and node-3"]


@scenario("app-crash")
def test_a_bug_names_its_node_and_blames_no_hardware(report):
    node = the_node(report, "node-2")
    assert "component" not in node
    assert node["message"].startswith("application error; no hardware evidence")
    assert "workload" in {evidence["source"] for evidence in node["evidence"]}
    assert [c for c in report["conditions"] if c["type"] == "HardwareFailed" and c["status"] == "True"] == []
    assert 13 in {incident["code"] for incident in report["incidents"] if incident["node"] == "node-2"}


@scenario("coordinator-restart")
def test_a_coordinator_killed_in_the_middle_changes_nothing(report):
    (incident,) = [i for i in report["incidents"] if i["node"] == "node-3" and i["code"] == 79]
    assert set(incident["sources"]) == {"nvml", "kernel-log"}
