"""The rules every object's metadata obeys on its way in: names, labels, owners, finalizers, what an update may change.

Pure: bodies in, causes or new bodies out; time and uids are arguments.  Schemas of kinds are elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec
from nvcre_kube.timestamps import rfc3339

from nvcre_local.apiserver.schema import Cause
from nvcre_local.apiserver.storage import Json

MAX_ANNOTATIONS_BYTES = 256 * 1024

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")

_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_KEY_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)

_STRING_MAPS = ("labels", "annotations")
_STRINGS = ("name", "namespace", "generateName", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")
_KEPT = frozenset(
    {
        "name", "generateName", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp",
        "deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations", "ownerReferences", "finalizers",
    }
)  # fmt: skip


class MalformedMetadata(ValueError):
    """A metadata field has the wrong JSON type; the message names the field."""


def read_metadata(body: Json) -> Json:
    """The body's metadata with only the fields that exist, nulls and empty maps left out. Raises MalformedMetadata."""
    found = body.get("metadata")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise MalformedMetadata("metadata: must be an object")
    metadata = {key: value for key, value in found.items() if key in _KEPT and value not in (None, {}, [], "")}
    for field in _STRINGS:
        if not isinstance(metadata.get(field, ""), str):
            raise MalformedMetadata(f"metadata.{field}: must be a string")
    for field in _STRING_MAPS:
        entries = metadata.get(field, {})
        if not isinstance(entries, dict) or not all(isinstance(value, str) for value in entries.values()):
            raise MalformedMetadata(f"metadata.{field}: must be a map of strings")
    finalizers = metadata.get("finalizers", [])
    if not isinstance(finalizers, list) or not all(isinstance(value, str) for value in finalizers):
        raise MalformedMetadata("metadata.finalizers: must be a list of strings")
    owners = metadata.get("ownerReferences", [])
    if not isinstance(owners, list) or not all(_is_owner(value) for value in owners):
        raise MalformedMetadata("metadata.ownerReferences: must be a list of references, their fields strings")
    if finalizers:
        metadata["finalizers"] = list(dict.fromkeys(finalizers))
    return metadata


def _is_owner(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(field, ""), str) for field in ("apiVersion", "kind", "name", "uid")
    )


def unknown_metadata(body: Json) -> list[str]:
    """Paths that strict decoding complains about. `managedFields` and `selfLink` exist, we only do not keep them."""
    found = body.get("metadata")
    known = _KEPT | {"managedFields", "selfLink"}
    return [f"metadata.{key}" for key in found if key not in known] if isinstance(found, dict) else []


# --- validation


def metadata_causes(metadata: Json, *, label_name: bool) -> list[Cause]:
    return [
        *_name_causes(metadata.get("name", ""), label_name=label_name),
        *label_causes(metadata.get("labels", {}), "metadata.labels"),
        *_annotation_causes(metadata.get("annotations", {})),
        *_owner_causes(metadata.get("ownerReferences", [])),
        *_finalizer_causes(metadata.get("finalizers", [])),
    ]


def _bad(field: str, value: object, rule: str) -> Cause:
    quoted = '"' + str(value)[:253] + '"'
    return Cause("FieldValueInvalid", field, f"Invalid value: {quoted}: {rule}")


def required(field: str, why: str = "") -> Cause:
    return Cause("FieldValueRequired", field, f"Required value: {why}" if why else "Required value")


def _name_causes(name: str, *, label_name: bool) -> Iterator[Cause]:
    limit, grammar, rule = (63, _LABEL, _LABEL_RULE) if label_name else (253, _SUBDOMAIN, _SUBDOMAIN_RULE)
    if not name:
        yield required("metadata.name", "name or generateName is required")
    elif len(name) > limit:
        yield _bad("metadata.name", name, f"must be no more than {limit} characters")
    elif not grammar.fullmatch(name):
        yield _bad("metadata.name", name, rule)


