"""The API server behind a local cluster: our embedded one, a real control plane, or a real one that runs already.

Starts or finds it, and tells what the cluster needs to go on: kubeconfigs for people, for the coordinator and for the
kubelets, and what the kubelets do besides. With the real one, kube-scheduler, JobSet and Trainer run, and the
coordinator has the rights of daemonset/rbac.yaml and no more.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvcre_kube.client import ApiError, KubeClient

from nvcre_local import cluster_objects as objects
from nvcre_local.cluster_yaml import load_documents
from nvcre_local.processes import Children

if TYPE_CHECKING:
    from nvcre_local.control_plane.plane import Served

READY_WITHIN_S = 30.0
COORDINATOR_TOKEN_S = 365 * 24 * 3600

Say = Callable[[str], None]


class CannotAttach(Exception):
    """No control plane, or it is in use; the message names the file and the remedy."""


class ServerKind(StrEnum):
    EMBEDDED = "embedded"
    REAL = "real"


@dataclass(frozen=True, slots=True)
class ApiServer:
    """`kubelet_flags`: how kubelets know who may read logs, and what else their process does here."""

    url: str
    kubeconfig: Path
    """The admin's."""
    coordinator: Path
    kubelets: Path
    kubelet_flags: tuple[str, ...]
    stop: Callable[[], Awaitable[None]]
    usable: Callable[[KubeClient, str], Awaitable[None]]
    """Returns once Pods are admitted to a namespace."""
    watch: Callable[[KubeClient], Coroutine[Any, Any, None]] | None = None
    """Raises when it is lost; None where it is a child of ours, whose end is noticed anyway."""


async def embedded(children: Children, directory: Path, *, listen: str) -> ApiServer:
    """Raises ChildDied, NotReady."""
    admin = objects.Identity.new("nvcre-local-admin", "system:masters")
    kubelets = objects.Identity.new("nvcre-local-kubelets", "system:nodes")
    coordinator = objects.Identity.new(
        f"system:serviceaccount:{objects.SYSTEM_NAMESPACE}:{objects.COORDINATOR_ACCOUNT}",
        "system:serviceaccounts",
        f"system:serviceaccounts:{objects.SYSTEM_NAMESPACE}",
    )
    token = objects.write_secret(directory / "kubelet-token", objects.Identity.new("kubelet").token)
    users = (admin, kubelets, coordinator)
    tokens = objects.write_secret(directory / "tokens.csv", "".join(user.line for user in users))
    ready = directory / "apiserver.json"
    command = [sys.executable, "-m", "nvcre_local.apiserver", "--tls-listen", listen]
    command += ["--token-file", str(tokens), "--kubelet-token-file", str(token), "--ready-file", str(ready)]
    for definitions in objects.crd_directories():
        command += ["--crd-dir", str(definitions)]
    child = await children.start("apiserver", command)
    try:
        served: dict[str, str] = await children.ready(child, ready, within_s=READY_WITHIN_S)
    except BaseException:
        await children.stop("apiserver")
        raise

    def write(name: str, url: str, user: objects.Identity, ca: str = "") -> Path:
        return objects.write_secret(directory / name, objects.kubeconfig(url, user, ca=ca))

    return ApiServer(
        url=served["url"],
        # kubectl sends no token over plain http; our own processes do, and loopback needs no encryption.
        kubeconfig=write("kubeconfig", served["tls_url"], admin, served["ca"]),
        coordinator=write("coordinator.kubeconfig", served["url"], coordinator),
        kubelets=write("kubelets.kubeconfig", served["url"], kubelets),
        kubelet_flags=("--kubelet-token-file", str(token), "--trainer", "--scheduler"),
        stop=lambda: children.stop("apiserver"),
        usable=_at_once,
    )


async def _at_once(_: KubeClient, __: str) -> None:
    """The embedded server asks for no ServiceAccount."""


async def real(children: Children, directory: Path, *, listen: str, say: Say) -> ApiServer:
    """One of our own. Raises ChildDied, NotReady, ApiError, NotBuilt."""
    # Imported here, and below: with an embedded server nobody needs it.
    from nvcre_local.control_plane.plane import ControlPlane, Plan  # noqa: PLC0415

    own = directory / "control-plane"
    own.mkdir(mode=0o700)
    host, _, port = listen.rpartition(":")
    plane = ControlPlane(Plan(host=host, port=int(port)), own, children, say)
    try:
        served = await plane.start()
        async with await KubeClient.from_kubeconfig(served.kubeconfig) as client:
            await _install(client)
            return await _on(served, client, directory, stop=plane.stop)
    except BaseException:
        await plane.stop()
        raise


async def attached(ready_file: Path, directory: Path, *, say: Say) -> ApiServer:
    """One that runs already, for us alone until `stop`. Raises CannotAttach, ApiError, TimeoutError."""
    from nvcre_local.attached import Attachment  # noqa: PLC0415

    attachment = Attachment.of(ready_file)

    async def stop() -> None:
        await attachment.end(say)

    try:
        async with await KubeClient.from_kubeconfig(attachment.served.kubeconfig) as client:
            await _install(client)
            await attachment.begin(client)
            server = await _on(attachment.served, client, directory, stop=stop)
            return replace(server, watch=attachment.watch)
    except BaseException:
        attachment.release()
        raise


async def _on(served: Served, client: KubeClient, directory: Path, *, stop: Callable[[], Awaitable[None]]) -> ApiServer:
    """The coordinator has a token of its ServiceAccount, as its Pod would, but one that lasts."""
    from nvcre_local.control_plane.plane import wait_for_service_account  # noqa: PLC0415

    token = await client.create_token(
        objects.COORDINATOR_ACCOUNT, objects.SYSTEM_NAMESPACE, {"expirationSeconds": COORDINATOR_TOKEN_S}
    )
    coordinator = objects.Identity(objects.COORDINATOR_ACCOUNT, (), token["status"]["token"])
    access = objects.kubeconfig(served.url, coordinator, ca=served.authority)
    return ApiServer(
        url=served.url,
        kubeconfig=objects.write_secret(directory / "kubeconfig", served.kubeconfig.read_text()),
        coordinator=objects.write_secret(directory / "coordinator.kubeconfig", access),
        kubelets=served.kubelets,
        kubelet_flags=("--kubelet-client-ca", str(served.authority)),
        stop=stop,
        usable=wait_for_service_account,
    )


async def _install(client: KubeClient) -> None:
    """Our CRDs and the rights of daemonset/rbac.yaml; older ones are brought up to date."""
    from nvcre_local.control_plane.manifests import KINDS  # noqa: PLC0415
    from nvcre_local.control_plane.plane import wait_for_definitions  # noqa: PLC0415

    definitions = _documents(objects.shipped("daemonset/crds", "crds/nvcre").glob("*.yaml"))
    rights = _documents([objects.shipped("daemonset", "daemonset") / "rbac.yaml"])

    async def create(document: dict[str, Any]) -> None:
        resource, metadata = KINDS[document["kind"]], document["metadata"]
        try:
            await client.create(resource, document)
        except ApiError as error:
            if not error.already_exists:
                raise
            await client.merge_patch(resource, metadata["name"], document, metadata.get("namespace"))

    await create(objects.namespace(objects.SYSTEM_NAMESPACE))
    await asyncio.gather(*(create(document) for document in (*definitions, *rights)))
    await wait_for_definitions(client, [one["metadata"]["name"] for one in definitions])


def _documents(files: Iterable[Path]) -> list[dict[str, Any]]:
    return [document for file in files for document in load_documents(file.read_text())]
