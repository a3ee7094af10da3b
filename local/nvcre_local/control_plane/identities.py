"""Who is who on a control plane: static tokens for people and for what we start, and the rights RBAC gives them.

Each program is the user that its RBAC rules were written for, so that a right it lacks in a cluster it lacks here too.
"""

from __future__ import annotations

from typing import Any

from nvcre_local.cluster_objects import Identity

JsonObject = dict[str, Any]

_RBAC = "rbac.authorization.k8s.io"
KUBELETS_USER = "nvcre-local-kubelets"
KUBELET_CLIENT_USER = "kube-apiserver-kubelet-client"


def service_account(namespace: str, name: str) -> Identity:
    """A static token that passes for this ServiceAccount; it is bound to no Pod."""
    return Identity.new(
        f"system:serviceaccount:{namespace}:{name}",
        "system:serviceaccounts",
        f"system:serviceaccounts:{namespace}",
        "system:authenticated",
    )


def admin() -> Identity:
    return Identity.new("nvcre-local-admin", "system:masters")


def kubelets() -> Identity:
    """All kubelets of one process: the node authorizer knows only one node a user, RBAC has to speak for these."""
    return Identity.new(KUBELETS_USER)


def programs() -> dict[str, Identity]:
    return {
        "kube-controller-manager": Identity.new("system:kube-controller-manager"),
        "kube-scheduler": Identity.new("system:kube-scheduler"),
        "jobset": service_account("jobset-system", "jobset-controller-manager"),
        "trainer": service_account("kubeflow-system", "kubeflow-trainer-controller-manager"),
        "kueue": service_account("kueue-system", "kueue-controller-manager"),
        "kwok": service_account("kube-system", "kwok-controller"),
    }


def kubelet_rights() -> list[JsonObject]:
    """What a kubelet may do (the built-in role system:node), and to look for the namespace of node Leases."""
    user = {"kind": "User", "apiGroup": _RBAC, "name": KUBELETS_USER}

    def binding(name: str, role: str) -> JsonObject:
        return {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
            "subjects": [user],
        }

    namespaces: JsonObject = {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "nvcre-local-namespaces"},
        "rules": [{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]}],
    }
    return [
        namespaces,
        binding("nvcre-local-kubelets", "system:node"),
        binding("nvcre-local-kubelets-namespaces", "nvcre-local-namespaces"),
    ]
