"""What a scenario may say, and what its engine does with it."""

from pathlib import Path

import pytest
from nvcre_local.cluster_objects import example_scenarios
from nvcre_local.scenario import (
    CoordinatorKill,
    CrashFault,
    DriverFault,
    ScenarioError,
    Source,
    XidFault,
)
from nvcre_local.scenario_engine import all_running, fill
from nvcre_local.scenario_file import kernel_lines, parse_scenario, products, read_scenario

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))


def parse(text: str):
    return parse_scenario(text, name="s", where="s.yaml")


@pytest.mark.parametrize("path", example_scenarios().values(), ids=lambda path: path.stem)
def test_every_example_is_valid_short_and_says_what_it_expects(path):
    scenario = read_scenario(path)
    assert scenario.expect is not None
    assert scenario.description
    assert scenario.run_seconds <= 30


def test_an_empty_scenario_is_four_healthy_nodes_of_eight_h100():
    scenario = parse("{}")
    assert (scenario.nodes, scenario.gpus_per_node, scenario.faults) == (4, 8, ())
    assert scenario.product.product == "NVIDIA H100 80GB HBM3"
    assert scenario.links_of(3).nvlink_gbps == 480.0


def test_a_node_may_have_links_of_its_own():
    scenario = parse("bandwidth: {default: {nvlinkGBps: 450}, nodes: {1: {nicGBps: 20}}}")
    assert scenario.links_of(0).nvlink_gbps == 450
    assert (scenario.links_of(1).nvlink_gbps, scenario.links_of(1).nic_gbps) == (450, 20)


def test_one_entry_may_be_several_faults_in_the_order_of_their_moments():
    scenario = parse("""
faults:
  - {after: 2s, node: 1, gpu: 0, set: {nvlinks_down: [4]}}
  - {after: 1400ms, killCoordinator: true, restartAfter: 3s}
  - after: 1s
    node: 1
    gpu: 5
    xid: 79
    sources: [nvml]
    set: {lost: true}
    crash: {after: 500ms, exitCode: 3, lines: [a]}
""")
    assert scenario.faults == (
        XidFault(1.0, 1, 5, 79, (Source.NVML,), kernel_lines()[79]),
        DriverFault(1.0, 1, 5, {"lost": True}),
        CoordinatorKill(1.4, 3.0),
        CrashFault(1.5, 1, 3, ("a",)),
        DriverFault(2.0, 1, 0, {"nvlinks_down": [4]}),
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nodez: 3", "s.yaml: unknown key nodez; allowed: product, nodes"),
        ("nodes: x", "s.yaml.nodes: expected a whole number, found text"),
        ("nodes: true", "s.yaml.nodes: expected a whole number, found true or false"),
        ("nodes: 129", "s.yaml.nodes: 129 is not within 1 to 128"),
        ("gpusPerNode: 9", "s.yaml.gpusPerNode: 9 is not within 1 to 8"),
        ("product: h1000", "s.yaml.product: 'h1000' is not one of h100-sxm"),
        ("product: [a]", "s.yaml.product: "),
        ("runSeconds: .nan", "s.yaml: not YAML: nan is no number that JSON can hold"),
        ("faults: {}", "s.yaml.faults: expected a list, found a mapping"),
        ("faults: [3]", "s.yaml.faults[0]: expected a mapping, found a number (3)"),
        ("faults: [{node: 1}]", "s.yaml.faults[0]: after is missing"),
        ("faults: [{after: 4, node: 1}]", "s.yaml.faults[0].after: expected a duration such as 4s"),
        ("faults: [{after: 4s, node: 4, gpu: 1, xid: 79}]", "s.yaml.faults[0].node: 4 is not within 0 to 3"),
        ("faults: [{after: 4s, node: 3, gpu: 8, xid: 79}]", "s.yaml.faults[0].gpu: 8 is not within 0 to 7"),
        ("faults: [{after: 4s, node: 3, xid: 79}]", "s.yaml.faults[0]: xid needs gpu"),
        ("faults: [{after: 4s, node: 3}]", "s.yaml.faults[0]: nothing happens"),
        ("faults: [{after: 4s, node: 3, gpu: 1, xid: 900}]", "s.yaml.faults[0].xid: no kernel line is known for 900"),
        ("faults: [{after: 4s, node: 3, set: {lots: 1}}]", "s.yaml.faults[0].set: unknown key lots; allowed: calls,"),
        ("faults: [{after: 1s, killCoordinator: true, node: 1}]", "s.yaml.faults[0]: unknown key node"),
        ("faults: [{after: 1s, node: 1, crash: {code: 1}}]", "s.yaml.faults[0].crash: unknown key code"),
        ("faults: [{after: 1s, node: 1, gpu: 1, xid: 79, sources: [dmesg]}]", "'dmesg' is not one of kernel-log, nvml"),
        ("bandwidth: {nodes: {7: {}}}", "s.yaml.bandwidth.nodes.7: no such node; nodes are 0 to 3"),
        ("bandwidth: {nodes: {1: {nvlink: 3}}}", "s.yaml.bandwidth.nodes.1: unknown key nvlink"),
        ("expect: {result: ok}", "s.yaml.expect.result: 'ok' is not PASSED or FAILED"),
        ("- 1", "s.yaml: expected a mapping, found a list"),
        ("a: [", "s.yaml:2: not YAML"),
        ("nodes: !!int six", "s.yaml:1: not YAML: invalid literal for int()"),
        ("nodes: 3\nnodes: 4", "s.yaml:2: not YAML: the key 'nodes' is there twice"),
        ("nodes: 3\n---\nnodes: 4", "s.yaml: not YAML: 2 documents where one is expected"),
        # What a complaint quotes must not be what a bomb holds.
        (f"{BOMB}faults: [{{after: *a39, node: 0, crash: {{}}}}]", "s.yaml: not YAML: more than 200000 values"),
        ("\x00", "s.yaml: not YAML"),
    ],
)
def test_a_wrong_scenario_is_refused_with_file_key_and_what_is_allowed(text, complaint):
    with pytest.raises(ScenarioError) as refused:
        parse(text)
    assert complaint in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(ScenarioError, match=r"nowhere\.yaml: No such file"):
        read_scenario(tmp_path / "nowhere.yaml")


