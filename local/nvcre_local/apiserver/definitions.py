"""CustomResourceDefinitions: from a CRD object to served kinds, and the conditions that say so.

Reads and checks one definition; who stores it and when instances are cleaned up is elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from nvcre_kube.timestamps import rfc3339

from nvcre_local.apiserver.objects import required
from nvcre_local.apiserver.resources import METADATA_FIELDS, Column, Resource, Subresource
from nvcre_local.apiserver.schema import Cause, StructuralSchema
from nvcre_local.apiserver.storage import Json

CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"


def default_definition(crd: Json) -> None:
    spec = crd.get("spec")
    names = spec.get("names") if isinstance(spec, dict) else None
    if isinstance(spec, dict) and isinstance(names, dict) and isinstance(names.get("kind"), str):
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", f"{names['kind']}List")
        spec.setdefault("conversion", {"strategy": "None"})


def definition_causes(crd: Json) -> list[Cause]:
    found = list(_spec_causes(crd))
    if found:
        return found
    for index, version in enumerate(crd["spec"]["versions"]):
        try:
            StructuralSchema.from_crd_version(version)
        except ValueError as error:
            field = f"spec.versions[{index}].schema.openAPIV3Schema"
            found.append(Cause("FieldValueInvalid", field, f"Invalid value: {error}"))
    return found


def _spec_causes(crd: Json) -> Iterator[Cause]:
    spec = crd.get("spec")
    if not isinstance(spec, dict):
        yield required("spec")
        return
    names = spec.get("names")
    names = names if isinstance(names, dict) else {}
    for field in ("plural", "kind"):
        if not isinstance(names.get(field), str) or not names[field]:
            yield required(f"spec.names.{field}")
    if not isinstance(spec.get("group"), str) or not spec["group"]:
        yield required("spec.group")
    elif crd["metadata"]["name"] != f"{names.get('plural')}.{spec['group']}":
        yield Cause(
            "FieldValueInvalid",
            "metadata.name",
            f'Invalid value: "{crd["metadata"]["name"]}": must be spec.names.plural+"."+spec.group',
        )
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        yield Cause(
            "FieldValueNotSupported", "spec.scope", 'Unsupported value: supported values: "Cluster", "Namespaced"'
        )
    versions = spec.get("versions")
    if not isinstance(versions, list) or not all(isinstance(version, dict) for version in versions) or not versions:
        yield required("spec.versions")
        return
    for index, version in enumerate(versions):
        if not isinstance(version.get("name"), str):
            yield required(f"spec.versions[{index}].name")
        if not isinstance((version.get("schema") or {}).get("openAPIV3Schema"), dict):
            yield required(f"spec.versions[{index}].schema.openAPIV3Schema", "schemas are required")
    if sum(bool(version.get("storage")) for version in versions) != 1:
        yield Cause(
            "FieldValueInvalid",
            "spec.versions",
            "Invalid value: must have exactly one version marked as storage version",
        )


def accepted_status(crd: Json, now: datetime) -> Json:
    """Status of a definition whose kinds are served."""
    conditions = [
        {
            "type": kind,
            "status": "True",
            "lastTransitionTime": rfc3339(now),
            "reason": reason,
            "message": message,
        }
        for kind, reason, message in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
    ]
    stored = [version["name"] for version in crd["spec"]["versions"] if version.get("storage")]
    return {"conditions": conditions, "acceptedNames": crd["spec"]["names"], "storedVersions": stored}


def served_kinds(crd: Json) -> list[Resource]:
    """The kinds of a valid definition, one for each served version."""
    spec = crd["spec"]
    return [_resource(spec, version) for version in spec["versions"] if version.get("served")]


def _resource(spec: dict[str, Any], version: dict[str, Any]) -> Resource:
    names = spec["names"]
    has_status = "status" in (version.get("subresources") or {})
    selectable = (str(field.get("jsonPath", "")).lstrip(".") for field in version.get("selectableFields") or ())
    return Resource(
        group=spec["group"],
        version=version["name"],
        plural=names["plural"],
        kind=names["kind"],
        namespaced=spec["scope"] == "Namespaced",
        singular=names.get("singular", ""),
        list_kind=names.get("listKind", ""),
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        has_status=has_status,
        subresources=(Subresource("status", names["kind"], ("get", "patch", "update")),) if has_status else (),
        fields=METADATA_FIELDS | {field for field in selectable if field},
        columns=_columns(version),
        custom=True,
        schema=StructuralSchema.from_crd_version(version),
    )


def _columns(version: dict[str, Any]) -> tuple[Column, ...]:
    listed = version.get("additionalPrinterColumns")
    if not listed:
        return (Column("Age", "date", ".metadata.creationTimestamp"),)
    return tuple(
        Column(
            name=column["name"],
            type=column["type"],
            path=column["jsonPath"],
            format=column.get("format", ""),
            description=column.get("description", ""),
            priority=column.get("priority", 0),
        )
        for column in listed
    )
