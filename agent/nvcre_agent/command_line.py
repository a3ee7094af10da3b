"""What the agent's commands have in common: their list, shared flags, and text that a terminal may show."""

from argparse import ArgumentParser
from pathlib import Path

from nvcre_protos.flags import Flags

from nvcre_agent.checks import limits
from nvcre_agent.control_client import DEFAULT_SOCKET
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

in a cluster:  kubectl exec -n nvcre-system AGENT-POD -- nvcre-agent COMMAND
"""


def add_xid_catalogue(flags: Flags) -> None:
    flags.add("xid-catalogue", "YAML file whose entries override those of the Xid catalogue, by number", metavar="FILE")


def add_limits(flags: Flags) -> None:
    flags.add("limits", "YAML file whose numbers override the limits of the checks, by check and key", metavar="FILE")


def add_control_socket(flags: Flags) -> None:
    flags.add("control-socket", "Unix socket of the running agent", DEFAULT_SOCKET, "FILE")


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


def printable(text: str) -> str:
    """No control character of a log reaches the terminal."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)
