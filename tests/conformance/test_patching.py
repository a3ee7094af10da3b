"""Patches: merge, JSON and (core kinds) strategic merge; what does not parse, what does not apply, what is refused."""

from typing import Any

import pytest

from .place import JSON_PATCH, MERGE, STRATEGIC, Place, configmap, job, pod


def test_a_merge_patch_sets_removes_and_replaces(place: Place) -> None:
    place.create("configmaps", configmap("a", {"k": "1", "l": "2"}, labels={"x": "y"}))
    changed = place.patch("configmaps", "a", {"data": {"k": None, "m": "3"}, "metadata": {"labels": None}}).expect(200)
    assert changed["data"] == {"l": "2", "m": "3"}
    assert "labels" not in changed["metadata"]


def test_a_merge_patch_replaces_a_list(place: Place) -> None:
    place.create("jobs", job("a", finalizers=["a.b/c"]))
    changed = place.patch("jobs", "a", {"metadata": {"finalizers": ["d.e/f"]}}).expect(200)
    assert changed["metadata"]["finalizers"] == ["d.e/f"]
    assert "finalizers" not in place.patch("jobs", "a", {"metadata": {"finalizers": None}}).expect(200)["metadata"]


@pytest.mark.parametrize(("plural", "make"), [("configmaps", configmap), ("jobs", job)])
def test_a_patch_may_insist_on_a_version(place: Place, plural: str, make: Any) -> None:
    made = place.create(plural, make("a"))
    version = made["metadata"]["resourceVersion"]
    change = {"metadata": {"resourceVersion": version, "labels": {"n": "1"}}}
    assert place.patch(plural, "a", change).code == 200
    change["metadata"]["labels"] = {"n": "2"}
    assert place.patch(plural, "a", change).refusal == (409, "Conflict")


def test_a_json_patch_is_all_or_nothing(place: Place) -> None:
    place.create("configmaps", configmap("a", {"k": "1"}))
    operations = [
        {"op": "test", "path": "/data/k", "value": "1"},
        {"op": "add", "path": "/data/l", "value": "2"},
        {"op": "copy", "from": "/data/l", "path": "/data/m"},
        {"op": "move", "from": "/data/k", "path": "/data/n"},
        {"op": "replace", "path": "/data/l", "value": "3"},
        {"op": "add", "path": "/metadata/labels", "value": {"a~b/c": "d"}},
    ]
    answer = place.patch("configmaps", "a", operations, how=JSON_PATCH)
    assert answer.refusal == (422, "Invalid")  # a~b/c is no label
    operations[-1] = {"op": "add", "path": "/metadata/labels", "value": {"a.b/c": "d"}}
    changed = place.patch("configmaps", "a", operations, how=JSON_PATCH).expect(200)
    assert changed["data"] == {"l": "3", "m": "2", "n": "1"}
    missing = [{"op": "replace", "path": "/data/o", "value": "4"}]
    assert place.patch("configmaps", "a", missing, how=JSON_PATCH).expect(200)["data"]["o"] == "4"
    removed = [{"op": "remove", "path": "/metadata/labels/a.b~1c"}]
    assert "labels" not in place.patch("configmaps", "a", removed, how=JSON_PATCH).expect(200)["metadata"]


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/data/k", "value": "other"},
        {"op": "remove", "path": "/data/none"},
        {"op": "add", "path": "/none/none", "value": "x"},
        {"op": "shuffle", "path": "/data/k"},
    ],
    ids=lambda operation: f"{operation['op']} {operation['path']}",
)
def test_a_json_patch_that_does_not_apply(place: Place, operation: dict) -> None:
    place.create("configmaps", configmap("a", {"k": "1"}))
    assert place.patch("configmaps", "a", [operation], how=JSON_PATCH).refusal == (422, "Invalid")
    assert place.get("configmaps", "a").expect(200)["data"] == {"k": "1"}


@pytest.mark.parametrize(
    ("how", "patch"),
    [
        (JSON_PATCH, b"{"),
        (JSON_PATCH, b"{}"),
        (MERGE, b"{"),
        (MERGE, b"[]"),
        (MERGE, b'"x"'),
        (STRATEGIC, b"{"),
        (STRATEGIC, b"[]"),
    ],
)
def test_what_is_no_patch_is_a_bad_request(place: Place, how: str, patch: bytes) -> None:
    place.create("configmaps", configmap("a", {"k": "1"}))
    assert place.patch("configmaps", "a", patch, how=how).refusal == (400, "BadRequest")


@pytest.mark.parametrize("how", ["application/json", "text/plain", "application/yaml"])
def test_a_patch_says_which_it_is(place: Place, how: str) -> None:
    place.create("configmaps", configmap("a"))
    assert place.patch("configmaps", "a", {"data": {}}, how=how).refusal == (415, "UnsupportedMediaType")


def test_custom_kinds_have_no_strategic_merge(place: Place) -> None:
    place.create("jobs", job("a"))
    assert place.patch("jobs", "a", {}, how=STRATEGIC).refusal == (415, "UnsupportedMediaType")


