"""Every field of `workload.trainJob` that the CRD declares is immutable: changed, added, removed, it is refused.

The cases are read from the schema itself, so a field that is declared later is proven too.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from .place import Place, job
from .servers import JsonObject, Server
from .starting import crds

Path = tuple[str | int, ...]
REFUSED = [("FieldValueInvalid", "spec.workload")]

(_CRD,) = (crd for crd in crds() if crd["metadata"]["name"] == "jobs.nvcre.nvidia.com")
_SPEC = _CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
TRAIN_JOB: JsonObject = _SPEC["workload"]["properties"]["trainJob"]


def below(schema: JsonObject) -> Iterator[tuple[str | int, JsonObject]]:
    """The steps from a schema to those it contains; an entry of a list is step 0, of a map `key`."""
    yield from schema.get("properties", {}).items()
    if "items" in schema:
        yield 0, schema["items"]
    if isinstance(schema.get("additionalProperties"), dict):
        yield "key", schema["additionalProperties"]


def declared(schema: JsonObject, path: Path = ()) -> Iterator[Path]:
    for step, inner in below(schema):
        yield (*path, step)
        yield from declared(inner, (*path, step))


def schema_at(path: Path) -> JsonObject:
    found = TRAIN_JOB
    for step in path:
        found = dict(below(found))[step]
    return found


def sample(schema: JsonObject) -> Any:
    """The smallest valid value."""
    match schema:
        case {"enum": [first, *_]}:
            return first
        case {"format": "date-time"}:
            return "2026-01-01T00:00:00Z"
        case {"type": "object"}:
            return {name: sample(schema["properties"][name]) for name in schema.get("required", ())}
        case {"type": "array"}:
            return []
        case {"type": "boolean"}:
            return False
        case {"type": "string"}:
            return "a"
        case _:
            return 1


def other(schema: JsonObject) -> Any:
    """Another valid value of a leaf."""
    match schema:
        case {"enum": [*_, last]}:
            return last
        case {"format": "date-time"}:
            return "2026-01-01T00:00:01Z"
        case {"type": "boolean"}:
            return True
        case {"type": "string"}:
            return "b"
        case _:
            return 2


def with_value(path: Path, value: Any, schema: JsonObject = TRAIN_JOB) -> Any:
    """A trainJob with `value` there and no more besides than what is required."""
    if not path:
        return value
    step, *rest = path
    inner = with_value(tuple(rest), value, dict(below(schema))[step])
    return [inner] if step == 0 else {**sample(schema), step: inner}


def is_leaf(schema: JsonObject) -> bool:
    return schema.get("type") not in ("object", "array")


def may_be_absent(path: Path) -> bool:
    parent = schema_at(path[:-1])
    return path[-1] not in parent.get("required", ()) and "default" not in schema_at(path)


FIELDS = list(declared(TRAIN_JOB))


@pytest.fixture(scope="module")
def ground(server: Server) -> Place:
    return Place.new(server, f"t-{secrets.token_hex(4)}")


def refuses(place: Place, name: str, before: JsonObject, after: JsonObject) -> None:
    made = place.create("jobs", job(name, {"workload": {"trainJob": before}}))
    body = copy.deepcopy(made)
    body["spec"]["workload"]["trainJob"] = after
    answer = place.put("jobs", body)
    assert answer.refusal == (422, "Invalid"), answer.body
    assert answer.causes == REFUSED


@pytest.mark.parametrize("number", range(len(FIELDS)), ids=lambda number: ".".join(map(str, FIELDS[number])))
def test_a_declared_field_of_the_workload_does_not_change(ground: Place, number: int) -> None:
    path = FIELDS[number]
    schema = schema_at(path)
    present = with_value(path, sample(schema))
    if is_leaf(schema):
        refuses(ground, f"changed-{number}", present, with_value(path, other(schema)))
    if may_be_absent(path):
        parent = schema_at(path[:-1])
        absent = with_value(path[:-1], sample(parent))
        refuses(ground, f"added-{number}", absent, present)
        refuses(ground, f"removed-{number}", present, absent)


def test_all_of_it_is_walked() -> None:
    """Down to the containers of the pods."""
    assert ("trainer", "env", 0, "value") in FIELDS
    assert ("trainer", "resourcesPerNode", "limits", "key") in FIELDS
    assert any("volumeMounts" in path for path in FIELDS)


@pytest.mark.parametrize(
    ("before", "after", "refused"),
    [
        ({"later": 1}, {"later": 2}, True),
        ({}, {"later": 1}, True),
        ({"later": 1}, {}, True),
        ({"later": 1}, {"sooner": 1}, False),
    ],
    ids=["changed", "added", "removed", "swapped for another"],
)
def test_of_undeclared_fields_only_a_swap_goes_unnoticed(
    place: Place, before: JsonObject, after: JsonObject, refused: bool
) -> None:
    """The hole that docs/operating.md tells of: a real server compares the declared fields, and how many there are."""
    train_job = {"runtimeRef": {"name": "nccl"}}
    made = place.create("jobs", job("a", {"workload": {"trainJob": {**train_job, **before}}}))
    made["spec"]["workload"]["trainJob"] = {**train_job, **after}
    answer = place.put("jobs", made)
    assert (answer.code == 422) is refused
