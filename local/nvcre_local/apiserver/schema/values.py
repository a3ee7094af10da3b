"""Value validation: types, enums, patterns, bounds, required fields and allOf/anyOf/oneOf/not.

Follows k8s.io/kube-openapi `pkg/validation/validate` of v0.36, wording included: the messages name the field a second
time ("spec.x in body should match ..."), and a combination that fails is reported without a field. An unchanged part of
an update is never refused, however invalid (ratcheting).
"""

import math
from collections.abc import Iterator
from typing import Any

from nvcre_local.apiserver.schema import causes, formats
from nvcre_local.apiserver.schema.causes import Cause, render
from nvcre_local.apiserver.schema.correlation import ABSENT, Old, child, items_by_key, same
from nvcre_local.apiserver.schema.node import Node

MAX_SAFE_INTEGER = 2**53 - 1

_TYPES = {
    bool: "boolean",
    str: "string",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


def check(value: Any, node: Node, path: str, old: Old = ABSENT) -> list[Cause]:
    """`path` is empty at the root; `old` is the stored value of the same field where there is one."""
    found = list(_check_null(node, path) if value is None else _check(value, node, path, old))
    if found and old is not ABSENT and same(value, old):
        return []
    return found


def json_type(value: Any) -> str:
    if type(value) is int and not -(2**63) <= value < 2**63:
        return "number"  # Go decodes an integer beyond int64 as a float64
    return _TYPES[type(value)]


def _check_null(node: Node, path: str) -> Iterator[Cause]:
    if node.types and not node.nullable:
        yield _wrong_type(path, node, "null")
    if node.limits.enum is not None and None not in node.limits.enum:
        yield causes.not_supported(_field(path), "", node.limits.enum)


def _check(value: Any, node: Node, path: str, old: Old) -> Iterator[Cause]:
    found = json_type(value)
    if node.types and not _fits(found, value, node):
        if node.format and node.type != "string" and not isinstance(value, str | list):
            yield _wrong_format(path, node, "float64" if isinstance(value, float) else "")
        else:
            yield _wrong_type(path, node, found)
    yield from _check_combinations(value, node, path)
    match value:
        case str():
            yield from _check_string(value, node, path)
        case bool():
            pass
        case int() | float():
            yield from _check_number(value, node, path)
        case list():
            yield from _check_list(value, node, path, old)
        case _:
            pass
    if node.limits.enum is not None and not any(same(value, allowed) for allowed in node.limits.enum):
        yield causes.not_supported(_field(path), value, node.limits.enum)
    if isinstance(value, dict):
        yield from _check_object(value, node, path, old)


def _fits(found: str, value: Any, node: Node) -> bool:
    if found in node.types:
        return True
    if found == "number":
        return "integer" in node.types and _is_json_integer(value)
    return found == "integer" and "number" in node.types


def _check_string(value: str, node: Node, path: str) -> Iterator[Cause]:
    limits = node.limits
    if limits.max_length is not None and len(value) > limits.max_length:
        yield causes.too_long(_field(path), limits.max_length)
    elif limits.min_length is not None and len(value) < limits.min_length:
        yield _invalid(path, value, f"should be at least {limits.min_length} chars long")
    elif limits.pattern is not None and limits.pattern.search(value) is None:
        yield _invalid(path, value, f"should match '{limits.pattern_source}'")
    if node.format and node.type in ("", "string") and not formats.matches(node.format, value):
        yield _wrong_format(path, node, value)


def _check_number(value: int | float, node: Node, path: str) -> Iterator[Cause]:
    limits = node.limits
    if node.type == "integer" and not _in_range(value, node.format):
        kind = f"with format {node.format}" if node.format else "(default format)"
        yield _unnamed(f"Checked value must be of type integer {kind} in {path}")
    if limits.multiple_of and not _is_multiple(value, limits.multiple_of):
        yield _invalid(path, value, f"should be a multiple of {render(limits.multiple_of)}")
    if limits.minimum is not None:
        if limits.exclusive_minimum and value <= limits.minimum:
            yield _invalid(path, value, f"should be greater than {render(limits.minimum)}")
        elif value < limits.minimum:
            yield _invalid(path, value, f"should be greater than or equal to {render(limits.minimum)}")
    if limits.maximum is not None:
        if limits.exclusive_maximum and value >= limits.maximum:
            yield _invalid(path, value, f"should be less than {render(limits.maximum)}")
        elif value > limits.maximum:
            yield _invalid(path, value, f"should be less than or equal to {render(limits.maximum)}")


def _check_list(value: list[Any], node: Node, path: str, old: Old) -> Iterator[Cause]:
    limits = node.limits
    if node.items is not None:
        old_item = items_by_key(old, node.list_keys) if node.list_type == "map" else None
        for i, item in enumerate(value):
            yield from check(item, node.items, f"{path}[{i}]", old_item(item) if old_item else ABSENT)
    if limits.min_items is not None and len(value) < limits.min_items:
        yield _invalid(path, len(value), f"should have at least {limits.min_items} items")
    if limits.max_items is not None and len(value) > limits.max_items:
        yield causes.too_many(_field(path), len(value), limits.max_items)
    if limits.unique_items and any(same(a, b) for i, a in enumerate(value) for b in value[:i]):
        yield _invalid(path, "", "shouldn't contain duplicates")


def _check_object(value: dict[str, Any], node: Node, path: str, old: Old) -> Iterator[Cause]:
    limits = node.limits
    if limits.min_properties is not None and len(value) < limits.min_properties:
        yield _invalid(path, len(value), f"should have at least {limits.min_properties} properties")
    if limits.max_properties is not None and len(value) > limits.max_properties:
        yield causes.too_many(_field(path), len(value), limits.max_properties)
    for key, member in value.items():
        below = node.properties.get(key) or node.additional
        if below is not None:
            here = f"{path}.{key}" if path else key
            yield from check(
                member, below, here, child(old, key) if path or key not in ("apiVersion", "kind") else ABSENT
            )
    for key in limits.required:
        if key not in value:
            yield causes.required(f"{path}.{key}" if path else key)


def _check_combinations(value: Any, node: Node, path: str) -> Iterator[Cause]:
    name = render(path)
    if node.any_of:
        branches = [check(value, branch, path) for branch in node.any_of]
        if all(branches):
            yield _unnamed(f"{name} must validate at least one schema (anyOf)")
            yield from min(branches, key=len)
    if node.one_of:
        branches = [check(value, branch, path) for branch in node.one_of]
        valid = sum(not branch for branch in branches)
        if valid != 1:
            alternatives = f"Found {valid} valid alternatives" if valid else "Found none valid"
            yield _unnamed(f"{name} must validate one and only one schema (oneOf). {alternatives}")
            if not valid:
                yield from min(branches, key=len)
    if node.all_of:
        branches = [check(value, branch, path) for branch in node.all_of]
        for branch in branches:
            yield from branch
        if any(branches):
            none = ". None validated" if all(branches) else ""
            yield _unnamed(f"{name} must validate all the schemas (allOf){none}")
    if node.negated is not None and not check(value, node.negated, path):
        yield _unnamed(f"{name} must not validate the schema (not)")


def _is_multiple(value: int | float, factor: int | float) -> bool:
    if json_type(value) == "integer":
        return value % int(factor) == 0
    return _is_json_integer(value / factor)


def _is_json_integer(value: int | float) -> bool:
    return abs(value) <= MAX_SAFE_INTEGER and float(value).is_integer()


def _in_range(value: int | float, kind: str) -> bool:
    limit = 2**31 if kind == "int32" else 2**63
    return math.isfinite(value) and int(value) == value and -limit <= value < limit


def _field(path: str) -> str:
    return path or causes.NO_FIELD


def _unnamed(detail: str) -> Cause:
    return causes.invalid(causes.NO_FIELD, "", detail)


def _invalid(path: str, value: Any, detail: str) -> Cause:
    return causes.invalid(_field(path), value, f"{path} in body {detail}")


def _wrong_format(path: str, node: Node, found: str) -> Cause:
    return causes.type_invalid(_field(path), found, f"{path} in body must be of type {node.format}: {render(found)}")


def _wrong_type(path: str, node: Node, found: str) -> Cause:
    expected = ",".join(node.types)
    return causes.type_invalid(_field(path), found, f"{path} in body must be of type {expected}: {render(found)}")
