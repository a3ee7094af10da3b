"""Deletion: finalizers, graceful ends of pods, owners and their dependents, namespaces, definitions."""

from __future__ import annotations

from typing import Any

import pytest
from nvcre_local.apiserver.deletion import DeleteOptions, Propagation
from nvcre_local.apiserver.errors import ApiError
from nvcre_local.apiserver.patch import merge

PLAIN = DeleteOptions()
NOW = DeleteOptions(grace_seconds=0)


def delete(world: Any, plural: str, name: str, options: DeleteOptions = PLAIN) -> Any:
    resource = world.of(plural)
    outcome = world.operations.delete(resource, "default" if resource.namespaced else "", name, options)
    world.collect_garbage()
    return outcome


def patch(world: Any, plural: str, name: str, change: dict[str, Any]) -> Any:
    outcome = world.operations.patch(world.of(plural), "default", name, lambda body: merge(body, change))
    world.collect_garbage()
    return outcome


def test_an_object_that_nothing_holds_goes_at_once(world: Any) -> None:
    world.make("widgets", "w")
    assert delete(world, "widgets", "w").removed
    assert world.get("widgets", "w") is None


def test_a_finalizer_holds_it_until_it_is_taken_off(world: Any) -> None:
    world.make("widgets", "w", finalizers=["example.com/f"])
    assert not delete(world, "widgets", "w").removed
    marked = world.get("widgets", "w").metadata
    assert (marked["deletionTimestamp"], marked["deletionGracePeriodSeconds"]) == ("2026-01-02T03:04:05Z", 0)
    assert patch(world, "widgets", "w", {"metadata": {"finalizers": None}}).removed
    assert world.get("widgets", "w") is None


def test_nobody_can_add_a_finalizer_to_what_is_going(world: Any) -> None:
    world.make("widgets", "w", finalizers=["example.com/f"])
    delete(world, "widgets", "w")
    with pytest.raises(ApiError, match="no new finalizers can be added"):
        patch(world, "widgets", "w", {"metadata": {"finalizers": ["example.com/f", "example.com/g"]}})


def test_deleting_again_changes_nothing(world: Any) -> None:
    world.make("widgets", "w", finalizers=["example.com/f"])
    delete(world, "widgets", "w")
    before = world.store.version
    delete(world, "widgets", "w")
    assert world.store.version == before


@pytest.mark.parametrize("options", [DeleteOptions(uid="other"), DeleteOptions(resource_version="1")])
def test_preconditions(world: Any, options: DeleteOptions) -> None:
    world.make("widgets", "w")
    with pytest.raises(ApiError, match="Precondition failed") as refused:
        delete(world, "widgets", "w", options)
    assert refused.value.code == 409


def test_a_dry_run_deletes_nothing(world: Any) -> None:
    world.make("widgets", "w")
    delete(world, "widgets", "w", DeleteOptions(dry_run=True))
    assert world.get("widgets", "w") is not None


# --- pods


def test_a_pod_without_a_node_goes_at_once(world: Any) -> None:
    world.make_pod("p")
    assert delete(world, "pods", "p").removed


def test_a_running_pod_waits_for_its_kubelet(world: Any) -> None:
    world.make_pod("p", node="n")
    delete(world, "pods", "p")
    marked = world.get("pods", "p").metadata
    assert (marked["deletionTimestamp"], marked["deletionGracePeriodSeconds"]) == ("2026-01-02T03:04:35Z", 30)
    assert delete(world, "pods", "p", NOW).removed


def test_a_grace_period_can_only_be_shortened(world: Any) -> None:
    world.make_pod("p", node="n")
    delete(world, "pods", "p", DeleteOptions(grace_seconds=20))
    delete(world, "pods", "p", DeleteOptions(grace_seconds=25))
    assert world.get("pods", "p").metadata["deletionGracePeriodSeconds"] == 20
    delete(world, "pods", "p", DeleteOptions(grace_seconds=5))
    assert world.get("pods", "p").metadata["deletionTimestamp"] == "2026-01-02T03:04:10Z"


def test_a_finished_pod_goes_at_once(world: Any) -> None:
    world.make_pod("p", node="n")
    change = {"status": {"phase": "Succeeded"}}
    world.operations.patch(world.of("pods"), "default", "p", lambda b: merge(b, change), subresource="status")
    assert delete(world, "pods", "p").removed


def test_taking_off_the_last_finalizer_does_not_overtake_the_kubelet(world: Any) -> None:
    world.make_pod("p", node="n", finalizers=["example.com/f"])
    delete(world, "pods", "p")
    patch(world, "pods", "p", {"metadata": {"finalizers": None}})
    assert world.get("pods", "p") is not None


