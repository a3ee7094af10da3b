"""Create and update: names, versions, identity, generations, what is carried over and what is refused."""

import base64

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


# --- what the core kinds of ours check


def test_a_config_map_keeps_text_and_bytes(place: Place) -> None:
    raw = base64.b64encode(b"\x00\xff").decode()
    made = place.create("configmaps", {**configmap("a", {"t": "x"}), "binaryData": {"b": raw}})
    assert (made["data"], made["binaryData"]) == ({"t": "x"}, {"b": raw})


@pytest.mark.parametrize(
    ("body", "refusal", "causes"),
    [
        ({"binaryData": {"b": "%"}}, (400, "BadRequest"), None),
        ({"data": {"n": 1}}, (400, "BadRequest"), None),
        ({"data": {"a b": "x"}}, (422, "Invalid"), [("FieldValueInvalid", "data[a b]")]),
        ({"data": {"..": "x"}}, (422, "Invalid"), [("FieldValueInvalid", "data[..]")]),
        ({"binaryData": {"a/b": "eA=="}}, (422, "Invalid"), [("FieldValueInvalid", "binaryData[a/b]")]),
        ({"data": {"k": "x"}, "binaryData": {"k": "eA=="}}, (422, "Invalid"), [("FieldValueInvalid", "data[k]")]),
    ],
)
def test_a_config_map_is_checked(place: Place, body: dict, refusal: tuple, causes: list | None) -> None:
    answer = place.post("configmaps", {**configmap("a"), **body})
    assert answer.refusal == refusal
    if causes is not None:
        assert answer.causes == causes


def test_an_immutable_config_map_stays(place: Place) -> None:
    place.create("configmaps", {**configmap("a", {"k": "1"}), "immutable": True})
    answer = place.patch("configmaps", "a", {"data": {"k": "2"}})
    assert answer.refusal == (422, "Invalid")
    assert answer.causes == [("FieldValueForbidden", "data")]
    answer = place.patch("configmaps", "a", {"immutable": False})
    assert answer.causes == [("FieldValueForbidden", "immutable")]
    assert place.patch("configmaps", "a", {"metadata": {"labels": {"a": "b"}}}).code == 200


def test_a_secret_takes_plain_text_and_keeps_it_encoded(place: Place) -> None:
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"k": "text"}}
    made = place.create("secrets", body)
    assert (made["type"], made["data"], made.get("stringData")) == ("Opaque", {"k": "dGV4dA=="}, None)
    changed = place.patch("secrets", "s", {"stringData": {"l": "more"}}).expect(200)
    assert changed["data"] == {"k": "dGV4dA==", "l": "bW9yZQ=="}
    assert place.patch("secrets", "s", {"type": "Other"}).causes == [("FieldValueInvalid", "type")]
    assert place.post("secrets", {**body, "metadata": {"name": "t"}, "data": {"k": "%"}}).code == 400


def test_a_namespace_has_a_phase_a_label_and_a_service_account(place: Place) -> None:
    found = place.get("namespaces", place.namespace).expect(200)
    assert found["status"]["phase"] == "Active"
    assert found["metadata"]["labels"]["kubernetes.io/metadata.name"] == place.namespace
    assert found["spec"] == {"finalizers": ["kubernetes"]}
    assert place.names("serviceaccounts") == ["default"]


@pytest.mark.parametrize("name", ["a.b", "UPPER", "x" * 64])
def test_a_namespace_is_a_dns_label(place: Place, name: str) -> None:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    answer = place.post("namespaces", body)
    assert answer.refusal == (422, "Invalid")
    assert ("FieldValueInvalid", "metadata.name") in answer.causes


def test_a_lease_changes_hands_by_version(place: Place) -> None:
    spec = {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000001Z"}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": spec}
    old = place.create("leases", lease)
    assert old["spec"] == spec
    taken = place.put("leases", {**old, "spec": {**spec, "holderIdentity": "b", "leaseTransitions": 1}}).expect(200)
    assert taken["spec"]["holderIdentity"] == "b"
    assert place.put("leases", {**old, "spec": {**spec, "renewTime": None}}).refusal == (409, "Conflict")


