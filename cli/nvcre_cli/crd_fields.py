"""The fields that our CRDs declare, and which of them a person meant.  Reads the installed CRDs; says nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

from nvcre_local.cluster_objects import NotInstalled, crd_directories
from nvcre_local.cluster_yaml import load_document

_UNKNOWN = re.compile(r'unknown field "([^"]{1,512})"')


@cache
def version_of(kind: str) -> Mapping[str, Any] | None:
    """The only entry of `spec.versions` of the CRD of one of our kinds."""
    try:
        files = sorted(crd_directories()[0].glob("*.yaml"))
    except NotInstalled:
        return None
    for file in files:
        crd = load_document(file.read_bytes())
        if crd["spec"]["names"]["kind"] == kind:
            [version] = crd["spec"]["versions"]
            return dict(version)
    return None


def unknown_fields(kind: str, refused: str) -> Iterator[str]:
    """A line for each field that an API server did not know, from its own words."""
    version = version_of(kind)
    for path in dict.fromkeys(_UNKNOWN.findall(refused)):
        yield f"{path}: no such field{meant(path, version) if version is not None else ''}"


def meant(path: str, version: Mapping[str, Any]) -> str:
    """`; did you mean checkpointSave?`  `path` is `spec.patterns.checkpontSave`."""
    schema = version["schema"]["openAPIV3Schema"]
    *above, name = re.sub(r"\[[0-9]+\]", "[]", path).replace("[]", ".[]").split(".")
    for part in above:
        schema = schema.get("items", {}) if part == "[]" else schema.get("properties", {}).get(part, {})
    known = list(schema.get("properties", {}))
    if close := get_close_matches(name, known, 1):
        return f"; did you mean {close[0]}?"
    return f"; known are {', '.join(known)}" if known else ""
