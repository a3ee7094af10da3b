"""YAML as Kubernetes reads it: JSON's types only, no key twice, and a date stays text (a LogProfile's layout looks so).

Whatever a file holds, reading it takes bounded time and memory, and a complaint is a yaml.YAMLError: aliases make a
small file huge once it is written out, and PyYAML raises whatever its conversions raise.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import yaml

try:  # ten times as fast, and deep nesting is refused instead of overflowing the stack
    from yaml import CSafeLoader as _Loader
except ImportError:  # a PyYAML built without libyaml
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]

MAX_VALUES = 200_000
MAX_TEXT = 16 << 20
MERGE = "tag:yaml.org,2002:merge"
JSON_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map"))


class PlainLoader(_Loader):
    """A safe loader that makes JSON's types, and complains with the place about everything else."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        if node.tag not in JSON_TAGS and node.tag != MERGE:
            raise yaml.constructor.ConstructorError(
                None, None, f"{node.tag} has no place in JSON; write text in quotes", node.start_mark
            )
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError) as error:  # what int(), float() and the table of booleans raise
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from None

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        if isinstance(node, yaml.MappingNode):
            seen = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
                    if (key.tag, key.value) in seen:
                        problem = f"the key {key.value!r} is there twice"
                        raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                    seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_documents(raw: bytes | str) -> list[Any]:
    """All documents that are not empty. Raises yaml.YAMLError."""
    try:
        found = [c for c in yaml.load_all(raw, Loader=PlainLoader) if c is not None]
    except RecursionError:
        raise yaml.YAMLError("nested too deeply") from None
    _bounded(found)
    return found


def load_document(raw: bytes | str) -> Any:
    """The only document of a file; None when there is none. Raises yaml.YAMLError."""
    found = load_documents(raw)
    if len(found) > 1:
        raise yaml.YAMLError(f"{len(found)} documents where one is expected")
    return found[0] if found else None


def _bounded(documents: list[Any]) -> None:
    """Counts what would be written out: each alias as often as it is used, itself within itself for ever."""
    waiting: list[Any] = [documents]
    seen = length = 0
    while waiting:
        value = waiting.pop()
        seen += 1
        if seen > MAX_VALUES:
            raise yaml.YAMLError(f"more than {MAX_VALUES} values, counting what aliases repeat")
        match value:
            case dict():
                waiting.extend(value)
                waiting.extend(value.values())
            case list():
                waiting.extend(value)
            case str():
                length += len(value)
                if length > MAX_TEXT:
                    raise yaml.YAMLError(f"more than {MAX_TEXT >> 20} MiB of text, counting what aliases repeat")
            case float() if not math.isfinite(value):
                raise yaml.YAMLError(f"{value} is no number that JSON can hold")