@pytest.mark.parametrize(
    ("spec", "field"),
    [({"leaseDurationSeconds": 0}, "spec.leaseDurationSeconds"), ({"leaseTransitions": -1}, "spec.leaseTransitions")],
)
def test_a_lease_is_checked(place: Place, spec: dict, field: str) -> None:
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": spec}
    assert place.post("leases", lease).causes == [("FieldValueInvalid", field)]


def test_an_event_lies_where_its_object_lies(place: Place) -> None:
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": place.namespace, "uid": "u"},
        "type": "Warning",
        "reason": "Broken",
        "message": "it broke",
        "source": {"component": "nvcre"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 2,
    }
    made = place.create("events", event)
    for field in ("involvedObject", "type", "reason", "message", "source", "firstTimestamp", "lastTimestamp", "count"):
        assert made[field] == event[field]
    assert place.names("events", fieldSelector="involvedObject.uid=u,reason=Broken,type=Warning") == ["e"]
    elsewhere = {**event, "involvedObject": {**event["involvedObject"], "namespace": "default"}}
    answer = place.post("events", {**elsewhere, "metadata": {"name": "f"}})
    assert answer.refusal == (422, "Invalid")
    assert answer.causes == [("FieldValueInvalid", "involvedObject.namespace")]
    counted = place.patch("events", "e", {"count": 3}).expect(200)
    assert counted["count"] == 3


def test_an_event_is_seen_under_both_of_its_groups(place: Place) -> None:
    involved = {"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": place.namespace}
    event = {"metadata": {"name": "e"}, "involvedObject": involved, "message": "m", "type": "Normal", "reason": "R"}
    place.create("events", {"apiVersion": "v1", "kind": "Event", **event})
    path = f"/apis/events.k8s.io/v1/namespaces/{place.namespace}/events/e"
    seen = place.server.request("GET", path).expect(200)
    assert (seen["apiVersion"], seen["regarding"], seen["note"]) == ("events.k8s.io/v1", involved, "m")


# --- pods


def test_a_pod_has_the_defaults_that_kubelet_and_kubectl_read(place: Place) -> None:
    made = place.create("pods", pod("a", {"restartPolicy": None}))
    spec, (container,) = made["spec"], made["spec"]["containers"]
    assert spec["restartPolicy"] == "Always"
    assert spec["terminationGracePeriodSeconds"] == 30
    assert (spec["dnsPolicy"], spec["schedulerName"]) == ("ClusterFirst", "default-scheduler")
    assert (spec["serviceAccountName"], spec["serviceAccount"]) == ("default", "default")
    assert container["terminationMessagePath"] == "/dev/termination-log"
    assert container["terminationMessagePolicy"] == "File"
    assert container["imagePullPolicy"] == "Always"
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}


