"""Versions grow over the whole store; a watch resumes without a gap or is told to list again; memory is bounded."""

import pytest
from nvcre_local.apiserver.storage import Expired, Key, Store


def body(uid: str = "u", **more: object) -> dict[str, object]:
    return {"metadata": {"uid": uid}, **more}


def key(name: str, namespace: str = "ns", collection: str = "pods") -> Key:
    return Key(collection, namespace, name)


def test_every_write_of_any_kind_gets_the_next_version() -> None:
    store = Store()
    first = store.put(key("a"), body("1"))
    second = store.put(key("b", collection="nodes"), body("2"))
    gone = store.remove(key("a"))
    assert [first.version + 1, first.version + 2] == [second.version, gone.version]
    assert gone.body["metadata"]["resourceVersion"] == str(gone.version)


def test_a_removed_objects_last_revision_does_not_change_the_one_readers_hold() -> None:
    store = Store()
    held = store.put(key("a"), body())
    store.remove(key("a"))
    assert held.body["metadata"]["resourceVersion"] == str(held.version)


def test_a_watch_resumes_exactly_after_the_version_it_names() -> None:
    store = Store()
    seen = store.put(key("a"), body("1"))
    store.put(key("b"), body("2"))
    store.put(key("c", namespace="other"), body("3"))
    _, missed = store.watch("pods", "ns", seen.version)
    assert [change.after.key.name for change in missed] == ["b"]


def test_a_version_that_left_the_history_is_expired() -> None:
    store = Store(history=2)
    first = store.put(key("a"), body("1"))
    for n in range(3):
        store.put(key("a"), body("1", n=n))
    with pytest.raises(Expired, match="too old resource version"):
        store.watch("pods", "", first.version)


def test_writes_of_other_kinds_do_not_push_out_a_kinds_history() -> None:
    store = Store(history=2)
    seen = store.put(key("a"), body("1"))
    for n in range(10):
        store.put(key("n", collection="nodes"), body("2", n=n))
    store.put(key("b"), body("3"))
    _, missed = store.watch("pods", "", seen.version)
    assert [change.after.key.name for change in missed] == ["b"]


def test_a_version_of_an_earlier_life_of_the_server_is_expired() -> None:
    with pytest.raises(Expired, match="another server instance"):
        Store().watch("pods", "", 999)


def test_a_watcher_that_does_not_read_is_cut_off_and_holds_nothing() -> None:
    store = Store(pending=3)
    watcher, _ = store.watch("pods", "", None)
    cut: list[bool] = []
    watcher.on_cut_off = lambda: cut.append(True)
    for n in range(5):
        store.put(key("a"), body(n=n))
    assert watcher.cut_off
    assert cut == [True]
    assert watcher.take() == []


def test_a_watcher_of_one_namespace_hears_of_no_other() -> None:
    store = Store()
    watcher, _ = store.watch("pods", "ns", None)
    store.put(key("a", namespace="other"), body("1"))
    store.put(key("b"), body("2"))
    assert [change.after.key.name for change in watcher.take()] == ["b"]


def test_snapshots_of_paged_lists_are_bounded_and_may_be_read_twice() -> None:
    store = Store(snapshots=2)
    tokens = [store.keep_snapshot(1, []) for _ in range(3)]
    with pytest.raises(Expired):
        store.snapshot(tokens[0])
    assert store.snapshot(tokens[2]) == store.snapshot(tokens[2]) == (1, [])


def test_items_come_in_order_of_namespace_and_name() -> None:
    store = Store()
    for namespace, name in (("b", "a"), ("a", "z"), ("a", "b")):
        store.put(key(name, namespace), body(namespace + name))
    assert [(s.key.namespace, s.key.name) for s in store.items("pods")] == [("a", "b"), ("a", "z"), ("b", "a")]


def test_dependents_follow_the_owner_references() -> None:
    store = Store()
    owned = {"metadata": {"uid": "child", "ownerReferences": [{"uid": "parent"}]}}
    store.put(key("child"), owned)
    assert [s.key.name for s in store.dependents("parent")] == ["child"]
    store.put(key("child"), body("child"))
    assert store.dependents("parent") == []
