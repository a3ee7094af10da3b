"""Create, update, patch: what the server adds, keeps, refuses, and how it says so."""

from __future__ import annotations

from typing import Any

import pytest
from nvcre_local.apiserver.errors import ApiError
from nvcre_local.apiserver.operations import FieldValidation, WriteOptions
from nvcre_local.apiserver.patch import merge
from nvcre_local.apiserver.views import shown

STRICT = WriteOptions(field_validation=FieldValidation.STRICT)


C = {"name": "c", "image": "x"}


def widget(name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, **more}


def update(world: Any, body: dict[str, Any], **options: Any) -> dict[str, Any]:
    plural = f"{body['kind'].lower()}s"
    return world.operations.update(world.of(plural), "default", body["metadata"]["name"], body, **options).body


def patch(world: Any, plural: str, name: str, change: dict[str, Any], **options: Any) -> Any:
    return world.operations.patch(world.of(plural), "default", name, lambda body: merge(body, change), **options)


# --- create


def test_a_new_object_gets_its_identity_and_defaults(world: Any) -> None:
    body = world.make("widgets", "w", {"spec": {"color": "red"}, "status": {"ready": True}})
    assert body["metadata"] == {
        "name": "w",
        "namespace": "default",
        "uid": body["metadata"]["uid"],
        "creationTimestamp": "2026-01-02T03:04:05Z",
        "generation": 1,
        "resourceVersion": str(world.store.version),
    }
    assert body["spec"] == {"color": "red", "size": 1}
    assert "status" not in body


def test_generate_name_adds_a_suffix(world: Any) -> None:
    body = {**widget("")}
    body["metadata"] = {"generateName": "run-"}
    assert world.operations.create(world.of("widgets"), "default", body).body["metadata"]["name"] == "run-x1"


def test_identity_cannot_be_chosen(world: Any) -> None:
    body = world.make("widgets", "w", uid="mine", creationTimestamp="1999-01-01T00:00:00Z", generation=7)
    assert body["metadata"]["uid"] != "mine"
    assert body["metadata"]["generation"] == 1


def test_a_name_is_taken_once(world: Any) -> None:
    world.make("widgets", "w")
    with pytest.raises(ApiError) as refused:
        world.make("widgets", "w")
    assert refused.value.status() == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'widgets.example.com "w" already exists',
        "reason": "AlreadyExists",
        "details": {"name": "w", "group": "example.com", "kind": "widgets"},
        "code": 409,
    }


def test_a_broken_rule_of_the_schema_is_named_with_its_field(world: Any) -> None:
    with pytest.raises(ApiError) as refused:
        world.make("widgets", "w", {"spec": {"size": -1}})
    status = refused.value.status()
    assert (status["code"], status["reason"]) == (422, "Invalid")
    assert status["message"].startswith('Widget.example.com "w" is invalid: spec.size: Invalid value')
    assert [cause["field"] for cause in status["details"]["causes"]] == ["spec.size"]


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"name": "No_Good"}, "metadata.name"),
        ({"name": "x" * 254}, "metadata.name"),
        ({}, "metadata.name"),
        ({"name": "w", "labels": {"-bad": "x"}}, "metadata.labels"),
        ({"name": "w", "labels": {"k": "x" * 64}}, "metadata.labels"),
        ({"name": "w", "labels": {"/k": "x"}}, "metadata.labels"),
        ({"name": "w", "annotations": {"a b": "x"}}, "metadata.annotations"),
        ({"name": "w", "annotations": {"k": "x" * 300_000}}, "metadata.annotations"),
        ({"name": "w", "finalizers": ["not qualified!"]}, "metadata.finalizers"),
        ({"name": "w", "ownerReferences": [{"kind": "K", "name": "n", "uid": "u"}]},
         "metadata.ownerReferences.apiVersion"),
    ],
)  # fmt: skip
def test_metadata_has_rules_of_its_own(world: Any, metadata: dict[str, Any], field: str) -> None:
    with pytest.raises(ApiError) as refused:
        world.operations.create(world.of("widgets"), "default", {**widget(""), "metadata": metadata})
    assert refused.value.details is not None
    assert field in [cause["field"] for cause in refused.value.details["causes"]]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"kind": "Widget", "metadata": {}}, "apiVersion"),
        ({"apiVersion": "example.com/v2", "kind": "Widget"}, "does not match the expected API version"),
        (widget("w") | {"metadata": []}, "metadata: must be an object"),
        (widget("w") | {"metadata": {"name": 1}}, "metadata.name: must be a string"),
        (widget("w") | {"metadata": {"name": "w", "labels": {"a": 1}}}, "metadata.labels: must be a map of strings"),
        (widget("w") | {"metadata": {"name": "w", "namespace": "other"}}, "does not match the namespace"),
        (widget("w") | {"metadata": {"name": "w", "resourceVersion": "1"}}, "resourceVersion should not be set"),
    ],
)
def test_what_cannot_be_read_is_a_bad_request(world: Any, body: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError, match=message) as refused:
        world.operations.create(world.of("widgets"), "default", body)
    assert refused.value.code == 400


