"""What a client finds out about the server: groups, versions, kinds, and their OpenAPI v3 documents.  Pure.

The documents of custom kinds are made by `schema.openapi`; built-in kinds get a light one, enough for kubectl to see
that the server checks fields itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nvcre_local.apiserver.resources import Registry, Resource, Subresource
from nvcre_local.apiserver.schema import component_schemas, document
from nvcre_local.apiserver.storage import Json

VERSION: Json = {
    "major": "1",
    "minor": "33",
    "gitVersion": "v1.33.0+nvcre-embedded",
    "gitCommit": "0000000000000000000000000000000000000000",
    "gitTreeState": "clean",
    "buildDate": "2025-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "linux/amd64",
}

_META = "io.k8s.apimachinery.pkg.apis.meta.v1"


def core_versions() -> Json:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def group_list(registry: Registry) -> Json:
    groups = [group(name, versions) for name, versions in registry.groups().items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(name: str, versions: Sequence[str]) -> Json:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"kind": "APIGroup", "apiVersion": "v1", "name": name, "versions": listed, "preferredVersion": listed[0]}


def resource_list(resources: Iterable[Resource], group_version: str) -> Json:
    entries: list[Json] = []
    for resource in resources:
        entries.append(_entry(resource))
        entries.extend(_subresource_entry(resource, subresource) for subresource in resource.subresources)
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": entries}


def _entry(resource: Resource) -> Json:
    entry: Json = {
        "name": resource.plural,
        "singularName": resource.one,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    return entry


def _subresource_entry(resource: Resource, subresource: Subresource) -> Json:
    entry: Json = {
        "name": f"{resource.plural}/{subresource.name}",
        "singularName": "",
        "namespaced": resource.namespaced,
        "kind": subresource.kind,
        "verbs": list(subresource.verbs),
    }
    if subresource.version:
        entry["group"], entry["version"] = subresource.group, subresource.version
    return entry


# --- OpenAPI v3


def openapi_index(registry: Registry) -> Json:
    served = [_document_path(group, version) for group, versions in registry.groups().items() for version in versions]
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={registry.revision}"} for path in served}}


def openapi_document(registry: Registry, definitions: Sequence[Json], group: str, version: str) -> Json | None:
    """None when there is no such group version. `definitions`: all CRDs of the server."""
    resources = registry.in_version(group, version)
    if not resources:
        return None
    if any(resource.custom for resource in resources):
        return document(definitions, group, version)
    paths: Json = {}
    schemas: Json = dict(_metadata_schemas())
    for resource in resources:
        schemas[_component(resource)] = _light_schema(resource)
        paths.update(_paths(resource))
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": VERSION["gitVersion"]},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _metadata_schemas() -> Json:
    """ObjectMeta and its like, as `schema.openapi` describes them, from a definition without fields."""
    empty: Json = {"name": "v1", "served": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    crd = {"spec": {"group": "none", "names": {"plural": "nones", "kind": "None"}, "versions": [empty]}}
    return {name: schema for name, schema in component_schemas(crd, "v1").items() if name.startswith(_META)}


def _document_path(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


def _component(resource: Resource) -> str:
    group = resource.group.removesuffix(".k8s.io") or "core"
    return f"io.k8s.api.{group}.{resource.version}.{resource.kind}"


def _gvk(resource: Resource) -> Json:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def _light_schema(resource: Resource) -> Json:
    return {
        "type": "object",
        "description": f"{resource.kind}, a built-in kind. This server keeps its fields and checks few of them.",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"allOf": [{"$ref": f"#/components/schemas/{_META}.ObjectMeta"}], "default": {}},
            "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
        "x-kubernetes-preserve-unknown-fields": True,
        "x-kubernetes-group-version-kind": [_gvk(resource)],
    }


def _paths(resource: Resource) -> Json:
    root = _document_path(resource.group, resource.version)
    where = "namespaces/{namespace}/" if resource.namespaced else ""
    collection = f"/{root}/{where}{resource.plural}"
    found: Json = {collection: {"post": _operation(resource, "post")}}
    if "patch" in resource.verbs:
        methods = ("get", "put", "patch", "delete")
        found[f"{collection}/{{name}}"] = {method: _operation(resource, method) for method in methods}
    return found


def _operation(resource: Resource, method: str) -> Json:
    """Says nothing of patch media types: kubectl then merges by the types it knows, not by our light schemas."""
    reference = {"$ref": f"#/components/schemas/{_component(resource)}"}
    found: dict[str, Any] = {
        "x-kubernetes-action": method,
        "x-kubernetes-group-version-kind": _gvk(resource),
        "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": reference}}}},
    }
    if method != "get":
        names = ("dryRun", "fieldManager", "fieldValidation")
        found["parameters"] = [{"in": "query", "name": name, "schema": {"type": "string"}} for name in names]
    return found
