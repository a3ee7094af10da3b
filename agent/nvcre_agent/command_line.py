"""What the agent's commands have in common: their list, shared flags, and text that a terminal may show."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvcre_protos.flags import Flags

from nvcre_agent import config
from nvcre_agent.checks import limits
from nvcre_agent.control_client import ask
from nvcre_agent.xid import catalogue

HELP = """\
usage: nvcre-agent [COMMAND] [flags]          (each command has its --help)

The nvcre agent of a GPU node. Without a command it runs:

  run               watch GPUs and kernel log, tell the coordinator, serve /metrics, /healthz and /state

once, without a running agent:
  scan              look at the GPUs and the kernel log of this machine once, and report
  kernel-log FILE   explain a saved kernel log (dmesg, journalctl -k, nvidia-bug-report.log.gz)
  config check FILE everything that is wrong with a configuration file

ask the agent that runs on this node (through its --control-socket, as root):
  state             what it sees: open incidents, monitors, GPUs, outbox, link, configuration
  inject            write a marked test Xid into the kernel log; it is shown and blames nobody
  set-healthy       declare an incident, a GPU or the node as dealt with
  release           let go of NVML for a GPU reset or a driver reload
  resume            take NVML again before the time is over
  reload            read the configuration again

  version           print the version

in a cluster:  kubectl exec -n nvcre-system AGENT-POD -- nvcre-agent COMMAND
"""


def add_xid_catalogue(flags: Flags) -> None:
    flags.add("xid-catalogue", "YAML file whose entries override those of the Xid catalogue, by number", metavar="FILE")


def add_limits(flags: Flags) -> None:
    flags.add("limits", "YAML file whose numbers override the limits of the checks, by check and key", metavar="FILE")


def add_control_socket(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--control-socket",
        metavar="FILE",
        help="Unix socket of the running agent; default: as its configuration says, else /var/lib/nvcre/control.sock",
    )
    parser.add_argument(
        "--config", metavar="FILE", help=f"the running agent's (default {config.DEFAULT_FILE}, where it exists)"
    )


def ask_agent(
    parser: ArgumentParser, given: Namespace, environment: Mapping[str, str], request: Mapping[str, Any]
) -> dict[str, Any]:
    """Raises NoAgentError and AgentRefusedError. A configuration that cannot be read ends the process with code 2."""
    flags = {"control-socket": given.control_socket or "", "config": given.config or ""}
    try:
        found = config.control_socket(flags, environment)
    except config.ConfigError as error:
        parser.error(f"{error}; or name the agent's --control-socket")
    return ask(Path(found.text), request, named_by=found.where)


def use_xid_catalogue(parser: ArgumentParser, file: str | None) -> None:
    """A file that cannot be used ends the process with code 2."""
    try:
        catalogue.override(Path(file) if file else None)
    except catalogue.CatalogueError as error:
        parser.error(f"--xid-catalogue {error}")


def use_limits(parser: ArgumentParser, file: str | None) -> None:
    """A file that cannot be used ends the process with code 2."""
    try:
        limits.override(Path(file) if file else None)
    except limits.LimitsError as error:
        parser.error(f"--limits {error}")


def printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def printable(text: str) -> str:
    """No control character of a log reaches the terminal."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)