def test_a_namespace_must_exist_and_stay(world: Any) -> None:
    with pytest.raises(ApiError, match='namespaces "nowhere" not found'):
        world.operations.create(world.of("widgets"), "nowhere", widget("w"))


def test_a_new_namespace_has_a_default_service_account(world: Any) -> None:
    world.make("namespaces", "fresh")
    accounts = world.store.items("serviceaccounts", "fresh")
    assert [found.key.name for found in accounts] == ["default"]


def test_unknown_fields_are_dropped_with_a_warning_or_refused(world: Any) -> None:
    body = widget("w", spec={"bogus": 1})
    outcome = world.operations.create(world.of("widgets"), "default", body)
    assert outcome.warnings == ['unknown field "spec.bogus"']
    assert "bogus" not in outcome.body["spec"]
    with pytest.raises(ApiError) as refused:
        world.operations.create(world.of("widgets"), "default", widget("v", spec={"bogus": 1}), STRICT)
    assert (refused.value.code, refused.value.reason) == (400, "BadRequest")
    assert refused.value.message == 'strict decoding error: unknown field "spec.bogus"'


def test_a_dry_run_checks_everything_and_keeps_nothing(world: Any) -> None:
    before = world.store.version
    world.operations.create(world.of("widgets"), "default", widget("w"), WriteOptions(dry_run=True))
    with pytest.raises(ApiError, match="Invalid value"):
        world.operations.create(world.of("widgets"), "default", widget("v", spec={"size": -1}), WriteOptions(True))
    assert world.store.version == before


# --- update


def test_generation_counts_changes_of_the_spec_only(world: Any) -> None:
    body = world.make("widgets", "w")
    body = update(world, {**body, "metadata": {**body["metadata"], "labels": {"a": "b"}}})
    assert body["metadata"]["generation"] == 1
    body = update(world, {**body, "spec": {"size": 2}})
    assert body["metadata"]["generation"] == 2
    body = update(world, {**body, "status": {"ok": True}}, subresource="status")
    assert body["metadata"]["generation"] == 2


def test_status_and_the_rest_do_not_touch_each_other(world: Any) -> None:
    body = world.make("widgets", "w", {"spec": {"size": 1}})
    body = update(world, {**body, "status": {"ok": True}, "spec": {"size": 9}}, subresource="status")
    assert (body["spec"], body["status"]) == ({"size": 1}, {"ok": True})
    body = update(world, {**body, "status": {"ok": False}, "spec": {"size": 9}})
    assert (body["spec"], body["status"]) == ({"size": 9}, {"ok": True})


def test_the_status_of_a_custom_kind_leaves_its_metadata_alone(world: Any) -> None:
    body = world.make("widgets", "w")
    changed = {**body, "metadata": {**body["metadata"], "labels": {"a": "b"}}, "status": {"ok": True}}
    assert "labels" not in update(world, changed, subresource="status")["metadata"]


def test_a_kubelet_may_annotate_a_pod_along_with_its_status(world: Any) -> None:
    world.make_pod("p")
    change = {"metadata": {"annotations": {"a": "b"}}, "status": {"phase": "Running"}}
    body = patch(world, "pods", "p", change, subresource="status").body
    assert body["metadata"]["annotations"] == {"a": "b"}


def test_an_old_version_conflicts(world: Any) -> None:
    stale = world.make("widgets", "w")
    update(world, {**stale, "spec": {"size": 2}})
    with pytest.raises(ApiError) as refused:
        update(world, {**stale, "spec": {"size": 3}})
    assert (refused.value.code, refused.value.reason) == (409, "Conflict")
    assert "the object has been modified" in refused.value.message


def test_custom_kinds_are_not_updated_without_a_version(world: Any) -> None:
    world.make("widgets", "w")
    with pytest.raises(ApiError, match="must be specified for an update"):
        update(world, widget("w"))


def test_a_write_that_changes_nothing_makes_no_version(world: Any) -> None:
    body = world.make("widgets", "w")
    before = world.store.version
    assert update(world, dict(body))["metadata"]["resourceVersion"] == body["metadata"]["resourceVersion"]
    assert world.store.version == before


def test_true_is_not_one(world: Any) -> None:
    world.make("configmaps", "c", {"extra": 1})
    assert patch(world, "configmaps", "c", {"extra": True}).body["extra"] is True


def test_a_placed_pods_spec_is_fixed_but_for_a_few_fields(world: Any) -> None:
    world.make_pod("p")
    with pytest.raises(ApiError, match="pod updates may not change fields other than"):
        patch(world, "pods", "p", {"spec": {"nodeName": "n"}})
    patch(world, "pods", "p", {"spec": {"activeDeadlineSeconds": 5}})


def test_a_pod_has_the_defaults_our_clients_rely_on(world: Any) -> None:
    pod = world.make_pod("p")
    assert pod["status"]["phase"] == "Pending"
    assert pod["spec"]["restartPolicy"] == "Always"
    assert pod["spec"]["terminationGracePeriodSeconds"] == 30
    assert pod["spec"]["serviceAccountName"] == "default"


