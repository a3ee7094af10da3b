"""Items of a list of type set, and keys of a list of type map, occur once.

Follows k8s.io/apiextensions-apiserver `pkg/apiserver/schema/listtype`: each duplicated value is named once, at its
second appearance.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from nvcre_local.apiserver.schema import causes
from nvcre_local.apiserver.schema.causes import Cause
from nvcre_local.apiserver.schema.node import Node


def check(value: Any, node: Node, path: str) -> Iterator[Cause]:
    match value:
        case dict():
            for key, member in value.items():
                if key in node.properties:
                    yield from check(member, node.properties[key], f"{path}.{key}" if path else key)
                elif node.additional is not None:
                    yield from check(member, node.additional, f"{path}[{key}]")
        case list():
            match node.list_type:
                case "set":
                    yield from (causes.duplicate(f"{path}[{i}]", value[i]) for i in _repeated(value))
                case "map":
                    yield from _check_keys(value, node.list_keys, path)
                case _:
                    pass
            if node.items is not None:
                for i, item in enumerate(value):
                    yield from check(item, node.items, f"{path}[{i}]")
        case _:
            pass


def _check_keys(items: list[Any], keys: Sequence[str], path: str) -> Iterator[Cause]:
    for i, item in enumerate(items):
        if item is not None and not isinstance(item, dict):
            yield causes.invalid(f"{path}[{i}]", item, "must be an object for an array of list-type map")
            return
    found = [{key: item[key] for key in keys if key in item} if item else {} for item in items]
    yield from (causes.duplicate(f"{path}[{i}]", found[i]) for i in _repeated(found))


def _repeated(values: list[Any]) -> Iterator[int]:
    times: dict[str, int] = {}
    for i, value in enumerate(values):
        key = json.dumps(value, sort_keys=True)
        times[key] = times.get(key, 0) + 1
        if times[key] == 2:
            yield i
