"""Starts an API server as processes on loopback: the embedded one, or a real etcd and kube-apiserver."""

import contextlib
import json
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from .judges import Server


def start_kube_apiserver(programs: Mapping[str, Path], folder: Path, stack: contextlib.ExitStack) -> Server:
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
        _run(name, [programs[name], *arguments], folder, stack)
    certificate = folder / "certs/apiserver.crt"
    wait_for("kube-apiserver to write its certificate", certificate.exists)
    server = Server(f"https://127.0.0.1:{secure}", token, certificate)
    wait_for("kube-apiserver to be ready", lambda: _ready(server))
    return server


def start_embedded(folder: Path, stack: contextlib.ExitStack) -> Server:
    token = secrets.token_hex(16)
    (folder / "tokens").write_text(f'{token},admin,admin,"system:masters"\n')
    ready = folder / "ready.json"
    arguments = ["-m", "nvcre_local.apiserver", "--token-file", folder / "tokens", "--ready-file", ready]
    _run("embedded", [sys.executable, *arguments], folder, stack)
    wait_for("the embedded API server to serve", ready.exists)
    return Server(json.loads(ready.read_text())["url"], token, None)


def _run(name: str, command: list[Any], folder: Path, stack: contextlib.ExitStack) -> None:
    log = stack.enter_context((folder / f"{name}.log").open("wb"))
    stack.callback(_stop, subprocess.Popen(command, stdout=log, stderr=log))


def _ready(server: Server) -> bool:
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


def wait_for(what: str, condition: Any, patience_s: float = 60) -> None:
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
