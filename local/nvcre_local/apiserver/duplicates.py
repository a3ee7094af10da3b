"""Keys that a body gives twice: decoders pass over them (the last one counts), strict validation refuses them.  Pure.

For bodies that were decoded before: they parse, and are not nested too deep.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml


class _Members(list[tuple[str, Any]]):
    """A JSON object as it is written."""


def in_json(raw: bytes) -> list[str]:
    """`duplicate field "spec.containers[0].name"`, in a real server's words."""
    # Numbers stay text: nobody looks at them, and Python refuses to read very long ones.
    body = json.loads(raw, object_pairs_hook=_Members, parse_int=str, parse_float=str)
    return [f'duplicate field "{path}"' for path in _repeated(body, "")]


def _repeated(value: Any, path: str) -> Iterator[str]:
    match value:
        case _Members():
            seen: set[str] = set()
            for key, entry in value:
                inner = f"{path}.{key}" if path else key
                if key in seen:
                    yield inner
                seen.add(key)
                yield from _repeated(entry, inner)
        case list():
            for index, entry in enumerate(value):
                yield from _repeated(entry, f"{path}[{index}]")


def in_yaml(raw: bytes, loader: type[yaml.SafeLoader]) -> list[str]:
    return list(_repeated_nodes(yaml.compose(raw, loader)))


def _repeated_nodes(node: yaml.Node | None) -> Iterator[str]:
    match node:
        case yaml.MappingNode():
            seen: set[str] = set()
            for key, value in node.value:
                if str(key.value) in seen:
                    yield f'yaml: line {key.start_mark.line + 1}: key "{key.value}" already set in map'
                seen.add(str(key.value))
                yield from _repeated_nodes(value)
        case yaml.SequenceNode():
            for entry in node.value:
                yield from _repeated_nodes(entry)
