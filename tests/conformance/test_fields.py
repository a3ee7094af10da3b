"""Unknown fields, duplicate keys, defaults, pruning; and every form in which a body may come."""

from typing import Any

import pytest

from .place import Place, configmap, job, pod

YAML = "application/yaml"


def with_unknown(name: str) -> dict[str, Any]:
    body = job(name, {"bogus": 1})
    body["metadata"]["bogus"] = 2
    body["extra"] = 3
    return body


def test_strict_refuses_what_it_does_not_know(place: Place) -> None:
    answer = place.post("jobs", with_unknown("a"), fieldValidation="Strict")
    assert answer.refusal == (400, "BadRequest")
    for path in ("spec.bogus", "metadata.bogus", "extra"):
        assert f'unknown field "{path}"' in answer.body["message"]
    assert "strict decoding error" in answer.body["message"]
    assert place.get("jobs", "a").code == 404


def test_warn_is_the_default_and_prunes(place: Place) -> None:
    answer = place.post("jobs", with_unknown("a"))
    made = answer.expect(201)
    assert "bogus" not in made["spec"]
    assert "bogus" not in made["metadata"]
    assert "extra" not in made
    assert '299 - "unknown field \\"' in answer.headers["Warning"]


def test_ignore_says_nothing(place: Place) -> None:
    answer = place.post("jobs", with_unknown("a"), fieldValidation="Ignore")
    assert "bogus" not in answer.expect(201)["spec"]
    assert "Warning" not in answer.headers


def test_another_level_is_refused(place: Place) -> None:
    answer = place.post("jobs", job("a"), fieldValidation="Sometimes")
    assert answer.refusal == (422, "Invalid")
    assert answer.causes == [("FieldValueNotSupported", "fieldValidation")]


def test_strict_updates_and_patches_too(place: Place) -> None:
    made = place.create("jobs", job("a"))
    body = {**made, "spec": {**made["spec"], "bogus": 1}}
    assert place.put("jobs", body, fieldValidation="Strict").refusal == (400, "BadRequest")
    answer = place.patch("jobs", "a", {"spec": {"bogus": 1}}, fieldValidation="Strict")
    assert answer.code in (400, 422)
    assert 'unknown field "spec.bogus"' in answer.body["message"]
    assert place.patch("jobs", "a", {"spec": {"stallMultiplier": 4}}, fieldValidation="Strict").code == 200


DUPLICATE = (
    b'{"apiVersion":"nvcre.nvidia.com/v1alpha1","kind":"Job","metadata":{"name":"a"},"spec":{"stallMultiplier":4,'
    b'"stallMultiplier":5,"workload":{"trainJob":{"runtimeRef":{"name":"n"}}}}}'
)
DUPLICATE_YAML = b"""
apiVersion: v1
kind: ConfigMap
metadata: {name: a}
data: {k: "1"}
data: {k: "2"}
"""


def test_strict_refuses_a_key_given_twice(place: Place) -> None:
    answer = place.post("jobs", DUPLICATE, fieldValidation="Strict")
    assert answer.refusal == (400, "BadRequest")
    assert 'duplicate field "spec.stallMultiplier"' in answer.body["message"]
    answer = place.server.request(
        "POST", place.path("configmaps"), DUPLICATE_YAML, content_type=YAML, query={"fieldValidation": "Strict"}
    )
    assert answer.refusal == (400, "BadRequest")
    assert 'key "data" already set in map' in answer.body["message"]


def test_of_a_key_given_twice_the_last_counts_and_a_warning_says_so(place: Place) -> None:
    answer = place.post("jobs", DUPLICATE)
    assert answer.expect(201)["spec"]["stallMultiplier"] == 5
    assert 'duplicate field \\"spec.stallMultiplier\\"' in answer.headers["Warning"]


