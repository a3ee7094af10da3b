"""The bytes that a server sent, as JSON objects: what is none is told so, and no nesting is too deep.

Kubernetes takes 10,000 levels of nesting, the decoder here about a thousand.  An object beyond that must not hide the
others of its list: its field that is nested too deep (`spec`, `status`) becomes null, which no view of it fits.
"""

import json
import re
from typing import Any, TypeGuard

from nvcre_kube.resources import JsonObject

MAX_DEPTH = 500
"""Of what is kept where the decoder gave up."""
FIELDS_IN_OBJECT, FIELDS_IN_EVENT, FIELDS_IN_LIST = 2, 3, 4
"""How deep the values of an object's fields lie: in an answer that is one, in a watch's event, in a list's items."""

_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]', re.DOTALL)


def decoded(body: bytes, fields_at: int) -> JsonObject | None:
    """None for what is no JSON object."""
    try:
        answer = json.loads(body)
    except RecursionError:
        return _decoded_again(body, fields_at)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _decoded_again(body: bytes, fields_at: int) -> JsonObject | None:
    try:
        answer = json.loads(_without_deep_fields(body, fields_at))
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def is_object(value: Any, *, named: bool = True) -> TypeGuard[JsonObject]:
    """Has it the metadata that every object has?  A watch's bookmark has no name."""
    metadata = value.get("metadata") if isinstance(value, dict) else None
    return isinstance(metadata, dict) and (not named or isinstance(metadata.get("name"), str))


def _without_deep_fields(body: bytes, fields_at: int) -> bytes:
    kept: list[bytes] = []
    copied_to = field_begins = depth = deepest = 0
    for token in _TOKEN.finditer(body):
        match token[0]:
            case b"{" | b"[":
                depth += 1
                if depth == fields_at:
                    field_begins, deepest = token.start(), depth
                deepest = max(deepest, depth)
            case b"}" | b"]":
                if depth == fields_at and deepest > MAX_DEPTH:
                    kept += body[copied_to:field_begins], b"null"
                    copied_to = token.end()
                depth -= 1
    return b"".join([*kept, body[copied_to:]])
