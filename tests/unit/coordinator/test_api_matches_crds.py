"""Every field of a view exists in the CRD's schema with the same type, and the other way round."""

from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
import pytest
import yaml
from nvcre_coordinator.api.job import Job
from nvcre_coordinator.api.log_profile import LogProfile
from nvcre_coordinator.api.measurement import BandwidthMeasurement, GoodputMeasurement

CRDS = Path(__file__).parents[3] / "daemonset/crds"
PASSED_THROUGH = {"spec.workload.trainJob"}  # Trainer's own spec, kept as JSON


def schema(name: str) -> dict[str, Any]:
    crd = yaml.safe_load((CRDS / f"{name}.yaml").read_text())
    found: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def bare(kind: Any) -> Any:
    """Without Optional and Annotated."""
    if get_origin(kind) is Annotated:
        return bare(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        (inner,) = [item for item in get_args(kind) if item is not type(None)]
        return bare(inner)
    return kind


def differences(view: Any, node: dict[str, Any], path: str) -> list[str]:
    view = bare(view)
    if path in PASSED_THROUGH:
        return [] if node["type"] == "object" else [f"{path}: not an object"]
    if isinstance(view, type) and issubclass(view, msgspec.Struct):
        fields = {field.encode_name: field.type for field in msgspec.structs.fields(view)}
        properties = node.get("properties", {})
        if path == "":
            fields, properties = (
                {k: v for k, v in part.items() if k in ("spec", "status")} for part in (fields, properties)
            )
        found = [f"{path}.{name}: only in the view" for name in set(fields) - set(properties)]
        found += [f"{path}.{name}: only in the schema" for name in set(properties) - set(fields)]
        for name in set(fields) & set(properties):
            found += differences(fields[name], properties[name], f"{path}.{name}".lstrip("."))
        required = {f.encode_name for f in msgspec.structs.fields(view) if f.required} if path else set()
        extra = required - set(node.get("required", []))
        return found + [f"{path}.{name}: required by the view only" for name in extra]
    if get_origin(view) is tuple:
        return differences(get_args(view)[0], node["items"], f"{path}[]") if node["type"] == "array" else [path]
    if get_origin(view) is dict:
        value = node.get("additionalProperties")
        return differences(get_args(view)[1], value, f"{path}{{}}") if value else [f"{path}: not a map"]
    return (
        []
        if expected(view) == declared(node)
        else [f"{path}: {expected(view)} in the view, {declared(node)} in the schema"]
    )


def expected(view: Any) -> tuple[Any, ...]:
    if isinstance(view, type) and issubclass(view, Enum):
        return ("string", tuple(sorted(member.value for member in view)))
    names = {str: "string", int: "integer", bool: "boolean"}
    return (names.get(view, "date-time"),)


def declared(node: dict[str, Any]) -> tuple[Any, ...]:
    if node.get("format") == "date-time":
        return ("date-time",)
    if "enum" in node:
        return ("string", tuple(sorted(node["enum"])))
    return (node["type"],)


@pytest.mark.parametrize(
    ("view", "name"),
    [
        (Job, "jobs"),
        (BandwidthMeasurement, "bandwidthmeasurements"),
        (GoodputMeasurement, "goodputmeasurements"),
        (LogProfile, "logprofiles"),
    ],
)
def test_view_and_schema_are_the_same(view: type, name: str) -> None:
    assert differences(view, schema(name), "") == []
