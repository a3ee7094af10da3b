"""Two judges for the admission table: our schema engine, and a real kube-apiserver where its binaries are found.

Binaries: the directory in KUBEBUILDER_ASSETS, else ~/.cache/nvcre/control-plane/bin (etcd and kube-apiserver). Without
them the cases of the real server are skipped.
"""

import contextlib
import copy
import json
import os
import secrets
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
import yaml
from nvcre_local.apiserver.schema import StructuralSchema

ROOT = Path(__file__).parents[3]
CRD_DIRS = (ROOT / "daemonset/crds", ROOT / "local/nvcre_local/crds")


@dataclass(frozen=True, slots=True)
class Refused:
    causes: tuple[tuple[str, str, str], ...]
    """(reason, field, message), sorted: a real server's order is random."""


class Judge(Protocol):
    def create(self, obj: dict[str, Any]) -> dict[str, Any] | Refused: ...
    def replace(self, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any] | Refused: ...
    def replace_status(self, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any] | Refused: ...


def crds() -> list[dict[str, Any]]:
    return [yaml.safe_load(path.read_text()) for folder in CRD_DIRS for path in sorted(folder.glob("*.yaml"))]


class Engine:
    """What the embedded API server does with a request body, without the server."""

    def __init__(self) -> None:
        self._schemas = {
            crd["spec"]["names"]["kind"]: StructuralSchema.from_crd_version(crd["spec"]["versions"][0])
            for crd in crds()
        }
        self._with_status = {
            crd["spec"]["names"]["kind"] for crd in crds() if "subresources" in crd["spec"]["versions"][0]
        }

    def create(self, obj: dict[str, Any]) -> dict[str, Any] | Refused:
        new = copy.deepcopy(obj)
        if obj["kind"] in self._with_status:
            new.pop("status", None)
        return self._judge(new, None)

    def replace(self, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any] | Refused:
        return self._judge({**copy.deepcopy(new), **({"status": old["status"]} if "status" in old else {})}, old)

    def replace_status(self, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any] | Refused:
        return self._judge({**copy.deepcopy(old), "status": copy.deepcopy(new["status"])}, old)

    def _judge(self, new: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any] | Refused:
        schema = self._schemas[new["kind"]]
        schema.default(new)
        schema.prune(new)
        found = schema.validate(new, old)
        return Refused(tuple(sorted((c.reason, c.field, c.message) for c in found))) if found else new


class RealServer:
    def __init__(self, url: str, token: str, ca: Path) -> None:
        self._url, self._token = url, token
        self._tls = ssl.create_default_context(cafile=ca)
        self._tls.check_hostname = False
        self._plural: dict[str, str] = {}

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        request = urllib.request.Request(
            self._url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, context=self._tls, timeout=30) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text.startswith(b"{") else {"text": text.decode()}
        except urllib.error.HTTPError as e:
            text = e.read()
            return e.code, json.loads(text) if text.startswith(b"{") else {"text": text.decode()}

    def install(self, crd: dict[str, Any]) -> None:
        code, answer = self.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        assert code == 201, answer
        names, scope = crd["spec"]["names"], crd["spec"]["scope"]
        middle = "namespaces/default/" if scope == "Namespaced" else ""
        self._plural[names["kind"]] = f"/apis/{crd['spec']['group']}/v1alpha1/{middle}{names['plural']}"

    def conditions(self, crd: dict[str, Any]) -> dict[str, dict[str, Any]]:
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
        status = self.request("GET", path)[1].get("status", {})
        return {condition["type"]: condition for condition in status.get("conditions", [])}

    def served(self) -> bool:
        return all(self.request("GET", path)[0] == 200 for path in self._plural.values())

    def create(self, obj: dict[str, Any]) -> dict[str, Any] | Refused:
        return _answer(*self.request("POST", self._plural[obj["kind"]], obj))

    def replace(self, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any] | Refused:
        return _answer(*self.request("PUT", self._object(old), _with_version(new, old)))

    def replace_status(self, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any] | Refused:
        return _answer(*self.request("PUT", self._object(old) + "/status", _with_version(new, old)))

    def _object(self, obj: dict[str, Any]) -> str:
        return f"{self._plural[obj['kind']]}/{obj['metadata']['name']}"


def _with_version(new: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    metadata = {**new["metadata"], "resourceVersion": old["metadata"]["resourceVersion"]}
    return {**new, "metadata": metadata}


def _answer(code: int, body: dict[str, Any]) -> dict[str, Any] | Refused:
    if code in (200, 201):
        return body
    assert code == 422, body
    assert body["reason"] == "Invalid"
    return Refused(tuple(sorted((c["reason"], c["field"], c["message"]) for c in body["details"]["causes"])))


@pytest.fixture(scope="session")
def all_crds() -> list[dict[str, Any]]:
    return crds()


@pytest.fixture(scope="session")
def engine() -> Engine:
    return Engine()


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    assets = Path(os.environ.get("KUBEBUILDER_ASSETS") or Path.home() / ".cache/nvcre/control-plane/bin")
    if not all((assets / name).exists() for name in ("etcd", "kube-apiserver")):
        pytest.skip(f"no etcd and kube-apiserver in {assets} (set KUBEBUILDER_ASSETS)")
    with contextlib.ExitStack() as stack:
        folder = tmp_path_factory.mktemp("control-plane")
        server = _start(assets, folder, stack)
        for crd in crds():
            server.install(crd)
        _wait("the CRDs to be served", server.served)
        yield server


def _start(assets: Path, folder: Path, stack: contextlib.ExitStack) -> RealServer:
    client, peer, secure = _free_ports(3)
    token = secrets.token_hex(16)
    (folder / "tokens").write_text(f'{token},admin,admin,"system:masters"\n')
    subprocess.run(["openssl", "genrsa", "-out", folder / "sa.key", "2048"], check=True, capture_output=True)
    etcd_url = f"http://127.0.0.1:{client}"
    peer_url = f"http://127.0.0.1:{peer}"
    commands = {
        "etcd": [
            *("--data-dir", folder / "etcd", "--unsafe-no-fsync"),
            *("--listen-client-urls", etcd_url, "--advertise-client-urls", etcd_url),
            *("--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url),
            *("--initial-cluster", f"default={peer_url}"),
        ],
        "kube-apiserver": [
            *("--etcd-servers", etcd_url, "--bind-address", "127.0.0.1", "--secure-port", str(secure)),
            *("--cert-dir", folder / "certs", "--token-auth-file", folder / "tokens"),
            *("--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.0.0.0/24"),
            *("--service-account-issuer", "https://kubernetes.default.svc"),
            *("--service-account-key-file", folder / "sa.key", "--service-account-signing-key-file", folder / "sa.key"),
        ],
    }
    for name, arguments in commands.items():
        log = stack.enter_context((folder / f"{name}.log").open("wb"))
        process = subprocess.Popen([assets / name, *arguments], stdout=log, stderr=log)
        stack.callback(_stop, process)
    certificate = folder / "certs/apiserver.crt"
    _wait("kube-apiserver to write its certificate", certificate.exists)
    server = RealServer(f"https://127.0.0.1:{secure}", token, certificate)
    _wait("kube-apiserver to be ready", lambda: _ready(server))
    return server


def _ready(server: RealServer) -> bool:
    try:
        ready = server.request("GET", "/readyz")[0] == 200
        return ready and server.request("GET", "/api/v1/namespaces/default")[0] == 200
    except OSError:
        return False


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait(what: str, condition: Any, patience_s: float = 60) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"gave up waiting for {what}"
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]
