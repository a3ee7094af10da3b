"""Decides which of a project's manifests a control plane of plain processes needs, and makes its webhooks reachable.

Pure. A controller is no Pod here, so its Deployment, Services and Secrets are left out, and the API server calls its
webhooks at a loopback address, trusting our authority.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nvcre_kube.resources import CRDS, NAMESPACES, SERVICE_ACCOUNTS, Resource

JsonObject = dict[str, Any]

_RBAC = "rbac.authorization.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"

KINDS: Mapping[str, Resource] = {
    resource.kind: resource
    for resource in (
        NAMESPACES,
        CRDS,
        SERVICE_ACCOUNTS,
        Resource(_RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False),
        Resource(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
        Resource(_RBAC, "v1", "roles", "Role"),
        Resource(_RBAC, "v1", "rolebindings", "RoleBinding"),
        Resource(_ADMISSION, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", namespaced=False),
        Resource(
            _ADMISSION, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", namespaced=False
        ),
    )
}
"""In the order in which they are created: webhooks last, when their controllers answer."""

WEBHOOKS = frozenset({"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"})


def wanted(documents: Iterable[JsonObject]) -> list[JsonObject]:
    """Those of `KINDS`, in their order."""
    order = list(KINDS)
    kept = [document for document in documents if document["kind"] in KINDS]
    return sorted(kept, key=lambda document: order.index(document["kind"]))


def namespaces(documents: Iterable[JsonObject]) -> list[JsonObject]:
    """A Namespace for every namespace that is used and not among the documents."""
    documents = list(documents)
    made = {document["metadata"]["name"] for document in documents if document["kind"] == "Namespace"}
    used = {document["metadata"]["namespace"] for document in documents if "namespace" in document["metadata"]}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        for name in sorted(used - made - {"default", "kube-system"})
    ]


def reachable(document: JsonObject, port: int, authority: str) -> JsonObject:
    """With every webhook of it at https://127.0.0.1:`port`; `authority` is PEM."""
    changed = copy.deepcopy(document)
    for client in _clients(changed):
        if (service := client.pop("service", None)) is not None:
            client["url"] = f"https://127.0.0.1:{port}{service.get('path', '/')}"
            client["caBundle"] = base64.b64encode(authority.encode()).decode()
    return changed


def _clients(document: JsonObject) -> Iterator[JsonObject]:
    """Every clientConfig: of admission webhooks, and of a CRD's conversion."""
    for webhook in document.get("webhooks") or ():
        yield webhook["clientConfig"]
    conversion = (document.get("spec") or {}).get("conversion") or {}
    if conversion.get("strategy") == "Webhook":
        yield conversion["webhook"]["clientConfig"]
