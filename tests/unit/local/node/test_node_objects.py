"""Nodes as the command line asks for them and as the API shows them; log queries."""

from datetime import UTC, datetime, timedelta

import pytest
from nvcre_local.node.log_files import LogOptions
from nvcre_local.node.log_server import log_options
from nvcre_local.node.node_objects import Host, NodeSpec, lease_object, node_object, node_status, parse_node

T = datetime(2026, 1, 1, tzinfo=UTC)
HOST = Host(cpus=4, memory_kib=1024, boot_id="boot", machine_id="machine")


@pytest.mark.parametrize(
    ("text", "expected"), [("node-0", NodeSpec("node-0", 8)), ("n=4", NodeSpec("n", 4)), ("n.x=0", NodeSpec("n.x", 0))]
)
def test_node_flag(text: str, expected: NodeSpec) -> None:
    assert parse_node(text) == expected


@pytest.mark.parametrize("text", ["", "=8", "Node", "a_b", "-a", "a-", "n=", "n=x", "n=-1", "n=65", "n=8=8"])
def test_bad_node_flags_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="node-0=8"):
        parse_node(text)


def test_a_gpu_node_carries_the_labels_that_selectors_look_for() -> None:
    labels = node_object(NodeSpec("node-0", 8, "NVIDIA H100 80GB HBM3"))["metadata"]["labels"]
    assert labels["kubernetes.io/hostname"] == "node-0"
    assert labels["nvidia.com/gpu.present"] == "true"
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert "nvidia.com/gpu.present" not in node_object(NodeSpec("cpu", 0))["metadata"]["labels"]


def test_an_api_server_finds_the_kubelet_in_the_status() -> None:
    status = node_status(NodeSpec("node-0", 8), HOST, 10250, T, ready_since=T)
    assert status["allocatable"]["nvidia.com/gpu"] == "8"
    assert {"type": "InternalIP", "address": "127.0.0.1"} in status["addresses"]
    assert status["daemonEndpoints"]["kubeletEndpoint"]["Port"] == 10250
    assert {c["type"]: c["status"] for c in status["conditions"]}["Ready"] == "True"
    assert status["nodeInfo"]["bootID"] == "boot"


def test_a_lease_ends_with_its_node() -> None:
    lease = lease_object("node-0", "uid-1", T)
    assert lease["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    assert lease["spec"]["renewTime"] == "2026-01-01T00:00:00.000000Z"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, LogOptions()),
        ({"follow": "true", "timestamps": "true"}, LogOptions(follow=True, timestamps=True)),
        ({"tailLines": "0", "limitBytes": "9"}, LogOptions(tail_lines=0, limit_bytes=9)),
        ({"sinceSeconds": "10"}, LogOptions(since=T - timedelta(seconds=10))),
        ({"sinceTime": "2026-01-01T00:00:00Z"}, LogOptions(since=T)),
    ],
)
def test_log_query(query: dict[str, str], expected: LogOptions) -> None:
    assert log_options(query, T) == expected


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"tailLines": "-1"}, "tailLines"),
        ({"limitBytes": "0"}, "limitBytes"),
        ({"sinceSeconds": "1e9"}, "sinceSeconds"),
        ({"sinceTime": "yesterday"}, "sinceTime"),
        ({"sinceTime": "2026-01-01T00:00:00Z", "sinceSeconds": "1"}, "sinceSeconds"),
        ({"tailLines": "9" * 400}, "tailLines"),
    ],
)
def test_a_bad_log_query_names_its_field(query: dict[str, str], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        log_options(query, T)
