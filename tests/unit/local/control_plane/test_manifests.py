"""What of an upstream project's manifests is created on a control plane of plain processes."""

import base64

from nvcre_local.control_plane.manifests import namespaces, reachable, wanted


def named(kind: str, name: str = "x", **more: object) -> dict:
    return {"kind": kind, "metadata": {"name": name}, **more}


def test_what_only_pods_need_is_left_out_and_webhooks_come_last():
    kinds = [
        "ValidatingWebhookConfiguration",
        "Deployment",
        "Service",
        "Secret",
        "ClusterRole",
        "Namespace",
        "APIService",
    ]
    kept = [document["kind"] for document in wanted(named(kind) for kind in kinds)]
    assert kept == ["Namespace", "ClusterRole", "ValidatingWebhookConfiguration"]


def test_a_namespace_that_nobody_makes_is_made():
    documents = [
        named("Namespace", "made"),
        {"kind": "Role", "metadata": {"name": "r", "namespace": "made"}},
        {"kind": "Role", "metadata": {"name": "r", "namespace": "used"}},
        {"kind": "RoleBinding", "metadata": {"name": "r", "namespace": "kube-system"}},
    ]
    assert [one["metadata"]["name"] for one in namespaces(documents)] == ["used"]


def test_admission_webhooks_are_called_at_loopback_with_our_authority():
    service = {"name": "s", "namespace": "n", "path": "/mutate"}
    before = named("MutatingWebhookConfiguration", webhooks=[{"name": "w", "clientConfig": {"service": service}}])
    after = reachable(before, 9443, "PEM")
    assert after["webhooks"][0]["clientConfig"] == {
        "url": "https://127.0.0.1:9443/mutate",
        "caBundle": base64.b64encode(b"PEM").decode(),
    }
    assert before["webhooks"][0]["clientConfig"] == {"service": service}


def test_the_conversion_of_a_crd_too():
    conversion = {"strategy": "Webhook", "webhook": {"clientConfig": {"service": {"path": "/convert"}}}}
    after = reachable(named("CustomResourceDefinition", spec={"conversion": conversion}), 1, "PEM")
    assert after["spec"]["conversion"]["webhook"]["clientConfig"]["url"] == "https://127.0.0.1:1/convert"


def test_a_crd_without_conversion_stays_as_it_is():
    definition = named("CustomResourceDefinition", spec={"group": "g"})
    assert reachable(definition, 1, "PEM") == definition
