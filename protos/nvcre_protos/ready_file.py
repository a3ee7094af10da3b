"""The file by which a process tells its parent where it serves (`--ready-file`, docs/architecture.md)."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_ready_file(path: Path, content: Mapping[str, Any]) -> None:
    """All or nothing: a parent that sees the file can read it."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(content), "utf-8")
    unfinished.replace(path)


def read_ready_file(path: Path) -> dict[str, Any] | None:
    """None as long as the process does not serve."""
    try:
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    return content
