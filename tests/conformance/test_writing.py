"""Create and update: names, versions, identity, generations, what is carried over and what is refused."""

import pytest

from .place import Place, configmap, job, pod

KINDS = pytest.mark.parametrize(("plural", "make"), [("configmaps", configmap), ("jobs", job), ("pods", pod)])

RULES_NOT_CHECKED = ("FieldValueInvalid", "<nil>")
"""Beside a coarse fault of a custom object."""


@KINDS
def test_the_server_fills_in_identity(place: Place, plural: str, make: type) -> None:
    made = place.create(plural, make("a", labels={"k": "v"}, annotations={"n": "w"}))["metadata"]
    assert (made["name"], made["namespace"], made["labels"], made["annotations"]) == (
        "a",
        place.namespace,
        {"k": "v"},
        {"n": "w"},
    )
    assert made["uid"]
    assert made["creationTimestamp"].endswith("Z")
    assert int(made["resourceVersion"]) > 0


@KINDS
def test_what_a_client_may_not_choose_is_ours(place: Place, plural: str, make: type) -> None:
    chosen = {"uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z"}
    chosen |= {"deletionTimestamp": "2001-01-01T00:00:00Z", "deletionGracePeriodSeconds": 7}
    made = place.create(plural, make("a", **chosen))["metadata"]
    assert made["uid"] != "mine"
    assert not made["creationTimestamp"].startswith("2001")
    assert "deletionTimestamp" not in made


@KINDS
def test_a_name_is_taken_once(place: Place, plural: str, make: type) -> None:
    place.create(plural, make("a"))
    again = place.post(plural, make("a"))
    assert again.refusal == (409, "AlreadyExists")
    assert again.body["details"]["name"] == "a"
    assert '"a" already exists' in again.body["message"]


@KINDS
def test_a_generated_name_has_five_letters_more(place: Place, plural: str, make: type) -> None:
    body = make("a")
    body["metadata"] = {"generateName": "run-"}
    names = {place.create(plural, body)["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("run-") and len(name) == 9 for name in names)


def test_a_long_prefix_of_a_generated_name_is_cut(place: Place) -> None:
    body = configmap("")
    body["metadata"] = {"generateName": "x" * 100}
    assert len(place.create("configmaps", body)["metadata"]["name"]) == 63


@KINDS
def test_a_version_on_a_new_object_is_refused(place: Place, plural: str, make: type) -> None:
    assert place.post(plural, make("a", resourceVersion="1")).code in (400, 500)


@KINDS
@pytest.mark.parametrize(
    ("metadata", "causes"),
    [
        ({"name": "UPPER"}, [("FieldValueInvalid", "metadata.name")]),
        ({"name": "a/b"}, [("FieldValueInvalid", "metadata.name")]),
        ({"name": "x" * 254}, [("FieldValueInvalid", "metadata.name")]),
        ({}, [("FieldValueRequired", "metadata.name")]),
        ({"name": "a", "labels": {"a b": "x"}}, [("FieldValueInvalid", "metadata.labels")]),
        ({"name": "a", "labels": {"a": "x y"}}, [("FieldValueInvalid", "metadata.labels")]),
        ({"name": "a", "labels": {"a": "x" * 64}}, [("FieldValueInvalid", "metadata.labels")]),
        ({"name": "a", "annotations": {"a b": "x"}}, [("FieldValueInvalid", "metadata.annotations")]),
        ({"name": "a", "annotations": {"a": "x" * 262144}}, [("FieldValueTooLong", "metadata.annotations")]),
        ({"name": "a", "finalizers": ["a b/c"]}, [("FieldValueInvalid", "metadata.finalizers")]),
        (
            {"name": "a", "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": ""}]},
            [("FieldValueInvalid", "metadata.ownerReferences.uid")],
        ),
        (
            {"name": "a", "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "", "uid": "u"}]},
            [("FieldValueInvalid", "metadata.ownerReferences.name")],
        ),
        (
            {
                "name": "a",
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": name, "controller": True}
                    for name in ("o", "p")
                ],
            },
            [("FieldValueInvalid", "metadata.ownerReferences")],
        ),
    ],
    ids=lambda value: str(value)[:50] if isinstance(value, dict) else "",
)
def test_metadata_has_rules(
    place: Place, plural: str, make: type, metadata: dict, causes: list[tuple[str, str]]
) -> None:
    body = make("")
    body["metadata"] = metadata
    answer = place.post(plural, body)
    assert answer.refusal == (422, "Invalid")
    assert [cause for cause in answer.causes if cause != RULES_NOT_CHECKED] == causes