def label_causes(labels: dict[str, str], field: str) -> Iterator[Cause]:
    for key, value in labels.items():
        rule = _key_problem(key)
        if rule:
            yield _bad(field, key, rule)
        if len(value) > 63:
            yield _bad(field, value, "must be no more than 63 characters")
        elif not _VALUE.fullmatch(value):
            yield _bad(field, value, _VALUE_RULE)


def _key_problem(key: str) -> str:
    prefix, slash, name = key.rpartition("/")
    if slash and not prefix:
        return "prefix part must be non-empty"
    if prefix and (len(prefix) > 253 or not _SUBDOMAIN.fullmatch(prefix)):
        return f"prefix part {_SUBDOMAIN_RULE}"
    if len(name) > 63:
        return "name part must be no more than 63 characters"
    return "" if _QUALIFIED.fullmatch(name) else _KEY_RULE


def _annotation_causes(annotations: dict[str, str]) -> Iterator[Cause]:
    for key in annotations:
        rule = _key_problem(key.lower())
        if rule:
            yield _bad("metadata.annotations", key, rule)
    if sum(len(key) + len(value) for key, value in annotations.items()) > MAX_ANNOTATIONS_BYTES:
        yield Cause(
            "FieldValueTooLong", "metadata.annotations", f"Too long: may not be more than {MAX_ANNOTATIONS_BYTES} bytes"
        )


def _owner_causes(owners: list[Json]) -> Iterator[Cause]:
    for owner in owners:
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                yield _bad(f"metadata.ownerReferences.{field}", "", "must not be empty")
    controllers = [owner for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        yield Cause(
            "FieldValueInvalid",
            "metadata.ownerReferences",
            f"Invalid value: only one reference can have Controller set to true, found {len(controllers)}",
        )


def _finalizer_causes(finalizers: list[str]) -> Iterator[Cause]:
    for finalizer in finalizers:
        rule = _key_problem(finalizer)
        if rule:
            yield _bad("metadata.finalizers", finalizer, rule)


def update_causes(old: Json, new: Json) -> list[Cause]:
    """Old and new metadata of an update whose immutable fields were already carried over."""
    if not old.get("deletionTimestamp"):
        return []
    added = [finalizer for finalizer in new.get("finalizers", []) if finalizer not in old.get("finalizers", [])]
    if not added:
        return []
    return [
        Cause(
            "FieldValueForbidden",
            "metadata.finalizers",
            f"Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers {added}",
        )
    ]


# --- building


def born(metadata: Json, *, namespace: str, name: str, uid: str, now: datetime) -> Json:
    """Metadata of a new object: what a client may not choose is ours."""
    kept = {
        key: value
        for key, value in metadata.items()
        if key in ("generateName", "labels", "annotations", "ownerReferences", "finalizers")
    }
    found: Json = {"name": name, **({"namespace": namespace} if namespace else {}), "uid": uid}
    return found | {"creationTimestamp": rfc3339(now)} | kept


def carried_over(old: Json, new: Json) -> Json:
    """New metadata of an update: identity and lifecycle stay as they were, the rest is as sent."""
    ours = ("name", "namespace", "uid", "generateName", "creationTimestamp", "generation", "resourceVersion",
            "deletionTimestamp", "deletionGracePeriodSeconds")  # fmt: skip
    kept: Json = {key: old[key] for key in ours if key in old}
    sent: Json = {key: new[key] for key in ("labels", "annotations", "ownerReferences", "finalizers") if key in new}
    return {**kept, **sent}


def same(old: Json, new: Json) -> bool:
    """Would this write change anything? (A write that does not keeps the version and makes no event.)"""
    first, second = ({**body, "metadata": _unversioned(body)} for body in (old, new))
    # Python says 1 == True == 1.0, JSON does not: equal values are compared again as text.
    return first == second and _canonical(first) == _canonical(second)


def _canonical(body: Json) -> bytes:
    return msgspec.json.encode(body, order="sorted")


def _unversioned(body: Json) -> Json:
    return {key: value for key, value in body["metadata"].items() if key != "resourceVersion"}


def without(body: Json, *fields: str) -> Json:
    return {key: value for key, value in body.items() if key not in fields}
