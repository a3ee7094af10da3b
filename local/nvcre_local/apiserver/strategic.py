"""Strategic merge patch for the built-in kinds: lists of things with a key merge entry by entry.

Pure.  Directives: `$patch` (replace, delete, merge), `$retainKeys`, `$deleteFromPrimitiveList/x`, `$setElementOrder/x`.
The keys are the `patchMergeKey` tags of k8s.io/api; every list not named here is replaced as a whole.
"""

from __future__ import annotations

from typing import Any

from nvcre_local.apiserver.patch import MalformedPatch

# Lists of objects, by the names of the fields that hold them (patchMergeKey in k8s.io/api).
_MERGE_KEYS = {
    "containers": "name", "initContainers": "name", "ephemeralContainers": "name", "env": "name",
    "volumeMounts": "mountPath", "volumeDevices": "devicePath", "volumes": "name", "imagePullSecrets": "name",
    "hostAliases": "ip", "topologySpreadConstraints": "topologyKey", "resourceClaims": "name",
    "schedulingGates": "name",
    "conditions": "type", "addresses": "type", "podIPs": "ip", "ownerReferences": "uid", "secrets": "name",
}  # fmt: skip
# `ports` has another key in a Service than in a container.
_PORT_KEYS = {"Service": "port"}
# Lists of plain values that merge as sets.
_MERGED_PRIMITIVES = frozenset({"finalizers", "podCIDRs"})

_ORDER = "$setElementOrder/"
_DELETE_PRIMITIVE = "$deleteFromPrimitiveList/"


def strategic_merge(document: dict[str, Any], patch: Any) -> Any:
    """Raises MalformedPatch."""
    if not isinstance(patch, dict):
        raise MalformedPatch("a strategic merge patch must be an object")
    return _merge_objects(document, patch, str(document.get("kind", "")))


def _merge_objects(target: dict[str, Any], patch: dict[str, Any], kind: str) -> dict[str, Any]:
    match patch.get("$patch"):
        case None | "merge":
            pass
        case "replace":
            return _without_directives(patch)
        case "delete":
            return {}
        case other:
            raise MalformedPatch(f"unknown $patch directive {other!r}")
    merged = _retained(target, patch.get("$retainKeys"))
    for key, value in patch.items():
        if key.startswith(_DELETE_PRIMITIVE):
            _delete_primitives(merged, key.removeprefix(_DELETE_PRIMITIVE), value)
        elif key.startswith("$"):
            continue
        elif value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge_field(key, merged.get(key), value, kind)
    for key, order in patch.items():
        field = key.removeprefix(_ORDER)
        if field != key and isinstance(merged.get(field), list):
            merged[field] = _in_order(merged[field], order, _merge_key(field, kind))
    return merged


def _retained(target: dict[str, Any], keys: Any) -> dict[str, Any]:
    if keys is None:
        return dict(target)
    if not isinstance(keys, list):
        raise MalformedPatch("$retainKeys must be a list of field names")
    return {key: value for key, value in target.items() if key in keys}


def _delete_primitives(merged: dict[str, Any], field: str, values: Any) -> None:
    if isinstance(merged.get(field), list) and isinstance(values, list):
        merged[field] = [entry for entry in merged[field] if entry not in values]


def _merge_key(field: str, kind: str) -> str | None:
    if field == "ports":
        return _PORT_KEYS.get(kind, "containerPort")
    return _MERGE_KEYS.get(field)


def _merge_field(field: str, old: Any, new: Any, kind: str) -> Any:
    match new:
        case dict():
            return _merge_objects(old if isinstance(old, dict) else {}, new, kind)
        case list():
            key = _merge_key(field, kind)
            if key is not None and all(isinstance(entry, dict) for entry in new):
                return _merge_lists(old if isinstance(old, list) else [], new, key, kind)
            if field in _MERGED_PRIMITIVES and isinstance(old, list):
                return [*old, *(entry for entry in new if entry not in old)]
            return new
        case _:
            return new


def _merge_lists(old: list[Any], patch: list[dict[str, Any]], key: str, kind: str) -> list[Any]:
    if any(entry.get("$patch") == "replace" for entry in patch):
        return [_without_directives(entry) for entry in patch if entry.get("$patch") != "replace" or len(entry) > 1]
    merged = list(old)
    for entry in patch:
        if entry.keys() - {"$patch"} and key not in entry:
            raise MalformedPatch(f"map: {entry} does not contain declared merge key: {key}")
        at = next((i for i, have in enumerate(merged) if isinstance(have, dict) and have.get(key) == entry[key]), None)
        if entry.get("$patch") == "delete":
            if at is not None:
                del merged[at]
        elif at is None:
            merged.append(_merge_objects({}, entry, kind))
        else:
            merged[at] = _merge_objects(merged[at], entry, kind)
    return merged


def _in_order(entries: list[Any], order: Any, key: str | None) -> list[Any]:
    """Entries the client ordered come in that order; the others keep their place after them."""
    if not isinstance(order, list):
        raise MalformedPatch(f"{_ORDER} directives must be lists")
    wanted = [entry.get(key) if key and isinstance(entry, dict) else entry for entry in order]

    def place(entry: Any) -> int:
        value = entry.get(key) if key and isinstance(entry, dict) else entry
        return wanted.index(value) if value in wanted else len(wanted)

    return sorted(entries, key=place)


def _without_directives(patch: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in patch.items() if not key.startswith("$")}
