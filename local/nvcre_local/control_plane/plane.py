"""Starts a control plane on loopback, step by step as each one's needs are met, and ends it without leftovers.

etcd and kube-apiserver first; then the controller manager and the scheduler beside the CRDs and the rights; then the
controllers with webhooks; their webhooks last, once they answer. The processes are children of whoever calls
(nvcre_local.processes): that is where one that dies is noticed.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from nvcre_kube.client import CONNECTION_ERRORS, ApiError, KubeClient
from nvcre_kube.resources import CRDS, SERVICE_ACCOUNTS

from nvcre_local.cluster_objects import SYSTEM_NAMESPACE, Identity, kubeconfig, write_secret
from nvcre_local.control_plane import commands, identities, manifests
from nvcre_local.control_plane.cache import MANIFESTS, Cache
from nvcre_local.control_plane.certificates import LOOPBACK, Authority, Pair, service_account_keys
from nvcre_local.control_plane.commands import ApiServerFiles, Audit, Command, ControllerPorts
from nvcre_local.control_plane.ports import free_ports
from nvcre_local.control_plane.projects import Project, read, select
from nvcre_local.processes import Child, Children, NotReady

AUDIT_DIRECTORY = "NVCRE_AUDIT_DIRECTORY"
"""Environment: where each control plane that is started adds a log of what nvcre's ServiceAccounts ask of it. For tests
of rights: they see every control plane of a run, whoever started it."""
READY_WITHIN_S = 120.0
LOOK_EVERY_S = 0.1
REQUESTS_AT_ONCE = 16

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """`kubernetes`: a version of versions.yaml."""

    kueue: bool = False
    kwok: bool = False
    kubernetes: str | None = None
    host: str = LOOPBACK
    port: int = 0
    """0: any free one."""


@dataclass(frozen=True, slots=True)
class Served:
    """`kubeconfig` is the admin's, `kubelets` that of our kubelets. `authority` is the PEM file that clients trust; it
    also signed the certificate that the API server shows to kubelets."""

    url: str
    authority: Path
    kubeconfig: Path
    kubelets: Path


class ControlPlane:
    """`directory` is private, ours and disposable. `start` returns once every part of it works."""

    def __init__(self, plan: Plan, directory: Path, children: Children, say: Callable[[str], None]) -> None:
        """Raises NotBuilt, NotInstalled, UnknownVersion."""
        self._plan = plan
        self._directory = directory
        self._children = children
        self._say = say
        self._began = time.monotonic()
        self._projects = select(read(), plan.kubernetes)
        self._cache = Cache.of()
        self._started: list[Child] = []
        self._api_server: Child | None = None
        self._api_server_command: Command
        self._programs = identities.programs()
        self._program = {
            name: self._cache.program(project, name)
            for project in self._projects.values()
            if self._is_wanted(project)
            for name in project.programs
        }

    def _is_wanted(self, project: Project) -> bool:
        return {"kueue": self._plan.kueue, "kwok": self._plan.kwok}.get(project.name, True)

    async def start(self) -> Served:
        """Raises ChildDied, NotReady, ApiError."""
        authority = Authority(self._directory, datetime.now(UTC))
        keys = service_account_keys(self._directory)
        served = await self._start_api_server(authority, keys)
        self._step(f"kube-apiserver {self._projects['kubernetes'].version} at {served.url}")
        async with await KubeClient.from_kubeconfig(served.kubeconfig) as client:
            documents, ports = self._documents(authority)
            await asyncio.gather(self._start_builtin(served, keys), self._create_definitions(client, documents))
            self._step("kube-controller-manager and kube-scheduler run, CRDs are served")
            pair = authority.serving("webhooks")
            await asyncio.gather(*(self._start_controller(name, ports[name], pair, served) for name in ports))
            if self._plan.kwok:
                await self._start_kwok(served)
            await _create(client, [document for document in documents if document["kind"] in manifests.WEBHOOKS])
            await wait_for_service_account(client, "default")
        self._step(f"{', '.join((*ports, *(['kwok'] if self._plan.kwok else [])))} run")
        return served

    async def stop(self) -> None:
        """At once: nothing of it is kept, and it has no children of its own."""
        for child in reversed(self._started):
            await self._children.kill(child)
        self._started.clear()

    def _step(self, text: str) -> None:
        self._say(f"{text} ({time.monotonic() - self._began:.1f} s)")

    # -- the API server ---------------------------------------------------------------------------------------------

    async def _start_api_server(self, authority: Authority, keys: Pair) -> Served:
        admin, kubelets = identities.admin(), identities.kubelets()
        users = (admin, kubelets, *self._programs.values())
        client, peer, free = free_ports(3)
        port = self._plan.port or free
        files = ApiServerFiles(
            serving=authority.serving("kube-apiserver"),
            etcd=authority.client("kube-apiserver-etcd-client"),
            kubelet=authority.client(identities.KUBELET_CLIENT_USER),
            service_accounts=keys,
            authority=authority.certificate,
            tokens=write_secret(self._directory / "tokens.csv", "".join(user.line for user in users)),
        )
        data = self._private("etcd")
        pair = authority.peer("etcd")
        etcd = commands.etcd(self._program["etcd"], data, pair, authority.certificate, client=client, peer=peer)
        directory = self._private("kube-apiserver")
        self._api_server_command = commands.kube_apiserver(
            self._program["kube-apiserver"],
            files,
            directory,
            host=self._plan.host,
            port=port,
            etcd=client,
            audit=self._audit(port),
        )
        await self._start(etcd)
        await self.return_api_server()  # it waits for etcd by itself
        url = f"https://{LOOPBACK}:{port}"
        return Served(
            url,
            authority.certificate,
            self._write_kubeconfig("admin", url, admin, authority),
            self._write_kubeconfig("kubelets", url, kubelets, authority),
        )

    def _audit(self, port: int) -> Audit | None:
        where = os.environ.get(AUDIT_DIRECTORY)
        if where is None:
            return None
        policy = self._directory / "audit-policy.yaml"
        policy.write_text(commands.audit_policy(f"system:serviceaccounts:{SYSTEM_NAMESPACE}"))
        return Audit(policy, Path(where) / f"audit-{port}.jsonl")

    async def take_api_server_away(self) -> None:
        """As a crash does: its port refuses connections until `return_api_server`."""
        if self._api_server is not None:
            await self._children.kill(self._api_server)
            self._started.remove(self._api_server)
            self._api_server = None

    async def return_api_server(self) -> None:
        """With the same etcd and port. Raises ChildDied, NotReady."""
        if self._api_server is None:
            self._api_server = await self._start(self._api_server_command)

    def _write_kubeconfig(self, name: str, url: str, identity: Identity, authority: Authority) -> Path:
        return write_secret(self._directory / f"{name}.kubeconfig", kubeconfig(url, identity, ca=authority.certificate))

    def _kubeconfig(self, served: Served, name: str) -> Path:
        text = kubeconfig(served.url, self._programs[name], ca=served.authority)
        return write_secret(self._directory / f"{name}.kubeconfig", text)

    async def _start_builtin(self, served: Served, keys: Pair) -> None:
        for_manager, for_scheduler = free_ports(2)
        manager = commands.kube_controller_manager(
            self._program["kube-controller-manager"],
            self._kubeconfig(served, "kube-controller-manager"),
            keys,
            served.authority,
            self._private("kube-controller-manager"),
            port=for_manager,
        )
        scheduler = commands.kube_scheduler(
            self._program["kube-scheduler"],
            self._kubeconfig(served, "kube-scheduler"),
            self._private("kube-scheduler"),
            port=for_scheduler,
        )
        await asyncio.gather(self._start(manager), self._start(scheduler))

    # -- controllers with webhooks ----------------------------------------------------------------------------------

    def _documents(self, authority: Authority) -> tuple[list[JsonObject], dict[str, ControllerPorts]]:
        """What is created, webhooks reachable, and the ports of each controller."""
        names = ("jobset", "trainer", *(("kueue",) if self._plan.kueue else ()))
        numbers = iter(free_ports(3 * len(names)))
        ports = {name: ControllerPorts(next(numbers), next(numbers), next(numbers)) for name in names}
        documents = identities.kubelet_rights()
        for name in names:
            documents += [
                manifests.reachable(document, ports[name].webhook, authority.pem)
                for document in self._manifests(self._projects[name])
            ]
        if self._plan.kwok:
            documents += self._manifests(self._projects["kwok"])
        return documents, ports

    def _manifests(self, project: Project) -> list[JsonObject]:
        content: list[JsonObject] = json.loads(self._cache.file(project, MANIFESTS).read_text())
        return content

    async def _create_definitions(self, client: KubeClient, documents: Sequence[JsonObject]) -> None:
        """Everything but the webhooks; returns once the CRDs are served."""
        await _create(client, [*manifests.namespaces(documents), *_of_kind(documents, "Namespace")])
        others = [document for document in documents if document["kind"] not in manifests.WEBHOOKS | {"Namespace"}]
        await _create(client, others)
        await wait_for_definitions(
            client, [one["metadata"]["name"] for one in _of_kind(documents, "CustomResourceDefinition")]
        )

    async def _start_controller(self, name: str, ports: ControllerPorts, pair: Pair, served: Served) -> None:
        directory = self._private(name)
        _put_certificate(pair, commands.serving_directory(directory))
        (program,) = self._projects[name].programs
        more: tuple[str, ...] = ()
        match name:
            case "jobset":
                config = commands.jobset_config(ports)
            case "trainer":
                config = commands.trainer_config(ports)
            case _:
                config = commands.kueue_config(ports, commands.serving_directory(directory))
                more = ("--feature-gates=VisibilityOnDemand=false",)
        (directory / "config.yaml").write_text(config)
        access = self._kubeconfig(served, name)
        command = commands.controller(name, self._program[program], access, directory, ports.health, *more)
        if name == "kueue":
            etc = self._private("kueue-etc")
            _put_certificate(pair, etc / commands.KUEUE_CERTIFICATES.relative_to("/etc"))
            command = commands.with_kueue_certificates(command, etc)
        await self._start(command)

    async def _start_kwok(self, served: Served) -> None:
        project = self._projects["kwok"]
        stages = tuple(self._cache.file(project, Path(file).name) for file in project.files)
        (port,) = free_ports(1)
        await self._start(commands.kwok(self._program["kwok"], self._kubeconfig(served, "kwok"), stages, port=port))

    # -- processes --------------------------------------------------------------------------------------------------

    def _private(self, name: str) -> Path:
        directory = self._directory / name
        directory.mkdir(mode=0o700)
        return directory

    async def _start(self, command: Command) -> Child:
        """Returns once it answers. Raises ChildDied, NotReady."""
        child = await self._children.start(command.name, command.words, command.environment)
        self._started.append(child)
        if command.ready:
            await self._answers(child, command.ready)
        return child

    async def _answers(self, child: Child, url: str) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + READY_WITHIN_S
        # Whether it is up is all that is asked, and some of them show a certificate of their own making.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        timeout = aiohttp.ClientTimeout(total=5)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(ssl=context)) as session:
            while True:
                try:
                    async with session.get(url) as answer:
                        if answer.status == 200:
                            return
                except (aiohttp.ClientError, TimeoutError):
                    pass  # it does not listen yet
                if self._children.died.done():
                    raise self._children.died.result()
                if loop.time() > until:
                    raise NotReady(f"{child.name} is not ready after {READY_WITHIN_S:.0f} s; {child.last_words}")
                await asyncio.sleep(LOOK_EVERY_S)


def _put_certificate(pair: Pair, directory: Path) -> None:
    directory.mkdir(parents=True, mode=0o700)
    shutil.copy(pair.certificate, directory / "tls.crt")
    shutil.copy(pair.key, directory / "tls.key")


def _of_kind(documents: Iterable[JsonObject], kind: str) -> list[JsonObject]:
    return [document for document in documents if document["kind"] == kind]


async def _create(client: KubeClient, documents: Iterable[JsonObject]) -> None:
    at_once = asyncio.Semaphore(REQUESTS_AT_ONCE)

    async def one(document: JsonObject) -> None:
        async with at_once:
            try:
                await client.create(manifests.KINDS[document["kind"]], document)
            except ApiError as error:
                if not error.already_exists:
                    raise

    await asyncio.gather(*(one(document) for document in documents))


async def wait_for_definitions(client: KubeClient, names: Iterable[str], *, within_s: float = 60.0) -> None:
    """Until these CRDs are established. Raises NotReady."""
    missing = set(names)
    until = asyncio.get_running_loop().time() + within_s
    while True:
        for definition in await client.list(CRDS):
            conditions = (definition.get("status") or {}).get("conditions") or ()
            if any(one["type"] == "Established" and one["status"] == "True" for one in conditions):
                missing.discard(definition["metadata"]["name"])
        if not missing:
            return
        if asyncio.get_running_loop().time() > until:
            raise NotReady(f"not established after {within_s:.0f} s: CRD {', '.join(sorted(missing))}")
        await asyncio.sleep(LOOK_EVERY_S)


async def wait_for_service_account(client: KubeClient, namespace: str, *, within_s: float = 30.0) -> None:
    """Until the namespace has its ServiceAccount `default`: without it no Pod is admitted. Raises NotReady."""
    until = asyncio.get_running_loop().time() + within_s
    while True:
        try:
            await client.get(SERVICE_ACCOUNTS, "default", namespace)
        except (ApiError, *CONNECTION_ERRORS) as error:
            if not isinstance(error, ApiError) or not error.not_found:
                raise
        else:
            return
        if asyncio.get_running_loop().time() > until:
            raise NotReady(f"namespace {namespace} has no ServiceAccount `default` after {within_s:.0f} s")
        await asyncio.sleep(LOOK_EVERY_S)