def test_limits_are_requests_where_there_are_none(place: Place) -> None:
    limits = {"nvidia.com/gpu": "8", "cpu": "2"}
    container = {"name": "main", "image": "none:1", "resources": {"limits": limits, "requests": {"cpu": "1"}}}
    made = place.create("pods", pod("a", {"containers": [container]}))
    assert made["spec"]["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "8", "cpu": "1"}
    assert made["spec"]["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    assert made["status"]["qosClass"] == "Burstable"


@pytest.mark.parametrize(
    ("spec", "causes"),
    [
        ({"containers": []}, [("FieldValueRequired", "spec.containers")]),
        ({"containers": [{"image": "i"}]}, [("FieldValueRequired", "spec.containers[0].name")]),
        ({"containers": [{"name": "c"}]}, [("FieldValueRequired", "spec.containers[0].image")]),
        ({"containers": [{"name": "C", "image": "i"}]}, [("FieldValueInvalid", "spec.containers[0].name")]),
        (
            {"containers": [{"name": "c", "image": "i"}, {"name": "c", "image": "i"}]},
            [("FieldValueDuplicate", "spec.containers[1].name")],
        ),
        (
            {"containers": [{"name": "c", "image": "i", "env": [{"value": "x"}]}]},
            [("FieldValueRequired", "spec.containers[0].env[0].name")],
        ),
        ({"restartPolicy": "Sometimes"}, [("FieldValueNotSupported", "spec.restartPolicy")]),
        ({"volumes": [{"emptyDir": {}}]}, [("FieldValueRequired", "spec.volumes[0].name")]),
        ({"volumes": [{"name": "v", "hostPath": {}}]}, [("FieldValueRequired", "spec.volumes[0].hostPath.path")]),
        (
            {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}]},
            [("FieldValueDuplicate", "spec.volumes[1].name")],
        ),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)
def test_a_pod_is_checked(place: Place, spec: dict, causes: list) -> None:
    answer = place.post("pods", pod("a", spec))
    assert answer.refusal == (422, "Invalid")
    assert answer.causes == causes


@pytest.mark.parametrize("spec", [{"containers": [{"name": "c", "image": 1}]}, {"nodeName": 1}, {"nodeSelector": []}])
def test_a_pod_of_wrong_types_is_a_bad_request(place: Place, spec: dict) -> None:
    assert place.post("pods", pod("a", spec)).refusal == (400, "BadRequest")


def test_a_pod_stays_what_it_is(place: Place) -> None:
    made = place.create("pods", pod("a"))
    for change in ({"restartPolicy": "Always"}, {"nodeName": "n"}, {"hostname": "h"}):
        answer = place.patch("pods", "a", {"spec": change})
        assert answer.refusal == (422, "Invalid")
        assert answer.causes == [("FieldValueForbidden", "spec")]
    container = {**made["spec"]["containers"][0], "image": "other"}
    changed = place.patch("pods", "a", {"spec": {"containers": [container], "activeDeadlineSeconds": 5}}).expect(200)
    assert changed["spec"]["containers"][0]["image"] == "other"


def test_a_manifest_without_defaults_is_an_update_too(place: Place) -> None:
    """As kubectl replace sends it."""
    spec = {"serviceAccountName": "default", "automountServiceAccountToken": False}
    place.create("pods", pod("a", spec))
    assert place.put("pods", pod("a", spec, labels={"a": "b"})).expect(200)["metadata"]["labels"] == {"a": "b"}


def test_a_scheduler_binds_a_pod_once(place: Place) -> None:
    made = place.create("pods", pod("a"))
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "a"}, "target": {"name": "node-x"}}
    wrong = {**binding, "metadata": {"name": "a", "uid": "another"}}
    assert place.post("pods", wrong, "a", "binding").refusal == (409, "Conflict")
    uid = {**binding, "metadata": {"name": "a", "uid": made["metadata"]["uid"]}}
    assert place.post("pods", uid, "a", "binding").expect(201)["status"] == "Success"
    bound = place.get("pods", "a").expect(200)
    assert bound["spec"]["nodeName"] == "node-x"
    conditions = {condition["type"]: condition["status"] for condition in bound["status"]["conditions"]}
    assert conditions == {"PodScheduled": "True"}
    assert place.post("pods", binding, "a", "binding").refusal == (409, "Conflict")
    none = {**binding, "metadata": {"name": "none"}}
    assert place.post("pods", none, "none", "binding").refusal == (404, "NotFound")
    assert place.names("pods", fieldSelector="spec.nodeName=node-x") == ["a"]


def test_a_kubelet_writes_the_status_of_its_pod(place: Place) -> None:
    place.create("pods", pod("a", {"nodeName": "node-x"}))
    ready = {"type": "Ready", "status": "True"}
    running = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [ready], "startTime": "2026-01-01T00:00:00Z"}
    place.patch("pods", "a", {"status": running}, "status", how="application/strategic-merge-patch+json").expect(200)
    seen = place.get("pods", "a").expect(200)["status"]
    assert (seen["phase"], seen["podIP"], seen["conditions"][0]["type"]) == ("Running", "127.0.0.1", "Ready")
    assert place.names("pods", fieldSelector="status.phase=Running") == ["a"]
    assert place.names("pods", fieldSelector="status.phase!=Running") == []
    assert place.patch("pods", "a", {"status": {"phase": 3}}, "status").refusal[0] in (400, 422)
