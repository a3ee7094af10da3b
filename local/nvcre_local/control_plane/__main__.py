"""`python -m nvcre_local.control_plane`: build what is missing, or run a control plane for people."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nvcre_protos.ready_file import write_ready_file

from nvcre_local.cluster_objects import NotInstalled
from nvcre_local.control_plane.building import BuildFailed, GoMissing, build
from nvcre_local.control_plane.cache import Cache, NotBuilt
from nvcre_local.control_plane.go_modules import StrangeModule
from nvcre_local.control_plane.projects import UnknownVersion, read
from nvcre_local.processes import ChildDied, Children, NotReady

if TYPE_CHECKING:
    from nvcre_local.control_plane.plane import ControlPlane, Served

DESCRIPTION = """\
A real Kubernetes control plane as plain processes on loopback: etcd, kube-apiserver, kube-controller-manager,
kube-scheduler, JobSet, Kubeflow Trainer, and on wish Kueue and kwok.
"""
EPILOG = """\
The programs are built once from pinned Go modules into $XDG_CACHE_HOME/nvcre/control-plane (about ten minutes of a
small machine, a gigabyte); those in $KUBEBUILDER_ASSETS are used first. Exit code 2: something has to be installed.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nvcre_local.control_plane",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build what is missing; does nothing when all is there")
    up = commands.add_parser(
        "up",
        help="run a control plane until Ctrl-C and print its kubeconfig",
        epilog="SIGUSR1 takes the API server away, SIGUSR2 brings it back: for tests of who depends on it.",
    )
    up.add_argument("--kubernetes", metavar="VERSION", help="one of control-plane/versions.yaml (default: the first)")
    up.add_argument("--kueue", action="store_true", help="with Kueue")
    up.add_argument(
        "--kwok", action="store_true", help="with kwok, which looks after nodes annotated kwok.x-k8s.io/node"
    )
    up.add_argument(
        "--ready-file",
        metavar="FILE",
        type=Path,
        help="written as JSON once it serves: url, kubeconfig (admin's), kubelets (a kubeconfig), authority (PEM file)",
    )
    return parser


def _build() -> int:
    began = time.monotonic()
    projects = [project for versions in read().values() for project in versions]

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {text}", file=sys.stderr, flush=True)

    build(projects, Cache.of(), say)
    return 0


async def _up(arguments: argparse.Namespace) -> int:
    # Imported here: a build that finds all in place is over before an HTTP client is loaded.
    from nvcre_local.control_plane.plane import ControlPlane, Plan  # noqa: PLC0415

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with tempfile.TemporaryDirectory(prefix="nvcre-control-plane-") as name:
        directory = Path(name)
        children = Children(directory)
        plan = Plan(kueue=arguments.kueue, kwok=arguments.kwok, kubernetes=arguments.kubernetes)
        plane = ControlPlane(plan, directory, children, lambda text: print(text, file=sys.stderr, flush=True))
        serving = asyncio.ensure_future(_serve(plane, arguments.ready_file))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((serving, stopping, children.died), return_when=asyncio.FIRST_COMPLETED)
            if children.died.done():
                raise children.died.result()
            if serving.done():
                serving.result()
        finally:
            for task in (serving, stopping):
                task.cancel()
            await asyncio.gather(serving, stopping, return_exceptions=True)
            await plane.stop()
    return 0


async def _serve(plane: ControlPlane, ready_file: Path | None) -> None:
    """Until cancelled. Raises ChildDied, NotReady, ApiError."""
    served = await plane.start()
    orders: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
    for number, order in ((signal.SIGUSR1, plane.take_api_server_away), (signal.SIGUSR2, plane.return_api_server)):
        asyncio.get_running_loop().add_signal_handler(number, orders.put_nowait, order)
    print(served.kubeconfig, flush=True)
    if ready_file is not None:
        _tell_ready(ready_file, served)
    while True:
        await (await orders.get())()


def _tell_ready(file: Path, served: Served) -> None:
    content = {
        "url": served.url,
        "kubeconfig": str(served.kubeconfig),
        "kubelets": str(served.kubelets),
        "authority": str(served.authority),
    }
    write_ready_file(file, content)


def main(words: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(words)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    try:
        return _build() if arguments.command == "build" else asyncio.run(_up(arguments))
    except (GoMissing, NotBuilt, NotInstalled, UnknownVersion) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (BuildFailed, StrangeModule, ChildDied, NotReady) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
