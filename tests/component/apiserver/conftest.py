"""The real process, as a parent starts it: token file, CRDs, ready file. One a module; tests use names of their own."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from support.processes import wait_for_file

TOKEN = "s3cret"
KUBELET_TOKEN = "kubelet-s3cret"


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    url: str
    tls_url: str
    authority: str
    log: Path

    def kubeconfig(self, path: Path, *, tls: bool = True, token: str = TOKEN) -> Path:
        authority = base64.b64encode(self.authority.encode()).decode()
        cluster = {"server": self.tls_url, "certificate-authority-data": authority} if tls else {"server": self.url}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "default"}}],
            "current-context": "x",
        }
        path.write_text(json.dumps(config))
        path.chmod(0o600)
        return path


def start(directory: Path, *flags: str) -> Server:
    tokens, kubelet, crds, ready = (directory / name for name in ("tokens", "kubelet-token", "crds", "ready.json"))
    tokens.write_text(f'{TOKEN},admin,1,"system:masters"\n')
    kubelet.write_text(KUBELET_TOKEN + "\n")
    crds.mkdir()
    (crds / "widgets.yaml").write_text(yaml.safe_dump(WIDGET_CRD))
    log = directory / "log"
    command = [
        sys.executable, "-m", "nvcre_local.apiserver", "--listen", "127.0.0.1:0", "--token-file", str(tokens),
        "--kubelet-token-file", str(kubelet), "--crd-dir", str(crds), "--ready-file", str(ready), *flags,
    ]  # fmt: skip
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stderr=stderr)
    found = wait_for_file(ready, process, log)
    return Server(process, found["url"], found["tls_url"], found["ca"], log)


def stop(server: Server) -> int:
    if server.process.poll() is None:
        server.process.send_signal(signal.SIGTERM)
    return server.process.wait(timeout=10)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = start(tmp_path_factory.mktemp("apiserver"))
    yield found
    stop(found)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """For tests that end it."""
    found = start(tmp_path)
    yield found
    if found.process.poll() is None:
        found.process.kill()
        found.process.wait()


@pytest.fixture
async def api(server: Server) -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP session that is logged in."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(server.url, headers=headers) as session:
        yield session


WIDGET_CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"], "categories": ["all"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "description": "A thing with a size.",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "size": {"type": "integer", "minimum": 0, "description": "How big it is."},
                                    "color": {"type": "string"},
                                },
                            },
                            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                        },
                    }
                },
            }
        ],
    },
}
