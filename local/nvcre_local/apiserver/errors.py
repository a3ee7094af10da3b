"""Errors of the API, in the shape of the real server's `Status` object.

Clients act on code, reason and `details.causes[].field`; people read the message.  Wording follows
k8s.io/apimachinery/pkg/api/errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nvcre_local.apiserver.schema import Cause


class ApiError(Exception):
    """A request that is refused; `status()` is the body of the answer."""

    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details

    def status(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if self.details is not None:
            body["details"] = self.details
        return body


def qualified(plural: str, group: str) -> str:
    return f"{plural}.{group}" if group else plural


def _details(group: str, kind: str, name: str, causes: list[dict[str, str]] | None = None) -> dict[str, Any]:
    found = {"name": name, "group": group, "kind": kind, "causes": causes}
    return {key: value for key, value in found.items() if value}


def not_found(group: str, plural: str, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{qualified(plural, group)} "{name}" not found', _details(group, plural, name))


def no_such_path() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(group: str, plural: str, name: str) -> ApiError:
    return ApiError(
        409, "AlreadyExists", f'{qualified(plural, group)} "{name}" already exists', _details(group, plural, name)
    )


def conflict(group: str, plural: str, name: str, why: str = "") -> ApiError:
    why = why or "the object has been modified; please apply your changes to the latest version and try again"
    return ApiError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {qualified(plural, group)} "{name}": {why}',
        _details(group, plural, name),
    )


def invalid(group: str, kind: str, name: str, causes: Iterable[Cause]) -> ApiError:
    listed = list(causes)
    lines = [f"{cause.field}: {cause.message}" if cause.field else cause.message for cause in listed]
    said = lines[0] if len(lines) == 1 else f"[{', '.join(lines)}]"
    wire = [{"reason": cause.reason, "message": cause.message, "field": cause.field} for cause in listed]
    return ApiError(
        422,
        "Invalid",
        f'{qualified(kind, group)} "{name}" is invalid: {said}',
        _details(group, kind, name, wire),
    )


def forbidden(group: str, plural: str, name: str, why: str, causes: Sequence[Cause] = ()) -> ApiError:
    wire = [{"reason": cause.reason, "message": cause.message, "field": cause.field} for cause in causes]
    return ApiError(
        403,
        "Forbidden",
        f'{qualified(plural, group)} "{name}" is forbidden: {why}',
        _details(group, plural, name, wire),
    )


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def strict_decoding(problems: Sequence[str]) -> ApiError:
    return bad_request(f"strict decoding error: {', '.join(problems)}")


def unprocessable(message: str) -> ApiError:
    """A patch that can be read but not applied."""
    return ApiError(422, "Invalid", message, {})


def expired(message: str) -> ApiError:
    return ApiError(410, "Expired", message)


def too_new(wanted: int, current: int) -> ApiError:
    """A list at a version that is not there yet."""
    said = f"Too large resource version: {wanted}, current: {current}"
    return ApiError(504, "Timeout", f"Timeout: {said}", {"retryAfterSeconds": 1, "causes": [{"message": said}]})


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def method_not_allowed(what: str) -> ApiError:
    return ApiError(405, "MethodNotAllowed", f"the server does not allow this method on the requested resource: {what}")


def unsupported_media_type(found: str, accepted: Sequence[str]) -> ApiError:
    return ApiError(
        415,
        "UnsupportedMediaType",
        f"the body of the request was in an unknown format ({found}) - accepted media types include: "
        + ", ".join(accepted),
    )


def not_acceptable(accepted: Sequence[str]) -> ApiError:
    return ApiError(406, "NotAcceptable", f"only the following media types are accepted: {', '.join(accepted)}")


def too_large(limit: int) -> ApiError:
    return ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}")


def internal(message: str) -> ApiError:
    return ApiError(500, "InternalError", f"Internal error occurred: {message}", {"causes": [{"message": message}]})