def test_core_kinds_are_strict_in_their_metadata(place: Place) -> None:
    body = configmap("a", bogus=1)
    answer = place.post("configmaps", body, fieldValidation="Strict")
    assert answer.refusal == (400, "BadRequest")
    assert 'unknown field "metadata.bogus"' in answer.body["message"]
    assert place.post("configmaps", body).code == 201


def test_defaults_of_the_schema_are_filled_in_and_kept(place: Place) -> None:
    monitor = {"agent": {}}
    made = place.create("jobs", job("a", {"nodeHealthMonitor": monitor}))
    assert made["spec"]["nodeHealthMonitor"]["agent"] == {"mode": "Blame"}
    assert place.get("jobs", "a").expect(200)["spec"] == made["spec"]


def test_null_is_absent(place: Place) -> None:
    made = place.create("jobs", job("a", {"nodeHealthMonitor": {"agent": {"mode": None}}, "thresholds": None}))
    assert made["spec"]["nodeHealthMonitor"]["agent"] == {"mode": "Blame"}
    assert "thresholds" not in made["spec"]
    made = place.create("configmaps", {**configmap("a"), "data": None})
    assert "data" not in made


def test_unknown_fields_of_a_workload_are_kept(place: Place) -> None:
    workload = {"trainJob": {"runtimeRef": {"name": "n"}, "later": {"x": [1, {"y": None}]}}}
    made = place.create("jobs", job("a", {"workload": workload}))
    assert made["spec"]["workload"]["trainJob"]["later"] == {"x": [1, {"y": None}]}


def test_an_empty_workload_is_refused_with_its_field(place: Place) -> None:
    answer = place.post("jobs", job("a", {"workload": {}}))
    assert answer.refusal == (422, "Invalid")
    assert answer.causes == [("FieldValueInvalid", "spec.workload")]


# --- forms of a body


def test_a_body_may_be_yaml(place: Place) -> None:
    text = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {day: 2026-01-01}\n"
    made = place.server.request("POST", place.path("configmaps"), text, content_type=YAML).expect(201)
    assert made["data"] == {"day": "2026-01-01"}


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"{", "application/json"),
        (b"", "application/json"),
        (b"[]", "application/json"),
        (b'"x"', "application/json"),
        (b"\xff\xfe", "application/json"),
        (b"a: [", YAML),
        (b"- x", YAML),
    ],
)
def test_what_cannot_be_read_is_a_bad_request(place: Place, body: bytes, content_type: str) -> None:
    for plural in ("configmaps", "jobs"):
        answer = place.server.request("POST", place.path(plural), body, content_type=content_type)
        assert answer.refusal == (400, "BadRequest")


@pytest.mark.parametrize("body", [{"kind": "Job"}, {"apiVersion": "nvcre.nvidia.com/v1alpha1"}])
def test_a_custom_object_says_what_it_is(place: Place, body: dict) -> None:
    assert place.post("jobs", {**body, "metadata": {"name": "a"}}).refusal == (400, "BadRequest")


@pytest.mark.parametrize("content_type", ["text/plain", "application/xml"])
def test_another_form_is_not_taken(place: Place, content_type: str) -> None:
    answer = place.server.request("POST", place.path("configmaps"), b"{}", content_type=content_type)
    assert answer.refusal == (415, "UnsupportedMediaType")


def test_a_body_of_more_than_three_mebibytes_is_not_taken(place: Place) -> None:
    body = configmap("a", {"k": "x" * (3 * 1024 * 1024)})
    assert place.post("configmaps", body).refusal == (413, "RequestEntityTooLarge")


@pytest.mark.parametrize("make", [configmap, job, pod])
def test_labels_of_a_wrong_type_are_a_bad_request(place: Place, make: Any) -> None:
    plural = {"ConfigMap": "configmaps", "Job": "jobs", "Pod": "pods"}[make("a")["kind"]]
    assert place.post(plural, make("a", labels={"k": 1})).refusal == (400, "BadRequest")
    assert place.post(plural, make("a", labels=["k"])).refusal == (400, "BadRequest")