@KINDS
def test_an_update_needs_the_newest_version(place: Place, plural: str, make: type) -> None:
    old = place.create(plural, make("a"))
    new = place.put(plural, {**old, "metadata": {**old["metadata"], "labels": {"n": "1"}}}).expect(200)
    assert int(new["metadata"]["resourceVersion"]) > int(old["metadata"]["resourceVersion"])

    late = place.put(plural, {**old, "metadata": {**old["metadata"], "labels": {"n": "2"}}})

    assert late.refusal == (409, "Conflict")
    assert late.body["details"]["name"] == "a"
    assert "the object has been modified" in late.body["message"]


def test_an_update_without_a_version_overwrites_a_core_kind(place: Place) -> None:
    place.create("configmaps", configmap("a", {"k": "1"}))
    assert place.put("configmaps", configmap("a", {"k": "2"})).expect(200)["data"] == {"k": "2"}


def test_an_update_without_a_version_is_refused_for_a_custom_kind(place: Place) -> None:
    place.create("jobs", job("a"))
    answer = place.put("jobs", job("a"))
    assert answer.refusal == (422, "Invalid")
    assert answer.causes == [("FieldValueInvalid", "metadata.resourceVersion")]


@KINDS
def test_an_update_of_another_object_of_that_name_is_refused(place: Place, plural: str, make: type) -> None:
    old = place.create(plural, make("a"))
    answer = place.put(plural, {**old, "metadata": {**old["metadata"], "uid": "another"}})
    assert answer.refusal == (409, "Conflict")
    assert "Precondition failed: UID in precondition: another" in answer.body["message"]


@KINDS
def test_an_update_of_what_is_not_there_is_not_found(place: Place, plural: str, make: type) -> None:
    answer = place.put(plural, make("none", resourceVersion="1"))
    assert answer.refusal == (404, "NotFound")
    assert answer.body["details"]["name"] == "none"


@KINDS
def test_an_update_that_changes_nothing_makes_no_version(place: Place, plural: str, make: type) -> None:
    old = place.create(plural, make("a"))
    assert place.put(plural, old).expect(200) == old


@KINDS
def test_identity_survives_an_update(place: Place, plural: str, make: type) -> None:
    old = place.create(plural, make("a"))
    chosen = {"creationTimestamp": "2001-01-01T00:00:00Z", "labels": {"n": "1"}, "generation": 9}
    new = place.put(plural, {**old, "metadata": {**old["metadata"], **chosen}}).expect(200)
    for field in ("uid", "creationTimestamp", "generation"):
        assert new["metadata"].get(field) == old["metadata"].get(field)


@KINDS
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "b"}, "the name of the object (b) does not match the name on the URL (a)"),
        ({"namespace": "other"}, "the namespace of the provided object does not match the namespace sent on the reque"),
    ],
)
def test_the_body_agrees_with_the_url(place: Place, plural: str, make: type, change: dict, says: str) -> None:
    old = place.create(plural, make("a"))
    body = {**old, "metadata": {**old["metadata"], **change}}
    answer = place.server.request("PUT", place.path(plural, "a"), body)
    assert answer.refusal == (400, "BadRequest")
    assert says in answer.body["message"]


@KINDS
def test_the_body_is_of_the_version_in_the_url(place: Place, plural: str, make: type) -> None:
    assert place.post(plural, {**make("a"), "apiVersion": "v7"}).refusal == (400, "BadRequest")


def test_the_body_is_of_the_kind_in_the_url(place: Place) -> None:
    assert place.post("configmaps", {**configmap("a"), "kind": "Other"}).refusal == (400, "BadRequest")
    answer = place.post("jobs", {**job("a"), "kind": "Other"})
    assert answer.refusal == (422, "Invalid")
    assert answer.causes == [("FieldValueInvalid", "kind")]


def test_a_namespace_that_is_not_there_takes_nothing(place: Place) -> None:
    nowhere = Place(place.server, "nowhere")
    for plural, body in (("configmaps", configmap("a")), ("jobs", job("a"))):
        answer = nowhere.post(plural, body)
        assert answer.refusal == (404, "NotFound")
        assert answer.body["details"] == {"name": "nowhere", "kind": "namespaces"}


# --- generations


def test_the_generation_of_a_custom_object_counts_changes_of_its_spec(place: Place) -> None:
    made = place.create("jobs", job("a"))
    assert made["metadata"]["generation"] == 1
    labelled = place.patch("jobs", "a", {"metadata": {"labels": {"a": "b"}}}).expect(200)
    assert labelled["metadata"]["generation"] == 1
    with_status = place.patch("jobs", "a", {"status": {"restartCount": 1}}, "status").expect(200)
    assert with_status["metadata"]["generation"] == 1
    changed = place.patch("jobs", "a", {"spec": {"stallMultiplier": 7}}).expect(200)
    assert changed["metadata"]["generation"] == 2
    again = place.patch("jobs", "a", {"spec": {"stallMultiplier": 7}}).expect(200)
    assert again["metadata"]["generation"] == 2


