"""What the ServiceAccounts of daemonset/ may and may not, as the real API server answers (SubjectAccessReview)."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from nvcre_kube.client import ApiError, KubeClient
from nvcre_kube.resources import (
    BANDWIDTH_MEASUREMENTS,
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    NAMESPACES,
    SECRETS,
    JsonObject,
    Resource,
)
from nvcre_local.cluster_objects import CA_CONFIG_MAP, SYSTEM_NAMESPACE

from .audit import AGENT, COORDINATOR, WRITES
from .conftest import Api
from .processes import Plane, coordinator_of

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("system")]

ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False)
GROUPS = ["system:serviceaccounts", f"system:serviceaccounts:{SYSTEM_NAMESPACE}", "system:authenticated"]
EVERYWHERE = ""


async def may(
    client: KubeClient, user: str, verb: str, resource: str, namespace: str = EVERYWHERE, name: str = ""
) -> bool:
    """`resource` is group/resource or group/resource/subresource, the core group being empty: /pods/log."""
    group, plural, subresource = [*resource.split("/"), ""][:3]
    attributes: dict[str, Any] = {
        "verb": verb,
        "group": group,
        "resource": plural,
        "subresource": subresource,
        "namespace": namespace,
        "name": name,
    }
    review = {
        "apiVersion": ACCESS_REVIEWS.api_version,
        "kind": ACCESS_REVIEWS.kind,
        "spec": {"user": user, "groups": GROUPS, "resourceAttributes": attributes},
    }
    return bool((await client.create(ACCESS_REVIEWS, review))["status"]["allowed"])


@pytest.mark.parametrize("resource", ["/nodes", "/nodes/status", "/nodes/proxy"])
async def test_the_coordinator_never_writes_a_node(client: KubeClient, resource: str) -> None:
    assert [verb for verb in WRITES if await may(client, COORDINATOR, verb, resource)] == []
    assert await may(client, COORDINATOR, "watch", "/nodes")


@pytest.mark.parametrize("verb", ["create", "delete"])
async def test_the_coordinator_makes_pods_in_its_own_namespace_only(client: KubeClient, verb: str) -> None:
    assert await may(client, COORDINATOR, verb, "/pods", SYSTEM_NAMESPACE)
    elsewhere = [one["metadata"]["name"] for one in await client.list(NAMESPACES)]
    allowed = {name for name in elsewhere if await may(client, COORDINATOR, verb, "/pods", name)}
    assert allowed == {SYSTEM_NAMESPACE}


@pytest.mark.parametrize(
    ("verb", "resource", "namespace", "name"),
    [
        ("get", "/secrets", EVERYWHERE, ""),
        ("get", "/secrets", SYSTEM_NAMESPACE, "of-somebody-else"),
        ("list", "/secrets", SYSTEM_NAMESPACE, ""),
        ("get", "coordination.k8s.io/leases", "kube-system", "kube-scheduler"),
        ("update", "coordination.k8s.io/leases", "kube-node-lease", "node-0"),
        ("create", "/serviceaccounts/token", SYSTEM_NAMESPACE, "nvcre-agent"),
        ("create", "/pods/exec", SYSTEM_NAMESPACE, ""),
        ("create", "/pods/eviction", EVERYWHERE, ""),
        ("create", "/pods/binding", EVERYWHERE, ""),
        ("impersonate", "/users", EVERYWHERE, "nvcre-local-admin"),
        ("bind", "rbac.authorization.k8s.io/clusterroles", EVERYWHERE, "cluster-admin"),
        ("update", "trainer.kubeflow.org/trainjobs", EVERYWHERE, ""),
        ("patch", "nvcre.nvidia.com/logprofiles", EVERYWHERE, ""),
        ("delete", "nvcre.nvidia.com/jobs", EVERYWHERE, ""),
    ],
)
async def test_the_coordinator_may_not(client: KubeClient, verb: str, resource: str, namespace: str, name: str) -> None:
    assert not await may(client, COORDINATOR, verb, resource, namespace, name)


def test_the_agent_s_service_account_has_no_right_that_not_everybody_has(plane: Plane) -> None:
    def rights(user: str) -> set[tuple[str, ...]]:
        words = ("auth", "can-i", "--list", f"--as={user}", "--as-group=system:serviceaccounts", "-n", SYSTEM_NAMESPACE)
        return {tuple(line.split()) for line in plane.kubectl(*words).splitlines()}

    everybody_s = rights(f"system:serviceaccount:{SYSTEM_NAMESPACE}:of-nobody")
    assert rights(AGENT) == everybody_s
    assert rights(COORDINATOR) > everybody_s


async def test_the_coordinator_fills_a_secret_that_a_person_made_and_replaces_an_old_authority(
    client: KubeClient, plane: Plane, tmp_path: Path
) -> None:
    secret = {"metadata": {"name": "nvcre-coordinator-tls", "namespace": SYSTEM_NAMESPACE}}
    published = {"metadata": {"name": CA_CONFIG_MAP, "namespace": SYSTEM_NAMESPACE}, "data": {"ca.crt": "an old one"}}
    await replace(client, SECRETS, secret)
    await replace(client, CONFIG_MAPS, published)
    with coordinator_of(plane, tmp_path):
        made = (await client.get(SECRETS, "nvcre-coordinator-tls", SYSTEM_NAMESPACE))["data"]
        told = (await client.get(CONFIG_MAPS, CA_CONFIG_MAP, SYSTEM_NAMESPACE))["data"]
    assert base64.b64decode(made["ca.crt"]).decode() == told["ca.crt"] != "an old one"


async def test_what_the_caches_do_not_have_is_asked_for_and_a_successor_counts_the_same_events_on(
    api: Api, plane: Plane, tmp_path: Path
) -> None:
    """A Job without its runtime, measured with a LogProfile that does not exist; the measurement outlives the Job."""

    def named(resource: Resource, spec: JsonObject) -> JsonObject:
        metadata = {"name": "lonely", "namespace": api.namespace}
        return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}

    async def events() -> dict[str, int]:
        return {one["metadata"]["name"]: one["count"] for one in await api.client.list(EVENTS, api.namespace)}

    async def measurement_is_complete() -> bool:
        seen = await api.client.get(BANDWIDTH_MEASUREMENTS, "lonely", api.namespace)
        conditions = (seen.get("status") or {}).get("conditions") or ()
        return ("Complete", "True") in [(one["type"], one["status"]) for one in conditions]

    runtime = {"kind": "TrainingRuntime", "name": "absent"}
    await api.client.create(JOBS, named(JOBS, {"workload": {"trainJob": {"runtimeRef": runtime}}}))
    measured = {"logProfileRef": "absent", "jobRef": {"kind": "Job", "apiGroup": JOBS.group, "name": "lonely"}}
    measurement = named(BANDWIDTH_MEASUREMENTS, {**measured, "testType": "all_reduce"})
    await api.client.create(BANDWIDTH_MEASUREMENTS, measurement)
    with coordinator_of(plane, tmp_path, identity="first"):
        first = await api.until(events)

    async def counted_on() -> bool:
        now = await events()
        return any(now[name] > count for name, count in first.items())

    with coordinator_of(plane, tmp_path, identity="successor"):
        await api.until(counted_on)
        assert not await measurement_is_complete()
        await api.client.delete(JOBS, "lonely", api.namespace)
        await api.until(measurement_is_complete)


async def replace(client: KubeClient, resource: Resource, obj: JsonObject) -> None:
    metadata = obj["metadata"]
    try:
        await client.delete(resource, metadata["name"], metadata["namespace"])
    except ApiError as error:
        if not error.not_found:
            raise
    await client.create(resource, {"apiVersion": resource.api_version, "kind": resource.kind, **obj})
