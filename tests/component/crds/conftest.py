"""Starts the judges. The real one needs etcd and kube-apiserver: in the directory KUBEBUILDER_ASSETS, else in
~/.cache/nvcre/control-plane/bin. Without them its cases are skipped.
"""

import contextlib
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from .judges import Engine, RealServer, crds


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
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, plain)
    (folder / "sa.key").write_bytes(pem)
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
