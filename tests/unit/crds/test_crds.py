"""What holds for every CRD of ours, seen from the files alone. What they accept is in tests/conformance/crds."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from nvcre_local.apiserver.schema import StructuralSchema

ROOT = Path(__file__).parents[3]
CRDS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "daemonset/crds").glob("*.yaml"))}
TRAINER_CRDS = {
    path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "local/nvcre_local/crds").glob("*.yaml"))
}
CORE_SHORT_NAMES = frozenset({
    *("cj", "cm", "crd", "crds", "cs", "csr", "deploy", "ds", "ep", "ev", "hpa", "ing", "ippr", "limits", "netpol"),
    *("no", "ns", "pc", "pdb", "po", "pv", "pvc", "quota", "rc", "rs", "sa", "sc", "sts", "svc", "vac"),
})  # fmt: skip

BELOW_TRAIN_JOB = re.compile(r"\.spec\.workload\.trainJob(\.\w+(\[\])?){3,}$")

all_crds = pytest.mark.parametrize("crd", CRDS.values(), ids=CRDS)


def version(crd: dict[str, Any]) -> dict[str, Any]:
    (only,) = crd["spec"]["versions"]
    return only


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from nodes(below, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


@all_crds
def test_every_field_says_what_it_is_for(crd: dict[str, Any]) -> None:
    """`kubectl explain` is the reference of our fields; below the upper two levels of a TrainJob it is Kubeflow's."""
    schema = version(crd)["schema"]["openAPIV3Schema"]
    assert schema["properties"]["metadata"] == {"type": "object"}, "a real API server refuses anything more"
    assert not [
        path
        for path, field in nodes(schema)
        if path != ".metadata"
        and not path.endswith("[]")
        and not field.get("description")
        and not BELOW_TRAIN_JOB.match(path)
    ]


def test_the_kinds_of_this_stage_are_there() -> None:
    assert {crd["spec"]["names"]["kind"] for crd in CRDS.values()} == {
        "Job", "BandwidthMeasurement", "GoodputMeasurement", "LogProfile", "NodeHealth",
    }  # fmt: skip


@all_crds
def test_a_file_is_named_after_its_resource_and_serves_v1alpha1(crd: dict[str, Any]) -> None:
    names = crd["spec"]["names"]
    assert CRDS[names["plural"]] is crd
    assert crd["metadata"]["name"] == f"{names['plural']}.nvcre.nvidia.com"
    assert version(crd)["name"] == "v1alpha1"
    assert crd["spec"]["scope"] == ("Cluster" if names["kind"] in ("LogProfile", "NodeHealth") else "Namespaced")


@all_crds
def test_short_names_exist_and_are_nobody_elses(crd: dict[str, Any]) -> None:
    short = crd["spec"]["names"]["shortNames"]
    others = {name for other in CRDS.values() if other is not crd for name in other["spec"]["names"]["shortNames"]}
    assert short
    assert not {*short} & (CORE_SHORT_NAMES | others)


@all_crds
def test_every_kind_prints_columns_that_end_with_its_age(crd: dict[str, Any]) -> None:
    columns = version(crd)["additionalPrinterColumns"]
    assert len(columns) > 2
    assert columns[-1] == {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


@all_crds
def test_status_is_a_subresource(crd: dict[str, Any]) -> None:
    assert "status" in version(crd)["subresources"]
    assert "status" in version(crd)["schema"]["openAPIV3Schema"]["properties"]


@all_crds
def test_everything_is_bounded(crd: dict[str, Any]) -> None:
    for path, node in nodes(version(crd)["schema"]["openAPIV3Schema"]):
        if path in (".apiVersion", ".kind", ".metadata"):
            continue
        match node.get("type"):
            case "string":
                assert "maxLength" in node or "enum" in node or node.get("format") == "date-time", path
            case "array":
                assert "maxItems" in node, path
            case "object":
                assert (
                    "properties" in node or "maxProperties" in node or node.get("x-kubernetes-preserve-unknown-fields")
                ), path
            case None:
                assert node.get("x-kubernetes-int-or-string"), path
            case _:
                pass


@pytest.mark.parametrize("crd", {**CRDS, **TRAINER_CRDS}.values(), ids={**CRDS, **TRAINER_CRDS})
def test_every_schema_compiles_with_standard_cel_alone(crd: dict[str, Any]) -> None:
    StructuralSchema.from_crd_version(version(crd))


def test_the_page_is_accepted_unchanged() -> None:
    page = {
        "apiVersion": "nvcre.nvidia.com/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "my-job"},
        "spec": {
            "workloadMetadata": {
                "labels": {
                    "kueue.x-k8s.io/queue-name": "gpu-team-a",
                    "kai.scheduler/queue": "burn-in",
                    "environment": "burn-in",
                }
            },
            "workload": {"trainJob": {"runtimeRef": {"kind": "TrainingRuntime", "name": "nccl-all-reduce-runtime"}}},
        },
    }
    schema = StructuralSchema.from_crd_version(version(CRDS["jobs"]))

    assert schema.prune(page) == []
    schema.default(page)
    assert schema.validate(page) == []

    assert page["spec"]["workload"]["trainJob"] == {
        "runtimeRef": {
            "apiGroup": "trainer.kubeflow.org",
            "kind": "TrainingRuntime",
            "name": "nccl-all-reduce-runtime",
        },
        "suspend": False,
        "managedBy": "trainer.kubeflow.org/trainjob-controller",
    }


TRAIN_JOB_FIELDS = {
    "activeDeadlineSeconds": "integer",
    "initializer": "object",
    "managedBy": "string",
    "runtimePatches": "array",
    "runtimeRef": "object",
    "suspend": "boolean",
    "trainer": "object",
}
"""TrainJobSpec of Kubeflow Trainer v2.2.0, manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml."""


def test_a_workload_declares_the_fields_of_trainer() -> None:
    spec = version(CRDS["jobs"])["schema"]["openAPIV3Schema"]["properties"]["spec"]
    train_job = spec["properties"]["workload"]["properties"]["trainJob"]

    assert {name: field["type"] for name, field in train_job["properties"].items()} == TRAIN_JOB_FIELDS
    assert set(train_job["properties"]["trainer"]["properties"]) == {
        "args", "command", "env", "image", "numNodes", "numProcPerNode", "resourcesPerNode",
    }  # fmt: skip


def test_every_object_inside_a_workload_keeps_what_it_does_not_know() -> None:
    spec = version(CRDS["jobs"])["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for path, node in nodes(spec["properties"]["workload"]["properties"]["trainJob"]):
        if node.get("type") == "object" and "additionalProperties" not in node:
            assert node.get("x-kubernetes-preserve-unknown-fields"), path