def test_a_config_map_has_no_generation(place: Place) -> None:
    assert "generation" not in place.create("configmaps", configmap("a"))["metadata"]


# --- the status is a resource of its own


def test_the_status_of_a_new_object_is_ignored(place: Place) -> None:
    assert "status" not in place.create("jobs", {**job("a"), "status": {"restartCount": 3}})
    phase = place.create("pods", {**pod("a"), "status": {"phase": "Failed", "podIP": "10.0.0.1"}})["status"]
    assert phase["phase"] == "Pending"
    assert "podIP" not in phase


@pytest.mark.parametrize(
    ("plural", "make", "status"), [("jobs", job, {"restartCount": 3}), ("pods", pod, {"phase": "Failed"})]
)
def test_the_status_is_ignored_beside_the_object_and_the_object_beside_the_status(
    place: Place, plural: str, make: type, status: dict
) -> None:
    field = next(iter(status))
    old = place.create(plural, make("a"))

    new = place.put(plural, {**old, "status": status}).expect(200)
    assert new.get("status", {}).get(field) == old.get("status", {}).get(field)
    new = place.patch(plural, "a", {"status": status}).expect(200)
    assert new.get("status", {}).get(field) == old.get("status", {}).get(field)

    spec = {"stallMultiplier": 9} if plural == "jobs" else {"activeDeadlineSeconds": 9}
    body = {**old, "spec": {**old["spec"], **spec}, "status": status}
    new = place.put(plural, body, "status").expect(200)
    assert new["status"][field] == status[field]
    assert new["spec"] == old["spec"]
    new = place.patch(plural, "a", {"spec": spec, "metadata": {"labels": None}}, "status").expect(200)
    assert new["spec"] == old["spec"]
    assert new["status"][field] == status[field]


def test_labels_of_a_custom_object_do_not_change_with_its_status(place: Place) -> None:
    old = place.create("jobs", job("a", labels={"k": "v"}))
    body = {**old, "metadata": {**old["metadata"], "labels": {"k": "w"}}, "status": {"restartCount": 1}}
    assert place.put("jobs", body, "status").expect(200)["metadata"]["labels"] == {"k": "v"}
    assert place.get("jobs", "a", "status").expect(200)["status"]["restartCount"] == 1


def test_a_status_has_versions_too(place: Place) -> None:
    old = place.create("jobs", job("a"))
    place.put("jobs", {**old, "status": {"restartCount": 1}}, "status").expect(200)
    assert place.put("jobs", {**old, "status": {"restartCount": 2}}, "status").refusal == (409, "Conflict")


def test_a_wrong_status_is_refused_with_its_field(place: Place) -> None:
    old = place.create("jobs", job("a"))
    answer = place.put("jobs", {**old, "status": {"restartCount": "many"}}, "status")
    assert answer.refusal == (422, "Invalid")
    assert answer.causes == [
        ("FieldValueInvalid", "<nil>"),
        ("FieldValueTypeInvalid", "status.restartCount"),
    ]
    (message,) = (c["message"] for c in answer.body["details"]["causes"] if c["field"] == "status.restartCount")
    assert message == 'Invalid value: "string": restartCount in body must be of type integer: "string"'


def test_a_kind_without_status_has_no_such_path(place: Place) -> None:
    place.create("configmaps", configmap("a"))
    assert place.get("configmaps", "a", "status").refusal == (404, "NotFound")


# --- dry runs


@KINDS
def test_a_dry_run_answers_and_changes_nothing(place: Place, plural: str, make: type) -> None:
    made = place.post(plural, make("a"), dryRun="All").expect(201)
    assert made["metadata"]["uid"]
    assert place.get(plural, "a").code == 404
    assert place.post(plural, make("UPPER"), dryRun="All").refusal == (422, "Invalid")

    old = place.create(plural, make("a"))
    label = {"metadata": {"labels": {"dry": "run"}}}
    assert place.patch(plural, "a", label, dryRun="All").expect(200)["metadata"]["labels"] == {"dry": "run"}
    assert place.put(plural, {**old, "metadata": {**old["metadata"], **label["metadata"]}}, dryRun="All").code == 200
    assert place.delete(plural, "a", dryRun="All").code == 200
    assert place.get(plural, "a").expect(200) == old


def test_a_dry_run_of_something_else_is_refused(place: Place) -> None:
    answer = place.post("configmaps", configmap("a"), dryRun="Some")
    assert answer.refusal == (422, "Invalid")
    assert answer.causes == [("FieldValueNotSupported", "dryRun")]
