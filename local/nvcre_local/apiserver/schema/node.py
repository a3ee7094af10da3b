"""A CRD's `openAPIV3Schema` compiled once into nodes that pruning, defaulting and validation walk.

Reads the schema and refuses what could never work (a bad pattern, a rule that does not compile), naming where. It does
not check that the schema is structural: the CRDs we serve are our own and are checked against a real server by a test.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import re2

from nvcre_local.apiserver.schema.rules import Rule, RuleError

META_FIELDS = frozenset({"apiVersion", "kind", "metadata"})


class Pattern(Protocol):
    def search(self, text: str, /) -> object | None: ...


class SchemaError(ValueError):
    """The CRD is at fault, not the object; `field` is the path inside the CRD version."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class Limits:
    """The value validations of a node; None where the schema says nothing."""

    enum: tuple[Any, ...] | None = None
    pattern_source: str | None = None
    pattern: Pattern | None = None
    min_length: int | None = None
    max_length: int | None = None
    minimum: float | int | None = None
    maximum: float | int | None = None
    exclusive_minimum: bool = False
    exclusive_maximum: bool = False
    multiple_of: float | int | None = None
    min_items: int | None = None
    max_items: int | None = None
    unique_items: bool = False
    min_properties: int | None = None
    max_properties: int | None = None
    required: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    types: tuple[str, ...] = ()
    """Empty: any type. Two for x-kubernetes-int-or-string."""
    format: str = ""
    nullable: bool = False
    keeps_unknown: bool = False
    embedded: bool = False
    int_or_string: bool = False
    properties: Mapping[str, "Node"] = field(default_factory=dict)
    additional: "Node | None" = None
    items: "Node | None" = None
    has_default: bool = False
    default: Any = None
    list_type: str = "atomic"
    list_keys: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    all_of: tuple["Node", ...] = ()
    any_of: tuple["Node", ...] = ()
    one_of: tuple["Node", ...] = ()
    negated: "Node | None" = None
    rules: tuple[Rule, ...] = ()
    has_rules: bool = False
    """This node or one below it has rules: where not, the walk of the rules stops."""

    @property
    def type(self) -> str:
        return self.types[0] if len(self.types) == 1 else ""


def compile_node(schema: Mapping[str, Any], path: str = "openAPIV3Schema") -> Node:
    """Raises SchemaError. `schema` may share subtrees (YAML anchors); each use becomes a node of its own."""
    properties = {
        name: compile_node(sub, f"{path}.properties[{name}]") for name, sub in schema.get("properties", {}).items()
    }
    additional = _additional(schema.get("additionalProperties"), path)
    items = compile_node(schema["items"], f"{path}.items") if "items" in schema else None
    rules = tuple(_rules(schema.get("x-kubernetes-validations", ()), path))
    int_or_string = bool(schema.get("x-kubernetes-int-or-string"))
    below: Sequence[Node | None] = (*properties.values(), additional, items)
    return Node(
        types=("integer", "string") if int_or_string else ((schema["type"],) if schema.get("type") else ()),
        format=_supported_format(schema),
        nullable=bool(schema.get("nullable")),
        keeps_unknown=bool(schema.get("x-kubernetes-preserve-unknown-fields")),
        embedded=bool(schema.get("x-kubernetes-embedded-resource")),
        int_or_string=int_or_string,
        properties=properties,
        additional=additional,
        items=items,
        has_default="default" in schema and schema["default"] is not None,
        default=schema.get("default"),
        list_type=schema.get("x-kubernetes-list-type", "atomic"),
        list_keys=tuple(schema.get("x-kubernetes-list-map-keys", ())),
        limits=_limits(schema, path),
        all_of=tuple(_alternatives(schema, "allOf", path)),
        any_of=tuple(_alternatives(schema, "anyOf", path)),
        one_of=tuple(_alternatives(schema, "oneOf", path)),
        negated=compile_node(schema["not"], f"{path}.not") if "not" in schema else None,
        rules=rules,
        has_rules=bool(rules) or any(node is not None and node.has_rules for node in below),
    )


def _supported_format(schema: Mapping[str, Any]) -> str:
    """A format that a kube-apiserver does not know for the type says nothing to it."""
    name: str = schema.get("format", "")
    match schema.get("type"):
        case "integer":
            return name if name in ("int32", "int64") else ""
        case "number":
            return name if name in ("float", "double") else ""
        case "string" | None:
            return name
        case _:
            return ""


def _additional(additional: Any, path: str) -> Node | None:
    match additional:
        case Mapping():
            return compile_node(additional, f"{path}.additionalProperties")
        case True:
            return Node()
        case _:
            return None


def _alternatives(schema: Mapping[str, Any], key: str, path: str) -> Iterator[Node]:
    for i, sub in enumerate(schema.get(key, ())):
        yield compile_node(sub, f"{path}.{key}[{i}]")


def _rules(sources: Sequence[Mapping[str, Any]], path: str) -> Iterator[Rule]:
    for i, source in enumerate(sources):
        try:
            yield Rule.compile(source)
        except RuleError as e:
            raise SchemaError(f"{path}.x-kubernetes-validations[{i}].{e.key}", f"{e}: {source.get(e.key)!r}") from e


def _limits(schema: Mapping[str, Any], path: str) -> Limits:
    source = schema.get("pattern")
    try:
        pattern: Pattern | None = re2.compile(source) if source else None
    except re2.error as e:
        raise SchemaError(f"{path}.pattern", f"not a regular expression of RE2: {e}: {source!r}") from e
    return Limits(
        enum=tuple(schema["enum"]) if schema.get("enum") else None,
        pattern_source=source,
        pattern=pattern,
        min_length=schema.get("minLength"),
        max_length=schema.get("maxLength"),
        minimum=schema.get("minimum"),
        maximum=schema.get("maximum"),
        exclusive_minimum=bool(schema.get("exclusiveMinimum")),
        exclusive_maximum=bool(schema.get("exclusiveMaximum")),
        multiple_of=schema.get("multipleOf"),
        min_items=schema.get("minItems"),
        max_items=schema.get("maxItems"),
        unique_items=bool(schema.get("uniqueItems")),
        min_properties=schema.get("minProperties"),
        max_properties=schema.get("maxProperties"),
        required=tuple(schema.get("required", ())),
    )
