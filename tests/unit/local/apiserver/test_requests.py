"""URLs, Accept headers, options and bodies of requests."""

import pytest
from nvcre_local.apiserver.deletion import DeleteOptions, Propagation
from nvcre_local.apiserver.errors import ApiError
from nvcre_local.apiserver.operations import FieldValidation, WriteOptions
from nvcre_local.apiserver.requests import (
    Shape,
    Target,
    decode,
    decode_object,
    delete_options,
    negotiate,
    parse_path,
    resource_version,
    write_options,
)


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/api/v1/pods", Target("", "v1", "", "pods", "", "")),
        ("/api/v1/namespaces/ns/pods/p/log", Target("", "v1", "ns", "pods", "p", "log")),
        ("/api/v1/namespaces/ns", Target("", "v1", "", "namespaces", "ns", "")),
        ("/api/v1/namespaces/ns/status", Target("", "v1", "", "namespaces", "ns", "status")),
        ("/apis/g.example/v1/namespaces/ns/jobs", Target("g.example", "v1", "ns", "jobs", "", "")),
        ("/apis/g/v1/things/a%2Fb", Target("g", "v1", "", "things", "a/b", "")),
        ("/apis/g/v1", None),
        ("/api/v1/namespaces/ns/pods/p/log/x", None),
        ("/api/v1/namespaces//pods", None),
        ("/version", None),
    ],
)
def test_paths(path: str, target: Target | None) -> None:
    assert parse_path(path) == target


@pytest.mark.parametrize(
    ("accept", "shape"),
    [
        ("", Shape.OBJECT),
        ("*/*", Shape.OBJECT),
        ("application/json", Shape.OBJECT),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", Shape.TABLE),
        ("application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json", Shape.OBJECT),
        ("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", Shape.METADATA),
        ("application/vnd.kubernetes.protobuf,application/json", Shape.OBJECT),
        ("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json", Shape.OBJECT),
    ],
)
def test_the_first_shape_we_have_is_taken(accept: str, shape: Shape) -> None:
    assert negotiate(accept) is shape


def test_a_client_that_takes_protobuf_only_is_told_what_there_is() -> None:
    with pytest.raises(ApiError) as refused:
        negotiate("application/vnd.kubernetes.protobuf")
    assert refused.value.code == 406


def test_write_options() -> None:
    query = {"dryRun": "All", "fieldValidation": "Strict"}
    assert write_options(query, "CreateOptions") == WriteOptions(True, FieldValidation.STRICT)
    for query in ({"dryRun": "Some"}, {"fieldValidation": "Maybe"}):
        with pytest.raises(ApiError, match="Unsupported value"):
            write_options(query, "CreateOptions")


def test_delete_options_of_the_body_win_over_the_query() -> None:
    body = {"gracePeriodSeconds": 0, "propagationPolicy": "Foreground", "preconditions": {"uid": "u"}}
    found = delete_options({"gracePeriodSeconds": "9", "propagationPolicy": "Orphan"}, body)
    assert found == DeleteOptions(0, Propagation.FOREGROUND, uid="u")


def test_old_clients_orphan_with_a_flag() -> None:
    assert delete_options({}, {"orphanDependents": True}).propagation is Propagation.ORPHAN


@pytest.mark.parametrize(("text", "version"), [("", None), ("0", None), ("17", 17)])
def test_resource_versions(text: str, version: int | None) -> None:
    assert resource_version({"resourceVersion": text}) == version


@pytest.mark.parametrize("text", ["x", "-1", "٣", "9" * 30])
def test_malformed_resource_versions_are_refused(text: str) -> None:
    with pytest.raises(ApiError, match="invalid resource version"):
        resource_version({"resourceVersion": text})


def test_yaml_bodies_are_read_as_json_would_be() -> None:
    text = b"a: 2026-01-01\nb: {1: true}\nc: [1.5, null]\n"
    assert decode(text, "application/yaml") == {"a": "2026-01-01", "b": {"1": True}, "c": [1.5, None]}


@pytest.mark.parametrize(
    ("raw", "media", "code"),
    [
        (b"{", "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"a":' * 300 + b"1" + b"}" * 300, "application/json", 400),
        (b"[1]", "application/json", 400),
        (b"a: [", "application/yaml", 400),
        (b"a: &x 1\nb: *x", "application/yaml", 400),
        (b"a: .nan", "application/yaml", 400),
        (b"a: !!python/object:os.system {}", "application/yaml", 400),
        (b"? [a]\n: b", "application/yaml", 400),
        (b"k8s", "application/vnd.kubernetes.protobuf", 400),
        (b"k8s\x00", "application/vnd.kubernetes.protobuf", 415),
        (b"<a/>", "text/xml", 415),
    ],
)
def test_bodies_that_cannot_be_used_are_refused_by_a_status(raw: bytes, media: str, code: int) -> None:
    with pytest.raises(ApiError) as refused:
        decode_object(raw, media)
    assert refused.value.code == code
