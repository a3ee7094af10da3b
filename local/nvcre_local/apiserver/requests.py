"""What a request asks for: path, query, Accept header and body, parsed and bounded.  Pure; raises ApiError.

Knows the grammar of the API's URLs, not what is done with them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import unquote

import msgspec
import yaml

from nvcre_local.apiserver import duplicates, errors, protobuf
from nvcre_local.apiserver.deletion import DeleteOptions, Propagation
from nvcre_local.apiserver.operations import FieldValidation, WriteOptions
from nvcre_local.apiserver.schema import causes
from nvcre_local.apiserver.storage import Json

MAX_BODY_BYTES = 3 * 1024 * 1024
MAX_DEPTH = 200
JSON = "application/json"
YAML = "application/yaml"

_NAMESPACE_SUBRESOURCES = ("status", "finalize")


@dataclass(frozen=True, slots=True)
class Target:
    """What a resource URL names; empty parts were not in it."""

    group: str
    version: str
    namespace: str
    plural: str
    name: str
    subresource: str


def parse_path(raw_path: str) -> Target | None:
    """None for paths that are not of a resource (discovery, health, unknown)."""
    parts = [unquote(part) for part in raw_path.strip("/").split("/")]
    match parts:
        case ["api", version, *rest] if rest:
            group = ""
        case ["apis", group, version, *rest] if rest:
            pass
        case _:
            return None
    if "" in rest:
        return None
    namespace = ""
    if len(rest) >= 3 and rest[0] == "namespaces" and rest[2] not in _NAMESPACE_SUBRESOURCES:
        namespace, rest = rest[1], rest[2:]
    if len(rest) > 3:
        return None
    plural, name, subresource = [*rest, "", ""][:3]
    return Target(group, version, namespace, plural, name, subresource)


class Shape(Enum):
    """How the client wants to see objects."""

    OBJECT = "Object"
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"


def negotiate(accept: str) -> Shape:
    """The first JSON alternative of an Accept header that we can serve. Raises ApiError 406."""
    for alternative in (accept or JSON).split(","):
        media, *parameters = (part.strip() for part in alternative.split(";"))
        if media not in (JSON, "*/*", "application/*"):
            continue
        options = dict(parameter.partition("=")[::2] for parameter in parameters)
        match options.get("as", ""), options.get("v", "v1"):
            case "", _:
                return Shape.OBJECT
            case "Table", "v1":
                return Shape.TABLE
            case (("PartialObjectMetadata" | "PartialObjectMetadataList"), "v1"):
                return Shape.METADATA
    raise errors.not_acceptable([JSON])


def flag(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "").lower() in ("true", "1")


def integer(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise errors.bad_request(
            f'strconv.ParseInt: parsing "{text}": invalid syntax: {name} must be an integer'
        ) from None


def resource_version(query: Mapping[str, str]) -> int | None:
    """None where the client leaves the choice to us ("" and "0" are told apart by nobody here)."""
    text = query.get("resourceVersion", "")
    if text in ("", "0"):
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise errors.bad_request(f"invalid resource version {text[:40]!r}: it must be a number this server gave out")
    return int(text)


def write_options(query: Mapping[str, str], kind: str) -> WriteOptions:
    """`kind`: CreateOptions, UpdateOptions or PatchOptions, as a refusal calls them. Raises ApiError."""
    wanted = query.get("fieldValidation") or FieldValidation.WARN.value
    try:
        validation = FieldValidation(wanted)
    except ValueError:
        supported = [choice.value for choice in FieldValidation]
        raise _unsupported(kind, "fieldValidation", wanted, supported) from None
    return WriteOptions(dry_run=_dry_run(query.get("dryRun", ""), kind), field_validation=validation)


def _unsupported(kind: str, field: str, value: object, supported: Sequence[str]) -> errors.ApiError:
    return errors.invalid("meta.k8s.io", kind, "", [causes.not_supported(field, value, supported)])


def _dry_run(value: str, kind: str) -> bool:
    if value not in ("", "All"):
        raise _unsupported(kind, "dryRun", value, ["All"])
    return value == "All"


def delete_options(query: Mapping[str, str], body: Json) -> DeleteOptions:
    """From the body (which wins) and the query."""
    grace = body.get("gracePeriodSeconds", integer(query, "gracePeriodSeconds"))
    if grace is not None and (not isinstance(grace, int) or isinstance(grace, bool)):
        raise errors.bad_request("gracePeriodSeconds of DeleteOptions must be an integer")
    policy = body.get("propagationPolicy") or query.get("propagationPolicy") or ""
    if not policy and (body.get("orphanDependents") is True or flag(query, "orphanDependents")):
        policy = Propagation.ORPHAN.value
    try:
        propagation = Propagation(policy or Propagation.BACKGROUND.value)
    except ValueError:
        supported = [choice.value for choice in Propagation]
        raise _unsupported("DeleteOptions", "propagationPolicy", policy, supported) from None
    conditions = body.get("preconditions")
    conditions = conditions if isinstance(conditions, dict) else {}
    dry = body.get("dryRun") or [query.get("dryRun", "")]
    return DeleteOptions(
        grace_seconds=grace,
        propagation=propagation,
        uid=str(conditions.get("uid") or ""),
        resource_version=str(conditions.get("resourceVersion") or ""),
        dry_run=any(_dry_run(str(value), "DeleteOptions") for value in dry) if isinstance(dry, list) else False,
    )


# --- bodies


class _JsonLikeLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML as far as it is JSON: dates stay text."""


