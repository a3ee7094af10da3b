"""The command `nvcre`. Options and help here; everything heavy is imported by the command that needs it."""

from __future__ import annotations

import asyncio
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

from nvcre_cli.problems import EXIT_INTERRUPTED, EXIT_NOT_TRIED, Problem

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Loading the rest takes a moment, and a Ctrl-C in it deserves no traceback: until a cluster is there, it ends us.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
local_app = typer.Typer(help="A whole cluster on this machine, simulated or with its real GPUs.", no_args_is_help=True)
app.add_typer(local_app, name="local")
profile_app = typer.Typer(help="LogProfiles: which log lines of a framework mean what.", no_args_is_help=True)
app.add_typer(profile_app, name="profile")


class Output(StrEnum):
    TEXT = "text"
    JSON = "json"


class ControlPlane(StrEnum):
    EMBEDDED = "embedded"
    REAL = "real"


ScenarioOption = Annotated[
    str | None,
    typer.Option(help="Simulate: a scenario file, or a name such as healthy or xid79-mid-run (examples/scenarios)."),
]
NodesOption = Annotated[int | None, typer.Option(help="Number of simulated nodes, instead of the scenario's.")]
KeepOption = Annotated[bool, typer.Option("--keep", help="Keep the cluster's directory with all logs; print its path.")]
OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="Text for people, or one JSON document on stdout.")
]
ControlPlaneOption = Annotated[ControlPlane, typer.Option(help="The API server behind it.")]
AttachOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Instead of --control-plane and --listen: a real control plane that runs already. FILE is what "
        "`python -m nvcre_local.control_plane up --ready-file FILE` has written. What the run makes there is removed.",
    ),
]
ListenOption = Annotated[str, typer.Option(help="HOST:PORT of the API server; port 0 takes any.")]


def _in_a_directory(file: Path | None) -> Path | None:
    """Before a run of an hour, not after it."""
    if file is not None and str(file) == "-":
        raise typer.BadParameter("stdout has the report; name a file")
    if file is not None and not file.parent.is_dir():
        raise typer.BadParameter(f"{file.parent} is not a directory")
    return file


HtmlOption = Annotated[
    Path | None,
    typer.Option(help="Write the report as a page with its drawings, too.", dir_okay=False, callback=_in_a_directory),
]
JunitOption = Annotated[
    Path | None,
    typer.Option(
        help="Write the results as JUnit XML, too, for a CI system.", dir_okay=False, callback=_in_a_directory
    ),
]


@local_app.command("run")
def local_run(  # noqa: PLR0917  (each is an option)
    manifest: Annotated[
        Path, typer.Argument(help="YAML with at least one Job, for example examples/nccl-all-reduce.yaml.")
    ],
    scenario: ScenarioOption = None,
    nodes: NodesOption = None,
    timeout: Annotated[str, typer.Option(help="Give up after this time: 30s, 5m, 1h.")] = "1h",
    keep: KeepOption = False,
    output: OutputOption = Output.TEXT,
    control_plane: ControlPlaneOption = ControlPlane.EMBEDDED,
    attach: AttachOption = None,
    listen: ListenOption = "127.0.0.1:0",
    html: HtmlOption = None,
    junit: JunitOption = None,
) -> None:
    """Run a manifest on a cluster of its own and report which node failed, and why.

    nvcre local run examples/nccl-all-reduce.yaml --scenario slow-nvlink

    Exit code 0: passed. 1: failed, or not finished in time. 2: it could not be tried (bad manifest, a workload that
    was refused, no GPU, a cluster that does not start). 130: interrupted.
    """
    from nvcre_cli.durations import parse_timeout  # noqa: PLC0415
    from nvcre_cli.manifest import read_manifest  # noqa: PLC0415

    timeout_s = parse_timeout(timeout)
    documents = read_manifest(manifest)
    from nvcre_local.api_servers import ServerKind  # noqa: PLC0415

    from nvcre_cli.local import run_manifest, show_reports  # noqa: PLC0415
    from nvcre_cli.local_cluster import plan_cluster  # noqa: PLC0415
    from nvcre_cli.terminal import Terminal  # noqa: PLC0415

    plan = plan_cluster(
        scenario=scenario,
        nodes=nodes,
        namespaces=documents.namespaces,
        listen=listen,
        keep=keep,
        needs_workload=True,
        server=ServerKind(control_plane.value),
        attach=attach,
    )
    console = Terminal(stderr=True)
    reports = asyncio.run(run_manifest(plan, documents, timeout_s=timeout_s, console=console))
    name = plan.scenario.name if plan.scenario is not None else None
    raise typer.Exit(show_reports(reports, output=output, scenario=name, html=html, junit=junit))


