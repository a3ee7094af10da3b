"""The built-in kinds, a table: what is served beside the CRDs, with the real server's selectors and subresources."""

from __future__ import annotations

from nvcre_local.apiserver.resources import CREATE_ONLY, METADATA_FIELDS, Resource, Subresource

STATUS_VERBS = ("get", "patch", "update")


def _status(kind: str) -> Subresource:
    return Subresource("status", kind, STATUS_VERBS)


_EVENT_FIELDS = METADATA_FIELDS | {"reason", "type"}
_INVOLVED = ("apiVersion", "fieldPath", "kind", "name", "namespace", "resourceVersion", "uid")

BUILTIN: tuple[Resource, ...] = (
    Resource(
        "",
        "v1",
        "namespaces",
        "Namespace",
        namespaced=False,
        short_names=("ns",),
        has_status=True,
        verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
        label_names=True,
        subresources=(_status("Namespace"),),
        fields=METADATA_FIELDS | {"status.phase"},
    ),
    Resource(
        "",
        "v1",
        "nodes",
        "Node",
        namespaced=False,
        short_names=("no",),
        has_status=True,
        subresources=(_status("Node"),),
        fields=METADATA_FIELDS | {"spec.unschedulable"},
    ),
    Resource(
        "",
        "v1",
        "pods",
        "Pod",
        namespaced=True,
        short_names=("po",),
        categories=("all",),
        has_status=True,
        subresources=(
            _status("Pod"),
            Subresource("log", "Pod", ("get",)),
            Subresource("binding", "Binding", CREATE_ONLY),
            Subresource("eviction", "Eviction", CREATE_ONLY, "policy", "v1"),
        ),
        fields=METADATA_FIELDS
        | {
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        },
    ),
    Resource(
        "",
        "v1",
        "events",
        "Event",
        namespaced=True,
        short_names=("ev",),
        fields=_EVENT_FIELDS | {"source", "reportingComponent"} | {f"involvedObject.{field}" for field in _INVOLVED},
    ),
    Resource(
        "events.k8s.io",
        "v1",
        "events",
        "Event",
        namespaced=True,
        short_names=("ev",),
        collection="events",
        fields=_EVENT_FIELDS | {"reportingController"} | {f"regarding.{field}" for field in _INVOLVED},
    ),
    Resource("", "v1", "configmaps", "ConfigMap", namespaced=True, short_names=("cm",)),
    Resource(
        "",
        "v1",
        "secrets",
        "Secret",
        namespaced=True,
        fields=METADATA_FIELDS | {"type"},
    ),
    Resource(
        "",
        "v1",
        "services",
        "Service",
        namespaced=True,
        short_names=("svc",),
        categories=("all",),
        has_status=True,
        subresources=(_status("Service"),),
        label_names=True,
        fields=METADATA_FIELDS | {"spec.clusterIP", "spec.type"},
    ),
    Resource(
        "",
        "v1",
        "serviceaccounts",
        "ServiceAccount",
        namespaced=True,
        short_names=("sa",),
        subresources=(Subresource("token", "TokenRequest", CREATE_ONLY, "authentication.k8s.io", "v1"),),
    ),
    Resource(
        "coordination.k8s.io",
        "v1",
        "leases",
        "Lease",
        namespaced=True,
    ),
    Resource(
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        namespaced=False,
        short_names=("crd", "crds"),
        categories=("api-extensions",),
        has_status=True,
        subresources=(_status("CustomResourceDefinition"),),
    ),
    Resource(
        "authentication.k8s.io",
        "v1",
        "tokenreviews",
        "TokenReview",
        namespaced=False,
        verbs=CREATE_ONLY,
    ),
    Resource(
        "authentication.k8s.io",
        "v1",
        "selfsubjectreviews",
        "SelfSubjectReview",
        namespaced=False,
        verbs=CREATE_ONLY,
    ),
    Resource(
        "authorization.k8s.io",
        "v1",
        "selfsubjectaccessreviews",
        "SelfSubjectAccessReview",
        namespaced=False,
        verbs=CREATE_ONLY,
    ),
    Resource(
        "authorization.k8s.io",
        "v1",
        "subjectaccessreviews",
        "SubjectAccessReview",
        namespaced=False,
        verbs=CREATE_ONLY,
    ),
    Resource(
        "authorization.k8s.io",
        "v1",
        "selfsubjectrulesreviews",
        "SelfSubjectRulesReview",
        namespaced=False,
        verbs=CREATE_ONLY,
    ),
)

NAMESPACES = ("default", "kube-system", "kube-node-lease", "kube-public", "nvcre-system")
UNDELETABLE_NAMESPACES = frozenset({"default", "kube-system", "kube-public"})

CRD_COLLECTION = "customresourcedefinitions.apiextensions.k8s.io"
