"""The command nvcre-agent: which of its commands is meant, logging, signals, exit code.

Only what `run` needs is imported here; every other command imports its own.
"""

import asyncio
import logging
import os
import signal
import sys

from nvcre_protos.logfmt import log_to_stderr

from nvcre_agent import __version__, config, named_files
from nvcre_agent.config import Config, ConfigError

COMMANDS = (
    *("run", "scan", "kernel-log", "config", "state", "inject"),
    *("set-healthy", "release", "resume", "reload", "version"),
)


def main() -> None:
    match sys.argv[1:]:
        case ["run", *arguments]:
            _run(arguments)
        case ["-h" | "--help" | "help"]:
            from nvcre_agent.command_line import HELP  # noqa: PLC0415

            sys.stdout.write(HELP)
        case ["--version" | "version"]:
            sys.stdout.write(f"nvcre-agent {__version__}\n")
        case [command, *arguments] if not command.startswith("-"):
            sys.exit(_once(command, arguments))
        case arguments:
            _run(arguments)


def _once(command: str, arguments: list[str]) -> int:
    if command != "scan":  # its NVML child's pipe may break
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it as it ends any filter
    match command:
        case "scan":
            from nvcre_agent import scan_command  # noqa: PLC0415

            return scan_command.main(arguments)
        case "kernel-log":
            from nvcre_agent import kernel_log_command  # noqa: PLC0415

            return kernel_log_command.main(arguments)
        case "config":
            from nvcre_agent import config_command  # noqa: PLC0415

            return config_command.main(arguments)
        case "inject":
            from nvcre_agent import inject_command  # noqa: PLC0415

            return inject_command.main(arguments)
        case "state" | "set-healthy" | "release" | "resume" | "reload":
            from nvcre_agent import operator_commands  # noqa: PLC0415

            return operator_commands.main(command, arguments)
        case _:
            from difflib import get_close_matches  # noqa: PLC0415 - only where somebody erred

            close = get_close_matches(command, COMMANDS, 1)
            hint = f"did you mean {close[0]}?" if close else "`nvcre-agent --help` lists them"
            sys.stderr.write(f"nvcre-agent: no command {command[:64]!r}; {hint}\n")
            return 2


_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def _run(arguments: list[str]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # one that comes before they have handlers waits for those
    configured = config.parse(arguments)
    try:
        named_files.read(configured.xid_catalogue, configured.limits).use()
    except ConfigError as error:
        sys.stderr.write(f"nvcre-agent: {error}\n")
        sys.exit(2)
    log_to_stderr(configured.log_level)
    try:
        asyncio.run(_serve(configured, arguments))
    except OSError as error:
        logging.getLogger("nvcre_agent").critical("cannot start error=%r", str(error))
        sys.exit(1)


async def _serve(configured: Config, arguments: list[str]) -> None:
    # The agent imports gRPC and protobuf; a usage error should not have to wait for that.
    from nvcre_agent.agent import Agent, TaskEndedError  # noqa: PLC0415

    flags = config.flags(arguments)
    agent = Agent(configured, reread=lambda: config.resolve(flags, os.environ))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, agent.reload)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    try:
        await agent.run(stop)
    except TaskEndedError:
        sys.exit(1)
    logging.getLogger("nvcre_agent").info("stopped")


if __name__ == "__main__":
    main()
