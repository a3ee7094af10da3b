"""A LogProfile that a person writes: everything that is wrong with it at once, as the cluster would say it.

By the CRD's own schema, and by what the coordinator writes into the status of one. Values in, sentences out.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from nvcre_local.apiserver.schema import StructuralSchema
from nvcre_logs.profile import EventPattern, LogProfileSpec, Patterns, Timestamp
from nvcre_logs.profile_problems import NO_PATTERNS, problems

from nvcre_cli.crd_fields import meant, version_of

_ANY_LAYOUT = "2006"
_NAMES = {field.encode_name: field.name for field in msgspec.structs.fields(Patterns)}


def wrong_with(manifest: Mapping[str, Any]) -> list[str]:
    """`manifest` has kind LogProfile."""
    return [*_by_the_schema(manifest), *_by_the_readers(manifest.get("spec"))]


def _by_the_schema(manifest: Mapping[str, Any]) -> Iterator[str]:
    version = version_of("LogProfile")
    if version is None:
        return
    obj = copy.deepcopy(dict(manifest))
    schema = StructuralSchema.from_crd_version(version)
    for path in schema.prune(obj):
        yield f"{path}: no such field{meant(path, version)}"
    schema.default(obj)
    for cause in schema.validate(obj):
        yield f"{cause.field}: {cause.message.removeprefix(f'{cause.field}: ')}"


def _by_the_readers(spec: Any) -> list[str]:
    """Of the parts that have the right form; what has not is the schema's to tell."""
    spec = spec if isinstance(spec, dict) else {}
    written, timestamp = spec.get("patterns"), spec.get("timestamp")
    layout = timestamp.get("layout") if isinstance(timestamp, dict) else None
    patterns: dict[str, EventPattern] = {}
    for name, pattern in (written if isinstance(written, dict) else {}).items():
        try:
            patterns[_NAMES[name]] = msgspec.convert(pattern, EventPattern)
        except (msgspec.ValidationError, KeyError):
            continue
    layout = layout if isinstance(layout, str) and layout else _ANY_LAYOUT
    found = problems(LogProfileSpec(timestamp=Timestamp(layout), patterns=Patterns(**patterns)))
    return found if written == {} else [problem for problem in found if problem != NO_PATTERNS]
