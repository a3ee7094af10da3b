"""What a client finds out about a server and how it may see objects: discovery, OpenAPI, tables, metadata."""

from __future__ import annotations

import pytest

from .place import Place, configmap, job, pod
from .servers import Server

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
OURS = "nvcre.nvidia.com"


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
def test_health(server: Server, path: str) -> None:
    assert server.request("GET", path).body == "ok"


def test_version(server: Server) -> None:
    found = server.request("GET", "/version").expect(200)
    assert found["gitVersion"].startswith(f"v{found['major']}.")


# --- discovery


def test_groups(server: Server) -> None:
    assert server.request("GET", "/api").expect(200)["versions"] == ["v1"]
    groups = {group["name"]: group for group in server.request("GET", "/apis").expect(200)["groups"]}
    for name, version in ((OURS, "v1alpha1"), ("coordination.k8s.io", "v1"), ("apiextensions.k8s.io", "v1")):
        assert groups[name]["preferredVersion"] == {"groupVersion": f"{name}/{version}", "version": version}
        one = server.request("GET", f"/apis/{name}").expect(200)
        assert one["preferredVersion"] == groups[name]["preferredVersion"]


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/api/v1", ["pods", "pods/log", "pods/binding", "pods/status", "pods/eviction", "nodes", "nodes/status"]),
        ("/api/v1", ["configmaps", "secrets", "events", "namespaces", "serviceaccounts", "serviceaccounts/token"]),
        ("/apis/coordination.k8s.io/v1", ["leases"]),
        ("/apis/authentication.k8s.io/v1", ["tokenreviews", "selfsubjectreviews"]),
        (f"/apis/{OURS}/v1alpha1", ["jobs", "jobs/status", "nodehealths", "nodehealths/status", "logprofiles"]),
    ],
)
def test_kinds_are_discovered_with_names_and_verbs(embedded: Server, server: Server, path: str, names: list) -> None:
    """As the embedded server tells them: both are asked."""
    ours, theirs = (
        {entry["name"]: entry for entry in one.request("GET", path).expect(200)["resources"]}
        for one in (embedded, server)
    )
    for name in names:
        for field in ("kind", "namespaced", "singularName", "shortNames", "group", "version"):
            assert ours[name].get(field) == theirs[name].get(field), (name, field)
        assert set(ours[name]["verbs"]) <= set(theirs[name]["verbs"])


@pytest.mark.parametrize("path", ["/nowhere", "/apis/no.such", "/apis/no.such/v1", "/api/v9", f"/apis/{OURS}/v1"])
def test_what_is_not_served_is_not_found(server: Server, path: str) -> None:
    assert server.request("GET", path).code == 404


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/api/v1/things", 404),
        ("GET", f"/apis/{OURS}/v1alpha1/things", 404),
        ("POST", "/api/v1/pods", 405),
        ("PUT", "/api/v1/namespaces/default/pods", 405),
        ("PATCH", "/api/v1/namespaces/default/pods", 405),
        ("POST", "/api/v1/namespaces/default/pods/p", 405),
        ("DELETE", "/api/v1/namespaces", 405),
        ("GET", "/apis/authentication.k8s.io/v1/tokenreviews", 405),
        ("DELETE", f"/apis/{OURS}/v1alpha1/namespaces/default/jobs/j/status", 405),
        ("POST", "/api/v1/namespaces/default/pods/p/log", 405),
    ],
)
def test_a_path_has_its_methods(server: Server, method: str, path: str, code: int) -> None:
    answer = server.request(method, path, {} if method != "GET" else None)
    assert answer.code == code
    if isinstance(answer.body, dict):
        assert answer.refusal == (code, {404: "NotFound", 405: "MethodNotAllowed"}[code])


# --- OpenAPI


def test_every_group_has_a_document(server: Server) -> None:
    paths = server.request("GET", "/openapi/v3").expect(200)["paths"]
    for group in ("api/v1", f"apis/{OURS}/v1alpha1", "apis/coordination.k8s.io/v1"):
        document = server.request("GET", paths[group]["serverRelativeURL"]).expect(200)
        assert document["openapi"].startswith("3.0")
        assert document["components"]["schemas"]


def test_the_document_of_a_custom_group_describes_its_fields(server: Server) -> None:
    document = server.request("GET", f"/openapi/v3/apis/{OURS}/v1alpha1").expect(200)
    schemas = document["components"]["schemas"]
    (found,) = (
        schema
        for schema in schemas.values()
        if {"group": OURS, "version": "v1alpha1", "kind": "Job"} in schema.get("x-kubernetes-group-version-kind", [])
        and "spec" in schema["properties"]
    )
    assert "workload" in found["properties"]["spec"]["properties"]
    assert found["properties"]["spec"]["properties"]["workload"]["description"]
    assert f"/apis/{OURS}/v1alpha1/namespaces/{{namespace}}/jobs/{{name}}" in document["paths"]


# --- shapes


def test_a_table_has_the_columns_of_its_kind(place: Place) -> None:
    place.create("jobs", job("a"))
    table = place.get("jobs", accept=TABLE).expect(200)
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert table["columnDefinitions"][0]["name"] == "Name"
    assert table["columnDefinitions"][-1]["name"] == "Age"
    (row,) = table["rows"]
    assert row["cells"][0] == "a"
    assert (row["object"]["kind"], row["object"]["metadata"]["name"]) == ("PartialObjectMetadata", "a")
    bare = place.get("jobs", accept=TABLE, includeObject="None").expect(200)["rows"][0]
    assert bare.get("object") is None
    whole = place.get("jobs", accept=TABLE, includeObject="Object").expect(200)["rows"][0]["object"]
    assert whole["spec"]


COLUMNS = ["name", "type", "format", "priority"]


@pytest.mark.parametrize("plural", ["pods", "nodes", "events", "configmaps", "secrets", "namespaces", "leases", "jobs"])
def test_tables_have_the_same_columns_everywhere(embedded: Server, place: Place, plural: str) -> None:
    """As the embedded server shows them: both are asked."""
    ours, theirs = (
        [[column[field] for field in COLUMNS] for column in answer.expect(200)["columnDefinitions"]]
        for answer in (
            embedded.request("GET", Place(embedded, "default").path(plural), accept=TABLE),
            place.get(plural, accept=TABLE),
        )
    )
    assert ours == theirs


def test_metadata_alone(place: Place) -> None:
    place.create("configmaps", configmap("a", {"k": "v"}))
    found = place.get("configmaps", "a", accept=METADATA).expect(200)
    assert (found["kind"], found["apiVersion"], "data" in found) == ("PartialObjectMetadata", "meta.k8s.io/v1", False)
    listed = place.get("configmaps", accept=METADATA_LIST).expect(200)
    assert listed["kind"] == "PartialObjectMetadataList"
    assert "a" in [item["metadata"]["name"] for item in listed["items"]]


@pytest.mark.parametrize("accept", ["text/html", "application/json;as=Table;v=v7;g=meta.k8s.io"])
def test_a_shape_that_there_is_not(place: Place, accept: str) -> None:
    assert place.get("jobs", accept=accept).refusal == (406, "NotAcceptable")


def test_the_first_shape_that_there_is(place: Place) -> None:
    wanted = f"application/json;as=Table;v=v9;g=meta.k8s.io,{TABLE},application/json"
    assert place.get("pods", accept=wanted).expect(200)["kind"] == "Table"
    place.create("pods", pod("a"))
    assert place.get("pods", "a", accept="*/*").expect(200)["kind"] == "Pod"
