"""The core kinds that we use: what each checks, defaults and keeps, as far as our processes and kubectl rely on it."""

import base64

import pytest

from .place import Place, configmap, pod

# --- ConfigMaps and Secrets


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


# --- Namespaces, Leases, Events


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


# --- Pods


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
