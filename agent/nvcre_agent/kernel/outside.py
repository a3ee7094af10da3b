"""What stands before every line of a file and belongs to no tool that envelope.py knows: `[SOL] `, `0: `, `- `, a host.

Learned from the first lines: where none of them is known as it is, most have the same shape before the time that printk
prints, or before the tag `kernel`, and that shape has no quotation mark. A program that prints a kernel log line by
line is believed as elsewhere; one that quotes a line now and then has no shape.
"""

import re
from collections import Counter
from collections.abc import Sequence

from nvcre_agent.kernel.envelope import Writer, unwrap

FIRST_LINES = 16
_MAX_PREFIX = 100
_KERNEL_LAYER = re.compile(r"(?=\[ {0,16}\d{1,12}\.\d{6}\] )|\b(?=kernel: )")
_TOKEN = re.compile(r"(\d+)|([^\W\d_]+)|(\s+)|.", re.DOTALL)


def learned_prefix(first_lines: Sequence[str]) -> re.Pattern[str] | None:
    """The shape of what to take off; None where the lines are known as they are or have nothing in common."""
    lines = [line for line in first_lines if line and not line.isspace()]
    if len(lines) < 2 or any(unwrap(line).writer is not Writer.NOBODY_SAYS for line in lines):
        return None
    shapes = Counter(shape for line in lines if (shape := _shape(line)))
    shape, count = max(shapes.items(), key=lambda item: item[1], default=("", 0))
    return re.compile(shape) if count >= 2 and 2 * count >= len(lines) else None


def _shape(line: str) -> str:
    found = _KERNEL_LAYER.search(line[: 2 * _MAX_PREFIX])
    prefix = line[: found.start()] if found is not None else ""
    if not 0 < len(prefix) <= _MAX_PREFIX or not {'"', "'", "`", "{"}.isdisjoint(prefix):
        return ""
    return _TOKEN.sub(_one_of_its_kind, prefix)


def _one_of_its_kind(token: re.Match[str]) -> str:
    number, word, space = token.groups()
    return r"\d+" if number else r"[^\W\d_]+" if word else r"\s+" if space else re.escape(token[0])
