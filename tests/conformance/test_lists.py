"""Lists: pages of one moment, selectors, and the versions they may be asked at."""

import base64

import pytest

from .place import Place, configmap, job, pod


@pytest.mark.parametrize(("plural", "make"), [("configmaps", configmap), ("jobs", job)])
def test_a_list_is_ordered_and_has_a_version(place: Place, plural: str, make: type) -> None:
    for name in ("c", "a", "b"):
        place.create(plural, make(name, labels={"of": "ours"}))
    found = place.get(plural, labelSelector="of=ours").expect(200)
    assert [item["metadata"]["name"] for item in found["items"]] == ["a", "b", "c"]
    assert found["kind"] == f"{make('')['kind']}List"
    assert found["apiVersion"] == make("")["apiVersion"]
    assert int(found["metadata"]["resourceVersion"]) >= int(found["items"][1]["metadata"]["resourceVersion"])


@pytest.mark.parametrize(("plural", "make"), [("configmaps", configmap), ("jobs", job)])
def test_pages_show_one_moment(place: Place, plural: str, make: type) -> None:
    for number in range(5):
        place.create(plural, make(f"p{number}", labels={"of": "pages"}))
    query = {"labelSelector": "of=pages", "limit": 2}
    first = place.get(plural, **query).expect(200)
    place.create(plural, make("p2b", labels={"of": "pages"}))
    place.delete(plural, "p3").expect(200)

    names, page = [], first
    while True:
        names += [item["metadata"]["name"] for item in page["items"]]
        assert page["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        if not page["metadata"].get("continue"):
            break
        page = place.get(plural, **query, **{"continue": page["metadata"]["continue"]}).expect(200)

    assert names == [f"p{number}" for number in range(5)]


def test_a_page_can_be_asked_for_twice(place: Place) -> None:
    for number in range(3):
        place.create("jobs", job(f"p{number}"))
    token = place.get("jobs", limit=1).expect(200)["metadata"]["continue"]
    pages = [place.get("jobs", limit=1, **{"continue": token}).expect(200)["items"] for _ in range(2)]
    assert pages[0] == pages[1]


def test_a_page_says_how_many_remain_unless_there_is_a_selector(place: Place) -> None:
    for number in range(4):
        place.create("jobs", job(f"p{number}", labels={"of": "ours"}))
    assert place.get("jobs", limit=1).expect(200)["metadata"]["remainingItemCount"] == 3
    selected = place.get("jobs", limit=1, labelSelector="of=ours").expect(200)["metadata"]
    assert selected["continue"]
    assert "remainingItemCount" not in selected


def test_a_list_within_its_limit_has_no_next_page(place: Place) -> None:
    place.create("jobs", job("a"))
    assert not place.get("jobs", limit=1).expect(200)["metadata"].get("continue")


@pytest.mark.parametrize("token", ["?", "bm9uZQ==", base64.urlsafe_b64encode(b'{"v":"meta.k8s.io/v1"}').decode()])
def test_a_token_that_we_never_gave_is_a_bad_request(place: Place, token: str) -> None:
    assert place.get("jobs", limit=1, **{"continue": token}).refusal == (400, "BadRequest")


def test_the_token_of_a_time_that_is_forgotten_is_gone(place: Place) -> None:
    for number in range(2):
        place.create("jobs", job(f"p{number}"))
    token = place.get("jobs", limit=1).expect(200)["metadata"]["continue"]
    place.server.forget()
    assert place.get("jobs", limit=1, **{"continue": token}).refusal == (410, "Expired")


def test_a_version_that_is_not_there_yet_is_not_awaited_for_ever(place: Place) -> None:
    answer = place.get("configmaps", resourceVersion=10**17, resourceVersionMatch="NotOlderThan")
    assert answer.refusal == (504, "Timeout")
    assert "Too large resource version" in answer.body["message"]


@pytest.mark.parametrize("query", [{"limit": "x"}, {"resourceVersion": "x"}, {"labelSelector": "="}])
def test_what_cannot_be_read_is_a_bad_request(place: Place, query: dict) -> None:
    assert place.get("configmaps", **query).refusal == (400, "BadRequest")


# --- selectors


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("app=web", ["a", "b"]),
        ("app==web", ["a", "b"]),
        ("app!=web", ["c", "d"]),
        ("app=web,tier=front", ["a"]),
        ("app in (web,db)", ["a", "b", "c"]),
        ("app notin (web)", ["c", "d"]),
        ("tier", ["a", "b"]),
        ("!tier", ["c", "d"]),
        ("app,tier in (front)", ["a"]),
        ("app=", []),
        ("team/role=x", ["d"]),
        ("app in (web), tier!=front", ["b"]),
    ],
)
def test_label_selectors(place: Place, selector: str, names: list[str]) -> None:
    labels = {"a": {"app": "web", "tier": "front"}, "b": {"app": "web", "tier": "back"}}
    labels |= {"c": {"app": "db"}, "d": {"team/role": "x"}}
    for name, found in labels.items():
        place.create("jobs", job(name, labels=found))
    assert place.names("jobs", labelSelector=selector) == names


