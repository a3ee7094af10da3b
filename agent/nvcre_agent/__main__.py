"""The command nvcre-agent: which of its commands is meant, flags, logging, signals, exit code."""

import asyncio
import logging
import signal
import sys

from nvcre_protos.logfmt import log_to_stderr

from nvcre_agent.config import Config, parse
from nvcre_agent.xid import catalogue


def main() -> None:
    match sys.argv[1:]:
        case ["kernel-log", *arguments]:
            from nvcre_agent import kernel_log_command  # noqa: PLC0415 - the running agent does not need it

            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it as it ends any filter
            sys.exit(kernel_log_command.main(arguments))
        case ["scan", *arguments]:
            from nvcre_agent import scan_command  # noqa: PLC0415 - as above

            sys.exit(scan_command.main(arguments))
        case ["run", *arguments] | [*arguments]:
            _run(arguments)


def _run(arguments: list[str]) -> None:
    config = parse(arguments)
    try:
        catalogue.override(config.xid_catalogue)
    except catalogue.CatalogueError as error:
        sys.stderr.write(f"nvcre-agent: --xid-catalogue {error}\n")
        sys.exit(2)
    log_to_stderr(config.log_level)
    try:
        asyncio.run(_serve(config))
    except OSError as error:
        logging.getLogger("nvcre_agent").critical("cannot start error=%r", str(error))
        sys.exit(1)


async def _serve(config: Config) -> None:
    # The agent imports gRPC and protobuf; a usage error should not have to wait for that.
    from nvcre_agent.agent import Agent, TaskEndedError  # noqa: PLC0415

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        await Agent(config).run(stop)
    except TaskEndedError:
        sys.exit(1)
    logging.getLogger("nvcre_agent").info("stopped")


if __name__ == "__main__":
    main()
