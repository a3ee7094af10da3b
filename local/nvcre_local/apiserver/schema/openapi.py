"""OpenAPI v3 of custom resources, for `kubectl explain` and client-side validation.

Renders what a CRD version says; the API server serves it under /openapi/v3/apis/GROUP/VERSION.
"""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

META = "io.k8s.apimachinery.pkg.apis.meta.v1"
_STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
_DATE_TIME = {"type": "string", "format": "date-time"}
_ROOT_FIELDS = {
    "apiVersion": {"type": "string", "description": "Group and version of this representation of the object."},
    "kind": {"type": "string", "description": "The REST resource this object represents."},
}

Json = dict[str, Any]


def component_schemas(crd: Mapping[str, Any], version: str) -> Json:
    """`components.schemas` of one version of a CRD: the kind, its list, and the metadata they refer to.

    Raises KeyError when the CRD has no such version.
    """
    spec = crd["spec"]
    group, names = spec["group"], spec["names"]
    found = {entry["name"]: entry for entry in spec["versions"]}[version]
    schema = copy.deepcopy(found["schema"]["openAPIV3Schema"])
    properties = schema.setdefault("properties", {})
    for name, fallback in _ROOT_FIELDS.items():
        properties[name] = {**fallback, **properties.get(name, {})}
    properties["metadata"] = {
        "description": "Standard object's metadata.",
        "allOf": [{"$ref": f"#/components/schemas/{META}.ObjectMeta"}],
        "default": {},
    }
    kind = component_name(group, version, names["kind"])
    list_kind = names.get("listKind", names["kind"] + "List")
    schema["x-kubernetes-group-version-kind"] = [_gvk(group, version, names["kind"])]
    return {
        kind: schema,
        component_name(group, version, list_kind): {
            "type": "object",
            "description": f"{list_kind} is a list of {names['kind']}.",
            "required": ["items"],
            "properties": {
                **_ROOT_FIELDS,
                "metadata": {"allOf": [{"$ref": f"#/components/schemas/{META}.ListMeta"}], "default": {}},
                "items": {"type": "array", "items": {"$ref": f"#/components/schemas/{kind}"}},
            },
            "x-kubernetes-group-version-kind": [_gvk(group, version, list_kind)],
        },
        **_metadata(),
    }


def document(crds: Iterable[Mapping[str, Any]], group: str, version: str) -> Json:
    """The OpenAPI v3 document of a group version over all CRDs that serve it; kubectl finds kinds by the paths."""
    schemas: Json = {}
    paths: Json = {}
    for crd in crds:
        spec = crd["spec"]
        if spec["group"] != group or not any(v["name"] == version and v.get("served") for v in spec["versions"]):
            continue
        schemas.update(component_schemas(crd, version))
        names = spec["names"]
        scope = "namespaces/{namespace}/" if spec["scope"] == "Namespaced" else ""
        collection = f"/apis/{group}/{version}/{scope}{names['plural']}"
        gvk = _gvk(group, version, names["kind"])
        reference = {"$ref": f"#/components/schemas/{component_name(group, version, names['kind'])}"}
        paths[collection] = {"post": _operation("post", gvk, reference, scope, dry_run=True)}
        paths[f"{collection}/{{name}}"] = {
            "get": _operation("get", gvk, reference, scope),
            "put": _operation("put", gvk, reference, scope, dry_run=True),
            "patch": _operation("patch", gvk, reference, scope, dry_run=True),
            "delete": _operation("delete", gvk, reference, scope, dry_run=True),
        }
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes CRD Swagger", "version": "v0.1.0"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def component_name(group: str, version: str, kind: str) -> str:
    """`com.nvidia.nvcre.v1alpha1.Job` for group nvcre.nvidia.com."""
    return ".".join((*reversed(group.split(".")), version, kind))


def _gvk(group: str, version: str, kind: str) -> Json:
    return {"group": group, "version": version, "kind": kind}


def _operation(action: str, gvk: Json, reference: Json, scope: str, *, dry_run: bool = False) -> Json:
    parameters = [
        _parameter("query", name) for name in (("dryRun", "fieldManager", "fieldValidation") if dry_run else ())
    ]
    if scope:
        parameters.append({**_parameter("path", "namespace"), "required": True})
    return {
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": gvk,
        "parameters": parameters,
        "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": reference}}}},
    }


def _parameter(place: str, name: str) -> Json:
    return {"in": place, "name": name, "schema": {"type": "string"}}


def _metadata() -> Json:
    owner = f"{META}.OwnerReference"
    return {
        f"{META}.ObjectMeta": {
            "type": "object",
            "description": "ObjectMeta is metadata that all persisted resources must have.",
            "properties": {
                "name": {"type": "string", "description": "Unique within a namespace."},
                "generateName": {"type": "string", "description": "Prefix of a name the server chooses."},
                "namespace": {"type": "string"},
                "uid": {"type": "string"},
                "resourceVersion": {"type": "string"},
                "generation": {"type": "integer", "format": "int64"},
                "creationTimestamp": _DATE_TIME,
                "deletionTimestamp": _DATE_TIME,
                "deletionGracePeriodSeconds": {"type": "integer", "format": "int64"},
                "labels": _STRINGS,
                "annotations": _STRINGS,
                "ownerReferences": {"type": "array", "items": {"$ref": f"#/components/schemas/{owner}"}},
                "finalizers": {"type": "array", "items": {"type": "string"}},
                "managedFields": {"type": "array", "items": {"type": "object"}},
                "selfLink": {"type": "string"},
            },
        },
        f"{META}.ListMeta": {
            "type": "object",
            "properties": {
                "continue": {"type": "string"},
                "remainingItemCount": {"type": "integer", "format": "int64"},
                "resourceVersion": {"type": "string"},
                "selfLink": {"type": "string"},
            },
        },
        owner: {
            "type": "object",
            "required": ["apiVersion", "kind", "name", "uid"],
            "properties": {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                "name": {"type": "string"},
                "uid": {"type": "string"},
                "controller": {"type": "boolean"},
                "blockOwnerDeletion": {"type": "boolean"},
            },
        },
    }
