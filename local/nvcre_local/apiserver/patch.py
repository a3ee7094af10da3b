"""JSON patch (RFC 6902) and JSON merge patch (RFC 7386).  Pure; the current document may be altered and is given back.

Strategic merge patch, which knows Kubernetes' lists, is in `strategic`.
"""

from __future__ import annotations

from typing import Any

import msgspec

MAX_OPERATIONS = 10_000
MAX_COPIED_BYTES = 3 * 1024 * 1024


class MalformedPatch(ValueError):
    """The patch is not one (the real server answers 400)."""


class PatchDoesNotApply(ValueError):
    """The patch cannot be applied to this document (422)."""


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def apply_json_patch(document: Any, operations: Any) -> Any:
    """All operations or none. Raises MalformedPatch, PatchDoesNotApply."""
    if not isinstance(operations, list) or not all(isinstance(operation, dict) for operation in operations):
        raise MalformedPatch("a JSON patch must be a list of operations")
    if len(operations) > MAX_OPERATIONS:
        raise MalformedPatch(
            f"the allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}"
        )
    copied = 0
    for operation in operations:
        if operation.get("op") == "copy":
            # A chain of copies doubles the document each time; bound the sum, as the real server does.
            copied += len(msgspec.json.encode(_get(document, _pointer(operation, "from"))))
            if copied > MAX_COPIED_BYTES:
                raise PatchDoesNotApply(f"the accumulated size of copied values exceeds {MAX_COPIED_BYTES} bytes")
        document = _apply(document, operation)
    return document


def _apply(document: Any, operation: dict[str, Any]) -> Any:
    path = _pointer(operation, "path")
    match operation.get("op"):
        case "add":
            return _add(document, path, _value(operation))
        case "remove":
            _get(document, path)
            return _remove(document, path)
        case "replace":
            # A member that is not there is added, as the real server's library does.
            if isinstance(_get(document, path[:-1]), list):
                _get(document, path)
                document = _remove(document, path)
            return _add(document, path, _value(operation))
        case "move":
            source = _pointer(operation, "from")
            if path[: len(source)] == source and path != source:
                raise PatchDoesNotApply("a value cannot be moved into itself")
            moved = _get(document, source)
            return _add(_remove(document, source), path, moved)
        case "copy":
            found = _get(document, _pointer(operation, "from"))
            return _add(document, path, msgspec.json.decode(msgspec.json.encode(found)))
        case "test":
            if not _equal(_get(document, path, missing=None), operation.get("value")):
                raise PatchDoesNotApply(f"testing value {operation['path']} failed: test failed")
            return document
        case other:
            raise PatchDoesNotApply(f"Unexpected kind: {other}")


def _equal(first: Any, second: Any) -> bool:
    return msgspec.json.encode(first, order="sorted") == msgspec.json.encode(second, order="sorted")


def _value(operation: dict[str, Any]) -> Any:
    if "value" not in operation:
        raise MalformedPatch(f"operation {operation.get('op')} misses its value")
    return operation["value"]


def _pointer(operation: dict[str, Any], field: str) -> list[str]:
    text = operation.get(field)
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise MalformedPatch(f"{field} of a JSON patch operation must be a JSON pointer, found {text!r}")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


_RAISE = object()


def _get(document: Any, path: list[str], *, missing: Any = _RAISE) -> Any:
    at = document
    for part in path:
        if isinstance(at, dict) and part in at:
            at = at[part]
        elif isinstance(at, list) and part.isdigit() and int(part) < len(at):
            at = at[int(part)]
        elif missing is _RAISE:
            raise PatchDoesNotApply(f"the path /{'/'.join(path)} does not exist in the object")
        else:
            return missing
    return at


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _get(document, path[:-1])
    last = path[-1]
    match parent:
        case dict():
            parent[last] = value
        case list() if last == "-":
            parent.append(value)
        case list() if last.isdigit() and int(last) <= len(parent):
            parent.insert(int(last), value)
        case _:
            raise PatchDoesNotApply(f"nothing can be added at /{'/'.join(path)}")
    return document


def _remove(document: Any, path: list[str]) -> Any:
    if not path:
        return None
    parent = _get(document, path[:-1])
    if isinstance(parent, dict):
        del parent[path[-1]]
    else:
        del parent[int(path[-1])]
    return document
