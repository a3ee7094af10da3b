"""Entry point of nvcre-coordinator: flags, logging, signals, exit codes (0 on SIGTERM, 2 on usage errors, else 1)."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from nvcre_kube.client import KubeClient
from nvcre_kube.credentials import ConfigError
from nvcre_protos.addresses import ListenError
from nvcre_protos.logfmt import log_to_stderr

from nvcre_coordinator.config import Config, parse
from nvcre_coordinator.fleet.certificates import CertificateError
from nvcre_coordinator.process import Coordinator

logger = logging.getLogger("nvcre_coordinator")


def main(arguments: list[str] | None = None) -> None:
    config = parse(sys.argv[1:] if arguments is None else arguments)
    log_to_stderr(config.log_level)
    sys.exit(asyncio.run(_serve(config)))


async def _serve(config: Config) -> int:
    serving = asyncio.current_task()
    assert serving is not None
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        serving.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await _run(config)
    except asyncio.CancelledError:
        if not stopped:
            raise
        logger.info("stopped on signal")
        return 0
    except (ConfigError, ListenError, CertificateError) as error:
        logger.error("cannot start: %s", error)  # noqa: TRY400 (a sentence for a person, not a traceback)
        return 1
    return 0


async def _run(config: Config) -> None:
    client = await _client(config)
    async with client:
        try:
            await Coordinator(client, config).run()
        except* (ListenError, CertificateError) as errors:
            raise _first(errors) from errors


async def _client(config: Config) -> KubeClient:
    if config.kubeconfig:
        return await KubeClient.from_kubeconfig(config.kubeconfig)
    try:
        return await KubeClient.in_cluster()
    except ConfigError as error:
        raise ConfigError(f"{error.args[0].rstrip('.')}; outside of one name a --kubeconfig") from None


def _first(errors: BaseExceptionGroup) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


if __name__ == "__main__":
    main()
