"""What happens to an object before it is validated: pruning and defaulting, as tables."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvcre_local.apiserver.schema import StructuralSchema

SCHEMA = StructuralSchema.from_crd_version(
    {
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "properties": {
                    "spec": {
                        "type": "object",
                        "properties": {
                            "name": {"type": "string"},
                            "mode": {"type": "string", "default": "fast"},
                            "maybe": {"type": "string", "nullable": True, "default": "set"},
                            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                            "items": {"type": "array", "items": {"type": "object", "properties": {
                                "id": {"type": "integer"}, "weight": {"type": "integer", "default": 1}}}},
                            "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": {
                                "closed": {"type": "object", "properties": {"a": {"type": "string"}}}}},
                            "pod": {"type": "object", "x-kubernetes-embedded-resource": True, "properties": {
                                "spec": {"type": "object"}}},
                            "outer": {"type": "object", "default": {}, "properties": {
                                "inner": {"type": "string", "default": "deep"}}},
                            "any": {"type": "object", "additionalProperties": True},
                        },
                    }
                },
            }
        }
    }
)  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "kept", "pruned"),
    [
        ({"name": "a", "x": 1}, {"name": "a"}, ["spec.x"]),
        ({"labels": {"a.b/c": "v"}}, {"labels": {"a.b/c": "v"}}, []),
        ({"items": [{"id": 1, "x": 2}, {"y": 3}]}, {"items": [{"id": 1}, {}]}, ["spec.items[0].x", "spec.items[1].y"]),
        ({"open": {"x": {"y": 1}}}, {"open": {"x": {"y": 1}}}, []),
        ({"open": {"closed": {"a": "", "b": 1}}}, {"open": {"closed": {"a": ""}}}, ["spec.open.closed.b"]),
        ({"pod": {"metadata": {"x": 1}, "z": 1}}, {"pod": {"metadata": {"x": 1}}}, ["spec.pod.z"]),
        ({"pod": {"spec": {"containers": []}}}, {"pod": {"spec": {}}}, ["spec.pod.spec.containers"]),
        ({"any": {"a": {"b": 1}, "c": 2}}, {"any": {"a": {}, "c": 2}}, ["spec.any.a.b"]),
        ("not an object", "not an object", []),
    ],
)  # fmt: skip
def test_unknown_fields_go_and_are_named(spec: Any, kept: Any, pruned: list[str]) -> None:
    obj = {"apiVersion": "v1", "kind": "K", "metadata": {"name": "n", "annotations": {"a": "b"}}, "spec": spec}

    assert SCHEMA.prune(obj) == pruned

    assert obj["spec"] == kept
    assert obj["metadata"] == {"name": "n", "annotations": {"a": "b"}}


def test_unknown_fields_beside_the_spec_go_too() -> None:
    obj = {"apiVersion": "v1", "kind": "K", "metadata": {}, "data": {}, "spec": {}}

    assert SCHEMA.prune(obj) == ["data"]
    assert "data" not in obj


DEFAULTS = {"mode": "fast", "maybe": "set", "outer": {"inner": "deep"}}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, DEFAULTS),
        ({"mode": "slow"}, {**DEFAULTS, "mode": "slow"}),
        ({"mode": None}, DEFAULTS),
        ({"maybe": None}, {**DEFAULTS, "maybe": None}),
        ({"name": None}, DEFAULTS),
        ({"labels": {"a": None}}, {"labels": {}, **DEFAULTS}),
        ({"items": [{}, None]}, {"items": [{"weight": 1}, None], **DEFAULTS}),
        ({"open": {"x": None}}, {"open": {"x": None}, **DEFAULTS}),
    ],
)  # fmt: skip
def test_defaults_come_and_meaningless_nulls_go(spec: dict[str, Any], expected: dict[str, Any]) -> None:
    obj = {"spec": spec}

    SCHEMA.default(obj)

    assert obj["spec"] == expected


def test_objects_do_not_share_a_default() -> None:
    first: dict[str, Any] = {"spec": {}}
    second: dict[str, Any] = {"spec": {}}
    SCHEMA.default(first)
    first["spec"]["outer"]["inner"] = "changed"

    SCHEMA.default(second)

    assert second["spec"]["outer"] == {"inner": "deep"}


FIELD_NAMES = st.sampled_from(["name", "mode", "labels", "items", "open", "closed", "pod", "outer", "any", "id", "x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELD_NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_whatever_comes_is_coerced_once_and_judged_without_an_exception(spec: Any) -> None:
    obj = {"apiVersion": "v1", "kind": "K", "metadata": {}, "spec": spec}
    SCHEMA.default(obj)
    SCHEMA.prune(obj)
    again = copy.deepcopy(obj)
    SCHEMA.default(again)

    assert SCHEMA.prune(again) == []
    assert again == obj
    SCHEMA.validate(obj)
    assert SCHEMA.validate(again, obj) == []
