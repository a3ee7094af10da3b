"""What `kubectl get` prints."""

from datetime import UTC, datetime
from typing import Any

import pytest
from nvcre_local.apiserver import jsonpath
from nvcre_local.apiserver.ages import human_duration
from nvcre_local.apiserver.printers import pod_state
from nvcre_local.apiserver.tables import table

NOW = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
CREATED = "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"), (0, "0s"), (119, "119s"), (120, "2m"), (150, "2m30s"), (599, "9m59s"), (600, "10m"),
        (3 * 3600 - 1, "179m"), (3 * 3600, "3h"), (3 * 3600 + 60, "3h1m"), (8 * 3600, "8h"), (48 * 3600, "2d"),
        (50 * 3600, "2d2h"), (8 * 86400, "8d"), (800 * 86400, "2y70d"), (9 * 365 * 86400, "9y"),
    ],
)  # fmt: skip
def test_ages_are_those_of_kubectl(seconds: int, text: str) -> None:
    assert human_duration(seconds) == text


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".spec.size", [3]),
        ("{.spec.size}", [3]),
        (".spec.items[0].name", ["a"]),
        (".spec.items[-1].name", ["b"]),
        (".spec.items[*].name", ["a", "b"]),
        ('.spec.items[?(@.name=="b")].value', [2]),
        (".spec.items[?(@.name!='b')].value", [1]),
        (".spec['dotted.key']", ["x"]),
        (r".spec.dotted\.key", ["x"]),
        (".spec.missing", []),
        (".spec.items[9]", []),
        (".spec.items[?(@.deep.er==1)]", []),
        ("..size", []),
        (".spec[", []),
    ],
)
def test_json_paths(path: str, found: list[Any]) -> None:
    body = {"spec": {"size": 3, "dotted.key": "x", "items": [{"name": "a", "value": 1}, {"name": "b", "value": 2}]}}
    assert jsonpath.find(body, path) == found


def test_a_custom_kind_has_the_columns_of_its_definition(world: Any) -> None:
    widget = world.make("widgets", "w", {"spec": {"size": 7}})
    widget = {**widget, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    found = table(world.of("widgets"), [widget], NOW, include="None", metadata={})
    assert [column["name"] for column in found["columnDefinitions"]] == ["Name", "Size", "Ready"]
    assert found["rows"] == [{"cells": ["w", 7, "True"]}]


def test_a_row_carries_the_metadata_or_the_object(world: Any) -> None:
    widget = world.make("widgets", "w")
    (row,) = table(world.of("widgets"), [widget], NOW, include="Metadata", metadata={})["rows"]
    assert row["object"]["kind"] == "PartialObjectMetadata"
    (row,) = table(world.of("widgets"), [widget], NOW, include="Object", metadata={})["rows"]
    assert row["object"] == widget


def test_a_pods_row(world: Any) -> None:
    pod = {
        "metadata": {"name": "p", "creationTimestamp": CREATED},
        "spec": {"containers": [{}, {}], "nodeName": "n"},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"ready": True, "restartCount": 2, "state": {"running": {}}}, {"ready": False}],
        },
    }
    (row,) = table(world.of("pods"), [pod], NOW, include="None", metadata={})["rows"]
    assert row["cells"] == ["p", "1/2", "Running", "2", "5m", "<none>", "n", "<none>", "<none>"]


@pytest.mark.parametrize(
    ("pod", "state"),
    [
        ({"status": {"phase": "Pending"}}, "Pending"),
        ({"status": {"phase": "Failed", "reason": "Evicted"}}, "Evicted"),
        ({"status": {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {"reason": "Completed"}}}]}},
         "Completed"),
        ({"status": {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 3}}}]}},
         "ExitCode:3"),
        ({"status": {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"signal": 9}}}]}}, "Signal:9"),
        ({"status": {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]}},
         "ErrImagePull"),
        ({"metadata": {"deletionTimestamp": CREATED}, "status": {"phase": "Running"}}, "Terminating"),
    ],
)  # fmt: skip
def test_the_status_column_of_a_pod(pod: dict[str, Any], state: str) -> None:
    assert pod_state({"metadata": {}, **pod}) == state


def test_a_cordoned_nodes_row(world: Any) -> None:
    node = {
        "metadata": {"name": "n", "creationTimestamp": CREATED, "labels": {"node-role.kubernetes.io/gpu": ""}},
        "spec": {"unschedulable": True},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1"}},
    }
    (row,) = table(world.of("nodes"), [node], NOW, include="None", metadata={})["rows"]
    assert row["cells"][:5] == ["n", "Ready,SchedulingDisabled", "gpu", "5m", "v1"]


def test_an_events_row(world: Any) -> None:
    event = {
        "metadata": {"name": "e", "creationTimestamp": CREATED},
        "lastTimestamp": "2026-01-01T00:04:00Z",
        "type": "Warning",
        "reason": "Broken",
        "involvedObject": {"kind": "Job", "name": "j"},
        "message": "gpu 5 \n",
    }
    (row,) = table(world.of("events"), [event], NOW, include="None", metadata={})["rows"]
    assert row["cells"][:4] == ["60s", "Warning", "Broken", "job/j"]
    assert row["cells"][6:] == ["gpu 5", "<unknown>", 1, "e"]
