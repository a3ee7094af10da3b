"""What is the embedded server's own: what it leaves out on purpose, its bounds, its memory (see tests/conformance)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

PODS = "/api/v1/namespaces/default/pods"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


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
        ("GET", PODS, {"Accept": "application/vnd.kubernetes.protobuf"}, b"", 406, "NotAcceptable"),
        ("POST", PODS, {"Content-Type": "application/json"}, b"[" * 50_000, 400, "BadRequest"),
        ("POST", PODS, {"Content-Type": "application/vnd.kubernetes.protobuf"}, b"k8s\0", 415, "UnsupportedMediaType"),
        ("PATCH", f"{PODS}/p", {"Content-Type": "application/apply-patch+yaml"}, b"a: b", 415, "UnsupportedMediaType"),
    ],
)  # fmt: skip
async def test_what_it_does_not_take_is_refused_with_a_status(
    api: aiohttp.ClientSession, method: str, path: str, headers: dict[str, str], body: bytes, code: int, reason: str
) -> None:
    async with api.request(method, path, headers=headers, data=body) as answer:
        found = await answer.json()
    assert (answer.status, found["kind"], found["status"]) == (code, "Status", "Failure")
    assert (found["code"], found["reason"]) == (code, reason)
    assert found["message"]


async def test_server_side_apply_is_refused_with_the_way_out(api: aiohttp.ClientSession) -> None:
    headers = {"Content-Type": "application/apply-patch+yaml"}
    async with api.patch(f"{PODS}/p?fieldManager=kubectl", headers=headers, data=b"a: b") as answer:
        said = (await answer.json())["message"]
    assert "use kubectl apply without --server-side" in said
    assert "--control-plane real" in said


async def test_a_version_nobody_knows_any_more_is_gone(api: aiohttp.ClientSession) -> None:
    async with api.get(CONFIGMAPS, params={"watch": "1", "resourceVersion": "99999999"}) as watch:
        kind, status = await line(watch)
        assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
        assert await watch.content.readline() == b""


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
