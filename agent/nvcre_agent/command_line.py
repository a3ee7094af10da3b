"""What the agent's commands have in common: the flag of the operator's Xid catalogue, and text a terminal may show."""

from argparse import ArgumentParser
from pathlib import Path

from nvcre_protos.flags import Flags

from nvcre_agent.xid import catalogue


def add_xid_catalogue(flags: Flags) -> None:
    flags.add("xid-catalogue", "YAML file whose entries override those of the Xid catalogue, by number", metavar="FILE")


def use_xid_catalogue(parser: ArgumentParser, file: str | None) -> None:
    """A file that cannot be used ends the process with code 2."""
    try:
        catalogue.override(Path(file) if file else None)
    except catalogue.CatalogueError as error:
        parser.error(f"--xid-catalogue {error}")


def printable(text: str) -> str:
    """No control character of a log reaches the terminal."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)
