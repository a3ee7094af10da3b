"""The commands that ask the running agent: state, set-healthy, release, resume, reload.

Flags, the question through the control socket, what is printed and the exit code. What happens is operations.py, in the
agent.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nvcre_agent import state_table
from nvcre_agent.command_line import add_control_socket, ask_agent, printable, printable_lines
from nvcre_agent.control_client import AgentRefusedError, NoAgentError

DONE, REFUSED, NO_AGENT = 0, 1, 2

_EXITS = """\
exit codes:
  0  done
  1  the agent refused, and says why
  2  usage, or no agent answers
"""
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def main(command: str, arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Ask, print, and answer the exit code. A usage error ends the process with code 2."""
    match command:
        case "state":
            return _state(arguments, environment)
        case "set-healthy":
            return _set_healthy(arguments, environment)
        case "release":
            return _release(arguments, environment)
        case "resume":
            return _resume(arguments, environment)
        case _:
            return _reload(arguments, environment)


def _state(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    parser = _parser(
        "state",
        "Shows what the running agent sees: open incidents, monitors, GPUs, outbox, link to the coordinator,\n"
        "configuration. With -o json the whole document, the same as http://NODE:9465/state.",
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")

    def show(answer: Mapping[str, Any]) -> None:
        if given.output == "json":
            print(json.dumps(answer["state"], indent=1))
        else:
            print("\n".join(map(printable, state_table.lines(answer["state"]))))

    given = _given(parser, arguments)
    return _ask(parser, given, environment, {"do": "state"}, show)


def _set_healthy(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    parser = _parser(
        "set-healthy",
        "Tells the agent that incidents were dealt with. Each gets a recovery event that says by whom, and the\n"
        "coordinator closes it. What NVML still finds wrong opens again by itself.",
        'nvcre-agent set-healthy --gpu 0 --reason "board replaced"',
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--incident", metavar="ID", help="one incident; `nvcre-agent state` lists them")
    which.add_argument("--gpu", metavar="GPU", help="all incidents of a GPU: its index, UUID or PCI address")
    which.add_argument("--node", action="store_true", help="all open incidents of this node")
    parser.add_argument("--by", metavar="NAME", default=_who(environment), help="who says so (default: %(default)s)")
    parser.add_argument("--reason", metavar="TEXT", default="", help="what was done, for whoever reads the event")
    given = _given(parser, arguments)
    request: dict[str, Any] = {"do": "set-healthy", "by": given.by, "reason": given.reason}
    if given.incident is not None:  # an empty one, of a shell variable that is not set, is not the whole node
        request["incident"] = given.incident
    elif given.gpu is not None:
        request["gpu"] = given.gpu
    else:
        request["node"] = True
    return _ask(parser, given, environment, request, _print_closed)


def _release(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    parser = _parser(
        "release",
        "Asks the agent to let go of NVML, so that a GPU can be reset or the driver reloaded. Meanwhile the node is\n"
        "Blind, not healthy; the kernel log is still read. The agent takes NVML again by itself when the time is over.",
        "nvcre-agent release --for 10m && nvidia-smi --gpu-reset -i 0; nvcre-agent resume",
    )
    parser.add_argument(
        "--for", dest="duration", metavar="TIME", default="10m", help="30s, 10m or 1h, at most 24h (default: 10m)"
    )
    given = _given(parser, arguments)
    for_s = _seconds(parser, given.duration)
    duration = f"{given.duration}s" if given.duration.isdecimal() else given.duration
    free = f"NVML is free for {duration}; `nvcre-agent resume` takes it again earlier"
    held = "a call that has not come back still holds NVML; it is free as soon as that ends: `nvcre-agent state`"

    def show(answer: Mapping[str, Any]) -> None:
        print(free if answer["released"] else held)

    return _ask(parser, given, environment, {"do": "release", "for_s": for_s}, show)


def _resume(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    parser = _parser("resume", "Ends a release: the agent takes NVML again.")
    given = _given(parser, arguments)

    def show(answer: Mapping[str, Any]) -> None:
        taken = "the agent takes NVML again; `nvcre-agent state` shows when it sees"
        print(taken if answer["resumed"] else "NVML was not released; `nvcre-agent state` shows what the agent sees")

    return _ask(parser, given, environment, {"do": "resume"}, show)


def _reload(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    parser = _parser(
        "reload",
        "Asks the agent to read its configuration file and the files named there again, as SIGHUP does. A wrong one\n"
        "is refused as a whole, and the old one stays in force. (The agent's process is not PID 1 under hostPID.)",
    )
    given = _given(parser, arguments)
    return _ask(parser, given, environment, {"do": "reload"}, _print_reloaded)


# --- what they have in common


def _parser(name: str, description: str, example: str = "") -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"nvcre-agent {name}",
        description=description,
        epilog=f"{_EXITS}\nexample:\n  {example}\n" if example else _EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _given(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    add_control_socket(parser)
    return parser.parse_args(arguments)


def _ask(
    parser: argparse.ArgumentParser,
    given: argparse.Namespace,
    environment: Mapping[str, str],
    request: Mapping[str, Any],
    show: Callable[[dict[str, Any]], None],
) -> int:
    command = f"nvcre-agent {request['do']}"
    try:
        answer = ask_agent(parser, given, environment, request)
    except NoAgentError as error:
        print(f"{command}: {printable(str(error))}", file=sys.stderr)
        return NO_AGENT
    except AgentRefusedError as error:
        print(f"{command}: refused: {printable_lines(str(error))}", file=sys.stderr)
        return REFUSED
    show(answer)
    return DONE


def _print_closed(answer: dict[str, Any]) -> None:
    for one in answer["closed"]:
        print(printable(f"closed {one['id']}, {one['what']}: {one['message']}"))
    if not answer["closed"]:
        print("nothing was open there")


def _print_reloaded(answer: dict[str, Any]) -> None:
    print(f"reloaded; changed: {', '.join(answer['changed']) or 'nothing'}")
    for name in answer["needsRestart"]:
        print(f"needs a restart: {name}")


def _who(environment: Mapping[str, str]) -> str:
    return environment.get("SUDO_USER") or environment.get("LOGNAME") or f"uid {os.getuid()}"


def _seconds(parser: argparse.ArgumentParser, text: str) -> float:
    found = re.fullmatch(r"(\d{1,6})([smh]?)", text)
    if found is None or not int(found[1]):
        parser.error(f"--for {text!r} must be a time such as 30s, 10m or 1h")
    return float(int(found[1]) * _UNITS[found[2]])
