"""How a rule sees an object."""

from typing import Any

import pytest
from nvcre_local.apiserver.schema.cel_values import escape, to_cel
from nvcre_local.apiserver.schema.node import compile_node


@pytest.mark.parametrize(
    ("name", "identifier"),
    [
        ("plain", "plain"),
        ("dash-ed", "dash__dash__ed"),
        ("a.b/c", "a__dot__b__slash__c"),
        ("namespace", "__namespace__"),
        ("in", "__in__"),
        ("a__b", "a__underscores__b"),
        ("_a", "_a"),
        ("1a", None),
        ("ä", None),
        ("", None),
    ],
)
def test_a_property_is_named_by_an_identifier(name: str, identifier: str | None) -> None:
    assert escape(name) == identifier


OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": {"known": {"type": "string"}}}
MAP = {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
       "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}}}  # fmt: skip
SET = {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}


@pytest.mark.parametrize(
    ("schema", "one", "other", "equal"),
    [
        (OPEN, {"known": "a"}, {"known": "a"}, True),
        (OPEN, {"known": "a"}, {"known": "b"}, False),
        (OPEN, {"x": 1}, {"x": 2}, False),
        (OPEN, {"x": {"y": [1]}}, {"x": {"y": [1]}}, True),
        (OPEN, {"x": 1}, {}, False),
        (OPEN, {"x": 1}, {"y": 1}, True),  # as on a real server: neither knows the other's field
        (MAP, [{"k": "a", "v": 1}, {"k": "b", "v": 2}], [{"k": "b", "v": 2}, {"k": "a", "v": 1}], True),
        (MAP, [{"k": "a", "v": 1}], [{"k": "a", "v": 2}], False),
        (SET, ["a", "b"], ["b", "a"], True),
        (SET, ["a", "b"], ["a", "c"], False),
        ({"type": "array", "items": {"type": "string"}}, ["a", "b"], ["b", "a"], False),
        ({"type": "number"}, 1, 1.0, True),
        ({"type": "string", "format": "date-time"}, "2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00", True),
        ({"type": "string", "format": "duration"}, "1m30s", "90s", True),
        ({"type": "string"}, "1m30s", "90s", False),
    ],
)
def test_two_values_compare_as_on_a_real_server(schema: dict[str, Any], one: Any, other: Any, equal: bool) -> None:
    node = compile_node(schema)

    assert (to_cel(one, node, other, ordered=False) == to_cel(other, node, one, ordered=False)) is equal