@local_app.command("up")
def local_up(  # noqa: PLR0917  (each is an option)
    scenario: ScenarioOption = None,
    nodes: NodesOption = None,
    keep: KeepOption = False,
    control_plane: ControlPlaneOption = ControlPlane.EMBEDDED,
    attach: AttachOption = None,
    listen: ListenOption = "127.0.0.1:0",
) -> None:
    """Keep a cluster running until Ctrl-C, for kubectl and other clients."""
    from nvcre_local.api_servers import ServerKind  # noqa: PLC0415

    from nvcre_cli.local import keep_up  # noqa: PLC0415
    from nvcre_cli.local_cluster import plan_cluster  # noqa: PLC0415
    from nvcre_cli.terminal import Terminal  # noqa: PLC0415

    plan = plan_cluster(
        scenario=scenario,
        nodes=nodes,
        namespaces=("default",),
        listen=listen,
        keep=keep,
        needs_workload=False,
        server=ServerKind(control_plane.value),
        attach=attach,
    )
    asyncio.run(keep_up(plan, console=Terminal(stderr=True)))


@app.command("report")
def report(  # noqa: PLR0917  (each is an option)
    job: Annotated[str, typer.Argument(help="Name of the Job.")],
    kubeconfig: Annotated[Path | None, typer.Option(help="Default: $KUBECONFIG, else ~/.kube/config.")] = None,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig. Default: its current one.")] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace of the Job. Default: the context's.")
    ] = None,
    output: OutputOption = Output.TEXT,
    html: HtmlOption = None,
    junit: JunitOption = None,
) -> None:
    """Report on a Job of any cluster; kubectl get nvjob -A lists them.

    nvcre report nccl-all-reduce -n gpu-team-a --html report.html

    Exit code 0: passed. 1: failed, or still running. 2: it never ran, there is no such Job, or no cluster answers.
    """
    from nvcre_cli.local import show_reports  # noqa: PLC0415
    from nvcre_cli.remote import report_on  # noqa: PLC0415

    reports = [asyncio.run(report_on(kubeconfig, namespace, job, context=context))]
    raise typer.Exit(show_reports(reports, output=output, scenario=None, html=html, junit=junit))


@app.command("parse")
def parse(
    logs: Annotated[list[Path], typer.Argument(help="Logs of nccl-tests or of a training framework; - is stdin.")],
    profile: Annotated[
        str | None, typer.Option(help="LogProfile that reads them: a built-in's name, or a file. Default: a guess.")
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Measure saved logs of nccl-tests and of training runs, as the coordinator measures those of running pods.

    Kernel logs are read by `nvcre-agent kernel-log`.

    Exit code 0: each has a complete, correct measurement at its end. 1: one has not. 2: one could not be read.
    """
    from nvcre_cli.parse import parse_logs  # noqa: PLC0415

    raise typer.Exit(parse_logs(logs, profile, as_json=output is Output.JSON))


@profile_app.command("list")
def profile_list() -> None:
    """List the built-in LogProfiles."""
    from nvcre_cli.profile_matches import list_shipped  # noqa: PLC0415

    list_shipped()


@profile_app.command("show")
def profile_show(profile: Annotated[str, typer.Argument(help="Name of a built-in LogProfile.")]) -> None:
    """Print a built-in LogProfile as YAML, to begin your own with; kubectl explain logprofile.spec has the fields."""
    from nvcre_cli.profile_matches import show_shipped  # noqa: PLC0415

    show_shipped(profile)


@profile_app.command("test")
def profile_test(
    profile: Annotated[str, typer.Argument(help="A LogProfile: a file, or the name of a built-in one.")],
    log: Annotated[Path, typer.Argument(help="A log; - is stdin.")],
) -> None:
    """Show line by line what a LogProfile matches.

    Exit code 0: something. 1: nothing. 2: the profile cannot be used; everything that is wrong with it is told.
    """
    from nvcre_cli.profile_matches import show_matches  # noqa: PLC0415

    raise typer.Exit(show_matches(profile, str(log)))


@app.command("version")
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed  # noqa: PLC0415

    typer.echo(f"nvcre {installed('nvcre')}")


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Find the bad GPU node: run a workload, watch the GPUs, name the node, the GPU and the evidence."""


def main() -> None:
    """Entry point: a Problem becomes its message and its exit code."""
    try:
        app()
    except Problem as problem:
        _end(str(problem), problem.exit_code)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("nvcre_"):
            raise
        _end(f"{missing.name} is not installed; install nvcre[local] (or nvcre[cli] for reports only)", EXIT_NOT_TRIED)
    except OSError as error:  # of our own output: a full disk behind it, a closed terminal
        _end(f"cannot write the result: {error}", EXIT_NOT_TRIED)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is left to clean up


def _end(message: str, exit_code: int) -> NoReturn:
    from nvcre_cli.terminal import complain  # noqa: PLC0415 - rich takes a while to load

    complain(message)
    sys.exit(exit_code)


if __name__ == "__main__":
    main()
