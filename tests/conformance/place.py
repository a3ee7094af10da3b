"""A namespace on a server, and the requests that tests make in it, by plural name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .servers import Answer, JsonObject, Server
from .starting import wait_for

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

GROUPS = {
    "jobs": "/apis/nvcre.nvidia.com/v1alpha1",
    "bandwidthmeasurements": "/apis/nvcre.nvidia.com/v1alpha1",
    "trainjobs": "/apis/trainer.kubeflow.org/v1alpha1",
    "leases": "/apis/coordination.k8s.io/v1",
}
CLUSTER_WIDE = {"namespaces": "/api/v1", "nodes": "/api/v1", "nodehealths": "/apis/nvcre.nvidia.com/v1alpha1"}


@dataclass(frozen=True)
class Place:
    server: Server
    namespace: str

    @classmethod
    def new(cls, server: Server, namespace: str) -> Place:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        server.request("POST", "/api/v1/namespaces", body).expect(201)
        place = cls(server, namespace)
        wait_for("the ServiceAccount `default`", lambda: place.get("serviceaccounts", "default").code == 200)
        return place

    def path(self, plural: str, name: str = "", subresource: str = "") -> str:
        if plural in CLUSTER_WIDE:
            parts = [CLUSTER_WIDE[plural], plural, name, subresource]
        else:
            parts = [GROUPS.get(plural, "/api/v1"), "namespaces", self.namespace, plural, name, subresource]
        return "/".join(part for part in parts if part)

    def get(self, plural: str, name: str = "", subresource: str = "", *, accept: str = "", **query: Any) -> Answer:
        accepted = {"accept": accept} if accept else {}
        return self.server.request("GET", self.path(plural, name, subresource), query=query, **accepted)

    def post(self, plural: str, body: Any, name: str = "", subresource: str = "", **query: Any) -> Answer:
        return self.server.request("POST", self.path(plural, name, subresource), body, query=query)

    def create(self, plural: str, body: JsonObject) -> JsonObject:
        found: JsonObject = self.post(plural, body).expect(201)
        return found

    def put(self, plural: str, body: JsonObject, subresource: str = "", **query: Any) -> Answer:
        path = self.path(plural, body["metadata"]["name"], subresource)
        return self.server.request("PUT", path, body, query=query)

    def patch(
        self, plural: str, name: str, change: Any, subresource: str = "", *, how: str = MERGE, **query: Any
    ) -> Answer:
        path = self.path(plural, name, subresource)
        return self.server.request("PATCH", path, change, query=query, content_type=how)

    def delete(self, plural: str, name: str = "", options: JsonObject | None = None, **query: Any) -> Answer:
        return self.server.request("DELETE", self.path(plural, name), options, query=query)

    def names(self, plural: str, **query: Any) -> list[str]:
        return [item["metadata"]["name"] for item in self.get(plural, **query).expect(200)["items"]]

    def is_gone(self, plural: str, name: str) -> bool:
        return self.get(plural, name).code == 404


def configmap(name: str, data: dict[str, str] | None = None, **metadata: Any) -> JsonObject:
    body: JsonObject = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}}
    return body if data is None else {**body, "data": data}


def job(name: str, spec: JsonObject | None = None, **metadata: Any) -> JsonObject:
    workload = {"trainJob": {"runtimeRef": {"kind": "TrainingRuntime", "name": "nccl"}}}
    return {
        "apiVersion": "nvcre.nvidia.com/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name, **metadata},
        "spec": {"workload": workload, **(spec or {})},
    }


def pod(name: str, spec: JsonObject | None = None, **metadata: Any) -> JsonObject:
    container = {"name": "main", "image": "none", "command": ["sleep", "600"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {"restartPolicy": "Never", "containers": [container], **(spec or {})},
    }


def owned_by(owner: JsonObject, **more: Any) -> list[JsonObject]:
    """`ownerReferences` of a dependent."""
    found = {key: owner[key] for key in ("apiVersion", "kind")}
    return [{**found, "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"], **more}]