def test_a_patch_of_what_is_not_there_is_not_found(place: Place) -> None:
    for plural in ("configmaps", "jobs"):
        assert place.patch(plural, "none", {}).refusal == (404, "NotFound")


def test_a_patch_cannot_change_name_or_namespace(place: Place) -> None:
    place.create("configmaps", configmap("a"))
    for change in ({"name": "b"}, {"namespace": "default"}):
        assert place.patch("configmaps", "a", {"metadata": change}).refusal == (400, "BadRequest")


def test_a_patch_that_breaks_a_rule_names_the_field(place: Place) -> None:
    place.create("jobs", job("a"))
    answer = place.patch("jobs", "a", {"spec": {"stallMultiplier": 0}})
    assert answer.refusal == (422, "Invalid")
    assert answer.causes == [("FieldValueInvalid", "spec.stallMultiplier")]
    answer = place.patch("jobs", "a", {"spec": {"workload": {"trainJob": {"runtimeRef": {"name": "other"}}}}})
    assert answer.causes == [("FieldValueInvalid", "spec.workload")]


# --- strategic merge: lists of things with a key merge entry by entry


TWO = {
    "containers": [
        {"name": "main", "image": "one", "env": [{"name": "A", "value": "1"}]},
        {"name": "side", "image": "two"},
    ]
}


def test_containers_merge_by_name(place: Place) -> None:
    place.create("pods", pod("a", TWO))
    change = {"spec": {"containers": [{"name": "side", "image": "three"}]}}
    changed = place.patch("pods", "a", change, how=STRATEGIC).expect(200)
    assert [(one["name"], one["image"]) for one in changed["spec"]["containers"]] == [
        ("main", "one"),
        ("side", "three"),
    ]


def test_conditions_merge_by_type(place: Place) -> None:
    place.create("pods", pod("a"))
    for kind, status in (("Ready", "False"), ("Initialized", "True"), ("Ready", "True")):
        change = {"status": {"conditions": [{"type": kind, "status": status}]}}
        place.patch("pods", "a", change, "status", how=STRATEGIC).expect(200)
    conditions = place.get("pods", "a").expect(200)["status"]["conditions"]
    assert {one["type"]: one["status"] for one in conditions} == {"Ready": "True", "Initialized": "True"}


def test_an_entry_is_deleted_by_its_key(place: Place) -> None:
    place.create("pods", pod("a"))
    for kind in ("Ready", "Initialized"):
        change = {"status": {"conditions": [{"type": kind, "status": "True"}]}}
        place.patch("pods", "a", change, "status", how=STRATEGIC).expect(200)
    gone = {"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}
    changed = place.patch("pods", "a", gone, "status", how=STRATEGIC).expect(200)
    assert [one["type"] for one in changed["status"]["conditions"]] == ["Initialized"]


def test_finalizers_merge_as_a_set_and_go_by_directive(place: Place) -> None:
    place.create("configmaps", configmap("a", finalizers=["a.b/one"]))
    change: dict[str, Any] = {"metadata": {"finalizers": ["a.b/two"]}}
    changed = place.patch("configmaps", "a", change, how=STRATEGIC).expect(200)
    assert sorted(changed["metadata"]["finalizers"]) == ["a.b/one", "a.b/two"]
    change = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a.b/one"]}}
    changed = place.patch("configmaps", "a", change, how=STRATEGIC).expect(200)
    assert changed["metadata"]["finalizers"] == ["a.b/two"]
    place.patch("configmaps", "a", {"metadata": {"finalizers": None}}).expect(200)


def test_a_map_is_replaced_by_directive(place: Place) -> None:
    place.create("configmaps", configmap("a", {"k": "1"}))
    changed = place.patch("configmaps", "a", {"data": {"$patch": "replace", "l": "2"}}, how=STRATEGIC).expect(200)
    assert changed["data"] == {"l": "2"}


def test_an_entry_without_its_key_is_refused(place: Place) -> None:
    place.create("pods", pod("a", TWO))
    answer = place.patch("pods", "a", {"spec": {"containers": [{"image": "x"}]}}, how=STRATEGIC)
    assert answer.code in (400, 500)


def test_a_node_is_cordoned_as_kubectl_does_it(place: Place) -> None:
    name = f"cordoned-{place.namespace}"
    place.create("nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    cordoned = place.patch("nodes", name, {"spec": {"unschedulable": True}}, how=STRATEGIC).expect(200)
    assert cordoned["spec"]["unschedulable"] is True
    assert place.names("nodes", fieldSelector="spec.unschedulable=true") == [name]
    freed = place.patch("nodes", name, {"spec": {"unschedulable": None}}, how=STRATEGIC).expect(200)
    assert "unschedulable" not in freed["spec"]
    assert name in place.names("nodes", fieldSelector="spec.unschedulable=false")
    place.delete("nodes", name).expect(200)
