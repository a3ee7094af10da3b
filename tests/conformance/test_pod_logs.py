"""Logs of pods that our kubelet runs, read through the API server with the options that people and we use."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from .place import Place, configmap, pod
from .starting import wait_for

pytestmark = pytest.mark.usefixtures("kubelets")

COUNT = "for i in 1 2 3; do echo line $i; done"


def container(name: str, script: str) -> dict[str, Any]:
    return {"name": name, "image": "none", "command": ["sh", "-c", script]}


def run(place: Place, *containers: dict[str, Any], name: str = "p", **spec: Any) -> None:
    place.create("pods", pod(name, {"nodeName": "node-0", "containers": list(containers), **spec}))


def ended(place: Place, name: str = "p") -> bool:
    return place.get("pods", name).expect(200)["status"]["phase"] in ("Succeeded", "Failed")


def finished(place: Place, *containers: dict[str, Any], **spec: Any) -> None:
    run(place, *containers, **spec)
    wait_for("the pod to end", lambda: ended(place))


def log(place: Place, name: str = "p", **options: Any) -> str:
    found = place.get("pods", name, "log", **options)
    assert found.code == 200, found.body
    return str(found.body)


def test_the_log_of_a_finished_pod_with_its_options(place: Place) -> None:
    finished(place, container("main", COUNT))
    assert log(place) == "line 1\nline 2\nline 3\n"
    assert log(place, container="main") == "line 1\nline 2\nline 3\n"
    assert log(place, tailLines=1) == "line 3\n"
    assert log(place, tailLines=0) == ""
    assert log(place, limitBytes=8) == "line 1\nl"
    assert log(place, follow="true") == "line 1\nline 2\nline 3\n"
    assert log(place, sinceSeconds=3600) == "line 1\nline 2\nline 3\n"
    assert log(place, sinceTime="2001-01-01T00:00:00Z") == "line 1\nline 2\nline 3\n"
    assert log(place, sinceTime="2101-01-01T00:00:00Z") == ""


def test_every_line_has_its_time(place: Place) -> None:
    finished(place, container("main", COUNT))
    lines = [line.split(" ", 1) for line in log(place, timestamps="true").splitlines()]
    assert [text for _, text in lines] == ["line 1", "line 2", "line 3"]
    times = [datetime.fromisoformat(stamp) for stamp, _ in lines]
    assert times == sorted(times)


def test_a_log_is_followed_to_its_end(place: Place) -> None:
    until_told = "echo first; while [ ! -e $NVCRE_POD_DIR/volumes/go/now ]; do sleep 0.1; done; echo last"
    volume = {"name": "go", "configMap": {"name": "go", "optional": True}}
    run(place, container("main", until_told), volumes=[volume])
    wait_for("the first line", lambda: place.get("pods", "p", "log").body == "first\n")
    with place.server.stream(place.path("pods", "p", "log"), {"follow": "true"}) as lines:
        assert lines.readline() == b"first\n"
        place.create("configmaps", configmap("go", {"now": ""}))
        assert lines.readline() == b"last\n"
        assert lines.readline() == b""


def test_of_several_containers_one_is_named(place: Place) -> None:
    finished(place, container("main", "echo m"), container("side", "echo s"))
    answer = place.get("pods", "p", "log")
    assert answer.refusal == (400, "BadRequest")
    assert "a container name must be specified for pod p, choose one of: [main side]" in answer.body["message"]
    assert log(place, container="side") == "s\n"
    answer = place.get("pods", "p", "log", container="none")
    assert answer.refusal == (400, "BadRequest")
    assert "container none is not valid for pod p" in answer.body["message"]


def test_the_one_container_is_meant_beside_init_containers(place: Place) -> None:
    finished(place, container("main", "echo m"), initContainers=[container("before", "echo b")])
    assert log(place) == "m\n"
    assert log(place, container="before") == "b\n"


def test_there_is_no_previous_log_of_a_container_that_ran_once(place: Place) -> None:
    finished(place, container("main", COUNT))
    answer = place.get("pods", "p", "log", previous="true")
    assert answer.refusal == (400, "BadRequest")
    assert "previous terminated container" in answer.body["message"]


def test_the_previous_log_of_a_container_that_restarted(place: Place) -> None:
    run(place, container("main", "echo run; exit 1"), restartPolicy="OnFailure")
    wait_for(
        "a restart",
        lambda: any(
            status["restartCount"] for status in place.get("pods", "p").body["status"].get("containerStatuses", [])
        ),
    )
    assert log(place, previous="true") == "run\n"
    place.delete("pods", "p", {"gracePeriodSeconds": 0}).expect(200)


@pytest.mark.parametrize(
    ("options", "causes"),
    [
        ({"tailLines": -1}, [("FieldValueInvalid", "tailLines")]),
        ({"limitBytes": 0}, [("FieldValueInvalid", "limitBytes")]),
        ({"sinceSeconds": 0}, [("FieldValueInvalid", "sinceSeconds")]),
        ({"sinceSeconds": 1, "sinceTime": "2001-01-01T00:00:00Z"}, [("FieldValueForbidden", "[]")]),
    ],
    ids=str,
)
def test_options_have_rules(place: Place, options: dict, causes: list) -> None:
    place.create("pods", pod("p"))
    answer = place.get("pods", "p", "log", **options)
    assert answer.refusal == (422, "Invalid")
    assert answer.causes == causes


@pytest.mark.parametrize("options", [{"tailLines": "x"}, {"sinceTime": "yesterday"}, {"limitBytes": "1.5"}], ids=str)
def test_options_that_cannot_be_read_are_a_bad_request(place: Place, options: dict) -> None:
    place.create("pods", pod("p"))
    assert place.get("pods", "p", "log", **options).refusal == (400, "BadRequest")


def test_a_pod_without_a_node_has_an_empty_log(place: Place) -> None:
    place.create("pods", pod("p"))
    answer = place.get("pods", "p", "log")
    assert (answer.code, answer.body) == (204, "")


def test_a_pod_that_is_not_there_has_none(place: Place) -> None:
    assert place.get("pods", "none", "log").refusal == (404, "NotFound")
