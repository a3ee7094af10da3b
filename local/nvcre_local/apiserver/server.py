"""Puts the parts together and serves them on a loopback address until told to stop."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml
from aiohttp import web
from nvcre_protos.addresses import format_address, parse_address
from nvcre_protos.ready_file import write_ready_file

from nvcre_local.apiserver import certificates
from nvcre_local.apiserver.authentication import Authenticator
from nvcre_local.apiserver.builtin import BUILTIN, NAMESPACES
from nvcre_local.apiserver.errors import ApiError
from nvcre_local.apiserver.garbage import GarbageCollector
from nvcre_local.apiserver.kubelet_logs import KubeletLogs
from nvcre_local.apiserver.operations import Operations
from nvcre_local.apiserver.reading import Reading
from nvcre_local.apiserver.requests import MAX_BODY_BYTES
from nvcre_local.apiserver.resources import Registry
from nvcre_local.apiserver.routes import Routes, status_errors
from nvcre_local.apiserver.storage import Json, Store
from nvcre_local.apiserver.subresources import Subresources
from nvcre_local.apiserver.tokens import TokenIssuer, User
from nvcre_local.apiserver.watching import Watches
from nvcre_local.apiserver.writing import Writing

_MAX_LINE_BYTES = 64 * 1024  # selectors over many names make long URLs
_MAX_HEADER_BYTES = 32 * 1024  # a pod-bound token is about 1.5 KB
_SHUTDOWN_S = 1.0


log = logging.getLogger(__name__)


class UsageError(ValueError):
    """A flag's value cannot be used; the message names it and the remedy."""


@dataclass(frozen=True, slots=True)
class Settings:
    listen: tuple[str, int]
    tls_listen: tuple[str, int]
    users: dict[bytes, User]
    definitions: tuple[Json, ...]
    kubelet_token: str = ""
    ready_file: Path | None = None


def parse_listen(flag: str, text: str) -> tuple[str, int]:
    """`127.0.0.1:0` or `[::1]:0`. Only loopback: what listens here can start processes on this machine."""
    try:
        host, port = parse_address(text)
    except ValueError:
        raise UsageError(f"{flag} {text}: expected HOST:PORT, for example 127.0.0.1:0") from None
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise UsageError(f"{flag} {text}: only loopback addresses are served (127.0.0.1 or [::1])")
    return ("127.0.0.1" if host == "localhost" else host), port


def read_definitions(directories: Iterable[Path]) -> tuple[Json, ...]:
    """The CustomResourceDefinitions of all *.yaml files. Raises UsageError."""
    found: list[Json] = []
    for directory in directories:
        if not directory.is_dir():
            raise UsageError(f"--crd-dir {directory}: no such directory")
        for path in sorted((*directory.glob("*.yaml"), *directory.glob("*.yml"))):
            try:
                documents = list(yaml.load_all(path.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
            except (OSError, yaml.YAMLError) as error:
                raise UsageError(f"--crd-dir: cannot read {path}: {error}") from error
            for document in documents:
                if isinstance(document, dict) and document.get("kind") == "CustomResourceDefinition":
                    found.append(document)
                elif document is not None and Path(path).name not in ("kustomization.yaml", "kustomization.yml"):
                    raise UsageError(f"--crd-dir: {path} has something that is no CustomResourceDefinition")
    return tuple(found)


class ApiServer:
    """One server: its state and its HTTP application."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.store = Store(first_version=int(datetime.now(UTC).timestamp() * 1000))
        self.registry = Registry(BUILTIN)
        self.operations = Operations(self.store, self.registry)
        self.garbage = GarbageCollector(self.operations)
        self.watches = Watches(self.operations)
        self._logs = KubeletLogs(self.store, settings.kubelet_token)
        issuer = TokenIssuer(self.store, self.operations.clock)
        routes = Routes(
            self.operations,
            Authenticator(settings.users, issuer),
            Reading(self.operations, self.watches),
            Writing(self.operations),
            Subresources(self.operations, issuer, self._logs),
        )
        self.app = web.Application(middlewares=[status_errors], client_max_size=MAX_BODY_BYTES)
        self.app.router.add_route("*", "/{path:.*}", routes.handle)
        self._furnish()

    def _furnish(self) -> None:
        namespaces = self.registry.find("", "v1", "namespaces")
        definitions = self.registry.find("apiextensions.k8s.io", "v1", "customresourcedefinitions")
        if namespaces is None or definitions is None:
            raise AssertionError("the table of built-in kinds has lost namespaces or customresourcedefinitions")
        for name in NAMESPACES:
            self.operations.create(namespaces, "", {"metadata": {"name": name}})
        for definition in self._settings.definitions:
            try:
                self.operations.create(definitions, "", definition)
            except ApiError as error:
                raise UsageError(f"--crd-dir: {error.message}") from error

    async def serve(self, stop: asyncio.Event) -> None:
        """Serve until `stop`. Raises UsageError when the address cannot be bound."""
        runner = web.AppRunner(
            self.app,
            access_log=None,
            handler_cancellation=True,  # a watch must notice that its client has left
            shutdown_timeout=_SHUTDOWN_S,
            max_line_size=_MAX_LINE_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
        )
        await runner.setup()
        certificate = certificates.make(self.operations.clock())
        collector = asyncio.create_task(self.garbage.run(), name="garbage collector")
        stopped = asyncio.create_task(stop.wait())
        try:
            await _bind(runner, "--listen", self._settings.listen, None)
            await _bind(runner, "--tls-listen", self._settings.tls_listen, certificate.context)
            plain, secure = runner.addresses
            self._announce(_url("http", plain), _url("https", secure), certificate.authority)
            await asyncio.wait({collector, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if collector.done():
                collector.result()  # it never ends by itself: raise what broke it, the process ends with it
        finally:
            self.watches.stop()
            collector.cancel()
            stopped.cancel()
            await runner.cleanup()
            await self._logs.close()

    def _announce(self, url: str, tls_url: str, authority: str) -> None:
        log.info("serving url=%s tls_url=%s kinds=%d", url, tls_url, len(self.registry.all()))
        if self._settings.ready_file is not None:
            write_ready_file(self._settings.ready_file, {"url": url, "tls_url": tls_url, "ca": authority})


async def _bind(runner: web.AppRunner, flag: str, address: tuple[str, int], context: ssl.SSLContext | None) -> None:
    host, port = address
    try:
        await web.TCPSite(runner, host, port, ssl_context=context).start()
    except OSError as error:
        raise UsageError(f"{flag} {host}:{port}: {error.strerror}; choose another port, or 0 for any") from error


def _url(scheme: str, address: tuple[str, int]) -> str:
    return f"{scheme}://{format_address(*address[:2])}"
