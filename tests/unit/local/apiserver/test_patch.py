"""JSON patch and merge patch by their RFCs, with the bounds that hostile patches need."""

from typing import Any

import pytest
from nvcre_local.apiserver.patch import MalformedPatch, PatchDoesNotApply, apply_json_patch, merge


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ],
)
def test_merge_patch_is_that_of_rfc_7386(target: Any, patch: Any, expected: Any) -> None:
    assert merge(target, patch) == expected


@pytest.mark.parametrize(
    ("document", "operations", "expected"),
    [
        ({"a": 1}, [{"op": "add", "path": "/b", "value": 2}], {"a": 1, "b": 2}),
        ({"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2, 3]}),
        ({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}),
        ({"a": 1, "b": 2}, [{"op": "remove", "path": "/a"}], {"b": 2}),
        ({"a": 1}, [{"op": "replace", "path": "/a", "value": 2}], {"a": 2}),
        ({"a": [1, 2]}, [{"op": "replace", "path": "/a/0", "value": 9}], {"a": [9, 2]}),
        ({"a": 1}, [{"op": "move", "from": "/a", "path": "/b"}], {"b": 1}),
        ({"a": {"x": 1}}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": {"x": 1}, "b": {"x": 1}}),
        ({"a": 1}, [{"op": "test", "path": "/a", "value": 1}], {"a": 1}),
        ({"a/b": {"c~d": 1}}, [{"op": "replace", "path": "/a~1b/c~0d", "value": 2}], {"a/b": {"c~d": 2}}),
    ],
)
def test_json_patch_is_that_of_rfc_6902(document: Any, operations: Any, expected: Any) -> None:
    assert apply_json_patch(document, operations) == expected


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/a", "value": 2},
        {"op": "test", "path": "/a", "value": True},
        {"op": "remove", "path": "/nope"},
        {"op": "replace", "path": "/list/0", "value": 1},
        {"op": "frobnicate", "path": "/a"},
        {"op": "add", "path": "/nope/x", "value": 1},
        {"op": "add", "path": "/list/7", "value": 1},
        {"op": "move", "from": "/o", "path": "/o/p"},
    ],
)
def test_what_does_not_apply_says_so(operation: dict[str, Any]) -> None:
    with pytest.raises(PatchDoesNotApply):
        apply_json_patch({"a": 1, "list": [], "o": {}}, [operation])


@pytest.mark.parametrize(
    "operations", [{}, "x", [1], [{"op": "add", "path": "a", "value": 1}],
                   [{"op": "add", "path": "/a"}], [{"op": "remove"}], [{}] * 10_001],
)  # fmt: skip
def test_what_is_no_patch_says_so(operations: Any) -> None:
    with pytest.raises(MalformedPatch):
        apply_json_patch({"a": 1}, operations)


def test_copies_that_double_the_document_are_stopped() -> None:
    bomb = [{"op": "copy", "from": "/a", "path": "/a/-"} for _ in range(60)]
    with pytest.raises(PatchDoesNotApply, match="accumulated size"):
        apply_json_patch({"a": ["x" * 100]}, bomb)
