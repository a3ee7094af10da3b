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

from nvcre_protos.logfmt import log_to_stderr

from nvcre_local.apiserver.authentication import TokenFileError, read_token_file
from nvcre_local.apiserver.server import ApiServer, Settings, UsageError, parse_listen, read_definitions

log = logging.getLogger("nvcre_local.apiserver")


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m nvcre_local.apiserver",
        description="A small Kubernetes API server in memory: what nvcre's processes and kubectl use, without etcd. "
        "State is gone when it ends. Each flag can also be given as NVCRE_<FLAG> in the environment.",
    )
    found.add_argument(
        "--listen",
        default=os.environ.get("NVCRE_LISTEN", "127.0.0.1:0"),
        metavar="HOST:PORT",
        help="loopback address to serve on, port 0 for any free one (default %(default)s)",
    )
    found.add_argument(
        "--tls-listen",
        default=os.environ.get("NVCRE_TLS_LISTEN", "127.0.0.1:0"),
        metavar="HOST:PORT",
        help="the same over TLS, for kubectl: it sends no token over http (default %(default)s)",
    )
    found.add_argument(
        "--token-file",
        default=os.environ.get("NVCRE_TOKEN_FILE"),
        metavar="F",
        help='who may ask: lines of token,user,uid,"group,group"; everybody else gets 401',
    )
    found.add_argument(
        "--crd-dir",
        action="append",
        metavar="D",
        default=[part for part in os.environ.get("NVCRE_CRD_DIR", "").split(os.pathsep) if part],
        help="directory of CustomResourceDefinitions (*.yaml) to serve from the start; repeatable",
    )
    found.add_argument(
        "--kubelet-token-file",
        default=os.environ.get("NVCRE_KUBELET_TOKEN_FILE"),
        metavar="F",
        help="bearer token presented to kubelets when reading logs of pods",
    )
    found.add_argument(
        "--ready-file",
        default=os.environ.get("NVCRE_READY_FILE"),
        metavar="F",
        help='written once the server serves: {"url": "http://...", "tls_url": "https://...", "ca": "PEM"}',
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
