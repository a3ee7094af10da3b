"""What kinds the server has: their names, verbs, columns and schemas, looked up by path or by kind.

Built-in kinds are listed in `builtin`; kinds of CustomResourceDefinitions come and go in `definitions`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nvcre_local.apiserver.schema import StructuralSchema

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
CREATE_ONLY = ("create",)
METADATA_FIELDS = frozenset({"metadata.name", "metadata.namespace"})


@dataclass(frozen=True, slots=True)
class Column:
    """A printer column; `type` and `format` as in a CRD, priority 0 is shown without `-o wide`."""

    name: str
    type: str
    path: str
    format: str = ""
    description: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Subresource:
    """`kind` is the body's kind (with group/version where it differs from the parent's)."""

    name: str
    kind: str
    verbs: tuple[str, ...]
    group: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind in one version."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    singular: str = ""
    list_kind: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    has_status: bool = False
    subresources: tuple[Subresource, ...] = ()
    fields: frozenset[str] = METADATA_FIELDS
    columns: tuple[Column, ...] = ()
    custom: bool = False
    schema: StructuralSchema | None = None
    collection: str = ""  # where the objects lie; the same for all versions of a kind
    label_names: bool = False  # names are DNS labels instead of DNS subdomains

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def lies_in(self) -> str:
        return self.collection or (f"{self.plural}.{self.group}" if self.group else self.plural)

    @property
    def lists_as(self) -> str:
        return self.list_kind or f"{self.kind}List"

    @property
    def one(self) -> str:
        return self.singular or self.kind.lower()


class Registry:
    """All kinds being served."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        self._by_path: dict[tuple[str, str, str], Resource] = {}
        self.revision = 0  # changes with the set of kinds: cached documents are stale then
        for resource in resources:
            self.add(resource)

    def add(self, resource: Resource) -> None:
        self._by_path[resource.group, resource.version, resource.plural] = resource
        self.revision += 1

    def remove(self, group: str, plural: str) -> None:
        self._by_path = {
            path: resource for path, resource in self._by_path.items() if (path[0], path[2]) != (group, plural)
        }
        self.revision += 1

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        return self._by_path.get((group, version, plural))

    def in_collection(self, collection: str) -> Resource | None:
        """Some served version of the kind whose objects lie there."""
        return next((resource for resource in self._by_path.values() if resource.lies_in == collection), None)

    def in_version(self, group: str, version: str) -> list[Resource]:
        return [resource for path, resource in sorted(self._by_path.items()) if path[:2] == (group, version)]

    def all(self) -> list[Resource]:
        return [resource for _, resource in sorted(self._by_path.items())]

    def groups(self) -> dict[str, list[str]]:
        """Group to its versions, the preferred one first; the core group is ''."""
        found: dict[str, list[str]] = {}
        for group, version, _ in self._by_path:
            versions = found.setdefault(group, [])
            if version not in versions:
                versions.append(version)
        return {
            group: sorted(versions, key=version_priority, reverse=True) for group, versions in sorted(found.items())
        }


def version_priority(version: str) -> tuple[int, int, int]:
    """Order of Kubernetes versions: v2 > v1 > v1beta2 > v1alpha1 > anything else."""
    digits = version.removeprefix("v")
    for rank, stage in ((2, "beta"), (1, "alpha")):
        major, found, minor = digits.partition(stage)
        if found and major.isdigit() and minor.isdigit():
            return (rank, int(major), int(minor))
    return (3, int(digits), 0) if version.startswith("v") and digits.isdigit() else (0, 0, 0)