def test_fewer_nodes_than_a_fault_needs_are_refused():
    scenario = parse("faults: [{after: 1s, node: 3, crash: {}}]")
    assert scenario.with_nodes(6).nodes == 6
    with pytest.raises(ScenarioError, match="--nodes must be at least 4"):
        scenario.with_nodes(3)


def test_every_product_has_a_pci_address_for_each_gpu_and_links():
    for name, product in products().items():
        assert len(set(product.pci)) == len(product.pci) == (4 if name == "gb200" else 8)
        assert product.nvlink_gbps > product.nic_gbps > 0


def test_only_our_own_names_are_filled_into_a_kernel_line():
    assert fill("GPU {gpu} at {pci}: Data {0x1, {x}}", {"gpu": 5, "pci": "0000:1b:00"}) == (
        "GPU 5 at 0000:1b:00: Data {0x1, {x}}"
    )


def pod(jobset: str, phase: str):
    labels = {"jobset.sigs.k8s.io/jobset-name": jobset, "jobset.sigs.k8s.io/replicatedjob-name": "node"}
    return {"metadata": {"labels": labels}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("pods", "played", "expected"),
    [
        ([], set(), None),
        ([pod("a", "Running"), pod("a", "Pending")], set(), None),
        ([pod("a", "Running"), pod("a", "Running")], set(), "a"),
        ([pod("a", "Running"), pod("a", "Failed")], set(), None),
        ([pod("a", "Running")], {"a"}, None),
        ([pod("a", "Running"), pod("b", "Running")], {"a"}, "b"),
    ],
)
def test_the_clock_starts_when_all_pods_of_a_jobset_run(pods, played, expected):
    assert all_running(pods, played) == expected