@pytest.mark.parametrize("selector", ["=", "a b", "a in web", "a in (", "a=b=c", "-a", "a=b c", ",", "a,,b", "/a=b"])
def test_a_label_selector_has_a_grammar(place: Place, selector: str) -> None:
    assert place.get("jobs", labelSelector=selector).refusal == (400, "BadRequest")


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("metadata.name=a", ["a"]),
        ("metadata.name!=a", ["b", "c"]),
        ("spec.nodeName=", ["b", "c"]),
        ("spec.nodeName=node-x", ["a"]),
        ("spec.nodeName!=,status.phase=Pending", ["a"]),
        ("status.phase=Running", []),
        ("status.phase!=Running,metadata.name=b", ["b"]),
        ("spec.restartPolicy=Never", ["a", "b", "c"]),
        ("spec.serviceAccountName=default,spec.schedulerName=default-scheduler", ["a", "b", "c"]),
    ],
)
def test_field_selectors_of_pods(place: Place, selector: str, names: list[str]) -> None:
    place.create("pods", pod("a", {"nodeName": "node-x"}))
    for name in ("b", "c"):
        place.create("pods", pod(name))
    assert place.names("pods", fieldSelector=selector) == names


@pytest.mark.parametrize(
    ("plural", "selector"), [("pods", "spec.color=red"), ("jobs", "spec.stallMultiplier=3"), ("pods", "nonsense")]
)
def test_a_field_that_cannot_be_selected_by_is_a_bad_request(place: Place, plural: str, selector: str) -> None:
    assert place.get(plural, fieldSelector=selector).refusal == (400, "BadRequest")


def test_custom_objects_are_selected_by_name_and_namespace(place: Place) -> None:
    for name in ("a", "b"):
        place.create("jobs", job(name))
    assert place.names("jobs", fieldSelector="metadata.name=a") == ["a"]
    assert place.names("jobs", fieldSelector=f"metadata.namespace={place.namespace}") == ["a", "b"]
    everywhere = place.server.request(
        "GET",
        "/apis/nvcre.nvidia.com/v1alpha1/jobs",
        query={"fieldSelector": f"metadata.namespace={place.namespace},metadata.name!=a"},
    )
    assert [item["metadata"]["name"] for item in everywhere.expect(200)["items"]] == ["b"]


def test_both_selectors_hold(place: Place) -> None:
    for name, value in (("a", "x"), ("b", "x"), ("c", "y")):
        place.create("pods", pod(name, labels={"k": value}))
    assert place.names("pods", labelSelector="k=x", fieldSelector="metadata.name!=a") == ["b"]


def test_a_collection_is_deleted_by_selector(place: Place) -> None:
    for name, value in (("a", "x"), ("b", "x"), ("c", "y")):
        place.create("jobs", job(name, labels={"k": value}))
    place.delete("jobs", labelSelector="k=x").expect(200)
    assert place.names("jobs") == ["c"]
