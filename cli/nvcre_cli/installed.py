"""Is everything installed that a local cluster runs?  `nvcre[cli]` is enough for reports, not for a cluster.

Asks the metadata of the installed package, so that the extras of pyproject.toml stay the only list.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution, requires

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def missing_packages() -> list[str]:
    """Those of every extra (a local cluster runs the agent, the coordinator and the command) that are not there."""
    names = {match[0] for line in requires("nvcre") or () if "extra ==" in line and (match := _NAME.match(line))}
    return sorted(name for name in names if not _is_there(name))


def _is_there(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
