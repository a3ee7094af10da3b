"""The OpenAPI v3 that kubectl explain reads."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from nvcre_local.apiserver.schema import component_schemas, document

CRDS = [
    yaml.safe_load(path.read_text()) for path in sorted((Path(__file__).parents[4] / "daemonset/crds").glob("*.yaml"))
]
JOB = next(crd for crd in CRDS if crd["spec"]["names"]["kind"] == "Job")


def references(value: Any) -> set[str]:
    match value:
        case dict():
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*(references(inner) for inner in value.values()))
        case list():
            return set().union(*(references(inner) for inner in value))
        case _:
            return set()


def test_a_kind_and_its_list_are_named_after_the_reversed_group() -> None:
    schemas = component_schemas(JOB, "v1alpha1")

    job = schemas["com.nvidia.nvcre.v1alpha1.Job"]
    assert job["x-kubernetes-group-version-kind"] == [
        {"group": "nvcre.nvidia.com", "version": "v1alpha1", "kind": "Job"}
    ]
    assert job["properties"]["spec"]["properties"]["workload"]["maxProperties"] == 1
    assert "com.nvidia.nvcre.v1alpha1.JobList" in schemas


def test_every_reference_of_a_document_leads_somewhere() -> None:
    whole = document(CRDS, "nvcre.nvidia.com", "v1alpha1")

    known = {f"#/components/schemas/{name}" for name in whole["components"]["schemas"]}
    assert references(whole) <= known
    assert json.loads(json.dumps(whole)) == whole


def test_paths_tell_namespaced_kinds_from_cluster_wide_ones() -> None:
    paths = document(CRDS, "nvcre.nvidia.com", "v1alpha1")["paths"]

    assert "/apis/nvcre.nvidia.com/v1alpha1/namespaces/{namespace}/jobs/{name}" in paths
    assert "/apis/nvcre.nvidia.com/v1alpha1/nodehealths/{name}" in paths


def test_rendering_leaves_the_crd_alone() -> None:
    before = json.dumps(JOB)

    component_schemas(JOB, "v1alpha1")

    assert json.dumps(JOB) == before


def test_an_unknown_version_is_an_error() -> None:
    with pytest.raises(KeyError):
        component_schemas(JOB, "v2")
