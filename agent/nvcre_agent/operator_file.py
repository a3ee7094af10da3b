"""A file that an operator wrote, as text and as YAML: bounded in time and memory, whatever stands under its name.

The agent reads such files in its event loop, also while it runs: a FIFO would hold it for ever, and a few lines of
YAML may stand for gigabytes. What the content means is the readers' business (config.py, xid/catalogue.py,
checks/limits.py).
"""

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 256 * 1024
MAX_PROBLEMS = 20
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class UnusableFileError(ValueError):
    """Why the file cannot be used; the text does not name it."""


class RefusedFileError(ValueError):
    """A file of an operator that cannot be used: each problem names file, entry, key and what would be right."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems[:MAX_PROBLEMS]))
        self.problems = problems[:MAX_PROBLEMS]


def meant(name: str, known: Iterable[str]) -> str:
    """`did you mean blame?`"""
    from difflib import get_close_matches  # noqa: PLC0415 - only where somebody erred

    close = get_close_matches(name, known := list(known), 1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"


def text_of(path: Path, *, limit: int = MAX_BYTES) -> str:
    """Raises UnusableFileError."""
    try:
        with open(path, "rb", opener=_opened) as file:
            raw = file.read(limit + 1)
    except OSError as error:
        raise UnusableFileError(f"cannot be read: {error.strerror or error}") from None
    if len(raw) > limit:
        raise UnusableFileError(f"is larger than {limit} bytes; is it the agent's?")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnusableFileError(f"cannot be read: {error}") from None


def _opened(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # else a FIFO without a writer blocks
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnusableFileError("is no regular file")
    return descriptor


def node_of(text: str) -> yaml.Node | None:
    """The tree of the document; None for an empty one. Raises UnusableFileError."""
    try:
        for event in yaml.parse(text, Loader=LOADER):
            if isinstance(event, yaml.AliasEvent):
                assert event.start_mark is not None
                line = event.start_mark.line + 1
                raise UnusableFileError(f"has an alias (*{event.anchor}) in line {line}; write it out")
        root: yaml.Node | None = yaml.compose(text, Loader=LOADER)
    except (yaml.YAMLError, RecursionError) as error:
        raise UnusableFileError(f"is not YAML: {' '.join(str(error).split())}") from None
    return root


def yaml_of(text: str) -> Any:
    """Raises UnusableFileError."""
    _refuse_repeated_keys(node_of(text))
    try:
        return yaml.load(text, Loader=LOADER)  # noqa: S506 - a safe loader
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:  # a day 99, a number of 5,000 digits
        raise UnusableFileError(f"is not YAML: {' '.join(str(error).split())}") from None


def _refuse_repeated_keys(root: yaml.Node | None) -> None:
    """YAML forbids them and its reader takes the last one, so that the other would be lost without a word."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                waiting.append(value)
                if not isinstance(key, yaml.ScalarNode):
                    continue
                if key.value in seen:
                    raise UnusableFileError(
                        f"has {key.value[:64]} twice, again in line {key.start_mark.line + 1}; keep one"
                    )
                seen.add(key.value)
