"""The process: its flags, its end, and a Python client of the same kind as our own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from kubernetes.aio import client, config, watch

from .conftest import TOKEN, stop


def run(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NVCRE_")}
    command = [sys.executable, "-m", "nvcre_local.apiserver", *flags]
    return subprocess.run(command, env={**kept, **environment}, text=True, capture_output=True, timeout=30, check=False)


def test_help_names_every_flag() -> None:
    text = run("--help").stdout
    for flag in ("--listen", "--tls-listen", "--token-file", "--crd-dir", "--kubelet-token-file", "--ready-file"):
        assert flag in text


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--listen", "0.0.0.0:0"], "only loopback"),
        (["--listen", "example.com:0"], "only loopback"),
        (["--listen", "127.0.0.1:http"], "expected HOST:PORT"),
        (["--tls-listen", "10.0.0.1:0"], "only loopback"),
        ([], "--token-file is required"),
        (["--token-file", "/nonexistent"], "/nonexistent"),
        (["--frobnicate"], "unrecognized arguments"),
    ],
)
def test_what_cannot_be_used_is_named_and_ends_with_2(flags: list[str], said: str) -> None:
    done = run(*flags)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_flags_come_from_the_environment_too() -> None:
    assert "/elsewhere" in run(NVCRE_TOKEN_FILE="/elsewhere").stderr


def test_definitions_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    tokens, crds = tmp_path / "tokens", tmp_path / "crds"
    tokens.write_text("t,u,1\n")
    assert "no such directory" in run("--token-file", str(tokens), "--crd-dir", str(crds)).stderr
    crds.mkdir()
    for text, said in (("a: [", "cannot read"), ("kind: Pod", "no CustomResourceDefinition"),
                       ("kind: CustomResourceDefinition\nmetadata: {name: x}", "spec: Required value")):  # fmt: skip
        (crds / "x.yaml").write_text(text)
        done = run("--token-file", str(tokens), "--crd-dir", str(crds))
        assert done.returncode == 2
        assert said in done.stderr


def test_an_occupied_port_is_named(server: Any, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("t,u,1\n")
    done = run("--token-file", str(tokens), "--listen", server.url.removeprefix("http://"))
    assert done.returncode == 2
    assert "address already in use" in done.stderr


async def test_sigterm_ends_it_with_0_though_watches_are_open(own_server: Any) -> None:
    async with aiohttp.ClientSession(own_server.url, headers={"Authorization": f"Bearer {TOKEN}"}) as session:
        watching = await session.get("/api/v1/pods", params={"watch": "1", "timeoutSeconds": "600"})
        assert watching.status == 200
        assert stop(own_server) == 0
        assert await watching.content.read() == b""
    assert "Traceback" not in own_server.log.read_text()


@pytest.mark.parametrize("tls", [True, False])
async def test_the_python_client_creates_watches_and_patches(server: Any, tmp_path: Path, tls: bool) -> None:
    configuration = client.Configuration()
    path = server.kubeconfig(tmp_path / "kubeconfig", tls=tls)
    await config.load_kube_config(str(path), client_configuration=configuration)
    async with client.ApiClient(configuration) as connection:
        core, custom = client.CoreV1Api(connection), client.CustomObjectsApi(connection)
        name = f"aio-{tls}".lower()
        body = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": 1}}
        where = ("example.com", "v1", "default", "widgets")
        made = await custom.create_namespaced_custom_object(*where, body)
        await custom.patch_namespaced_custom_object_status(*where, name, {"status": {"ok": True}})
        version = made["metadata"]["resourceVersion"]
        async for event in watch.Watch().stream(
            custom.list_namespaced_custom_object, *where, resource_version=version, timeout_seconds=5
        ):
            assert (event["type"], event["object"]["status"]) == ("MODIFIED", {"ok": True})
            break
        nodes = await core.list_node()
        assert nodes.metadata.resource_version
        with pytest.raises(client.ApiException) as refused:
            await core.read_namespaced_pod("none", "default")
        assert json.loads(refused.value.body)["reason"] == "NotFound"
