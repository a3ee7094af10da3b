"""The kubelets' HTTPS endpoints: one port a node, answering `GET /containerLogs/{namespace}/{pod}/{container}`.

That is where an API server fetches `pods/log` from. Whoever asks must show the kubelet token or, where there is a
client authority, a client certificate signed by it. The certificate that we show is made for this run and signed by
itself, as kubelets do by default; API servers do not check it by default either.
"""

from __future__ import annotations

import hmac
import ssl
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nvcre_local.node.containers import Container
from nvcre_local.node.environment import POD_ADDRESS
from nvcre_local.node.log_files import ContainerLog, LogOptions
from nvcre_local.node.log_records import parse_time
from nvcre_local.node.pod_status import Waiting

FindContainer = Callable[[str, str, str, str], Container | None]
"""(node, namespace, pod, container) -> the container, or None when the node does not have it."""

CERTIFICATE_DAYS = 365


class LogServer:
    def __init__(self, nodes: Sequence[str], token: str, find: FindContainer, client_ca: Path | None = None) -> None:
        """An empty `token` lets nobody in; `client_ca` is a PEM file."""
        self._nodes = nodes
        self._token = token.encode()
        self._client_ca = client_ca
        self._find = find
        self._node_of_port: dict[int, str] = {}
        self._runner: web.AppRunner | None = None

    async def start(self) -> Mapping[str, int]:
        """Listen on a port for each node; returns node -> port."""
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._container_logs)
        app.router.add_get("/healthz", _healthz)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.5)
        await self._runner.setup()
        context = _server_context(self._nodes)
        if self._client_ca is not None:
            context.load_verify_locations(self._client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL
        for node in self._nodes:
            site = web.TCPSite(self._runner, POD_ADDRESS, 0, ssl_context=context, reuse_address=True)
            await site.start()
            self._node_of_port[self._runner.addresses[-1][1]] = node
        return {node: port for port, node in self._node_of_port.items()}

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _container_logs(self, request: web.Request) -> web.StreamResponse:
        if not self._authorised(request):
            return web.Response(status=401, text="Unauthorized: present the kubelet token or a client certificate\n")
        try:
            options = log_options(request.query, datetime.now(UTC))
        except ValueError as error:
            return web.Response(status=400, text=f"{error}\n")
        assert request.transport is not None
        node = self._node_of_port[request.transport.get_extra_info("sockname")[1]]
        namespace, pod, name = (request.match_info[key] for key in ("namespace", "pod", "container"))
        container = self._find(node, namespace, pod, name)
        if container is None:
            return web.Response(status=404, text=f"container {name!r} of pod {namespace}/{pod} is not on node {node}\n")
        previous = request.query.get("previous") == "true"
        log = container.previous_log if previous else container.log
        if log is None:
            return web.Response(status=400, text=_why_no_log(container, pod, previous=previous) + "\n")
        return await _stream(request, log, options)

    def _authorised(self, request: web.Request) -> bool:
        assert request.transport is not None
        if request.transport.get_extra_info("peercert"):  # OpenSSL has verified it
            return True
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        return (
            bool(self._token)
            and scheme.lower() == "bearer"
            and hmac.compare_digest(token.strip().encode(), self._token)
        )


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _stream(request: web.Request, log: ContainerLog, options: LogOptions) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
    await response.prepare(request)
    with suppress(ConnectionResetError):  # the reader left
        async for chunk in log.read(options):
            await response.write(chunk)
        await response.write_eof()
    return response


def _why_no_log(container: Container, pod: str, *, previous: bool) -> str:
    if previous:
        return f"previous terminated container {container.name!r} in pod {pod!r} not found"
    state = container.record.state
    reason = state.reason if isinstance(state, Waiting) else "ContainerCreating"
    return f"container {container.name!r} in pod {pod!r} is waiting to start: {reason}"


def log_options(query: Mapping[str, str], now: datetime) -> LogOptions:
    """Read the query as the kubelet does; raises ValueError that names the parameter."""

    def number(name: str, least: int) -> int | None:
        text = query.get(name, "")
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text) >= least):
            raise ValueError(f"{name}: {text!r} must be a number of at least {least}")
        return int(text)

    since: datetime | None = None
    seconds = number("sinceSeconds", 1)
    if seconds is not None:
        since = now - timedelta(seconds=min(seconds, 10 * 365 * 86400))
    if text := query.get("sinceTime", ""):
        if seconds is not None:
            raise ValueError("sinceTime and sinceSeconds must not be given together")
        try:
            since = parse_time(text)
        except ValueError:
            raise ValueError(f"sinceTime: {text!r} must be an RFC3339 time") from None
    return LogOptions(
        follow=query.get("follow") == "true",
        timestamps=query.get("timestamps") == "true",
        since=since,
        tail_lines=number("tailLines", 0),
        limit_bytes=number("limitBytes", 1),
    )


def _server_context(nodes: Sequence[str]) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nvcre-local-kubelet")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=CERTIFICATE_DAYS))
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.IPAddress(ip_address(POD_ADDRESS)), *(x509.DNSName(node) for node in nodes)]
            ),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # The ssl module reads certificates from files only; the directory is private and gone at once.
    with tempfile.TemporaryDirectory(prefix="nvcre-kubelet-") as directory:
        file = Path(directory) / "kubelet.pem"
        file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        context.load_cert_chain(file)
    return context