# --- owners


def test_dependents_follow_their_owner(world: Any, owned_by: Any) -> None:
    owner = world.make("widgets", "owner")
    middle = world.make("configmaps", "middle", ownerReferences=owned_by(owner))
    world.make("configmaps", "leaf", ownerReferences=owned_by(middle))
    delete(world, "widgets", "owner")
    assert world.get("configmaps", "middle") is None
    assert world.get("configmaps", "leaf") is None


def test_one_living_owner_is_enough(world: Any, owned_by: Any) -> None:
    first, second = world.make("widgets", "first"), world.make("widgets", "second")
    world.make("configmaps", "c", ownerReferences=owned_by(first, second))
    delete(world, "widgets", "first")
    assert [owner["name"] for owner in world.get("configmaps", "c").metadata["ownerReferences"]] == ["second"]


def test_orphans_are_let_go(world: Any, owned_by: Any) -> None:
    owner = world.make("widgets", "owner")
    world.make("configmaps", "c", ownerReferences=owned_by(owner))
    delete(world, "widgets", "owner", DeleteOptions(propagation=Propagation.ORPHAN))
    assert "ownerReferences" not in world.get("configmaps", "c").metadata


def test_in_the_foreground_the_owner_goes_last(world: Any, owned_by: Any) -> None:
    owner = world.make("widgets", "owner")
    world.make(
        "configmaps", "c", ownerReferences=owned_by(owner, blockOwnerDeletion=True), finalizers=["example.com/f"]
    )
    delete(world, "widgets", "owner", DeleteOptions(propagation=Propagation.FOREGROUND))
    assert world.get("widgets", "owner").metadata["finalizers"] == ["foregroundDeletion"]
    patch(world, "configmaps", "c", {"metadata": {"finalizers": None}})
    assert world.get("configmaps", "c") is None
    assert world.get("widgets", "owner") is None


def test_who_is_born_after_its_owners_death_does_not_live(world: Any, owned_by: Any) -> None:
    owner = world.make("widgets", "owner")
    delete(world, "widgets", "owner")
    world.make("configmaps", "c", ownerReferences=owned_by(owner))
    world.collect_garbage()
    assert world.get("configmaps", "c") is None


def test_owners_of_kinds_that_are_not_served_are_believed(world: Any) -> None:
    owner = {"apiVersion": "other.example/v1", "kind": "Thing", "name": "t", "uid": "t"}
    world.make("configmaps", "c", ownerReferences=[owner])
    world.collect_garbage()
    assert world.get("configmaps", "c") is not None


def test_a_cluster_scoped_object_can_be_owned_by_a_node(world: Any, owned_by: Any) -> None:
    node = world.make("nodes", "n")
    world.make_pod("p", ownerReferences=owned_by(node))
    world.collect_garbage()
    assert world.get("pods", "p") is not None
    delete(world, "nodes", "n")
    assert world.get("pods", "p") is None


# --- namespaces and definitions


def test_a_namespace_takes_its_content_along(world: Any) -> None:
    world.make("namespaces", "ns")
    held = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "finalizers": ["example.com/f"]}}
    configmaps = world.of("configmaps")
    world.operations.create(configmaps, "ns", held)
    delete(world, "namespaces", "ns")
    assert world.get("namespaces", "ns").body["status"]["phase"] == "Terminating"
    with pytest.raises(ApiError, match="being terminated") as refused:
        world.operations.create(configmaps, "ns", {**held, "metadata": {"name": "d"}})
    assert refused.value.code == 403
    world.operations.patch(configmaps, "ns", "c", lambda b: merge(b, {"metadata": {"finalizers": None}}))
    world.collect_garbage()
    assert world.get("namespaces", "ns") is None


def test_the_default_namespace_stays(world: Any) -> None:
    with pytest.raises(ApiError, match="may not be deleted"):
        delete(world, "namespaces", "default")


def test_a_definition_takes_its_objects_along_and_is_no_longer_served(world: Any) -> None:
    world.make("widgets", "w", finalizers=["example.com/f"])
    delete(world, "customresourcedefinitions", "widgets.example.com")
    assert world.get("customresourcedefinitions", "widgets.example.com") is not None
    patch(world, "widgets", "w", {"metadata": {"finalizers": None}})
    assert world.get("customresourcedefinitions", "widgets.example.com") is None
    assert world.registry.find("example.com", "v1", "widgets") is None
