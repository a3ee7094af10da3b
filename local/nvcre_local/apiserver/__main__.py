"""`python -m nvcre_local.apiserver`: flags and environment to a running server; SIGTERM ends it with 0."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from nvcre_protos.flags import Flags
from nvcre_protos.logfmt import log_to_stderr

from nvcre_local.apiserver.authentication import TokenFileError, read_token_file
from nvcre_local.apiserver.server import ApiServer, Settings, UsageError, parse_listen, read_definitions

log = logging.getLogger("nvcre_local.apiserver")


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m nvcre_local.apiserver",
        description="A small Kubernetes API server in memory: what nvcre's processes and kubectl use, without etcd. "
        "State is gone when it ends. Each flag may also be given in the environment: --token-file is NVCRE_TOKEN_FILE.",
    )
    flags = Flags(found, os.environ)
    flags.add("listen", "loopback address to serve on, port 0 for any free one", "127.0.0.1:0", "HOST:PORT")
    flags.add("tls-listen", "the same over TLS, for kubectl: it sends no token over http", "127.0.0.1:0", "HOST:PORT")
    flags.add("token-file", 'who may ask: lines of token,user,uid,"group,group"; everybody else gets 401', metavar="F")
    flags.add_repeatable("crd-dir", "directory of CustomResourceDefinitions (*.yaml) to serve from the start", "D")
    flags.add("kubelet-token-file", "bearer token presented to kubelets when reading logs of pods", metavar="F")
    flags.add(
        "ready-file",
        'written once the server serves: {"url": "http://...", "tls_url": "https://...", "ca": "PEM"}',
        metavar="F",
    )
    return found


def settings(arguments: argparse.Namespace) -> Settings:
    """Raises UsageError, TokenFileError."""
    listen, tls_listen = parse_listen("--listen", arguments.listen), parse_listen("--tls-listen", arguments.tls_listen)
    if not arguments.token_file:
        raise UsageError("--token-file is required: an API without tokens would be a shell for every local user")
    kubelet_token = ""
    if arguments.kubelet_token_file:
        try:
            kubelet_token = Path(arguments.kubelet_token_file).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--kubelet-token-file {arguments.kubelet_token_file}: {error}") from error
    return Settings(
        listen=listen,
        tls_listen=tls_listen,
        users=read_token_file(Path(arguments.token_file)),
        definitions=read_definitions(Path(directory) for directory in arguments.crd_dir),
        kubelet_token=kubelet_token,
        ready_file=Path(arguments.ready_file) if arguments.ready_file else None,
    )


async def run(chosen: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await ApiServer(chosen).serve(stop)


def main(argv: Sequence[str] | None = None) -> int:
    log_to_stderr("info")
    try:
        asyncio.run(run(settings(parser().parse_args(argv))))
    except (UsageError, TokenFileError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
