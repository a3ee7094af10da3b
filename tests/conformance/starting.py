"""Starts an API server as processes on loopback: the embedded one, or a real one.

The real one is etcd, kube-apiserver and kube-controller-manager, without what only workloads need: no scheduler (tests
bind pods themselves), no Trainer, JobSet or Kueue, so that the CRDs are ours alone and no webhook has a say.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import yaml
from nvcre_local.apiserver.storage import SNAPSHOTS
from nvcre_local.cluster_objects import Identity, kubeconfig
from nvcre_local.control_plane import commands, identities
from nvcre_local.control_plane.cache import Cache
from nvcre_local.control_plane.certificates import Authority, Pair, service_account_keys
from nvcre_local.control_plane.commands import ApiServerFiles, Command
from nvcre_local.control_plane.ports import free_ports
from nvcre_local.control_plane.projects import read, select
from support.api_server import ADMIN_TOKEN, REPOSITORY, api_server
from support.processes import clean_environment, die_with_parent, end, wait_for_file

from .servers import PATIENCE_S, JsonObject, Server

CRD_DIRS = (REPOSITORY / "daemonset/crds", REPOSITORY / "local/nvcre_local/crds", Path(__file__).parent / "crds")
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NODES = ("node-0", "node-1")


def crds() -> list[JsonObject]:
    paths = [path for folder in CRD_DIRS for path in sorted(folder.glob("*.yaml"))]
    return [yaml.safe_load(path.read_text()) for path in paths]


def start_embedded(folder: Path, stack: contextlib.ExitStack) -> Server:
    process = stack.enter_context(api_server(folder, crd_dirs=CRD_DIRS))
    authority = folder / "ca.crt"
    authority.write_text(process.authority)
    admin = Identity("admin", ("system:masters",), ADMIN_TOKEN)
    for_kubectl = folder / "kubectl.kubeconfig"
    for_kubectl.write_text(kubeconfig(process.tls_url, admin, ca=authority))
    flags = ("--kubelet-token-file", str(process.kubelet_token_file))
    server = Server("embedded", process.url, ADMIN_TOKEN, None, for_kubectl, flags)
    server.forget = partial(_begin_many_lists, server)
    return server


def _begin_many_lists(server: Server) -> None:
    """It keeps the rest of so many lists and no more."""
    for _ in range(SNAPSHOTS):
        server.request("GET", "/api/v1/namespaces", query={"limit": 1}).expect(200)


def start_real(version: str, folder: Path, stack: contextlib.ExitStack) -> Server:
    """`version` is one of Kubernetes' in versions.yaml."""
    projects = select(read(), version)
    cache = Cache.of()
    etcd, api, manager = (
        cache.program(projects[project], name)
        for project, name in (
            ("etcd", "etcd"),
            ("kubernetes", "kube-apiserver"),
            ("kubernetes", "kube-controller-manager"),
        )
    )
    authority, keys = Authority(folder, datetime.now(UTC)), service_account_keys(folder)
    admin, controllers = identities.admin(), identities.programs()["kube-controller-manager"]
    tokens = folder / "tokens.csv"
    tokens.write_text(admin.line + controllers.line)
    client, peer, port, manager_port = free_ports(4)
    url = f"https://127.0.0.1:{port}"
    files = ApiServerFiles(
        serving=authority.serving("kube-apiserver"),
        etcd=authority.client("kube-apiserver-etcd-client"),
        kubelet=authority.client(identities.KUBELET_CLIENT_USER),
        service_accounts=keys,
        authority=authority.certificate,
        tokens=tokens,
    )
    _run(commands.etcd(etcd, folder / "etcd", authority.peer("etcd"), files.authority, client=client, peer=peer), stack)
    command = commands.kube_apiserver(api, files, folder / "api", host="127.0.0.1", port=port, etcd=client)
    # Pages of a list come from its store then, whose past can be compacted away.
    _run(replace(command, words=(*command.words, "--feature-gates=ListFromCacheSnapshot=false")), stack)
    access = folder / "admin.kubeconfig"
    access.write_text(kubeconfig(url, admin, ca=files.authority))
    flags = ("--kubelet-client-ca", str(files.authority))
    server = Server(version, url, admin.token, files.authority, access, flags)
    server.forget = partial(_compact, server, client, files)
    wait_for("kube-apiserver to be ready", lambda: _is_ready(server))
    _install_crds(server)
    # Last: its garbage collector looks for new kinds every half minute only.
    _start_controller_manager(manager, folder, url, controllers, keys, files.authority, manager_port, stack)
    wait_for(
        "ServiceAccounts to be made", lambda: _answers(server, "/api/v1/namespaces/default/serviceaccounts/default")
    )
    return server


def _compact(server: Server, port: int, files: ApiServerFiles) -> None:
    """Its store, etcd, does that every five minutes."""
    server.request("POST", "/api/v1/namespaces/default/configmaps", {"metadata": {"generateName": "now-"}}).expect(201)
    namespaces = server.request("GET", "/api/v1/namespaces").expect(200)
    context = ssl.create_default_context(cafile=files.authority)
    context.load_cert_chain(files.etcd.certificate, files.etcd.key)
    connection = http.client.HTTPSConnection(f"127.0.0.1:{port}", context=context, timeout=PATIENCE_S)
    body = {"revision": namespaces["metadata"]["resourceVersion"], "physical": True}
    connection.request("POST", "/v3/kv/compaction", json.dumps(body))
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    connection.close()


def _start_controller_manager(
    program: Path,
    folder: Path,
    url: str,
    identity: Identity,
    keys: Pair,
    authority: Path,
    port: int,
    stack: contextlib.ExitStack,
) -> None:
    access = folder / "controllers.kubeconfig"
    access.write_text(kubeconfig(url, identity, ca=authority))
    _run(commands.kube_controller_manager(program, access, keys, authority, folder / "kcm", port=port), stack)


def _install_crds(server: Server) -> None:
    for crd in crds():
        server.request("POST", CRDS, crd).expect(201)
    for crd in crds():
        spec = crd["spec"]
        for version in spec["versions"]:
            path = f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}"
            wait_for(f"{path} to be served", lambda path=path: _answers(server, path))  # type: ignore[misc]


def start_kubelets(server: Server, folder: Path, stack: contextlib.ExitStack) -> None:
    """Our node runtime with two nodes; it ends when the stack does."""
    ready, log = folder / "ready.json", folder / "node.log"
    command = [sys.executable, "-m", "nvcre_local.node", "--kubeconfig", str(server.kubeconfig), "--root", str(folder)]
    command += [
        *server.kubelet_flags,
        "--ready-file",
        str(ready),
        *(word for node in NODES for word in ("--node", node)),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env=clean_environment(),
            preexec_fn=die_with_parent,  # noqa: PLW1509  (no threads)
        )
    stack.callback(end, process)
    wait_for_file(ready, process, log)


def _run(command: Command, stack: contextlib.ExitStack) -> None:
    process = subprocess.Popen(
        command.words,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **command.environment},
        preexec_fn=die_with_parent,  # noqa: PLW1509  (no threads)
    )
    stack.callback(end, process)


def _is_ready(server: Server) -> bool:
    return _answers(server, "/readyz") and _answers(server, "/api/v1/namespaces/default")


def _answers(server: Server, path: str) -> bool:
    try:
        return server.request("GET", path).code == 200
    except OSError:
        return False


def wait_for(what: str, condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"gave up waiting for {what}"
        time.sleep(0.05)
