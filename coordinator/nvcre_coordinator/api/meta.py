"""The parts of Kubernetes object metadata that our rules read, and the encoding of views back to JSON.

Views are msgspec structs: immutable, unknown fields ignored, JSON names in camelCase.  `from_json` raises
msgspec.ValidationError naming the path of the field that does not fit.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")

# A person may fill a status by hand, and the API server accepts a time without a zone: that one cannot be compared.
Moment: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]
_YEARS = range(1970, 9000)


class OwnerReference(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False


class ObjectMeta(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None  # when the grace ends, not when the deletion was asked for
    deletion_grace_period_seconds: int | None = None

    @property
    def has_controller(self) -> bool:
        return any(owner.controller for owner in self.owner_references)

    def controlled_by(self, uid: str) -> bool:
        return any(owner.controller and owner.uid == uid for owner in self.owner_references)


def from_json(obj: Any, view: type[T]) -> T:
    """A view of a JSON object as the API server sent it."""
    return msgspec.convert(obj, view)


def to_json(view: Any) -> Any:
    """Plain JSON values; times as RFC 3339 in UTC, absent optional fields left out."""
    return msgspec.to_builtins(view)


def check_year(moment: datetime | None, field: str) -> None:
    """Raises ValueError for a time that an hour more or less may carry out of the calendar."""
    if moment is not None and moment.year not in _YEARS:
        raise ValueError(f"{field}: {moment.isoformat()} is no time that anything happened at")


def second(moment: datetime) -> datetime:
    """Cut to the whole second in UTC: what metav1.Time keeps."""
    return moment.astimezone(UTC).replace(microsecond=0)