_JsonLikeLoader.yaml_implicit_resolvers = {
    first: [(tag, grammar) for tag, grammar in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def decode(raw: bytes, content_type: str) -> Any:
    """The value in a body. Raises ApiError 400 or 415."""
    media = _media(content_type)
    match media:
        case "" | "application/json" | "application/octet-stream":
            value = _decode_json(raw)
        case "application/yaml" | "application/x-yaml" | "text/yaml":
            value = _decode_yaml(raw)
        case "application/vnd.kubernetes.protobuf":
            value = _decode_protobuf(raw)
        case _:
            raise errors.unsupported_media_type(media, (JSON, YAML))
    return value


def duplicate_fields(raw: bytes, content_type: str) -> tuple[str, ...]:
    """What strict validation has against a body that `decode` has read."""
    match _media(content_type):
        case "application/vnd.kubernetes.protobuf":
            return ()
        case "application/yaml" | "application/x-yaml" | "text/yaml":
            return tuple(duplicates.in_yaml(raw, _JsonLikeLoader))
        case _:
            return tuple(duplicates.in_json(raw))


def _media(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def decode_object(raw: bytes, content_type: str) -> Json:
    value = decode(raw, content_type)
    if not isinstance(value, dict):
        raise errors.bad_request("the body of the request must be an object")
    return value


def _decode_json(raw: bytes) -> Any:
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.bad_request(f"the body of the request is not valid JSON: {error}") from None
    _bound_depth(value)
    return value


def _decode_protobuf(raw: bytes) -> Any:
    try:
        return protobuf.decode(raw)
    except protobuf.Malformed as error:
        raise errors.bad_request(f"the body of the request is not valid protobuf: {error}") from None
    except protobuf.Unsupported as error:
        raise errors.unsupported_media_type(str(error), (JSON, YAML)) from None


def _decode_yaml(raw: bytes) -> Any:
    try:
        _refuse_aliases(raw)
        value = yaml.load(raw, _JsonLikeLoader)  # noqa: S506 - a SafeLoader with less
        value = _as_json(value)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        said = " ".join(str(error).split())
        raise errors.bad_request(f"the body of the request is not valid YAML: {said}") from None
    _bound_depth(value)
    return value


def _refuse_aliases(raw: bytes) -> None:
    """A short text with aliases could stand for a huge object."""
    if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(raw, _JsonLikeLoader)):
        raise ValueError("aliases are not taken; write the value out")


def _as_json(value: Any) -> Any:
    match value:
        case dict():
            return {key if isinstance(key, str) else _key(key): _as_json(entry) for key, entry in value.items()}
        case list():
            return [_as_json(entry) for entry in value]
        case float() if not math.isfinite(value):
            raise ValueError(f"{value} is not a number of JSON")
        case None | str() | bool() | int() | float():
            return value
        case _:
            raise ValueError(f"a value of type {type(value).__name__} has no place in JSON")


def _key(key: Any) -> str:
    match key:
        case bool():
            return "true" if key else "false"
        case int() | float():
            return str(key)
        case _:
            raise ValueError(f"{key!r} cannot be the name of a field")


def _bound_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            below
            for container in level
            if isinstance(container, dict | list)
            for below in (container.values() if isinstance(container, dict) else container)
        ]
        if not level:
            return
    raise errors.bad_request(f"the body of the request is nested deeper than {MAX_DEPTH} levels")
