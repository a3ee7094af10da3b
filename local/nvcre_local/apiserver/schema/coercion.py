"""What happens to an object before it is validated: unknown fields go, nulls without meaning go, defaults come.

Changes the object in place, as a kube-apiserver does on every read and write of a custom resource.
"""

import copy
from typing import Any

from nvcre_local.apiserver.schema.node import META_FIELDS, Node


def prune(obj: Any, node: Node) -> list[str]:
    """Drop the fields that the schema does not know; their paths, sorted (kubectl's strict mode shows them)."""
    pruned: list[str] = []
    _prune(obj, node, "", pruned, meta=True)
    return sorted(pruned)


def _prune(value: Any, node: Node | None, path: str, pruned: list[str], *, meta: bool = False) -> None:
    match value:
        case dict():
            meta = meta or (node is not None and node.embedded)
            for key in list(value):
                if meta and key in META_FIELDS:
                    continue
                here = f"{path}.{key}" if path else key
                known = node is not None and (node.properties.get(key) or node.additional)
                if known:
                    _prune(value[key], known, here, pruned)
                elif node is None or not node.keeps_unknown:
                    del value[key]
                    pruned.append(here)
        case list() if node is not None and (node.items is not None or not node.keeps_unknown):
            for i, item in enumerate(value):
                _prune(item, node.items, f"{path}[{i}]", pruned)
        case _:
            pass


def default(value: Any, node: Node) -> None:
    """Fill in defaults and drop nulls of fields that are neither nullable nor have a default."""
    match value:
        case dict():
            for key, sub in node.properties.items():
                if sub.has_default and (key not in value or (value[key] is None and not sub.nullable)):
                    value[key] = copy.deepcopy(sub.default)
            for key in list(value):
                below = node.properties.get(key) or node.additional
                if below is None:
                    continue
                if value[key] is None and not below.nullable:
                    if below.has_default:
                        value[key] = copy.deepcopy(below.default)
                    else:
                        del value[key]
                        continue
                default(value[key], below)
        case list() if node.items is not None:
            for i, item in enumerate(value):
                if item is None and not node.items.nullable and node.items.has_default:
                    value[i] = copy.deepcopy(node.items.default)
                default(value[i], node.items)
        case _:
            pass
