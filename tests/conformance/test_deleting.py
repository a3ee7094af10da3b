"""Deletion: finalizers, preconditions, grace, who goes along with an owner and who stays."""

from typing import Any

import pytest

from .place import Place, configmap, job, owned_by, pod
from .starting import wait_for

KINDS = pytest.mark.parametrize(("plural", "make"), [("configmaps", configmap), ("jobs", job)])
FINALIZER = "conformance.example.com/f"


@KINDS
def test_what_is_deleted_is_gone(place: Place, plural: str, make: type) -> None:
    made = place.create(plural, make("a"))
    answer = place.delete(plural, "a").expect(200)
    assert (answer["kind"], answer["status"]) == ("Status", "Success")
    assert answer["details"]["uid"] == made["metadata"]["uid"]
    assert place.get(plural, "a").refusal == (404, "NotFound")
    assert place.delete(plural, "a").refusal == (404, "NotFound")


@KINDS
def test_a_finalizer_holds_an_object_until_it_is_taken_away(place: Place, plural: str, make: type) -> None:
    made = place.create(plural, make("a", finalizers=[FINALIZER]))
    answer = place.delete(plural, "a").expect(200)
    assert answer["kind"] == made["kind"]
    held = place.get(plural, "a").expect(200)["metadata"]
    assert held["deletionTimestamp"].endswith("Z")
    assert held["deletionGracePeriodSeconds"] == 0
    assert held["finalizers"] == [FINALIZER]

    again = place.delete(plural, "a").expect(200)
    assert again["metadata"]["deletionTimestamp"] == held["deletionTimestamp"]
    assert again["metadata"]["resourceVersion"] == held["resourceVersion"]

    place.patch(plural, "a", {"metadata": {"finalizers": None}}).expect(200)
    assert place.get(plural, "a").code == 404


def test_the_generation_counts_a_deletion_that_has_to_wait(place: Place) -> None:
    place.create("jobs", job("a", finalizers=[FINALIZER]))
    place.delete("jobs", "a").expect(200)
    assert place.get("jobs", "a").expect(200)["metadata"]["generation"] == 2
    place.patch("jobs", "a", {"metadata": {"finalizers": None}}).expect(200)


@KINDS
def test_an_object_that_is_going_gets_no_new_finalizer(place: Place, plural: str, make: type) -> None:
    place.create(plural, make("a", finalizers=[FINALIZER]))
    place.delete(plural, "a").expect(200)
    answer = place.patch(plural, "a", {"metadata": {"finalizers": [FINALIZER, "other.example.com/g"]}})
    assert answer.refusal == (422, "Invalid")
    assert set(answer.causes) == {("FieldValueForbidden", "metadata.finalizers")}
    assert place.patch(plural, "a", {"metadata": {"labels": {"a": "b"}}}).code == 200
    assert place.patch(plural, "a", {"metadata": {"deletionTimestamp": None}}).code == 200
    assert place.get(plural, "a").expect(200)["metadata"]["deletionTimestamp"]
    place.patch(plural, "a", {"metadata": {"finalizers": None}}).expect(200)


def test_the_status_of_an_object_that_is_going_can_be_written(place: Place) -> None:
    place.create("jobs", job("a", finalizers=[FINALIZER]))
    place.delete("jobs", "a").expect(200)
    assert place.patch("jobs", "a", {"status": {"restartCount": 1}}, "status").code == 200
    place.patch("jobs", "a", {"metadata": {"finalizers": None}}).expect(200)


@KINDS
def test_preconditions(place: Place, plural: str, make: type) -> None:
    made = place.create(plural, make("a"))["metadata"]
    for wrong in ({"uid": "another"}, {"resourceVersion": "1"}, {"uid": made["uid"], "resourceVersion": "1"}):
        answer = place.delete(plural, "a", {"preconditions": wrong})
        assert answer.refusal == (409, "Conflict")
        assert "recondition" in answer.body["message"]
    right = {"uid": made["uid"], "resourceVersion": made["resourceVersion"]}
    assert place.delete(plural, "a", {"preconditions": right}).code == 200


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"propagationPolicy": "Sideways"}, (422, "Invalid")),
        ({"dryRun": ["Some"]}, (422, "Invalid")),
        ({"gracePeriodSeconds": "soon"}, (400, "BadRequest")),
    ],
)
def test_options_are_checked(place: Place, options: dict, refusal: tuple[int, str]) -> None:
    place.create("configmaps", configmap("a"))
    assert place.delete("configmaps", "a", options).refusal == refusal
    assert place.get("configmaps", "a").code == 200


# --- owners and dependents


@pytest.fixture(params=[("configmaps", configmap), ("jobs", job)], ids=["of a core kind", "of a custom kind"])
def family(place: Place, request: pytest.FixtureRequest) -> str:
    """An owner `o`; a dependent of it, one of another owner too, and a child's child. Answers the owner's plural."""
    plural, make = request.param
    owner = place.create(plural, make("o"))
    other = place.create("configmaps", configmap("other"))
    child = place.create("configmaps", configmap("child", ownerReferences=owned_by(owner, blockOwnerDeletion=True)))
    place.create("configmaps", configmap("shared", ownerReferences=[*owned_by(owner), *owned_by(other)]))
    place.create("configmaps", configmap("grandchild", ownerReferences=owned_by(child, blockOwnerDeletion=True)))
    return str(plural)


def owners(place: Place, name: str) -> list[str]:
    found = place.get("configmaps", name).expect(200)["metadata"].get("ownerReferences", [])
    return [reference["name"] for reference in found]


