"""What a container's process gets: arguments, environment, and what is refused."""

from pathlib import PurePath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvcre_local.node.environment import Machine, RefusedContainer, environment, expand, launch

MACHINE = Machine(path="/usr/bin", home="/root", lang="C.UTF-8")
SIMULATED = Machine(path="/usr/bin", home="/root", lang="C.UTF-8", simulation=PurePath("/sim"))


def pod(**spec: Any) -> dict[str, Any]:
    metadata = {
        "name": "p",
        "namespace": "ns",
        "uid": "u-1",
        "labels": {"team": "a"},
        "annotations": {"batch.kubernetes.io/job-completion-index": "3"},
    }
    return {"metadata": metadata, "spec": {"nodeName": "node-0", **spec}}


def container(**fields: Any) -> dict[str, Any]:
    return {"name": "c", "image": "img", "command": ["prog"], **fields}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)z", "x1y2z"),
        ("$(MISSING)", "$(MISSING)"),
        ("$$(A)", "$(A)"),
        ("$$$$", "$$"),
        ("$$$(A)", "$1"),
        ("$(A", "$(A"),
        ("$A", "$A"),
        ("cost: 5$", "cost: 5$"),
        ("$()", "$()"),
        ("$($(A))", "$($(A))"),
        ("", ""),
    ],
)
def test_references_expand_as_in_kubernetes(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expected


@given(st.text(alphabet="$()AB "))
def test_expansion_without_variables_only_halves_dollars(text: str) -> None:
    assert expand(text.replace("$", "$$"), {"A": "1"}) == text


def test_nothing_of_the_parent_passes_but_what_the_contract_names() -> None:
    assert environment(pod(), container(), pod_dir="/pods/u-1", machine=MACHINE) == {
        "PATH": "/usr/bin",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "HOSTNAME": "p",
        "NVCRE_POD_DIR": "/pods/u-1",
    }


def test_a_variable_may_use_those_before_it() -> None:
    env = [{"name": "A", "value": "$(NVCRE_POD_DIR)/a"}, {"name": "B", "value": "$(A)/b $(C)"}, {"name": "C"}]
    result = environment(pod(), container(env=env), pod_dir="/d", machine=MACHINE)
    assert (result["A"], result["B"], result["C"]) == ("/d/a", "/d/a/b $(C)", "")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "ns"),
        ("metadata.uid", "u-1"),
        ("spec.nodeName", "node-0"),
        ("status.podIP", "127.0.0.1"),
        ("status.hostIP", "127.0.0.1"),
        ("metadata.labels['team']", "a"),
        ("metadata.annotations['batch.kubernetes.io/job-completion-index']", "3"),
        ("metadata.annotations['none']", ""),
    ],
)
def test_fields_of_the_pod(path: str, expected: str) -> None:
    env = [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}]
    assert environment(pod(), container(env=env), pod_dir="/d", machine=MACHINE)["X"] == expected


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}, ["X", "secretKeyRef"]),
        ({"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "s", "key": "k"}}}]}, ["configMapKeyRef"]),
        ({"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "status.phase"}}}]}, ["X", "status.phase"]),
        ({"envFrom": [{"secretRef": {"name": "s"}}]}, ["envFrom", "secretRef"]),
        ({"command": [], "args": ["x"]}, ["no command", "'img'", "spec.trainer.command"]),
        ({"command": ["a\0b"]}, ["NUL"]),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(fields: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(RefusedContainer) as refusal:
        launch(pod(), container(**fields), pod_dir="/d", machine=MACHINE)
    assert all(word in str(refusal.value) for word in ["'c'", *words])


def test_an_optional_reference_counts_as_absent() -> None:
    env = [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}}]
    given_ = container(env=env, envFrom=[{"configMapRef": {"name": "m", "optional": True}}])
    assert "X" not in environment(pod(), given_, pod_dir="/d", machine=MACHINE)


def test_in_a_scenario_its_programs_come_first_whatever_path_the_container_sets() -> None:
    own = container(env=[{"name": "PATH", "value": "/own:$(PATH)"}])
    result = environment(pod(), own, pod_dir="/d", machine=SIMULATED)
    assert result["PATH"] == "/sim/bin:/own:/usr/bin"
    assert (result["NVCRE_SIMULATION"], result["NVCRE_NODE_NAME"], result["NVCRE_POD_NAME"]) == ("/sim", "node-0", "p")


def test_command_and_args_are_expanded_and_the_pod_directory_is_where_it_runs() -> None:
    started = launch(pod(), container(args=["--dir=$(NVCRE_POD_DIR)/volumes/v"]), pod_dir="/d", machine=MACHINE)
    assert started.argv == ("prog", "--dir=/d/volumes/v")
    assert started.working_dir == "/d"
