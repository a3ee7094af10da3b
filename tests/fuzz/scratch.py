"""Where the targets of this process have their files, until it ends."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory


@cache
def _scratch() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="nvcre-fuzz-", ignore_cleanup_errors=True)


def scratch(name: str) -> Path:
    return Path(_scratch().name) / name