def test_a_secrets_text_is_encoded(world: Any) -> None:
    body = world.make("secrets", "s", {"stringData": {"a": "b"}})
    assert (body["data"], "stringData" in body) == ({"a": "Yg=="}, False)


@pytest.mark.parametrize(
    ("plural", "body", "field"),
    [
        ("pods", {"spec": {}}, "spec.containers"),
        ("pods", {"spec": {"containers": [{"image": "x"}]}}, "spec.containers[0].name"),
        (
            "pods",
            {"spec": {"containers": [{"name": "a", "image": "x"}], "restartPolicy": "Maybe"}},
            "spec.restartPolicy",
        ),
        ("pods", {"spec": {"containers": [{"name": "../x", "image": "x"}]}}, "spec.containers[0].name"),
        ("pods", {"spec": {"containers": [{**C, "env": [{"value": "x"}]}]}}, "spec.containers[0].env[0].name"),
        ("pods", {"spec": {"containers": [C], "volumes": [{}]}}, "spec.volumes[0].name"),
        ("pods", {"spec": {"containers": [C], "volumes": [{"name": "../../x"}]}}, "spec.volumes[0].name"),
        (
            "pods",
            {"spec": {"containers": [C], "volumes": [{"name": "v", "hostPath": {}}]}},
            "spec.volumes[0].hostPath.path",
        ),
        ("secrets", {"data": {"../a": "YQ=="}}, "data[../a]"),
        ("configmaps", {"data": {"..": "x"}}, "data[..]"),
        ("configmaps", {"binaryData": {"a/b": "YQ=="}}, "binaryData[a/b]"),
    ],
)
def test_built_in_kinds_have_a_few_rules(world: Any, plural: str, body: dict[str, Any], field: str) -> None:
    with pytest.raises(ApiError) as refused:
        world.make(plural, "x", body)
    assert refused.value.details is not None
    assert field in [cause["field"] for cause in refused.value.details["causes"]]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"nodeName": ["a"]}, "spec.nodeName: must be a string"),
        ({"nodeSelector": {"a": 1}}, "spec.nodeSelector.a: must be a string"),
        ({"tolerations": ["x"]}, r"spec.tolerations\[0\]: must be an object"),
        ({"volumes": "v"}, "spec.volumes: must be a list"),
        ({"volumes": [{"name": "v", "nfs": 5}]}, r"spec.volumes\[0\].nfs: must be an object"),
        ({"containers": [{**C, "name": ["a"]}]}, r"spec.containers\[0\].name: must be a string"),
        ({"containers": [{**C, "command": ["a", 2]}]}, r"spec.containers\[0\].command\[1\]: must be a string"),
        ({"containers": [{**C, "env": "A=b"}]}, r"spec.containers\[0\].env: must be a list"),
        ({"containers": [{**C, "resources": {"limits": "x"}}]}, r"resources.limits: must be an object"),
        ({"containers": [{**C, "resources": {"limits": {"g": [1]}}}]}, r"limits.g: must be a quantity"),
    ],
)
def test_a_pod_of_the_wrong_types_reaches_no_kubelet(world: Any, spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError, match=message) as refused:
        world.make("pods", "x", {"spec": {"containers": [C], **spec}})
    assert refused.value.code == 400


def test_what_nobody_here_reads_in_a_pod_is_let_through(world: Any) -> None:
    world.make("pods", "x", {"spec": {"containers": [{**C, "ports": "?"}], "anything": 5}})


def test_events_are_one_set_of_objects_under_two_apis(world: Any) -> None:
    events = next(found for found in world.registry.all() if found.api_version == "events.k8s.io/v1")
    body = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        "note": "it broke",
        "reportingController": "us",
    }
    world.operations.create(events, "default", body)
    (stored,) = world.store.items("events")
    assert (stored.body["apiVersion"], stored.body["message"]) == ("v1", "it broke")
    assert stored.body["involvedObject"]["name"] == "p"
    assert shown(events, stored.body)["note"] == "it broke"


# --- definitions


def test_a_definition_is_served_at_once_and_says_so(world: Any) -> None:
    stored = world.get("customresourcedefinitions", "widgets.example.com")
    conditions = {found["type"]: found["status"] for found in stored.body["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}
    assert world.of("widgets").short_names == ("wd",)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"metadata": {"name": "gadgets.example.com"}}, "metadata.name"),
        ({"spec": {"scope": "Galaxy"}}, "spec.scope"),
        ({"spec": {"versions": []}}, "spec.versions"),
        ({"spec": {"versions": [{"name": "v1", "served": True, "storage": True}]}},
         "spec.versions[0].schema.openAPIV3Schema"),
        ({"spec": None}, "spec"),
    ],
)  # fmt: skip
def test_a_broken_definition_is_refused(world: Any, change: dict[str, Any], field: str) -> None:
    crd = merge(world.get("customresourcedefinitions", "widgets.example.com").body, change)
    crd["metadata"] = {"name": crd["metadata"]["name"]}
    with pytest.raises(ApiError) as refused:
        world.operations.create(world.of("customresourcedefinitions"), "", crd)
    assert refused.value.details is not None
    assert field in [cause["field"] for cause in refused.value.details["causes"]]
