"""Watches: every change in order, resumed after any of them; bookmarks; versions that nobody has any more."""

import pytest

from .place import Place, configmap, job, pod

KINDS = pytest.mark.parametrize(("plural", "make"), [("configmaps", configmap), ("jobs", job)])


def version(obj: dict) -> str:
    found: str = obj["metadata"]["resourceVersion"]
    return found


@KINDS
def test_a_change_is_an_event(place: Place, plural: str, make: type) -> None:
    since = version(place.get(plural).expect(200))
    with place.server.watch(place.path(plural), resourceVersion=since) as events:
        made = place.create(plural, make("a"))
        assert events.next() == ("ADDED", made)
        changed = place.patch(plural, "a", {"metadata": {"labels": {"k": "v"}}}).expect(200)
        assert events.next() == ("MODIFIED", changed)
        place.delete(plural, "a").expect(200)
        kind, gone = events.next()
        assert kind == "DELETED"
        assert {**gone["metadata"], "resourceVersion": ""} == {**changed["metadata"], "resourceVersion": ""}
        assert int(version(gone)) > int(version(changed))


@KINDS
def test_a_watch_resumes_after_any_version(place: Place, plural: str, make: type) -> None:
    made = place.create(plural, make("a"))
    other = place.create(plural, make("b"))
    changed = place.patch(plural, "a", {"metadata": {"labels": {"k": "v"}}}).expect(200)
    missed = [("ADDED", other), ("MODIFIED", changed)]
    for since, expected in ((made, missed), (other, missed[1:])):
        with place.server.watch(place.path(plural), resourceVersion=version(since)) as events:
            assert [events.next() for _ in expected] == expected


@KINDS
def test_a_watch_from_nowhere_begins_with_what_there_is(place: Place, plural: str, make: type) -> None:
    made = [place.create(plural, make(name, labels={"of": "ours"})) for name in ("a", "b")]
    for query in ({}, {"resourceVersion": "0"}):
        with place.server.watch(place.path(plural), labelSelector="of=ours", **query) as events:
            assert [events.next() for _ in made] == [("ADDED", one) for one in made]


def test_a_watch_of_one_object_by_name(place: Place) -> None:
    since = version(place.get("jobs").expect(200))
    with place.server.watch(place.path("jobs"), resourceVersion=since, fieldSelector="metadata.name=b") as events:
        place.create("jobs", job("a"))
        made = place.create("jobs", job("b"))
        assert events.next() == ("ADDED", made)


def test_leaving_the_selection_is_a_deletion_and_coming_back_an_addition(place: Place) -> None:
    made = place.create("jobs", job("a", labels={"in": "yes"}))
    with place.server.watch(place.path("jobs"), labelSelector="in=yes", resourceVersion=version(made)) as events:
        for value, expected in (("no", "DELETED"), ("yes", "ADDED")):
            changed = place.patch("jobs", "a", {"metadata": {"labels": {"in": value}}}).expect(200)
            kind, seen = events.next()
            assert kind == expected
            assert seen["metadata"]["labels"] == {"in": "yes"}
            assert version(seen) == version(changed)


def test_fields_are_watched_too(place: Place) -> None:
    made = place.create("pods", pod("a"))
    query = {"fieldSelector": "spec.nodeName=node-y", "resourceVersion": version(made)}
    with place.server.watch(place.path("pods"), **query) as events:
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "a"}, "target": {"name": "node-y"}}
        place.post("pods", binding, "a", "binding").expect(201)
        kind, seen = events.next()
        assert (kind, seen["spec"]["nodeName"]) == ("ADDED", "node-y")


def test_all_namespaces_are_watched_at_once(place: Place) -> None:
    since = version(place.get("jobs").expect(200))
    path = "/apis/nvcre.nvidia.com/v1alpha1/jobs"
    with place.server.watch(path, resourceVersion=since, labelSelector=f"of={place.namespace}") as events:
        made = place.create("jobs", job("a", labels={"of": place.namespace}))
        assert events.next() == ("ADDED", made)


@KINDS
def test_a_bookmark_says_how_far_a_watch_has_come(place: Place, plural: str, make: type) -> None:
    place.create(plural, make("a", labels={"of": "ours"}))
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    with place.server.watch(place.path(plural), labelSelector="of=ours", **query) as events:
        assert events.next()[0] == "ADDED"
        kind, bookmark = events.next()
    assert (kind, bookmark["kind"]) == ("BOOKMARK", make("")["kind"])
    assert bookmark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    with place.server.watch(place.path(plural), resourceVersion=version(bookmark)) as events:
        made = place.create(plural, make("b"))
        assert events.next() == ("ADDED", made)


def test_initial_events_need_to_say_how_old_they_may_be(place: Place) -> None:
    answer = place.get("configmaps", watch="true", sendInitialEvents="true")
    assert answer.refusal == (422, "Invalid")
    assert answer.causes == [("FieldValueForbidden", "resourceVersionMatch")]


def test_a_version_that_is_gone_is_told_in_the_stream(place: Place) -> None:
    """Nobody keeps what was before a kind was defined. (How much of the time since is kept, differs.)"""
    place.create("jobs", job("a"))
    with place.server.watch(place.path("jobs"), resourceVersion="1") as events:
        kind, status = events.next()
        assert (kind, status["kind"], status["code"], status["reason"]) == ("ERROR", "Status", 410, "Expired")
        assert "too old resource version" in status["message"]
        assert events.ended()


def test_a_watch_ends_when_its_time_is_up(place: Place) -> None:
    with place.server.watch(place.path("jobs"), timeoutSeconds=1) as events:
        assert events.ended()


def test_a_watch_of_a_kind_that_is_not_there_is_not_found(place: Place) -> None:
    answer = place.server.request("GET", "/apis/nvcre.nvidia.com/v1alpha1/things", query={"watch": "true"})
    assert answer.code == 404


def test_tables_are_watched_as_kubectl_does(place: Place) -> None:
    made = place.create("jobs", job("a"))
    since = str(int(version(made)) - 1)
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    with place.server.watch(place.path("jobs"), accept=accept, resourceVersion=since) as events:
        kind, table = events.next()
        assert (kind, table["kind"], table["rows"][0]["cells"][0]) == ("ADDED", "Table", "a")
        assert table["columnDefinitions"][0]["name"] == "Name"
        place.patch("jobs", "a", {"metadata": {"labels": {"k": "v"}}}).expect(200)
        kind, table = events.next()
        assert (kind, table["rows"][0]["object"]["kind"]) == ("MODIFIED", "PartialObjectMetadata")
