"""`nvcre local run` and `nvcre local up`: a cluster for one manifest, or for as long as a person wants it.

Everything but the result goes to stderr. Ctrl-C at any moment takes the cluster down and leaves nothing behind; a
second one does not wait for anybody.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from nvcre_kube.client import CONNECTION_ERRORS, ApiError, KubeClient
from nvcre_local.api_servers import CannotAttach
from nvcre_local.cluster import ClusterBroken, ClusterPlan, LocalCluster
from nvcre_local.cluster_objects import NotInstalled
from nvcre_local.control_plane.cache import NotBuilt
from nvcre_local.processes import ChildDied, NotReady
from nvcre_protos.logfmt import LogfmtFormatter
from rich.console import Console

from nvcre_cli.follow import admit, apply, follow
from nvcre_cli.manifest import Manifest
from nvcre_cli.problems import EXIT_INTERRUPTED, Interrupted, Problem
from nvcre_cli.progress import progress_for
from nvcre_cli.render.documents import as_document, exit_code
from nvcre_cli.render.text import print_report
from nvcre_cli.report import JobReport
from nvcre_cli.terminal import Terminal, write_result

T = TypeVar("T")

WIDTH_OF_A_FILE = 140
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def run_manifest(plan: ClusterPlan, manifest: Manifest, *, timeout_s: float, console: Console) -> list[JobReport]:
    """The whole life: cluster up, manifest applied, Jobs followed, cluster down."""

    async def work(cluster: LocalCluster) -> list[JobReport]:
        with progress_for(console) as progress:
            await apply(cluster.client, manifest)
            for job in manifest.jobs:
                progress.step(f"{job.title} applied")
            return await follow(cluster.client, manifest.jobs, progress, timeout_s=timeout_s)

    return await _in_cluster(plan, console, work, first=partial(admit, manifest=manifest))


async def keep_up(plan: ClusterPlan, *, console: Console) -> None:
    """Until somebody ends it."""

    async def work(cluster: LocalCluster) -> None:
        if shutil.which("kubectl") is None:
            console.print("kubectl is not on the PATH; the kubeconfig below serves any client", highlight=False)
        console.print("the cluster is up; Ctrl-C ends it. In another terminal:", highlight=False)
        for line in (
            f"kubectl --kubeconfig {cluster.kubeconfig} get jobs.nvcre.nvidia.com,nodehealths",
            f"kubectl --kubeconfig {cluster.kubeconfig} apply -f examples/nccl-all-reduce.yaml",
            f"nvcre report nccl-all-reduce --kubeconfig {cluster.kubeconfig}",
        ):
            console.print(f"  {line}", highlight=False, markup=False, emoji=False, soft_wrap=True)
        await asyncio.Event().wait()

    await _in_cluster(plan, console, work)


async def _in_cluster(
    plan: ClusterPlan,
    console: Console,
    work: Callable[[LocalCluster], Awaitable[T]],
    first: Callable[[KubeClient], Awaitable[None]] | None = None,
) -> T:
    def say(text: str) -> None:
        with contextlib.suppress(OSError):  # a terminal that was closed hears nothing, and that stops nothing
            console.print(text, style="dim", highlight=False, markup=False, emoji=False, soft_wrap=True)

    task = asyncio.current_task()
    assert task is not None
    cluster: LocalCluster | None = None
    interrupted = False

    def on_signal() -> None:
        nonlocal interrupted
        if interrupted:
            if cluster is not None:
                cluster.abandon()
            os._exit(EXIT_INTERRUPTED)
        interrupted = True
        task.cancel()
        say("ending: taking the cluster down (again to do it at once)")

    loop = asyncio.get_running_loop()
    for number in ENDING_SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        cluster = LocalCluster(plan, say, first)  # after the handlers: it makes a directory that must not stay
        _log_to(cluster)
        async with cluster as running:

            async def working() -> T:
                return await work(running)

            return await running.supervise(working())
    except asyncio.CancelledError:
        if interrupted:
            raise Interrupted("interrupted") from None
        raise
    except (CannotAttach, ChildDied, NotReady, ClusterBroken, NotBuilt, NotInstalled) as broken:
        raise Problem(str(broken)) from broken
    except (ApiError, *CONNECTION_ERRORS) as error:
        raise Problem(f"the cluster's API server: {str(error) or type(error).__name__}") from error
    except OSError as error:  # a full disk, no right to write
        where = cluster.directory if cluster is not None else tempfile.gettempdir()
        raise Problem(f"the cluster's directory {where}: {error}; TMPDIR says where it is made") from error


def _log_to(cluster: LocalCluster) -> None:
    """Our own log lies with the others, so that the terminal shows only what a person wants to know."""
    handler = logging.FileHandler(cluster.log_directory / "supervisor.log")
    handler.setFormatter(LogfmtFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def show_reports(
    reports: list[JobReport], *, output: str, scenario: str | None, html: Path | None = None, junit: Path | None = None
) -> int:
    """Prints on stdout, and writes the files that were asked for; gives the exit code."""
    if output == "json":
        write_result(as_document(reports, scenario=scenario) + "\n")
    else:
        console = Terminal()
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console = Terminal(width=WIDTH_OF_A_FILE)
        for report in reports:
            print_report(console, report)
    if html is not None:
        from nvcre_cli.render.html import as_page  # noqa: PLC0415 - few ask for it

        _write(html, "--html", as_page(reports, scenario=scenario))
    if junit is not None:
        from nvcre_cli.render.junit import as_junit  # noqa: PLC0415 - as above

        _write(junit, "--junit", as_junit(reports))
    return exit_code(reports)


def _write(path: Path, option: str, text: str) -> None:
    """Whole or not at all: what reads the file may be waiting for it."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(text, "utf-8")
        part.replace(path)
    except OSError as error:
        raise Problem(f"{option} {path}: {error.strerror or error}") from error
