"""/metrics, /healthz and /readyz over HTTP. Says what the process is; decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web
from nvcre_protos.addresses import ListenError, format_address
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest


class Endpoints:
    """Two listeners, because metrics are for the monitoring network and health for the kubelet."""

    def __init__(self, registry: CollectorRegistry, not_ready: Callable[[], str]) -> None:
        """`not_ready` gives the reason why the process is not ready, or an empty string."""
        self._registry = registry
        self._not_ready = not_ready
        self._runners: list[web.AppRunner] = []

    async def start(self, metrics: tuple[str, int], health: tuple[str, int]) -> tuple[str, str]:
        """The bound addresses.  Raises ListenError."""
        metrics_app = web.Application()
        metrics_app.router.add_get("/metrics", self._metrics)
        health_app = web.Application()
        health_app.router.add_get("/healthz", self._healthz)
        health_app.router.add_get("/readyz", self._readyz)
        return (
            await self._listen(metrics_app, metrics, "--metrics-address"),
            await self._listen(health_app, health, "--health-address"),
        )

    async def stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()

    async def _listen(self, app: web.Application, address: tuple[str, int], flag: str) -> str:
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        self._runners.append(runner)
        host, port = address
        try:
            site = web.TCPSite(runner, host, port)
            await site.start()
        except OSError as error:
            raise ListenError(
                f"{flag} {format_address(host, port)}: cannot listen there ({error.strerror}); choose another port"
            ) from error
        bound = runner.addresses[0][1] if runner.addresses else port
        return format_address(host, bound)

    async def _metrics(self, request: web.Request) -> web.Response:
        # A thousand Jobs are 47,000 lines: in the event loop, every scrape would hold up all else for 0.4 s of CPU.
        body = await asyncio.to_thread(generate_latest, self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        reason = self._not_ready()
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)
