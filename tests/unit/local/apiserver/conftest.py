"""A server's state without its HTTP: a store, the built-in kinds, one custom kind, a clock that stands still."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from nvcre_local.apiserver.builtin import BUILTIN
from nvcre_local.apiserver.garbage import GarbageCollector
from nvcre_local.apiserver.operations import Operations
from nvcre_local.apiserver.resources import Registry, Resource
from nvcre_local.apiserver.storage import Key, Store, Stored

WIDGET_CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                    {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
                ],
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "size": {"type": "integer", "minimum": 0, "default": 1},
                                    "color": {"type": "string"},
                                },
                            },
                            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                        },
                    }
                },
            }
        ],
    },
}


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class World:
    """What the tests act on; `of` finds a kind, `make` creates an object of it in `default`."""

    def __init__(self) -> None:
        uids, suffixes = itertools.count(1), itertools.count(1)
        self.clock = Clock()
        self.store = Store()
        self.registry = Registry(BUILTIN)
        self.operations = Operations(
            self.store,
            self.registry,
            clock=self.clock,
            new_uid=lambda: f"uid-{next(uids)}",
            new_suffix=lambda: f"x{next(suffixes)}",
        )
        self.garbage = GarbageCollector(self.operations)
        self.operations.create(self.of("namespaces"), "", {"metadata": {"name": "default"}})
        self.operations.create(self.of("customresourcedefinitions"), "", WIDGET_CRD)

    def of(self, plural: str) -> Resource:
        return next(resource for resource in self.registry.all() if resource.plural == plural)

    def make(self, plural: str, name: str, body: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
        resource = self.of(plural)
        sent = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            **(body or {}),
            "metadata": {"name": name, **metadata},
        }
        return self.operations.create(resource, "default" if resource.namespaced else "", sent).body

    def make_pod(self, name: str, *, node: str = "", **metadata: Any) -> dict[str, Any]:
        spec: dict[str, Any] = {"containers": [{"name": "main", "image": "none"}]}
        if node:
            spec["nodeName"] = node
        return self.make("pods", name, {"spec": spec}, **metadata)

    def collect_garbage(self) -> None:
        while self.garbage.work():
            pass

    def get(self, plural: str, name: str) -> Stored | None:
        resource = self.of(plural)
        return self.store.get(Key(resource.lies_in, "default" if resource.namespaced else "", name))


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def owned_by() -> Callable[..., list[dict[str, Any]]]:
    """Owner references to objects, as `metadata.ownerReferences`."""

    def references(*owners: dict[str, Any], **extra: Any) -> list[dict[str, Any]]:
        return [
            {
                "apiVersion": owner["apiVersion"],
                "kind": owner["kind"],
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
                **extra,
            }
            for owner in owners
        ]

    return references
