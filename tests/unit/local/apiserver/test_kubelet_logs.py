"""Where a pod's log is read, and which container is meant."""

from __future__ import annotations

from typing import Any

import pytest
from nvcre_local.apiserver.errors import ApiError
from nvcre_local.apiserver.kubelet_logs import log_source, pick_container

ONE = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}}
TWO = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}, {"name": "b"}]}}


def test_the_only_container_is_meant() -> None:
    assert pick_container(ONE, "") == "main"
    assert pick_container(TWO, "b") == "b"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("", r"a container name must be specified for pod p, choose one of: \[a b\]"),
        ("c", "container c is not valid for pod p"),
    ],
)
def test_a_container_that_is_not_clear_is_a_bad_request(wanted: str, message: str) -> None:
    with pytest.raises(ApiError, match=message) as refused:
        pick_container(TWO, wanted)
    assert refused.value.code == 400


def test_the_log_is_at_the_kubelet_of_the_pods_node(world: Any) -> None:
    status = {
        "addresses": [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 4711}},
    }
    world.make("nodes", "n", {"status": status})
    world.make_pod("p", node="n")
    source = log_source(world.store, world.get("pods", "p"), {"follow": "true", "tailLines": "5", "insecure": "x"})
    assert source is not None
    assert source.url == "https://127.0.0.1:4711/containerLogs/default/p/main?follow=true&tailLines=5"


def test_a_pod_without_a_node_has_no_log_yet(world: Any) -> None:
    world.make_pod("p")
    assert log_source(world.store, world.get("pods", "p"), {}) is None


def test_a_node_that_is_gone_is_named(world: Any) -> None:
    world.make_pod("p", node="gone")
    with pytest.raises(ApiError, match='nodes "gone" not found'):
        log_source(world.store, world.get("pods", "p"), {})
