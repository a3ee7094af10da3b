"""The few protobuf bodies that kubectl (1.32 and later) sends for `create`, `auth` and `drain`, without falling back.

Reads Kubernetes' envelope and the messages in the table below into what their JSON would be; answers stay JSON, which
those clients take.  A kind or field that is not in the table is refused, never dropped.  Field numbers:
generated.proto of k8s.io/apimachinery and k8s.io/api, v0.33.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from nvcre_local.apiserver.storage import Json

MAGIC = b"k8s\x00"


class Unsupported(ValueError):
    """The body has a kind or a field that this reader does not know."""


class Malformed(ValueError):
    """The body is no protobuf of Kubernetes."""


class Scalar(Enum):
    STRING = "string"
    BYTES = "bytes"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    IGNORED = "ignored"  # the server sets it anyway


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: Scalar | Message = Scalar.STRING
    repeated: bool = False
    map_of: Scalar | None = None


Message = Mapping[int, Field]

_IGNORED = Field("", Scalar.IGNORED)

_OWNER: Message = {
    1: Field("kind"), 3: Field("name"), 4: Field("uid"), 5: Field("apiVersion"),
    6: Field("controller", Scalar.BOOLEAN), 7: Field("blockOwnerDeletion", Scalar.BOOLEAN),
}  # fmt: skip
_METADATA: Message = {
    1: Field("name"), 2: Field("generateName"), 3: Field("namespace"), 4: _IGNORED, 5: Field("uid"),
    6: Field("resourceVersion"), 7: _IGNORED, 8: _IGNORED, 9: _IGNORED, 10: _IGNORED,
    11: Field("labels", map_of=Scalar.STRING), 12: Field("annotations", map_of=Scalar.STRING),
    13: Field("ownerReferences", _OWNER, repeated=True), 14: Field("finalizers", repeated=True), 17: _IGNORED,
}  # fmt: skip
_META = Field("metadata", _METADATA)
_PRECONDITIONS: Message = {1: Field("uid"), 2: Field("resourceVersion")}
_DELETE_OPTIONS: Message = {
    1: Field("gracePeriodSeconds", Scalar.INTEGER), 2: Field("preconditions", _PRECONDITIONS),
    3: Field("orphanDependents", Scalar.BOOLEAN), 4: Field("propagationPolicy"), 5: Field("dryRun", repeated=True),
}  # fmt: skip
_BOUND_OBJECT: Message = {1: Field("kind"), 2: Field("apiVersion"), 3: Field("name"), 4: Field("uid")}
_TOKEN_REQUEST: Message = {
    1: Field("audiences", repeated=True), 3: Field("boundObjectRef", _BOUND_OBJECT),
    4: Field("expirationSeconds", Scalar.INTEGER),
}  # fmt: skip
_RESOURCE_ATTRIBUTES: Message = {
    1: Field("namespace"), 2: Field("verb"), 3: Field("group"), 4: Field("version"), 5: Field("resource"),
    6: Field("subresource"), 7: Field("name"),
}  # fmt: skip
_ACCESS: Message = {
    1: Field("resourceAttributes", _RESOURCE_ATTRIBUTES),
    2: Field("nonResourceAttributes", {1: Field("path"), 2: Field("verb")}),
}

_KINDS: Mapping[str, Message] = {
    "Namespace": {1: _META, 2: Field("spec", {1: Field("finalizers", repeated=True)}), 3: _IGNORED},
    "ConfigMap": {
        1: _META, 2: Field("data", map_of=Scalar.STRING), 3: Field("binaryData", map_of=Scalar.BYTES),
        4: Field("immutable", Scalar.BOOLEAN),
    },
    "Secret": {
        1: _META, 2: Field("data", map_of=Scalar.BYTES), 3: Field("type"), 4: Field("stringData", map_of=Scalar.STRING),
        5: Field("immutable", Scalar.BOOLEAN),
    },
    "ServiceAccount": {1: _META, 4: Field("automountServiceAccountToken", Scalar.BOOLEAN)},
    "TokenRequest": {1: _META, 2: Field("spec", _TOKEN_REQUEST), 3: _IGNORED},
    "Eviction": {1: _META, 2: Field("deleteOptions", _DELETE_OPTIONS)},
    "DeleteOptions": _DELETE_OPTIONS,
    "SelfSubjectReview": {1: _META, 2: _IGNORED},
    "SelfSubjectAccessReview": {1: _META, 2: Field("spec", _ACCESS), 3: _IGNORED},
    "SelfSubjectRulesReview": {1: _META, 2: Field("spec", {1: Field("namespace")}), 3: _IGNORED},
}  # fmt: skip

_ENVELOPE: Message = {
    1: Field("type", {1: Field("apiVersion"), 2: Field("kind")}), 2: Field("raw", Scalar.BYTES),
    3: Field("contentEncoding"), 4: Field("contentType"),
}  # fmt: skip


def decode(raw: bytes) -> Json:
    """Raises Malformed, Unsupported."""
    if not raw.startswith(MAGIC):
        raise Malformed("the body does not begin as a protobuf of Kubernetes does")
    envelope = _message(raw[len(MAGIC) :], _ENVELOPE)
    kind = envelope.get("type", {}).get("kind", "")
    if kind not in _KINDS:
        raise Unsupported(f"{kind or 'an object without kind'} in protobuf")
    body = _message(base64.b64decode(envelope.get("raw", "")), _KINDS[kind])
    return {**envelope["type"], **body}


def _message(raw: bytes, message: Message) -> Json:
    found: Json = {}
    for number, value in _fields(raw):
        field = message.get(number)
        if field is None:
            raise Unsupported(f"field number {number} beside {', '.join(f.name for f in message.values() if f.name)}")
        if field.type is Scalar.IGNORED:
            continue
        if field.map_of is not None:
            entry = _message(_bytes(value), {1: Field("key"), 2: Field("value", field.map_of)})
            found.setdefault(field.name, {})[entry.get("key", "")] = entry.get("value", "")
        elif field.repeated:
            found.setdefault(field.name, []).append(_value(value, field))
        else:
            found[field.name] = _value(value, field)
    # Go writes empty strings where JSON leaves a field out.
    return {name: value for name, value in found.items() if value != ""}


def _value(value: int | bytes, field: Field) -> object:
    match field.type:
        case Scalar.INTEGER | Scalar.BOOLEAN if isinstance(value, bytes):
            raise Malformed(f"{field.name} must be a number")
        case Scalar.INTEGER:
            number = int(value)
            return number - 2**64 if number >= 2**63 else number
        case Scalar.BOOLEAN:
            return bool(value)
        case Scalar.BYTES:
            return base64.b64encode(_bytes(value)).decode()
        case Scalar():
            try:
                return _bytes(value).decode()
            except UnicodeDecodeError:
                raise Malformed(f"{field.name} is not UTF-8") from None
        case message:
            return _message(_bytes(value), message)


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise Malformed("found a number in the place of text or a message")
    return value


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        match tag & 7:
            case 0:
                value, at = _varint(raw, at)
                yield tag >> 3, value
            case 2:
                length, at = _varint(raw, at)
                if at + length > len(raw):
                    raise Malformed("the body ends in the middle of a field")
                yield tag >> 3, raw[at : at + length]
                at += length
            case wire_type:
                raise Malformed(f"wire type {wire_type} does not occur in these messages")


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(raw):
            raise Malformed("the body ends in the middle of a number")
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), at
    raise Malformed("a number has more than ten bytes")
