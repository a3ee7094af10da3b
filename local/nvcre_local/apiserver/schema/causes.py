"""One reason why an object is refused, in the words and shape of a kube-apiserver's `Status.details.causes`.

The wording is part of the API that people read and clients match on; it follows k8s.io/apimachinery
`util/validation/field/errors.go` of v0.36. Rendering only: nothing here decides whether a value is valid.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

NO_FIELD = "<nil>"
"""How a kube-apiserver writes the path of the object itself."""


class Reason(StrEnum):
    REQUIRED = "FieldValueRequired"
    INVALID = "FieldValueInvalid"
    TYPE_INVALID = "FieldValueTypeInvalid"
    NOT_SUPPORTED = "FieldValueNotSupported"
    TOO_LONG = "FieldValueTooLong"
    TOO_MANY = "FieldValueTooMany"
    DUPLICATE = "FieldValueDuplicate"
    FORBIDDEN = "FieldValueForbidden"


BLOCKING = frozenset(
    {Reason.NOT_SUPPORTED, Reason.REQUIRED, Reason.TOO_LONG, Reason.TOO_MANY, Reason.TYPE_INVALID},
)
"""With one of these x-kubernetes-validations are not evaluated: they might meet a type they do not expect."""


@dataclass(frozen=True, slots=True)
class Cause:
    """`field` is a path such as `spec.workload.trainJob.env[0].name`; `message` leaves the field out, as in the API."""

    reason: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def required(field: str, detail: str = "") -> Cause:
    return Cause(Reason.REQUIRED, field, _with_detail("Required value", detail))


def forbidden(field: str, detail: str = "") -> Cause:
    return Cause(Reason.FORBIDDEN, field, _with_detail("Forbidden", detail))


def invalid(field: str, value: Any, detail: str) -> Cause:
    return Cause(Reason.INVALID, field, f"Invalid value: {render(value)}: {detail}")


def invalid_rule(field: str, detail: str) -> Cause:
    """Like `invalid` for an object or a list, whose value is too long to be shown."""
    return Cause(Reason.INVALID, field, f"Invalid value: {detail}")


def type_invalid(field: str, value: Any, detail: str) -> Cause:
    return Cause(Reason.TYPE_INVALID, field, f"Invalid value: {render(value)}: {detail}")


def not_supported(field: str, value: Any, supported: Sequence[Any]) -> Cause:
    names = ", ".join(render(v if isinstance(v, str) else json.dumps(v)) for v in supported)
    return Cause(Reason.NOT_SUPPORTED, field, f"Unsupported value: {render(value)}: supported values: {names}")


def too_long(field: str, limit: int) -> Cause:
    unit = "byte" if limit == 1 else "bytes"
    return Cause(Reason.TOO_LONG, field, f"Too long: may not be more than {limit} {unit}")


def too_many(field: str, actual: int, limit: int) -> Cause:
    unit = "item" if limit == 1 else "items"
    return Cause(Reason.TOO_MANY, field, f"Too many: {actual}: must have at most {limit} {unit}")


def duplicate(field: str, value: Any) -> Cause:
    return Cause(Reason.DUPLICATE, field, f"Duplicate value: {render(value)}")


def rules_not_checked() -> Cause:
    return invalid(
        NO_FIELD,
        None,
        "some validation rules were not checked because the object was invalid; "
        "correct the existing errors to complete validation",
    )


def render(value: Any) -> str:
    """A value as Go prints it in an error: strings quoted, numbers plain, the rest as JSON with sorted keys."""
    match value:
        case bool():
            return "true" if value else "false"
        case float() if value.is_integer() and abs(value) < 1e21:
            return str(int(value))
        case int() if not -(2**63) <= value < 2**63:
            return str(float(value))
        case str() | int() | float() | None:
            return json.dumps(value, ensure_ascii=False)
        case _:
            return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _with_detail(head: str, detail: str) -> str:
    return f"{head}: {detail}" if detail else head
