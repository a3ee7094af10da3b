"""JSON values as a rule sees them: typed by the schema, property names escaped, what is not declared invisible.

A rule can compare objects it cannot look into. A kube-apiserver compares what the schema declares, the number of
fields, and those undeclared fields that both sides have; so one undeclared field swapped for another goes unnoticed,
there and here (k8s.io/apiserver `pkg/cel/common/valuesunstructured.go`, `unstructuredMap.Equal`, v0.36). Two values
that a rule may compare are therefore converted together. Lists of type map and set compare without order: they are put
in order first.
"""

import json
import re
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from nvcre_local.apiserver.schema.correlation import ABSENT, Old, child, item_key, items_by_key
from nvcre_local.apiserver.schema.node import Node

_RESERVED = frozenset(
    {
        *("true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import"),
        *("let", "loop", "package", "namespace", "return", "var", "void", "while"),
    }
)
_IDENTIFIER = re.compile(r"[A-Za-z_./-][A-Za-z0-9_./-]*")
_ESCAPES = re.compile(r"__|[./-]")
_ESCAPED = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_UNDECLARED = "\0undeclared"
"""No identifier: a rule cannot name it, but equality sees it."""
_UNIT_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")

ROOT_METADATA = Node(
    types=("object",), properties={"name": Node(types=("string",)), "generateName": Node(types=("string",))}
)
ROOT_TYPE = Node(types=("string",))


def escape(name: str) -> str | None:
    """The identifier by which a rule names a property; None where it cannot be named."""
    if name in _RESERVED:
        return f"__{name}__"
    if not _IDENTIFIER.fullmatch(name):
        return None
    return _ESCAPES.sub(lambda found: _ESCAPED[found[0]], name)


def to_cel(value: Any, node: Node, other: Old = ABSENT, *, ordered: bool = True, root: bool = False) -> Any:
    """`other` is the value this one may be compared with; `ordered` False puts lists of type map and set in order."""
    match value:
        case dict() if node.additional is not None and not node.properties:
            return {
                key: to_cel(member, node.additional, child(other, key), ordered=ordered)
                for key, member in value.items()
                if member is not None or node.additional.nullable
            }
        case dict():
            return _object(value, node, other, ordered=ordered, root=root)
        case list() if node.items is not None:
            return _list(value, node, other, ordered=ordered)
        case list():
            return json.dumps(value, sort_keys=True)  # items are not declared: can only be compared
        case _:
            return _scalar(value, node)


def _object(value: dict[str, Any], node: Node, other: Old, *, ordered: bool, root: bool) -> dict[str, Any]:
    properties = node.properties
    if root or node.embedded:
        properties = {**properties, "apiVersion": ROOT_TYPE, "kind": ROOT_TYPE, "metadata": ROOT_METADATA}
    seen: dict[str, Any] = {}
    undeclared: dict[str, str] = {}
    for key, member in value.items():
        if key not in properties:
            if child(other, key) is not ABSENT:
                undeclared[key] = json.dumps(member, sort_keys=True)
        elif member is not None and (name := escape(key)) is not None:
            seen[name] = to_cel(member, properties[key], child(other, key), ordered=ordered)
    if node.keeps_unknown:
        seen[_UNDECLARED] = {"size": len(value), **{f".{key}": text for key, text in undeclared.items()}}
    return seen


def _list(value: list[Any], node: Node, other: Old, *, ordered: bool) -> list[Any]:
    assert node.items is not None
    items = value
    if node.list_type == "map":
        partner = items_by_key(other, node.list_keys)
        if not ordered:
            items = sorted(value, key=lambda item: repr(item_key(item, node.list_keys)))
        return [to_cel(item, node.items, partner(item), ordered=ordered) for item in items]
    if node.list_type == "set" and not ordered:
        items = sorted(value, key=repr)
    others = other if isinstance(other, list) else []
    return [
        to_cel(item, node.items, others[i] if i < len(others) else ABSENT, ordered=ordered)
        for i, item in enumerate(items)
    ]


def _scalar(value: Any, node: Node) -> Any:
    match value:
        case bool():
            return value
        case int() if node.type == "number":
            return float(value)
        case str() if node.type == "string":
            return _text(value, node.format)
        case _:
            return value


def _text(value: str, kind: str) -> Any:
    match kind:
        case "date-time":
            timestamp = Timestamp()
            timestamp.FromJsonString(value.upper())
            return timestamp
        case "date":
            timestamp = Timestamp()
            timestamp.FromJsonString(f"{value}T00:00:00Z")
            return timestamp
        case "duration":
            parts = _DURATION_PART.findall(value)
            total = round(sum(float(number) * _UNIT_NS[unit] for number, unit in parts))
            sign = -1 if value.startswith("-") else 1
            return Duration(seconds=sign * (total // 10**9), nanos=sign * (total % 10**9))
        case _:
            return value
