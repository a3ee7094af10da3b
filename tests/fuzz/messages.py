"""Protobuf messages made from decisions: well-formed on the wire, hostile in every value."""

import struct
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from fuzz.choices import Choices

M = TypeVar("M", bound=Message)
DEEPEST = 8
MANY = 5000  # items of a list that goes on and on
LONG = 100_000  # characters of a text that does
_BITS = {
    FieldDescriptor.CPPTYPE_INT32: (32, True),
    FieldDescriptor.CPPTYPE_ENUM: (32, True),
    FieldDescriptor.CPPTYPE_INT64: (64, True),
    FieldDescriptor.CPPTYPE_UINT32: (32, False),
    FieldDescriptor.CPPTYPE_UINT64: (64, False),
}


def fill(message: M, choices: Choices, depth: int = 0) -> M:
    """Zero bytes set nothing."""
    for field in message.DESCRIPTOR.fields:
        if not choices.left or choices.number() % 4 == 0 or depth == DEEPEST:
            continue
        if not field.is_repeated:
            _set(message, field, choices, depth)
            continue
        count = choices.number()
        items = getattr(message, field.name)
        for _ in range(MANY if count == 255 else count % 4):
            if field.message_type is not None:
                fill(items.add(), choices, depth + 1)
            else:
                items.append(_value(field, choices))
    return message


def _set(message: Message, field: FieldDescriptor, choices: Choices, depth: int) -> None:
    if field.message_type is not None:
        inner = getattr(message, field.name)
        inner.SetInParent()
        fill(inner, choices, depth + 1)
    else:
        setattr(message, field.name, _value(field, choices))


def _value(field: FieldDescriptor, choices: Choices) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            length = choices.number()
            text = choices.take(length % 64).decode("utf-8", "replace")
            return text * (LONG // max(1, len(text))) if length == 255 else text
        case FieldDescriptor.CPPTYPE_BOOL:
            return bool(choices.number() % 2)
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return struct.unpack("<d", choices.take(8))[0]
        case number:
            bits, signed = _BITS[number]
            return int.from_bytes(
                choices.take(choices.number() % (bits // 8 + 1)).ljust(bits // 8, b"\0"), "little", signed=signed
            )