@pytest.mark.parametrize("options", [None, {"propagationPolicy": "Background"}])
def test_in_the_background_the_owner_goes_first(place: Place, family: str, options: Any) -> None:
    place.delete(family, "o", options).expect(200)
    assert place.get(family, "o").code == 404
    for name in ("child", "grandchild"):
        wait_for(f"{name} to go", lambda name=name: place.is_gone("configmaps", name))  # type: ignore[misc]
    wait_for("the reference to go", lambda: owners(place, "shared") == ["other"])


def test_in_the_foreground_the_owner_goes_last(place: Place, family: str) -> None:
    place.patch("configmaps", "grandchild", {"metadata": {"finalizers": [FINALIZER]}}).expect(200)
    place.delete(family, "o", {"propagationPolicy": "Foreground"}).expect(200)
    held = place.get(family, "o").expect(200)["metadata"]
    assert held["deletionTimestamp"]
    assert held["finalizers"] == ["foregroundDeletion"]

    wait_for(
        "grandchild to be marked",
        lambda: "deletionTimestamp" in place.get("configmaps", "grandchild").expect(200)["metadata"],
    )
    assert place.get(family, "o").code == 200
    assert place.get("configmaps", "child").code == 200

    place.patch("configmaps", "grandchild", {"metadata": {"finalizers": None}}).expect(200)
    wait_for("the owner to go", lambda: place.is_gone(family, "o"))
    assert place.get("configmaps", "child").code == 404
    wait_for("the reference to go", lambda: owners(place, "shared") == ["other"])


def test_orphans_stay(place: Place, family: str) -> None:
    place.delete(family, "o", {"propagationPolicy": "Orphan"}).expect(200)
    wait_for("the owner to go", lambda: place.is_gone(family, "o"))
    assert owners(place, "child") == []
    assert owners(place, "shared") == ["other"]
    assert owners(place, "grandchild") == ["child"]


def test_a_dependent_of_nobody_goes(place: Place) -> None:
    owner = place.create("configmaps", configmap("o"))
    place.delete("configmaps", "o").expect(200)
    place.create("configmaps", configmap("late", ownerReferences=owned_by(owner)))
    wait_for("the late dependent to go", lambda: place.is_gone("configmaps", "late"))


def test_a_dependent_of_an_earlier_object_of_that_name_goes(place: Place) -> None:
    owner = place.create("configmaps", configmap("o"))
    place.delete("configmaps", "o").expect(200)
    place.create("configmaps", configmap("o"))
    place.create("configmaps", configmap("late", ownerReferences=owned_by(owner)))
    wait_for("the late dependent to go", lambda: place.is_gone("configmaps", "late"))


def test_a_node_health_goes_with_its_node(place: Place) -> None:
    name = f"owner-{place.namespace}"
    node = place.create("nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    health = {"apiVersion": "nvcre.nvidia.com/v1alpha1", "kind": "NodeHealth"}
    place.create("nodehealths", {**health, "metadata": {"name": name, "ownerReferences": owned_by(node)}})
    place.delete("nodes", name).expect(200)
    wait_for("the NodeHealth to go", lambda: place.is_gone("nodehealths", name))


# --- pods and namespaces


def test_a_pod_without_a_node_goes_at_once(place: Place) -> None:
    place.create("pods", pod("a"))
    place.delete("pods", "a").expect(200)
    assert place.get("pods", "a").code == 404


def test_a_pod_on_a_node_is_let_go_by_its_kubelet(place: Place) -> None:
    place.create("pods", pod("a", {"nodeName": "node-x", "terminationGracePeriodSeconds": 9}))
    marked = place.delete("pods", "a").expect(200)["metadata"]
    assert marked["deletionGracePeriodSeconds"] == 9
    shorter = place.delete("pods", "a", {"gracePeriodSeconds": 5}).expect(200)["metadata"]
    assert shorter["deletionGracePeriodSeconds"] == 5
    longer = place.delete("pods", "a", {"gracePeriodSeconds": 60}).expect(200)["metadata"]
    assert longer["deletionGracePeriodSeconds"] == 5
    place.delete("pods", "a", {"gracePeriodSeconds": 0}).expect(200)
    assert place.get("pods", "a").code == 404


def test_a_finished_pod_needs_no_kubelet(place: Place) -> None:
    place.create("pods", pod("a", {"nodeName": "node-x"}))
    place.patch("pods", "a", {"status": {"phase": "Succeeded"}}, "status").expect(200)
    place.delete("pods", "a").expect(200)
    assert place.get("pods", "a").code == 404


def test_a_namespace_takes_all_that_is_in_it(place: Place) -> None:
    place.create("configmaps", configmap("a"))
    place.create("jobs", job("b", finalizers=[FINALIZER]))
    going = place.delete("namespaces", place.namespace).expect(200)
    assert going["status"]["phase"] == "Terminating"
    answer = place.post("configmaps", configmap("c"))
    assert answer.refusal == (403, "Forbidden")
    assert answer.causes == [("NamespaceTerminating", "metadata.namespace")]
    wait_for("the ConfigMap to go", lambda: place.is_gone("configmaps", "a"))
    wait_for("the Job to be marked", lambda: "deletionTimestamp" in place.get("jobs", "b").expect(200)["metadata"])
    place.patch("jobs", "b", {"metadata": {"finalizers": None}}).expect(200)
    wait_for("the namespace to go", lambda: place.is_gone("namespaces", place.namespace))


@pytest.mark.parametrize("name", ["default", "kube-system"])
def test_some_namespaces_stay(place: Place, name: str) -> None:
    assert place.delete("namespaces", name).refusal == (403, "Forbidden")
