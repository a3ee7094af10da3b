"""Decides what a Pod's volumes hold: files of which ConfigMaps, Secrets and tokens, and when a token is renewed.

Pure. A volume is a directory `$(NVCRE_POD_DIR)/volumes/<name>`; mount paths are not looked at, because there is no
mount namespace (docs/architecture.md). What cannot be had here is refused before anything starts.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import PurePosixPath

from nvcre_kube.resources import JsonObject

DEFAULT_TOKEN_S = 3600
RENEW_AT = 0.8
"""The share of a token's life after which the kubelet asks for the next (kubernetes.io, "Service account token
volume projection")."""


_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_KEY = re.compile(r"(?!\.\.)[-._a-zA-Z0-9]{1,253}")
"""Both become file names. An API server asks the same of them; this one need not be ours."""


class RefusedVolume(Exception):
    """The volume can never be had on a local cluster; the message names it and the remedy."""


class NotYet(Exception):
    """The volume needs something that does not exist yet; the message names it."""


@dataclass(frozen=True, slots=True)
class EmptyDirectory:
    pass


@dataclass(frozen=True, slots=True)
class HostPath:
    path: str


class Holder(StrEnum):
    """The objects whose keys become files."""

    CONFIG_MAP = "configmap"
    SECRET = "secret"  # noqa: S105  (a kind, not a secret)


@dataclass(frozen=True, slots=True)
class ObjectFiles:
    """`items` maps key to path; None takes every key under its own name."""

    holder: Holder
    name: str
    items: Mapping[str, str] | None = None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class TokenFile:
    path: str
    audience: str | None
    expiration_s: int


@dataclass(frozen=True, slots=True)
class Files:
    sources: tuple[ObjectFiles | TokenFile, ...]


Content = EmptyDirectory | HostPath | Files


def plan(pod: JsonObject) -> dict[str, Content]:
    """Volume name -> content. Raises RefusedVolume."""
    for volume in pod["spec"].get("volumes") or ():
        if not _NAME.fullmatch(volume["name"]):
            raise RefusedVolume(f"volume {volume['name']!r}: the name must be of lower case letters, digits and '-'")
    return {volume["name"]: _content(volume) for volume in pod["spec"].get("volumes") or ()}


def _content(volume: JsonObject) -> Content:
    name = volume["name"]
    match _only(volume, default="emptyDir"):
        case ("emptyDir", _):
            return EmptyDirectory()
        case ("hostPath", source):
            return HostPath(source["path"])
        case ("configMap", source):
            return Files((_object(name, Holder.CONFIG_MAP, source["name"], source),))
        case ("secret", source):
            return Files((_object(name, Holder.SECRET, source["secretName"], source),))
        case ("projected", source):
            return Files(tuple(part for entry in source.get("sources") or () for part in _projected(name, entry)))
        case (kind, _):
            raise RefusedVolume(
                f"volume {name!r}: {kind} is not supported on a local cluster; "
                "use emptyDir, hostPath, configMap, secret or projected"
            )


def _only(source: JsonObject, *, default: str) -> tuple[str, JsonObject]:
    """The one source a volume has: its kind and its fields."""
    return next(((kind, fields or {}) for kind, fields in source.items() if kind != "name"), (default, {}))


def _projected(volume: str, entry: JsonObject) -> tuple[ObjectFiles | TokenFile, ...]:
    match _only(entry, default="nothing"):
        case ("configMap", source):
            return (_object(volume, Holder.CONFIG_MAP, source["name"], source),)
        case ("secret", source):
            return (_object(volume, Holder.SECRET, source["name"], source),)
        case ("serviceAccountToken", source):
            return (
                TokenFile(
                    path=_inside(volume, source["path"]),
                    audience=source.get("audience"),
                    expiration_s=int(source.get("expirationSeconds") or DEFAULT_TOKEN_S),
                ),
            )
        case ("downwardAPI", _) if volume.startswith("kube-api-access-"):
            return ()  # the namespace file that a real API server adds to every Pod; nobody here reads it
        case (kind, _):
            raise RefusedVolume(
                f"volume {volume!r}: projected {kind} is not supported on a local cluster; "
                "use serviceAccountToken, configMap or secret"
            )


def _object(volume: str, holder: Holder, name: str, source: JsonObject) -> ObjectFiles:
    items = source.get("items")
    return ObjectFiles(
        holder=holder,
        name=name,
        items={item["key"]: _inside(volume, item["path"]) for item in items} if items is not None else None,
        optional=bool(source.get("optional")),
    )


def _inside(volume: str, path: str) -> str:
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts or not parts.parts:
        raise RefusedVolume(f"volume {volume!r}: path {path!r} must lie inside the volume")
    return str(parts)


def object_files(source: ObjectFiles, found: JsonObject | None) -> dict[str, bytes]:
    """Path -> content. Raises NotYet when the object or one of the wanted keys does not exist."""
    if found is None:
        if source.optional:
            return {}
        raise NotYet(f"{source.holder} {source.name!r} not found")
    encoded_in = "data" if source.holder is Holder.SECRET else "binaryData"
    data: dict[str, bytes] = {}
    if source.holder is Holder.CONFIG_MAP:
        data = {key: text.encode() for key, text in (found.get("data") or {}).items()}
    for key, encoded in (found.get(encoded_in) or {}).items():
        try:
            data[key] = base64.b64decode(encoded)
        except binascii.Error:
            raise NotYet(f"{source.holder} {source.name!r}: {encoded_in} {key!r} is not base64") from None
    if source.items is None:
        if bad := next((key for key in data if not _KEY.fullmatch(key) or key == "."), None):
            raise NotYet(f"{source.holder} {source.name!r}: the key {bad!r} cannot be the name of a file")
        return data
    missing = sorted(key for key in source.items if key not in data)
    if missing and not source.optional:
        raise NotYet(f"{source.holder} {source.name!r} has no key {', '.join(map(repr, missing))}")
    return {path: data[key] for key, path in source.items.items() if key in data}


def renew_at(issued: datetime, expires: datetime) -> datetime:
    """When to ask for the next token."""
    return issued + max((expires - issued) * RENEW_AT, timedelta(seconds=1))
