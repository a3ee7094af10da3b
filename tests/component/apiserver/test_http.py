"""What goes over the wire: status codes, Status objects, lists in pages, watches line by line."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

PODS = "/api/v1/namespaces/default/pods"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"


def configmap(name: str, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": {"a": "1"}}


async def create(api: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> dict[str, Any]:
    async with api.post(path, json=body) as answer:
        found: dict[str, Any] = await answer.json()
        assert answer.status == 201, found
        return found


async def line(response: aiohttp.ClientResponse) -> tuple[str, dict[str, Any]]:
    event = json.loads(await response.content.readline())
    return event["type"], event["object"]


@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic czNjcmV0"}])
async def test_without_a_good_token_nothing_is_told(server: Any, header: dict[str, str]) -> None:
    async with aiohttp.ClientSession(server.url, headers=header) as session:
        for path in ("/api", "/version", PODS, "/openapi/v3", "/nowhere"):
            async with session.get(path) as answer:
                assert answer.status == 401
                assert (await answer.json())["reason"] == "Unauthorized"
        async with session.get("/readyz") as answer:
            assert (answer.status, await answer.text()) == (200, "ok")


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "code", "reason"),
    [
        ("GET", "/nowhere", {}, b"", 404, "NotFound"),
        ("GET", "/apis/no.such/v1/things", {}, b"", 404, "NotFound"),
        ("GET", f"{PODS}/none", {}, b"", 404, "NotFound"),
        ("GET", f"{PODS}?labelSelector=%3D", {}, b"", 400, "BadRequest"),
        ("GET", f"{PODS}?fieldSelector=spec.color%3Dred", {}, b"", 400, "BadRequest"),
        ("GET", f"{PODS}?limit=x", {}, b"", 400, "BadRequest"),
        ("GET", f"{PODS}?continue=%3F%3F", {}, b"", 400, "BadRequest"),
        ("GET", f"{PODS}?continue=bm9uZQ==", {}, b"", 410, "Expired"),
        ("GET", f"{PODS}?resourceVersion=999999999", {}, b"", 504, "Timeout"),
        ("GET", PODS, {"Accept": "application/vnd.kubernetes.protobuf"}, b"", 406, "NotAcceptable"),
        ("POST", PODS, {"Content-Type": "application/json"}, b"{", 400, "BadRequest"),
        ("POST", PODS, {"Content-Type": "application/json"}, b"[" * 50_000, 400, "BadRequest"),
        ("POST", PODS, {"Content-Type": "application/vnd.kubernetes.protobuf"}, b"k8s\0", 415, "UnsupportedMediaType"),
        ("POST", PODS, {"Content-Type": "application/json"}, b" " * (3 * 2**20 + 1), 413, "RequestEntityTooLarge"),
        ("POST", f"{PODS}/p", {"Content-Type": "application/json"}, b"{}", 405, "MethodNotAllowed"),
        ("POST", "/api/v1/pods", {"Content-Type": "application/json"}, b"{}", 404, "NotFound"),
        ("PATCH", f"{PODS}/p", {"Content-Type": "application/apply-patch+yaml"}, b"a: b", 415, "UnsupportedMediaType"),
        ("PATCH", f"{WIDGETS}/w", {"Content-Type": "application/strategic-merge-patch+json"}, b"{}", 415,
         "UnsupportedMediaType"),
        ("DELETE", f"{PODS}?dryRun=Some", {}, b"", 400, "BadRequest"),
        ("PUT", PODS, {}, b"{}", 405, "MethodNotAllowed"),
    ],
)  # fmt: skip
async def test_every_refusal_is_a_status(
    api: aiohttp.ClientSession, method: str, path: str, headers: dict[str, str], body: bytes, code: int, reason: str
) -> None:
    async with api.request(method, path, headers=headers, data=body) as answer:
        found = await answer.json()
    assert (answer.status, found["kind"], found["status"]) == (code, "Status", "Failure")
    assert (found["code"], found["reason"]) == (code, reason)
    assert found["message"]


async def test_yaml_bodies_and_warnings(api: aiohttp.ClientSession) -> None:
    text = "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: from-yaml}\nspec: {size: 2, bogus: 1}\n"
    async with api.post(WIDGETS, data=text, headers={"Content-Type": "application/yaml"}) as answer:
        assert answer.status == 201
        assert answer.headers["Warning"] == '299 - "unknown field \\"spec.bogus\\""'


async def test_a_list_comes_in_pages_of_one_moment(api: aiohttp.ClientSession) -> None:
    for n in range(5):
        await create(api, CONFIGMAPS, configmap(f"page-{n}", labels={"set": "pages"}))
    query = {"labelSelector": "set=pages", "limit": "2"}
    async with api.get(CONFIGMAPS, params=query) as answer:
        first = await answer.json()
    await create(api, CONFIGMAPS, configmap("page-2b", labels={"set": "pages"}))
    names, page = [], first
    while True:
        names += [item["metadata"]["name"] for item in page["items"]]
        if "continue" not in page["metadata"]:
            break
        async with api.get(CONFIGMAPS, params={**query, "continue": page["metadata"]["continue"]}) as answer:
            page = await answer.json()
    assert names == [f"page-{n}" for n in range(5)]
    assert page["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_an_event_for_every_change_and_resuming_after_any_of_them(api: aiohttp.ClientSession) -> None:
    made = await create(api, CONFIGMAPS, configmap("watched"))
    query = {"watch": "1", "fieldSelector": "metadata.name=watched"}
    async with api.get(CONFIGMAPS, params=query) as watch:
        assert await line(watch) == ("ADDED", made)
        merge = {"Content-Type": "application/merge-patch+json"}
        async with api.patch(f"{CONFIGMAPS}/watched", data=b'{"data":{"a":"2"}}', headers=merge) as answer:
            changed = await answer.json()
        assert await line(watch) == ("MODIFIED", changed)
        async with api.delete(f"{CONFIGMAPS}/watched") as answer:
            assert (await answer.json())["status"] == "Success"
        kind, gone = await line(watch)
        assert (kind, gone["metadata"]["uid"]) == ("DELETED", made["metadata"]["uid"])
    query["resourceVersion"] = changed["metadata"]["resourceVersion"]
    async with api.get(CONFIGMAPS, params=query) as watch:
        assert await line(watch) == ("DELETED", gone)


async def test_leaving_the_selection_is_a_deletion_and_coming_back_an_addition(api: aiohttp.ClientSession) -> None:
    made = await create(api, CONFIGMAPS, configmap("mover", labels={"in": "yes"}))
    query = {"watch": "1", "labelSelector": "in=yes", "resourceVersion": made["metadata"]["resourceVersion"]}
    merge = {"Content-Type": "application/merge-patch+json"}
    async with api.get(CONFIGMAPS, params=query) as watch:
        for value, expected in (("no", "DELETED"), ("yes", "ADDED")):
            patch = {"metadata": {"labels": {"in": value}}}
            async with api.patch(f"{CONFIGMAPS}/mover", data=json.dumps(patch), headers=merge) as answer:
                changed = await answer.json()
            kind, seen = await line(watch)
            assert kind == expected
            assert seen["metadata"]["labels"] == {"in": "yes"}
            assert seen["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]


async def test_a_version_nobody_knows_any_more_is_gone(api: aiohttp.ClientSession) -> None:
    async with api.get(CONFIGMAPS, params={"watch": "1", "resourceVersion": "99999999"}) as watch:
        kind, status = await line(watch)
        assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
        assert await watch.content.readline() == b""


async def test_a_watch_ends_when_its_time_is_up(api: aiohttp.ClientSession) -> None:
    query = {"watch": "1", "timeoutSeconds": "1", "fieldSelector": "metadata.name=nobody"}
    async with api.get(CONFIGMAPS, params=query) as watch:
        assert await watch.content.read() == b""


async def test_a_watch_may_begin_with_the_present_state_and_say_where_it_ends(api: aiohttp.ClientSession) -> None:
    await create(api, CONFIGMAPS, configmap("streamed"))
    query = {
        "watch": "1",
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
        "fieldSelector": "metadata.name=streamed",
    }
    async with api.get(CONFIGMAPS, params=query) as watch:
        assert (await line(watch))[0] == "ADDED"
        kind, bookmark = await line(watch)
        assert (kind, bookmark["kind"]) == ("BOOKMARK", "ConfigMap")
        assert bookmark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_tables_and_metadata(api: aiohttp.ClientSession) -> None:
    await create(api, CONFIGMAPS, configmap("shaped"))
    for path in (CONFIGMAPS, f"{CONFIGMAPS}/shaped"):
        async with api.get(path, headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}) as answer:
            assert (await answer.json())["kind"] == "Table"
    shape = {"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}
    async with api.get(f"{CONFIGMAPS}/shaped", headers=shape) as answer:
        found = await answer.json()
    assert (found["kind"], "data" in found) == ("PartialObjectMetadata", False)


async def test_a_collection_is_deleted_by_selector(api: aiohttp.ClientSession) -> None:
    for name in ("sweep-1", "sweep-2"):
        await create(api, CONFIGMAPS, configmap(name, labels={"sweep": "x"}))
    async with api.delete(CONFIGMAPS, params={"labelSelector": "sweep=x"}) as answer:
        assert len((await answer.json())["items"]) == 2
    async with api.get(CONFIGMAPS, params={"labelSelector": "sweep=x"}) as answer:
        assert (await answer.json())["items"] == []


async def test_a_pod_is_bound_once(api: aiohttp.ClientSession) -> None:
    await create(api, PODS, {"metadata": {"name": "bound"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "bound"}, "target": {"name": "node-0"}}
    async with api.post(f"{PODS}/bound/binding", json=binding) as answer:
        assert answer.status == 201
    async with api.post(f"{PODS}/bound/binding", json=binding) as answer:
        assert (answer.status, (await answer.json())["reason"]) == (409, "Conflict")
    async with api.get(PODS, params={"fieldSelector": "spec.nodeName=node-0"}) as answer:
        (pod,) = (await answer.json())["items"]
    assert pod["status"]["conditions"][0]["type"] == "PodScheduled"


async def test_an_issued_token_opens_the_door_and_is_reviewed(api: aiohttp.ClientSession, server: Any) -> None:
    path = "/api/v1/namespaces/default/serviceaccounts/default/token"
    token = (await create(api, path, {"spec": {}}))["status"]["token"]
    async with aiohttp.ClientSession(server.url, headers={"Authorization": f"Bearer {token}"}) as session:
        who = await create(session, "/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    assert who["status"]["userInfo"]["username"] == "system:serviceaccount:default:default"
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    found = await create(api, "/apis/authentication.k8s.io/v1/tokenreviews", review)
    assert found["status"]["authenticated"] is True


async def test_a_kind_defined_at_run_time_is_served_at_once(api: aiohttp.ClientSession) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.example.org"},
        "spec": {
            "group": "example.org",
            "scope": "Cluster",
            "names": {"plural": "gadgets", "kind": "Gadget"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }
    await create(api, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    gadget = {"apiVersion": "example.org/v1", "kind": "Gadget", "metadata": {"name": "g"}, "anything": [1]}
    assert (await create(api, "/apis/example.org/v1/gadgets", gadget))["anything"] == [1]
    async with api.delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gadgets.example.org"):
        pass
    async with asyncio.timeout(10):
        while True:
            async with api.get("/apis/example.org/v1/gadgets") as answer:
                if answer.status == 404:
                    break
            await asyncio.sleep(0.01)


async def test_a_client_that_does_not_read_is_cut_off(api: aiohttp.ClientSession, server: Any) -> None:
    await create(api, CONFIGMAPS, configmap("loud"))
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    token = api.headers["Authorization"]
    query = "watch=1&fieldSelector=metadata.name%3Dloud"
    writer.write(f"GET {CONFIGMAPS}?{query} HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\n\r\n".encode())
    await reader.readline()  # the watch is open; nothing is read from here on
    merge = {"Content-Type": "application/merge-patch+json"}
    # More than the kernel's socket buffers hold (some MB), and then more events than a watcher may have pending.
    for n in range(2500):
        patch = json.dumps({"data": {"n": str(n), "pad": "x" * 30_000}})
        async with api.patch(f"{CONFIGMAPS}/loud", data=patch, headers=merge) as answer:
            assert answer.status == 200
    assert await _ends(reader)
    writer.close()


async def _ends(reader: asyncio.StreamReader) -> bool:
    """Does the stream end, by itself or by a reset?"""
    try:
        while await reader.read(65536):
            pass
    except ConnectionError:
        pass
    return True
