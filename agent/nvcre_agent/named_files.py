"""The rules of an operator: files that the configuration names, all read before any is used.

What may stand in them say xid/catalogue.py and checks/limits.py.
"""

from dataclasses import dataclass
from pathlib import Path

from nvcre_agent.checks import limits
from nvcre_agent.checks.limits import Limits, LimitsError
from nvcre_agent.config import ConfigError, Problem
from nvcre_agent.xid import catalogue
from nvcre_agent.xid.catalogue import Catalogue, CatalogueError


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """None: as shipped."""

    catalogue: Catalogue | None
    limits: Limits | None

    def use(self) -> None:
        catalogue.use(self.catalogue)
        limits.use(self.limits)


def read(xid_catalogue: Path | None, limits_file: Path | None) -> NamedFiles:
    """Changes nothing yet. Raises ConfigError with everything that is wrong in them."""
    rules: Catalogue | None = None
    numbers: Limits | None = None
    problems: list[Problem] = []
    if xid_catalogue is not None:
        try:
            rules = catalogue.built(xid_catalogue)
        except CatalogueError as error:
            problems += [Problem("--xid-catalogue", one) for one in error.problems]
    if limits_file is not None:
        try:
            numbers = limits.built(limits_file)
        except LimitsError as error:
            problems += [Problem("--limits", one) for one in error.problems]
    if problems:
        raise ConfigError(problems)
    return NamedFiles(rules, numbers)
